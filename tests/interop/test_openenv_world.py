"""An OpenEnv server on loopback as an environment: sessions, rewards as verdicts, faults as sentences."""

from __future__ import annotations

import asyncio
import json
import random
import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from genenv.backends.scripted import ScriptedSampler
from genenv.config.run import load_config
from genenv.environments import close_environment, environment_config, load_environment
from genenv.environments.stepwise import StepwiseRollout
from genenv.environments.wrappers import ByParameters
from genenv.errors import UsageError
from genenv.evaluation.environment_check import POOR, check_environment
from genenv.gate.gate import Gate, base_task, base_tasks, written
from genenv.interop.exported import Exported
from genenv.interop.imported.openenv import OpenEnv, actions_of
from genenv.rollout.driver import Sampling, roll_out
from genenv.simulator.schema_sampling import sample_json
from genenv.types import Profile, Rejection, StopReason, Task
from openenv_server import ACTION, OpenEnvServer, error
from typed import refused, succeeds


@pytest.fixture
def server() -> Iterator[OpenEnvServer]:
    with OpenEnvServer() as started:
        yield started


def opened(server: OpenEnvServer, **settings: Any) -> OpenEnv:
    name = f"openenv:{server.url}"
    quick = {"connect_s": 0.3, "base": 6, "held_out": 4, **settings}
    return cast(OpenEnv, load_environment(name, environment_config(name).model_validate(quick)))


def first(env: OpenEnv) -> Task:
    seed = env.seeds()[0]
    task = base_task(env, seed.id, seed.spec, seed=0)
    assert isinstance(task, Task)
    return task


def played(env: OpenEnv, task: Task, *replies: str) -> StepwiseRollout:
    made = StepwiseRollout(env, task)
    for reply in replies:
        made.reply(reply)
    return made


def solution(task: Task) -> str:
    """What the game decided by the seed; see `openenv_server`."""
    given = dict(cast(Any, task.payload["given"]))
    most = given.pop("most", 4)
    return str(random.Random(f"{task.payload['number']}/{given}").randrange(most))


def test_an_attempt_is_a_session_and_its_reward_the_verdict(server: OpenEnvServer) -> None:
    env = opened(server)
    task = first(env)
    assert [(one.role, one.content) for one in task.messages] == [
        ("system", "A guessing game.\nReply with this alone: Your guess"),
        ("user", "Guess a number below 4."),
    ]
    wrong = played(env, task, "seven")
    assert not wrong.done
    assert wrong.messages[0].content == "No."
    right = played(env, task, "seven", solution(task))
    assert right.done
    assert (right.verdict().reward, right.verdict().success) == (1.0, True)
    lost = played(env, task, "a", "b", "c")
    assert lost.done
    assert lost.verdict().explanation == "The environment gives 0."
    # replies that no session has heard are played now, and no more of them than it would have heard
    assert env.check(task, ("x", solution(task), "never heard")).success
    assert not env.check(task, ()).success
    close_environment(env)
    assert env.world._open == 1, "the attempt that nobody finished"


def test_base_and_held_out_tasks_are_of_other_seeds(server: OpenEnvServer) -> None:
    env = opened(server)
    base = list(base_tasks(env, env.seeds(), seed=0).values())
    assert [task.payload["number"] for task in base] == [0, 1, 2, 3, 4, 5]
    held_out = env.held_out()
    assert [task.payload["number"] for task in held_out] == [10**9, 10**9 + 1, 10**9 + 2, 10**9 + 3]
    assert not {env.surface(task) for task in base} & {env.surface(task) for task in held_out}
    apart = opened(server, given={"split": "train"}, given_held_out={"split": "test"})
    assert [task.payload["number"] for task in apart.held_out()] == [0, 1, 2, 3]
    assert server.resets[-1] == {"split": "test", "seed": 3}


def test_arguments_of_held_out_tasks_are_merged_and_are_no_parameters(server: OpenEnvServer) -> None:
    given = {"cfg": {"size": 9}, "most": 4}
    env = opened(server, given=given, given_held_out={"cfg": {"split": "test"}}, held_out=1)
    assert env.held_out()[0].payload["given"] == {"cfg": {"size": 9, "split": "test"}, "most": 4}
    for table in ({"deep": {"level": "hard"}}, {"deep": {"level": {"at": 1}}}, {"deep": 3}):
        with pytest.raises(UsageError, match=r"given_held_out sets 'level', which environment\.vary sets"):
            opened(server, vary={"deep": {"level": ["easy", "mid"]}}, given_held_out=table)


