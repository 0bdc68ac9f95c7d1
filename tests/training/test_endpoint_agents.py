"""Agents behind an OpenAI-compatible endpoint, and agents on backends of their own, in one run."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("openai", reason="the openai client is not installed: pip install 'genenv[api]'")

from endpoints import Answer, Server, refused, said
from equal_runs import contents, groups_of, killed, metrics
from genenv.backends.base import Opened
from genenv.backends.scripted import ScriptedSampler, ScriptedTrainer
from genenv.backends.settings import EndpointConfig, SamplingConfig
from genenv.clients.endpoint import EndpointAssistant
from genenv.clients.policy import with_endpoints
from genenv.config.run import load_config
from genenv.errors import UsageError
from genenv.rollout.driver import Sampling, roll_out
from genenv.sampling import Completion, Conversation, SampleRequest
from genenv.types import Message, StopReason
from genenv.viewer.folders import Runs
from typed import refused as refuses
from typed import succeeds

GAME = """
[run]
rounds = 2
eval_tasks = 4
eval_every = 1

[environment]
name = "guess_who"
persons = [3, 4]
turns = [3, 4]
brief = true
seats = { asker = "seeker", answerer = "helper" }

[curriculum]
base_share = 0.4
band_filter = false
novelty_threshold = 0.0

[simulator]
contexts = 3
variations = 2
max_new_tokens = 400

[agent]
rollouts = 4
max_new_tokens = 8

[agents.seeker]

[agents.helper]
train = false
address = "URL#helper-model"
endpoint = { concurrency = 3, retries = 1, timeout_s = 5.0, tools = "text" }

