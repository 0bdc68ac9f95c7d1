"""Both players on a server of the Tinker protocol that runs here, through the SDK in a process of its own."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from genenv.backends.settings import PolicyConfig
from genenv.servers.tinker.serving import TinkerServer, open_base
from tinker_sdk import PYTHON, needs_tinker

Serve = Callable[..., str]
pytestmark = needs_tinker

CONFIGS = Path(__file__).parents[3] / "configs"
RUN = [
    *("--set", "policy.tuning=lora", "--set", "run.eval_tasks=8", "--set", "run.eval_every=1"),
    *("--set", "simulator.contexts=2", "--set", "simulator.variations=2", "--set", "agent.rollouts=2"),
    *("--set", "agent.warmup.steps=3", "--set", "simulator.warmup.steps=3"),
    *("--set", "agent.warmup.batch=16", "--set", "agent.warmup.check_tasks=8"),
    *("--set", "policy.backend=tinker"),
]


@pytest.mark.long
@pytest.mark.parametrize(
    ("quirks", "kl"), [((), "k3"), (("mean-cross-entropy",), "k3"), (("mean-losses",), "k3")]
)
def test_steps_are_those_of_the_local_trainer(
    serve: Serve, client: Any, quirks: tuple[str, ...], kl: str
) -> None:
    assert client("as_local", url=serve(*quirks), kl=kl) == (not quirks)


@pytest.mark.long
def test_one_player_learns_and_the_other_stays_bit_for_bit(serve: Serve, client: Any) -> None:
    client("apart", url=serve())


@pytest.mark.long
def test_a_server_that_samples_with_the_weights_before_is_found_out_when_it_publishes(
    serve: Serve, client: Any
) -> None:
    told = client("stale", url=serve())
    assert "does not sample from version 2 of the weights of tiny that it was asked to publish" in told


@pytest.mark.long
@pytest.mark.parametrize("quirk", [(), pytest.param(("no-live-load",), marks=pytest.mark.slow)])
def test_a_step_that_goes_too_far_is_made_again_with_half_the_rate(
    serve: Serve, client: Any, quirk: tuple[str, ...]
) -> None:
    client("shortened", url=serve(*quirk))


@pytest.mark.long
def test_the_reference_is_the_weights_at_the_anchor(serve: Serve, client: Any) -> None:
    client("anchored", url=serve("short-logprobs", "bound-samplers"))


@pytest.mark.long
def test_a_killed_server_gives_back_what_was_saved_and_the_next_step_is_exact(
    serve: Serve, client: Any, tmp_path: Path
) -> None:
    folder = str(tmp_path / "checkpoints" / "round-0001" / "agent")
    wanted = client("saved", url=serve("bound-samplers"), folder=folder)
    assert (
        client("restored", url=serve("bound-samplers"), folder=folder) == wanted
    )  # another one, on the same states


@pytest.mark.long
def test_states_of_checkpoints_that_are_gone_are_given_up(serve: Serve, client: Any, tmp_path: Path) -> None:
    said = client("given_up", url=serve(), checkpoints=str(tmp_path / "checkpoints"))
    assert "was asked to restore tinker://" in said


@pytest.mark.long
def test_a_loss_that_is_no_number_takes_the_update_back(serve: Serve, client: Any) -> None:
    client("not_finite", url=serve())


@pytest.mark.parametrize(
    ("quirk", "said"),
    [
        ("lacks-loss:ppo", "lacks the loss ppo: "),
        pytest.param("nan", "Tinker server", marks=pytest.mark.slow),
        ("half-json", "Tinker server at"),
    ],
)
@pytest.mark.long
def test_a_server_that_cannot_be_learned_on_is_refused_in_a_sentence(
    serve: Serve, client: Any, quirk: str, said: str
) -> None:
    found = client("refusal", url=serve(quirk), timeout_s=4.0)
    assert said in found
    assert "\n" not in found


@pytest.mark.long
def test_what_is_found_of_a_server_is_told(serve: Serve, client: Any) -> None:
    told = client("told", url=serve("noisy-sampler", "seedless", "short-logprobs", "no-live-load"))
    assert 0.05 < told["gap"] < 0.4
    assert (told["seeds"], told["scored"], told["live_load"]) == (False, -1, False)
    assert told["scales"]["ppo"] == pytest.approx(0.5, abs=0.1)
    assert told["adds_up"]["cross_entropy"] == pytest.approx(1.0, abs=0.2)
    assert told["tails"]["ppo"] == pytest.approx(1.0, abs=0.2)
    assert told["copies"]["ppo"] == pytest.approx(1.0, abs=0.2)


@pytest.mark.long
def test_rounding_is_not_taken_for_another_loss(client: Any, tmp_path: Path) -> None:
    """In bfloat16 a short step is lost, and the same sequence scored beside another is not the same."""
    base = open_base(PolicyConfig(model="tiny", dtype="bfloat16", device="cpu", threads=1), tmp_path)
    with TinkerServer(base, tmp_path / "served") as server:
        told = client("told", url=server.url)
    for loss in ("cross_entropy", "importance_sampling", "ppo"):
        assert told["scales"][loss] == pytest.approx(0.5, abs=0.1)
    assert told["adds_up"]["cross_entropy"] == pytest.approx(1.0, abs=0.15)


@pytest.mark.long
@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"tuning": "full"}, "trains adapters"),
        ({"lora_targets": "q_proj"}, "adapts all linear layers"),
        ({"entropy": 0.001}, "no entropy to learn from: set agent.entropy_coefficient to 0"),
        ({"simulator_model": "smollm2-135m"}, "has no model 'smollm2-135m', but tiny; set"),
    ],
)
def test_settings_that_no_server_can_follow_are_refused(
    serve: Serve, client: Any, settings: dict[str, Any], said: str
) -> None:
    assert said in client("refusal", url=serve(), **settings)


@pytest.mark.long
def test_nothing_there_and_no_key_are_one_sentence(client: Any) -> None:
    assert "no Tinker server answers at http://127.0.0.1:9: " in client("refusal", url="http://127.0.0.1:9")
    client("environment", TINKER_API_KEY=None)
    assert "wants a key: put it into" in client("refusal", url="https://tinker.invalid")
    client("environment", TINKER_API_KEY="secret")
    found = client("refusal", url="https://tinker.invalid")
    assert "begin with tml-" in found
    assert "secret" not in found
    client("environment", TINKER_API_KEY=None)


@pytest.mark.long
def test_a_server_of_this_machine_is_asked_without_a_proxy_and_with_the_key_alone(
    serve: Serve, client: Any
) -> None:
    url, proxies = serve(), {"http_proxy": "http://127.0.0.1:9", "ALL_PROXY": "socks5://127.0.0.1:9"}
    client("environment", **proxies, TINKER_API_KEY=" tml-key\n")
    assert client("met", url=url) == url
    client("environment", **dict.fromkeys(proxies), TINKER_API_KEY=None)


@pytest.mark.long
def test_a_server_that_was_started_anew_is_told_of_with_how_to_go_on(serve: Serve, client: Any) -> None:
    url = serve()
    client("open_and_keep", url=url)
    serve(port=int(url.rsplit(":", 1)[1]))  # it knows nobody
    assert "continue with --resume" in client("score_with_kept", url=url)


@pytest.mark.slow
def test_a_run_that_is_resumed_on_another_server_is_the_run_that_was_not_interrupted(
    serve: Serve, tmp_path: Path
) -> None:
    def genenv(*words: object, fails: bool = False) -> str:
        command = [PYTHON, "-m", "genenv", *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode != 0) == fails, done.stderr
        return done.stderr

    start = ["train", CONFIGS / "tiny.toml", *RUN, "--set", f"policy.tinker.address={serve()}"]
    genenv(*start, "--set", "run.rounds=2", "--out", tmp_path / "whole")
    genenv(*start, "--set", "run.rounds=1", "--out", tmp_path / "parts")
    address = f"policy.tinker.address={serve()}"
    more = ["--set", "run.rounds=2", "--set", address]
    genenv("train", CONFIGS / "tiny.toml", "--resume", "--out", tmp_path / "parts", *RUN, *more)
    whole, parts = (
        [
            {name: value for name, value in json.loads(line).items() if not name.startswith("time/")}
            for line in (tmp_path / name / "metrics.jsonl").read_text().splitlines()
        ]
        for name in ("whole", "parts")
    )
    assert parts == whole
    facts = [
        json.loads(line)["server"] for line in (tmp_path / "parts" / "starts.jsonl").read_text().splitlines()
    ]
    assert [list(one["models"]) for one in facts] == [["tiny"], ["tiny"]]
    said = genenv("export-agent", tmp_path / "parts", "--out", tmp_path / "out", fails=True)
    assert "are on its Tinker server" in said


@pytest.mark.slow
def test_one_agent_is_on_the_server_and_the_other_one_here(serve: Serve, tmp_path: Path) -> None:
    def genenv(*words: object, fails: bool = False) -> str:
        command = [PYTHON, "-m", "genenv", *map(str, words)]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert (done.returncode != 0) == fails, done.stderr
        return done.stderr

    two = tmp_path / "two.toml"
    apart = '\n[agents.one]\n[agents.two]\nbackend = "tinker"\n'
    two.write_text((CONFIGS / "tiny.toml").read_text() + apart)
    more = (
        *RUN[:-2],
        "--set",
        "policy.device=cpu",
        "--set",
        "agent.guidance=all",
        "--set",
        f"policy.tinker.address={serve()}",
    )
    genenv("train", two, *more, "--set", "run.rounds=1", "--out", tmp_path / "run")
    genenv("train", "--resume", "--out", tmp_path / "run", "--set", "run.rounds=2")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert [line["round"] for line in lines] == [0, 1, 2]
    assert lines[-1]["agents/one/steps"] > 0 < lines[-1]["agents/two/steps"]
    saved = tmp_path / "run" / "checkpoints" / "round-0002"
    assert (saved / "one" / "adapter_model.safetensors").is_file()
    assert (saved / "two" / "tinker.json").is_file()
    said = genenv("export-agent", f"{tmp_path / 'run'}:two", "--out", tmp_path / "two", fails=True)
    assert "are on its Tinker server" in said
    genenv("export-agent", f"{tmp_path / 'run'}:one", "--adapter", "--out", tmp_path / "one")