def test_equal_replies_keep_the_verdict_of_their_own_rollout(server: OpenEnvServer) -> None:
    env = opened(server)
    task, given = first(env), iter([1.0, 0.0, 0.0])
    server.say = lambda message: (
        answered({"observation": {}, "reward": next(given), "done": True})
        if message["type"] == "step"
        else None
    )
    one, other = (played(env, task, "a") for _ in range(2))
    assert [made.verdict().reward for made in (one, other)] == [1.0, 0.0]
    assert not env.check(task, ("a",)).success, "the replies are replayed"


@pytest.mark.long
def test_held_out_tasks_that_begin_like_base_tasks_are_reported(server: OpenEnvServer) -> None:
    found = {one.what: (one.state, one.seen) for one in check_environment(opened(server), load_config(), n=6)}
    state, seen = found["held-out tasks, apart from the seeds"]
    assert state == POOR
    assert seen == "4 of 4 have a seed's messages, such as held-out-0"


def test_the_simulator_sets_what_reset_takes(server: OpenEnvServer) -> None:
    env = opened(server, vary={"most": [3, 5], "deep": {"er": ["a", "b"]}}, seeds=50)
    seeds = env.seeds()
    assert [seed.skills for seed in seeds[:3]] == [
        ("most=3", "er=a"),
        ("most=5", "er=a"),
        ("most=3", "er=b"),
    ]
    rng = random.Random(0)
    for seed in seeds:
        for spec in (sample_json(env.spec_schema(seed), rng), env.variation(seed, rng)):
            assert set(cast(Any, spec)) == {"most", "er", "seed"}
            task = base_task(env, seed.id, cast(Any, spec), seed=0)
            assert isinstance(task, Task)
    assert set(server.resets[-1]) == {"most", "deep", "seed"}
    assert set(server.resets[-1]["deep"]) == {"er"}
    by_parameters = ByParameters(cast(Any, env))
    chosen = sample_json(by_parameters.spec_schema(seeds[0]), rng)
    assert set(cast(Any, chosen)) == {"most", "er"}
    context, generation = written(seeds[0], json.dumps(chosen), context_id="c", generation_id="g")
    gate = Gate(cast(Any, by_parameters), load_config().curriculum, seed=0)
    (proposal,) = gate.admit([context], [generation])
    assert isinstance(proposal.outcome, Task), "no solution is asked for where nobody knows one"
    assert 0 <= cast(int, proposal.outcome.payload["number"]) < 50
    assert "most, er, seed" in env.simulator_messages(seeds[0], Profile(), 0.5)[0].content


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"most": 3}, "'seed' is missing"),
        ({"most": 3, "seed": 1, "x": 1}, "'x' is nothing that can be set"),
        ({"most": 4, "seed": 1}, "none of its values"),
        ({"most": 3, "seed": -1}, "not a whole number"),
        ({"most": 3, "seed": 10**9}, "not for training"),
    ],
)
def test_what_cannot_be_set_is_no_task(server: OpenEnvServer, spec: Any, said: str) -> None:
    env = opened(server, vary={"most": [3, 5]})
    found = base_task(env, "x", spec, seed=0)
    assert isinstance(found, Rejection)
    assert said in found.explanation.replace("Seed", "seed")


def test_attempts_wait_where_a_server_has_room_for_one(server: OpenEnvServer) -> None:
    server.room = 1
    env = opened(server)
    tasks = list(base_tasks(env, env.seeds(), seed=0).values())
    policy = ScriptedSampler(lambda prompt, rng: str(rng.randrange(4)), context_tokens=10_000)
    sampling = Sampling(temperature=1.0, max_new_tokens=50, timeout_s=20.0, seed=1)
    for _ in range(2):  # another event loop: what waited in the first is gone
        groups = asyncio.run(roll_out(env, policy, tasks, rollouts=4, sampling=sampling))
        traces = [trace for group in groups for trace in group.traces]
        assert {trace.stop_reason for trace in traces} == {StopReason.DONE}
        assert {trace.success for trace in traces} == {True, False}
    assert server.most_open == 1
    one = played(env, tasks[0], "seven")
    assert not one.done
    with pytest.raises(
        UsageError, match=r"no room for another session beside the 1 open.*environment\.sessions"
    ):
        played(env, tasks[1], "seven")