[policy]
backend = "scripted"
context_tokens = 4096
"""


def truth(body: dict[str, Any]) -> Answer:
    """The true answer, read from the prompt of the seat: its first line has y or n after each feature."""
    texts = [one["content"] for one in body["messages"]]
    row = texts[0].partition(" ")[0]
    asked = texts[-1].strip()[-1]
    return said((row + "n")[row.find(asked) + 1])


@pytest.fixture
def game(server: Server, tmp_path: Path) -> Path:
    server.answer = truth
    file = tmp_path / "game.toml"
    file.write_text(GAME.replace("URL", server.url), encoding="utf-8")
    return file


def assistant(server: Server, **endpoint: Any) -> EndpointAssistant:
    settings = EndpointConfig(**{"retries": 0, "timeout_s": 5.0, "tools": "text", **endpoint})
    found = EndpointAssistant(f"{server.url}#m", settings, SamplingConfig())
    server.requests.clear()
    return found


def opened(one: EndpointAssistant) -> Opened:
    """The endpoint as an agent beside a policy whose tokens are bytes."""
    here = Opened(
        samplers={"agent": ScriptedSampler(lambda text, rng: "y")}, trainers={"agent": ScriptedTrainer()}
    )
    return with_endpoints(here, {"helper": one})


@pytest.mark.long
def test_a_seat_is_played_by_the_model_behind_the_endpoint(
    game: Path, server: Server, tmp_path: Path
) -> None:
    succeeds("train", game, "--out", tmp_path / "run")
    groups = [one for one in groups_of(tmp_path / "run", 2) if one.agent == "helper"]
    traces = [trace for group in groups for trace in group.traces]
    assert traces
    assert all(trace.stop_reason is StopReason.DONE for trace in traces)
    assert all(trace.success for trace in traces)  # as it tells the truth
    for trace in traces:
        own = bytes(i for i, flag in zip(trace.token_ids, trace.sampled, strict=True) if flag and i < 256)
        assert own.decode() == "".join(trace.replies)
        assert set(trace.logprobs) == {0.0}
    sent = server.requests[-1]
    assert (sent["model"], sent["max_tokens"], "tools" in sent) == ("helper-model", 8, False)
    assert {one["temperature"] for one in server.requests} == {0.0, 1.0}  # of evaluations and of rollouts
    assert sent["messages"][0]["role"] == "user"
    last = metrics(tmp_path / "run")[-1]
    assert last["agents/helper/success_rate"] == 1.0
    assert last["agents/helper/eval_success"] == 1.0
    assert "agents/helper/steps" not in last
    saved = tmp_path / "run" / "checkpoints" / "round-0002"
    assert json.loads((saved / "helper" / "endpoint.json").read_text())["model"] == "helper-model"
    assert json.loads((saved / "seeker" / "scripted.json").read_text()) == {"count": 2}
    noted = json.loads((tmp_path / "run" / "starts.jsonl").read_text().splitlines()[0])
    assert noted["server"]["agents.helper"]["base_url"] == server.url
    run = Runs(tmp_path / "run").find("run")
    assert run.agents == ["seeker", "helper"]
    assert run.tokens_of("helper") == run.tokens_of("seeker") == ("scripted", "smollm2-135m")


@pytest.mark.long
def test_several_turns_are_sent_as_they_were_said(game: Path, server: Server, tmp_path: Path) -> None:
    succeeds("train", game, "--out", tmp_path / "run", "--set", "run.rounds=1")
    longest = max((one["messages"] for one in server.requests), key=len)
    roles = [one["role"] for one in longest]
    assert roles == ["user", "assistant"] * (len(roles) // 2) + ["user"]
    assert len(roles) >= 3
    assert all(one["content"] in ("y", "n") for one in longest if one["role"] == "assistant")


@pytest.mark.slow
def test_a_run_that_was_killed_goes_on_to_the_same_end(game: Path, server: Server, tmp_path: Path) -> None:
    succeeds("train", game, "--out", tmp_path / "whole")
    killed(game, tmp_path / "run", "genenv.runs.store.store:PoolStore.commit_round", 3)
    succeeds("train", "--resume", "--out", tmp_path / "run")
    assert contents(tmp_path / "run") == contents(tmp_path / "whole")


@pytest.mark.long
def test_an_agent_behind_an_endpoint_may_attempt_tasks_of_its_own(server: Server, tmp_path: Path) -> None:
    text = re.sub(r"seats = .*\n", "", GAME).replace("URL", server.url)
    (tmp_path / "two.toml").write_text(text, encoding="utf-8")
    server.answer = lambda _: said("a")
    reward = ("curriculum.agents_reward=regret", 'curriculum.regret_agents=["helper","seeker"]')
    words = [word for one in reward for word in ("--set", one)]
    succeeds("train", tmp_path / "two.toml", "--out", tmp_path / "run", *words)
    groups = groups_of(tmp_path / "run", 2)
    own = [one for one in groups if one.agent == "helper"]
    assert {one.task.id for one in own} == {one.task.id for one in groups if one.agent == "seeker"}
    assert {trace.replies for one in own for trace in one.traces} == {("a",)}
    last = metrics(tmp_path / "run")[-1]
    rates = [last[f"agents/{name}/success_rate"] for name in ("helper", "seeker")]
    of_all = sum(trace.success for one in own for trace in one.valid) / sum(len(one.valid) for one in own)
    assert rates[0] == of_all
    assert "curriculum/regret" in last


@pytest.mark.long
def test_a_server_that_stops_answering_ends_the_run_and_it_goes_on_later(
    game: Path, server: Server, tmp_path: Path
) -> None:
    def until(body: dict[str, Any]) -> Answer:
        return truth(body) if len(server.requests) < 30 else refused("gone", 401)

    server.answer = until
    told = refuses("train", game, "--out", tmp_path / "run", "--set", "run.rounds=6")
    assert re.search(
        rf"{server.url} answered none of \d+ requests for agents.helper: the endpoint refuses the request",
        told,
    )
    assert "committed rounds are kept, continue with --resume when it answers" in told
    server.answer = truth
    succeeds(*("train", "--resume", "--out", tmp_path / "run", "--set", "agents.helper.endpoint.retries=3"))
    assert len(metrics(tmp_path / "run")) == 7
    ghost = ("--set", "agents.ghost.endpoint.retries=3")
    assert "ghost" in refuses("train", "--resume", "--out", tmp_path / "run", *ghost)


def test_an_answer_that_fails_costs_its_episode_alone(server: Server, toy: Any) -> None:
    model = assistant(server)
    both = opened(model)
    server.answer = lambda body: said("4") if body["seed"] % 2 else refused("no", 403)

    async def sampled() -> Any:
        sampling = Sampling(temperature=0.7, max_new_tokens=20, timeout_s=60, seed=1)
        groups = await roll_out(
            toy.Environment(), both.samplers["helper"], [toy.task()], rollouts=12, sampling=sampling
        )
        assert both.check is not None
        await both.check()
        assert both.close is not None
        await both.close()
        return groups[0]

    group = asyncio.run(sampled())
    assert 0 < len(group.valid) < 12
    assert {trace.stop_reason for trace in group.traces} == {StopReason.DONE, StopReason.ERROR}
    assert {one["temperature"] for one in server.requests} == {0.7}


def test_a_conversation_that_is_too_long_for_the_server_has_failed(server: Server, toy: Any) -> None:
    both = opened(assistant(server))
    full = refused("This model's maximum context length is 8 tokens")
    server.answer = lambda body: said("4") if len(body["messages"]) == 1 else full
    sampling = Sampling(temperature=0.7, max_new_tokens=20, timeout_s=60, seed=1)

    async def sampled() -> Any:
        tasks = [toy.task(turns=2)]
        found = await roll_out(
            toy.Environment(), both.samplers["helper"], tasks, rollouts=2, sampling=sampling
        )
        assert both.close is not None
        await both.close()
        return found[0]

    assert {trace.stop_reason for trace in asyncio.run(sampled()).traces} == {StopReason.CONTEXT}


TOOL = {"type": "function", "function": {"name": "look", "parameters": {"type": "object", "properties": {}}}}


def test_tools_and_calls_are_in_the_apis_form(server: Server) -> None:
    both = opened(assistant(server, tools="native"))
    call = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": '{"at": "lamp"}'}}
    server.answer = lambda _: said(None, calls=[call])
    talk = Conversation()
    talk.tools = [TOOL]
    talk.messages = [
        Message(role="user", content="What is there?"),
        Message(role="assistant", content='<tool_call>\n{"name": "look", "arguments": {}}\n</tool_call>'),
        Message(role="tool", content="a lamp"),
    ]

    async def asked() -> Completion:
        request = SampleRequest(prompt_ids=(1,), max_tokens=30, temperature=0.5, conversation=talk)
        found = await both.samplers["helper"].sample(request)
        assert both.close is not None
        await both.close()
        return found

    found = asyncio.run(asked())
    assert found.text == '<tool_call>\n{"name": "look", "arguments": {"at": "lamp"}}\n</tool_call>'
    (sent,) = server.requests
    assert (sent["tools"], sent["temperature"], sent["max_tokens"]) == ([TOOL], 0.5, 30)
    first, answered = sent["messages"][1:]
    assert first["tool_calls"][0]["function"] == {"name": "look", "arguments": "{}"}
    assert answered == {
        "role": "tool",
        "content": "a lamp",
        "tool_call_id": first["tool_calls"][0]["id"],
    }


def test_tools_that_the_server_does_not_take_are_refused_before_a_run(server: Server) -> None:
    sampler = opened(assistant(server)).samplers["helper"]
    message = [Message(role="user", content="Look.")]
    with pytest.raises(UsageError, match=r"and m, the model of agents\.helper, takes none"):
        sampler.render(message, first=True, tools=[TOOL])
    assert sampler.render(message, first=True) == sampler.render(message, first=True, tools=())


@pytest.mark.parametrize(
    ("old", "new", "sentence"),
    [
        ("train = false\n", "", "which cannot be trained: set agents.helper.train to false"),
        ("#helper-model", "", "but an endpoint is named BASE_URL#MODEL, such as http"),
        ('address = "URL#helper-model"\n', "", "endpoint says how requests are sent, but to no model"),
        ("URL#", "ftp://x#", "agents.helper: an endpoint is named BASE_URL#MODEL, such as http"),
        ("URL#", "http://user:word@x/v1#", "holds a user name, a password or a query"),
        ("train = false", 'train = false\nmodel = "tiny"', "leave out agents.helper.model or"),
        ("train = false", 'train = false\nbackend = "local"', "leave out agents.helper.backend or"),
        ("[agents.seeker]", '[agents.seeker]\nbackend = "locl"', "unknown backend 'locl'"),
        ("rounds = 2", "rounds = 2\nstaleness = 1", "rounds in flight need all agents on one backend"),
        ("URL#", "http://127.0.0.1:9/v1#", "cannot be used as an endpoint for helper-model: the"),
        ('tools = "text"', 'tools = "text", key_variable = "NO_KEY"',
         "agents.helper.endpoint.key_variable names the environment variable NO_KEY, which is not set"),
        ("brief = true", "brief = true\nchoices = true", "cannot be restricted; choose an environment that"),
    ],
)  # fmt: skip
def test_bad_input_is_one_sentence(
    game: Path, tmp_path: Path, old: str, new: str, sentence: str, server: Server
) -> None:
    assert old in GAME
    game.write_text(GAME.replace(old, new, 1).replace("URL", server.url), encoding="utf-8")
    assert sentence in refuses("train", game, "--out", tmp_path / "run")


def test_a_key_that_the_server_refuses_is_named(game: Path, server: Server, tmp_path: Path) -> None:
    server.answer = lambda _: refused("bad key", 401)
    told = refuses("train", game, "--out", tmp_path / "run")
    assert "agents.helper: " in told
    assert "bad key" in told
    assert "the key in OPENAI_API_KEY" in told
    assert not (tmp_path / "run").exists()


@pytest.mark.long
def test_its_weights_are_nowhere_here(game: Path, server: Server, tmp_path: Path) -> None:
    succeeds("train", game, "--out", tmp_path / "run", "--set", "run.rounds=1")
    sentence = f"is a model behind an endpoint: name it as openai:{server.url}#helper-model"
    assert sentence in refuses("eval", "held-out", "--policy", f"{tmp_path / 'run'}:helper")
    assert sentence in refuses("export-agent", f"{tmp_path / 'run'}:helper", "--out", tmp_path / "out")
    game.write_text(
        GAME.replace("URL", server.url).replace(
            "[agents.seeker]", f'[agents.seeker]\ncheckpoint = "{tmp_path / "run"}:helper"'
        ),
        encoding="utf-8",
    )
    assert "is a model behind an endpoint, without weights; set agents.seeker.address" in refuses(
        "train", game, "--out", tmp_path / "next"
    )


@pytest.mark.long
def test_settings_are_written_and_read_again(game: Path, tmp_path: Path) -> None:
    succeeds("train", game, "--out", tmp_path / "run", "--set", "run.rounds=1")
    config = load_config(tmp_path / "run" / "config.toml")
    assert config.agents["helper"].endpoint.concurrency == 3
    written = (tmp_path / "run" / "config.toml").read_text(encoding="utf-8")
    assert "[agents.helper.endpoint]" in written
    assert "[agents.seeker.endpoint]" not in written
    assert config.policy_of("helper").backend == "endpoint"
    assert config.policy_of("seeker") == config.policy
    told = refuses("train", "--resume", "--out", tmp_path / "run", "--set", "agents.helper.address=http://x/v1#m",
                   "--set", "run.rounds=3")  # fmt: skip
    assert "was started with other settings: agents.helper.address" in told


# agents on different backends

MIXED = (
    *('policy.backend="local"', "policy.model=tiny", "policy.tuning=full", "policy.dtype=float32"),
    *("policy.device=cpu", "policy.threads=1", "policy.context_tokens=128", "simulator.source=variation"),
    *("environment.features=[2,3]", "agent.max_new_tokens=4", "run.rounds=2", "run.keep_checkpoints=3"),
    *("agents.seeker.warmup.steps=40", "agents.seeker.warmup.batch=32", "agents.seeker.warmup.lr=3e-3"),
    *("agents.seeker.warmup.check_every=40", "simulator.contexts=8", "agent.lr=1e-3"),
)
TWO = re.sub(r"address = .*\nendpoint = .*\n", 'backend = "scripted"\n', GAME).replace("train = false\n", "")


@pytest.mark.slow
def test_each_agent_is_trained_on_its_own_backend_and_a_killed_run_ends_alike(tmp_path: Path) -> None:
    (tmp_path / "two.toml").write_text(TWO, encoding="utf-8")
    words = [word for one in MIXED for word in ("--set", one)]
    succeeds("train", tmp_path / "two.toml", *words, "--out", tmp_path / "run")
    saved = tmp_path / "run" / "checkpoints"
    first, last = (
        (saved / f"round-{number:04d}" / "seeker" / "model.safetensors").read_bytes() for number in (0, 2)
    )
    assert first != last
    assert json.loads((saved / "round-0002" / "helper" / "scripted.json").read_text()) == {"count": 2}
    assert {one.agent for one in groups_of(tmp_path / "run", 2)} == {"seeker", "helper"}
    config = load_config(tmp_path / "run" / "config.toml")
    assert (config.policy.backend, config.policy.device) == ("local", "cpu")
    assert config.policy_of("helper").backend == "scripted"
    run = Runs(tmp_path / "run").find("run")
    assert run.tokens_of("helper") == ("scripted", "tiny")
    assert "is 'scripted': no weights" in refuses(
        "eval", "held-out", "--policy", f"{tmp_path / 'run'}:helper"
    )
    killed(tmp_path / "two.toml", tmp_path / "other", "genenv.agent.policy:Agent.learn", 4, *MIXED)
    succeeds("train", "--resume", "--out", tmp_path / "other")
    assert contents(tmp_path / "other") == contents(tmp_path / "run")


@pytest.mark.slow
def test_a_local_agent_learns_beside_a_model_behind_an_endpoint(game: Path, tmp_path: Path) -> None:
    words = [word for one in MIXED for word in ("--set", one)]
    succeeds("train", game, *words, "--out", tmp_path / "run")
    saved = tmp_path / "run" / "checkpoints"
    first, last = (
        (saved / f"round-{number:04d}" / "seeker" / "model.safetensors").read_bytes() for number in (0, 2)
    )
    assert first != last
    assert metrics(tmp_path / "run")[-1]["agents/helper/success_rate"] == 1.0


def test_several_processes_train_on_one_backend(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from genenv.algorithms.settings import OptimizerConfig
    from genenv.backends.base import Role, open_backend
    from genenv.backends.settings import PolicyConfig

    monkeypatch.setenv("TORCHELASTIC_RUN_ID", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    roles = [
        Role(name=name, optimizer=OptimizerConfig(), reference=False, backend=backend)
        for name, backend in (("a", None), ("b", "scripted"))
    ]
    with pytest.raises(
        UsageError, match="on local and scripted, but several processes train together on one"
    ):
        open_backend(PolicyConfig(), roles, None, seed=0)  # pyright: ignore[reportArgumentType]