@pytest.mark.long
def test_waiting_for_a_session_is_not_the_environments_time(server: OpenEnvServer) -> None:
    server.room, server.pause_s = 1, 0.05
    env = opened(server)
    policy = ScriptedSampler(lambda prompt, rng: "seven", context_tokens=10_000)
    sampling = Sampling(temperature=1.0, max_new_tokens=50, timeout_s=0.5, seed=1)
    (group,) = asyncio.run(roll_out(env, policy, [first(env)], rollouts=6, sampling=sampling))
    assert {trace.stop_reason for trace in group.traces} == {StopReason.DONE}, "0.2 s each, one after another"


def test_steps_of_rollouts_overlap(server: OpenEnvServer) -> None:
    env = opened(server, step_s=2.0)
    task, both = first(env), threading.Barrier(2, timeout=5)

    def say(message: Any) -> None:
        if message["type"] == "step":
            both.wait()

    server.say = say
    policy = ScriptedSampler(lambda prompt, rng: "seven", context_tokens=10_000)
    sampling = Sampling(temperature=1.0, max_new_tokens=50, timeout_s=20.0, seed=1)
    (group,) = asyncio.run(roll_out(env, policy, [task], rollouts=2, sampling=sampling))
    assert {trace.stop_reason for trace in group.traces} == {StopReason.DONE}, "each waits for the other"


@pytest.mark.long
def test_a_rollout_that_ran_out_of_time_frees_its_session(server: OpenEnvServer) -> None:
    server.room = 1
    env = opened(server)
    task = first(env)
    policy = ScriptedSampler(lambda prompt, rng: "seven", context_tokens=10_000)
    for kind in ("reset", "step"):
        server.say = lambda message, kind=kind: time.sleep(0.3) if message["type"] == kind else None
        sampling = Sampling(temperature=1.0, max_new_tokens=50, timeout_s=0.1, seed=1)
        (group,) = asyncio.run(roll_out(env, policy, [task], rollouts=2, sampling=sampling))
        assert {trace.stop_reason for trace in group.traces} == {StopReason.TIMEOUT}
        server.say = lambda message: None
        assert played(env, task, solution(task)).verdict().success


class Shop:
    """An environment of MCP tools."""

    def reset(self, **_: Any) -> Any:
        return {"observation": {"said": "Buy a pear."}, "reward": None, "done": False}

    def step(self, **action: Any) -> Any:
        if action["type"] == "list_tools":
            schema = {"type": "object", "properties": {"fruit": {"type": "string"}}, "required": ["fruit"]}
            tool = {"name": "buy", "description": "Buy a fruit.", "input_schema": schema}
            return {"observation": {"tools": [tool]}, "reward": None, "done": False}
        right = action["arguments"] == {"fruit": "pear"}
        found = {"content": [{"type": "text", "text": "Bought." if right else "Sold out."}]}
        observation = {"tool_name": "buy", "result": found}
        return {"observation": observation, "reward": float(right), "done": right}


@pytest.mark.parametrize("how", ["native", "prompt"])
def test_tools_of_mcp_are_offered_and_called(server: OpenEnvServer, how: str) -> None:
    fields = ("type", "tool_name", "arguments", "metadata")
    server.action = {"title": "Action", "properties": {name: {} for name in fields}}
    server.make = Shop
    env = opened(server, tools=how)
    task = first(env)
    offered = [cast(Any, tool)["function"]["name"] for tool in cast(Any, task.payload["tools"])]
    assert offered == (["buy"] if how == "native" else [])
    assert ('{"name": "buy"' in task.messages[0].content) == (how == "prompt")
    call = '<tool_call>\n{"name": "buy", "arguments": {"fruit": "%s"}}\n</tool_call>'
    made = played(env, task, call % "fig")
    assert [(one.role, one.content) for one in made.messages] == [("tool", "Sold out.")]
    made.reply(call % "pear")
    assert made.verdict().success
    ended = played(env, task, "I would rather not.")
    assert ended.done, "words alone end a conversation with tools"
    assert ended.verdict().reward == 0.0


def test_a_session_that_was_lost_while_idle_is_not_used_again(server: OpenEnvServer) -> None:
    env = opened(server)
    task = first(env)
    for connection in list(server._connections):
        connection.shutdown(2)
    assert played(env, task, solution(task)).verdict().success
    lost = iter([error("EXECUTION_ERROR", "the session is gone")])
    server.say = lambda message: next(lost, None) if message["type"] == "reset" else None
    assert played(env, task, solution(task)).verdict().success, "another session is taken"


def test_an_environment_that_begins_otherwise_fails_attempts_not_runs(server: OpenEnvServer) -> None:
    env = opened(server)
    task = first(env)
    server.say = lambda message: (
        json.dumps({"type": "observation", "data": {"observation": {"hint": "Other."}}})
        if message["type"] == "reset"
        else None
    )
    made = played(env, task, "1")
    assert made.done
    assert "began otherwise" in made.problem


def answered(data: Any) -> str:
    return json.dumps({"type": "observation", "data": data})


@pytest.mark.parametrize(
    ("said", "sentence"),
    [
        (answered({"observation": {}, "reward": float("nan"), "done": True}), "gave the reward nan"),
        (answered({"observation": {}, "reward": "good", "done": True}), "which is no number"),
        (error("EXECUTION_ERROR", "division by zero"), "The environment failed: division by zero"),
        (error("SESSION_ERROR", "gone"), "The environment failed: gone"),
        (b"", "The session with the environment was lost: the connection has ended."),
    ],
)
def test_a_fault_of_the_environment_fails_the_attempt(
    server: OpenEnvServer, said: str | bytes, sentence: str
) -> None:
    env = opened(server)
    task = first(env)
    server.say = lambda message: said if message["type"] == "step" else None
    made = played(env, task, "1")
    verdict = made.verdict()
    assert made.done
    assert sentence in verdict.explanation
    assert (verdict.reward, verdict.success, verdict.readable) == (0.0, False, False)
    server.say = lambda message: None
    assert played(env, task, solution(task)).verdict().success, "the next one has another session"


def test_an_answer_that_takes_too_long_fails_the_attempt(server: OpenEnvServer) -> None:
    env = opened(server, step_s=0.3)
    task = first(env)
    server.say = lambda message: time.sleep(0.6) if message["type"] == "step" else None
    assert "took longer than 0.3 s" in env.check(task, ("1",)).explanation


def test_no_action_is_answered_and_costs_a_turn(server: OpenEnvServer) -> None:
    server.action = {**ACTION, "required": [], "properties": {"message": {"type": "string"}, "more": {}}}
    env = opened(server, max_turns=2)
    task = first(env)
    made = StepwiseRollout(env, task)
    (said,) = made.reply("yes")
    assert said.content == "That is no JSON object."
    assert not made.done
    made.reply('{"odd": 1}')
    assert made.done, "two turns"
    assert made.verdict().reward == 0.0


@pytest.mark.parametrize(
    ("pages", "sentence"),
    [
        ({"/schema": (200, "text/html", "<html>Welcome</html>")}, "/schema is text/html, not JSON"),
        ({"/schema": (404, "text/html", "no")}, "answers 404 to /schema; is that an OpenEnv server?"),
        ({"/schema": (200, "application/json", '{"tools": []}')}, "says nothing of actions"),
        ({"/ws": (200, "text/html", "<html>")}, "no OpenEnv server that genenv can play: it answers"),
    ],
)
def test_another_server_is_refused_in_a_sentence(
    server: OpenEnvServer, pages: dict[str, tuple[int, str, str]], sentence: str
) -> None:
    server.pages = pages
    assert sentence in refused("check", f"openenv:{server.url}", "--set", "environment.connect_s=0.2")


@pytest.mark.parametrize("said", ['{"op": "hello"}', "<html>", error("UNKNOWN_TYPE", "what?"), answered([])])
def test_another_protocol_is_refused_in_a_sentence(server: OpenEnvServer, said: str) -> None:
    server.say = lambda message: said if message["type"] == "reset" else None
    sentence = refused("play", f"openenv:{server.url}", "--set", "environment.connect_s=0.2")
    assert "is it a server of another version?" in sentence


def test_where_no_server_is_a_sentence_says_so(server: OpenEnvServer) -> None:
    server.stop()
    sentence = refused("check", f"openenv:{server.url}", "--set", "environment.connect_s=0.2")
    assert f"the OpenEnv server {server.url} does not answer: Connection refused" in sentence
    assert "no address" in refused("check", "openenv:localhost:8000")
    assert "say which one" in refused("check", "openenv:")


@pytest.mark.parametrize("secret", ["http://me:hunter2@localhost:1", "http://localhost:1?token=hunter2"])
def test_an_address_with_a_secret_is_refused_without_it(secret: str) -> None:
    sentence = refused("check", f"openenv:{secret}")
    assert "holds a user name, a password or a query" in sentence
    assert "hunter2" not in sentence


def test_a_server_without_room_is_a_sentence(server: OpenEnvServer) -> None:
    server.room = 0
    sentence = refused("check", f"openenv:{server.url}", "--set", "environment.connect_s=0.2")
    assert "has no room for a session" in sentence


def test_settings_that_cannot_be_are_a_sentence(server: OpenEnvServer) -> None:
    assert "must be a list of values" in refused(
        "check", f"openenv:{server.url}", "--set", "environment.vary.most=3"
    )
    said = refused("check", f"openenv:{server.url}", "--set", "environment.show=['hnt']")
    assert "environment.show names 'hnt'" in said
    assert "it has hint" in said
    assert "reward_low must be less" in refused(
        "check", f"openenv:{server.url}", "--set", "environment.reward_low=2"
    )


@pytest.mark.parametrize(
    ("settings", "reward", "success"),
    [
        ({}, 0.75, False),
        ({"reward": "last"}, 0.5, False),
        ({"reward": "best", "success_at": 0.5}, 0.5, True),
        ({"success_at": 0.0}, 0.75, True),
        ({"reward_low": -1.0, "reward_high": 1.0}, 0.875, False),
        ({"reward_high": 0.5}, 1.0, True),
        ({"reward_high": 100.0}, 0.0075, False),
        ({"reward_high": 0.75 + 1e-8}, 1.0, True),
        ({"success_at": 0.75 + 1e-8}, 0.75, True),
    ],
)
def test_rewards_become_verdicts_as_the_settings_say(
    server: OpenEnvServer, settings: dict[str, Any], reward: float, success: bool
) -> None:
    env = opened(server, **settings)
    task = first(env)
    given = iter([0.25, 0.5])

    def say(message: Any) -> str | None:
        if message["type"] != "step":
            return None
        now = next(given)
        return answered({"observation": {"hint": "?"}, "reward": now, "done": now == 0.5})

    server.say = say
    verdict = played(env, task, "a", "b").verdict()
    assert (verdict.reward, verdict.success) == (reward, success)


@pytest.mark.long
def test_a_run_is_kept_when_its_server_is_lost_and_goes_on_with_it(tmp_path: Path) -> None:
    with OpenEnvServer() as server:
        file = tmp_path / "run.toml"
        file.write_text(
            f"[run]\nrounds = 3\neval_tasks = 2\neval_every = 1\n[environment]\nname = "
            f'"openenv:{server.url}"\n'
            "connect_s = 0.3\nbase = 8\nheld_out = 2\n[simulator]\ncontexts = 2\nvariations = 2\n"
            '[agent]\nrollouts = 3\nguidance = "none"\nreplayed = 0\n[policy]\nbackend = "scripted"\n',
            encoding="utf-8",
        )
        rounds: list[int] = []

        def say(message: Any) -> None:
            rounds.append(1)
            if len(rounds) == 60:
                threading.Thread(target=server.stop).start()

        server.say = say
        sentence = refused("train", file, "--out", tmp_path / "run")
        # while it ends it may still answer, and not as it should
        assert "does not answer" in sentence or "something else than a WebSocket" in sentence
        assert "--resume" in sentence
        port = server.port
    with OpenEnvServer(port=port):
        succeeds("train", "--out", tmp_path / "run", "--resume")
    succeeds("doctor", tmp_path / "run")


@pytest.mark.long
def test_it_can_be_played_by_hand_and_goes_elsewhere(server: OpenEnvServer, tmp_path: Path) -> None:
    name = f"openenv:{server.url}"
    said = succeeds(
        "check", name, "--n", 3, "--set", "environment.base=4", "--set", "environment.held_out=2"
    ).stdout
    assert "none is known" in said
    folder = tmp_path / "game_env"
    succeeds("export-env", name, "--out", folder, "--tasks", 3, "--held-out", 2)
    exported = Exported(folder / "game_env" / "data")
    session = exported.session(exported.tasks()[0])
    session.send(solution(exported.tasks()[0]))
    assert session.done
    assert session.verdict().success


def test_replies_become_actions_by_the_schema() -> None:
    def schema(**fields: Any) -> Any:
        return {"type": "object", "properties": {"metadata": {}, **fields}, "required": list(fields)}

    rng = random.Random(0)
    move = actions_of(schema(move={"$ref": "#/$defs/M"}) | {"$defs": {"M": {"enum": ["UP", "DOWN"]}}})
    assert list(move.choices) == ["UP", "DOWN"]
    assert move.read("UP") == [{"move": "UP"}]
    number = actions_of(schema(action={"type": "integer"}))
    assert number.read(" 3\n") == [{"action": 3}]
    assert number.read("three") == [{"action": "three"}]
    both = actions_of(schema(x={"type": "integer", "minimum": 0, "maximum": 1}, y={"const": 2}))
    assert both.read('```json\n{"x": 1, "y": 2}\n```') == [{"x": 1, "y": 2}]
    assert re.fullmatch(r'\{"x": [01], "y": 2\}', both.random_reply((), rng))
    calls = actions_of({"title": "Action", "properties": {"metadata": {}}})
    said = '<tool_call>\n{"name": "echo", "arguments": {"message": "hi"}}\n</tool_call>'
    assert calls.read(said) == [{"type": "call_tool", "tool_name": "echo", "arguments": {"message": "hi"}}]
    assert calls.read("hi") == "That calls no tool."
    chat = actions_of(schema(content={"type": "string"}, tool_calls={"type": "array"}))
    (action,) = cast(Any, chat.read(said))
    assert action["content"] == ""
    assert action["tool_calls"][0]["function"] == {"name": "echo", "arguments": {"message": "hi"}}
    broken = "<tool_call>\n{not json\n</tool_call>"
    assert chat.read(broken) == [{"content": broken, "tool_calls": []}]


def test_a_name_that_is_none_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="unknown environment"):
        load_environment("openenv")


class Chat:
    """An environment whose observations are whole conversations."""

    def reset(self, **_: Any) -> dict[str, Any]:
        asked = [{"role": "user", "content": "2 + 2?"}]
        return {"observation": {"messages": asked, "tools": []}, "reward": None, "done": False}

    def step(self, content: str = "", **_: Any) -> dict[str, Any]:
        return {"observation": {"messages": []}, "reward": float("4" in content), "done": True}


def test_the_users_system_message_comes_before_a_conversation_of_the_server(server: OpenEnvServer) -> None:
    server.make = Chat
    calls = {"type": "array", "items": {"type": "object"}}
    text = {"type": "string", "default": ""}
    server.action = {"title": "A", "type": "object", "properties": {"content": text, "tool_calls": calls}}
    own = first(opened(server, system="Reply with the number alone."))
    assert [one.content for one in own.messages] == ["Reply with the number alone.", "2 + 2?"]
    assert [one.content for one in first(opened(server)).messages] == ["2 + 2?"]


def test_values_of_what_numbers_the_tasks_are_refused(server: OpenEnvServer) -> None:
    with pytest.raises(UsageError, match=r"environment.vary lists values of 'seed', but tasks have a seed"):
        opened(server, vary={"seed": [11, 12]}).seeds()
    assert len(opened(server, vary={"deep": {"seed": [11, 12]}}).seeds()) == 6
