"""A taskset of verifiers as an environment: its rows are tasks, its rewards verdicts.

What needs the package runs where a Python has it: this one, or that of GENENV_VERIFIERS_PYTHON.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from genenv.backends.scripted import ScriptedSampler
from genenv.environments import close_environment, environment_config, load_environment
from genenv.environments.stepwise import StepwiseRollout
from genenv.errors import RolloutError, UsageError
from genenv.gate.gate import base_task
from genenv.interop.imported import verifiers
from genenv.interop.imported.settings import VerifiersConfig
from genenv.interop.imported.verifiers import Process, Verifiers
from genenv.rollout.driver import Player, Sampling, roll_out, roll_out_seats
from genenv.types import Group, Rejection, StopReason, Task
from interop.conftest import opened
from typed import refused, succeeds

PYTHON = os.environ.get("GENENV_VERIFIERS_PYTHON") or sys.executable
_HERE = "GENENV_VERIFIERS_PYTHON" in os.environ or importlib.util.find_spec("verifiers") is not None
needs_verifiers = pytest.mark.skipif(
    not _HERE,
    reason="no Python with verifiers: install verifiers 0.4 into another environment, beside genenv, and "
    "name its Python by GENENV_VERIFIERS_PYTHON",
)
TASKSET = """
import verifiers.v1 as vf


class Data(vf.TaskData):
    answer: str


class AddTask(vf.Task[Data]):
    @vf.reward(weight=1.0)
    async def right(self, trace: vf.Trace) -> float:
        last = trace.last_reply or ""
        if last == "crash":
            import os

            os._exit(7)
        if last == "raise":
            raise ValueError("no such answer")
        return float("nan") if last == "nan" else float(last.strip() == self.data.answer)


class Config(vf.TasksetConfig):
    step: int = 1


class AddTaskset(vf.Taskset[AddTask, Config]):
    def load(self):
        for i in range(10):
            yield AddTask(
                Data(prompt=f"What is {i} + {self.config.step}?", answer=str(i + self.config.step)),
                self.config.task,
            )


class TwiceEnv(vf.SingleAgentEnv):
    async def run(self, task, agents):
        async with agents.agent.interaction(task) as interaction:
            segment = await interaction.turn()
            if not segment.terminated and segment.last_reply == "again":
                await interaction.turn("Go on.")


__all__ = ["AddTaskset", "TwiceEnv"]
"""
PAIR = """
import asyncio

import verifiers.v1 as vf


class Data(vf.TaskData):
    number: int


class GuessTask(vf.Task[Data]):
    pass


class Guesses(vf.Taskset[GuessTask, vf.TasksetConfig]):
    def load(self):
        for i in range(10):
            yield GuessTask(Data(prompt=f"Say how to find {i}.", number=i), self.config.task)


class PairConfig(vf.EnvConfig):
    guesser: vf.AgentConfig = vf.AgentConfig(max_turns=3)
    teller: vf.AgentConfig = vf.AgentConfig()
    at_once: bool = False


class PairEnv(vf.Env[PairConfig]):
    async def run(self, task, agents):
        if self.config.at_once:
            async def later():
                await asyncio.sleep(0.3)
                await agents.guesser.run(task)

            await asyncio.gather(agents.teller.run(task), later())
            return
        blank = type(task)(task.data.model_copy(update={"prompt": None}), task.config)
        async with agents.teller.interaction(task) as teller, agents.guesser.interaction(blank) as guesser:
            hint = await teller.turn()
            while not hint.terminated:
                guess = await guesser.turn(f"Hint: {hint.last_reply}")
                if guess.terminated or guess.last_reply == str(task.data.number):
                    break
                hint = await teller.turn(f"It is not {guess.last_reply}.")

    async def finalize(self, task, episode):
        for trace in episode.traces:
            last = trace.last_reply or ""
            right = str(task.data.number)
            found = any(t.agent.name == "guesser" and t.last_reply == right for t in episode.traces)
            if trace.agent.name == "guesser":
                trace.record_reward("found", float(found), 1.0)
            else:
                trace.record_reward("short", float(len(last) < 20), 0.25)
                trace.record_reward("helped", float(found), 0.75)


__all__ = ["Guesses", "PairEnv"]
"""


@pytest.fixture(scope="module")
def adding(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Verifiers]:
    folder = tmp_path_factory.mktemp("tasksets") / "adding_numbers"
    folder.mkdir()
    (folder / "__init__.py").write_text(TASKSET, encoding="utf-8")
    name = f"verifiers:{folder}"
    settings = {"python": PYTHON, "base": 4, "held_out": 2, "vary": {"step": [1, 2]}}
    env = cast(Verifiers, load_environment(name, environment_config(name).model_validate(settings)))
    yield env
    close_environment(env)


def task_of(env: Verifiers, **spec: Any) -> Task:
    task = base_task(env, "x", spec, seed=0)
    assert isinstance(task, Task), task
    return task


@needs_verifiers
def test_rows_are_tasks_and_settings_of_the_taskset_vary(adding: Verifiers) -> None:
    assert [seed.spec for seed in adding.seeds()] == [
        {"step": 1, "row": 0},
        {"step": 2, "row": 1},
        {"step": 1, "row": 2},
        {"step": 2, "row": 3},
    ]
    assert [task.messages[0].content for task in adding.held_out()] == ["What is 8 + 1?", "What is 9 + 2?"]
    task = task_of(adding, step=2, row=5)
    assert [(one.role, one.content) for one in task.messages] == [("user", "What is 5 + 2?")]
    schema = cast(Any, adding.spec_schema(adding.seeds()[0]))
    assert schema["properties"]["row"]["maximum"] == 7, "two of ten are held out"
    assert isinstance(base_task(adding, "x", {"step": 2, "row": 8}, seed=0), Rejection)


@needs_verifiers
def test_its_reward_is_the_verdict_turn_after_turn(adding: Verifiers) -> None:
    task = task_of(adding, step=2, row=5)
    made = StepwiseRollout(adding, task)
    made.reply("7")
    assert made.done
    assert made.verdict().success
    assert made.verdict().explanation == "The environment gives 1 (right 1)."
    made = StepwiseRollout(adding, task)
    (said,) = made.reply("again")
    assert said.content == "Go on."
    made.reply("8")
    assert made.done
    assert (made.verdict().reward, made.verdict().success) == (0.0, False)
    assert adding.check(task, ("again", "7", "not heard")).success
    assert not adding.check(task, ()).success


@needs_verifiers
@pytest.mark.parametrize(
    ("reply", "sentence"),
    [
        ("raise", "no such answer"),
        ("nan", "gave the reward nan"),
        ("crash", "The environment's process has ended"),
    ],
)
def test_a_fault_of_the_taskset_fails_the_attempt(adding: Verifiers, reply: str, sentence: str) -> None:
    task = task_of(adding, step=1, row=0)
    made = StepwiseRollout(adding, task)
    made.reply(reply)
    assert made.done
    assert sentence in made.verdict().explanation
    made = StepwiseRollout(adding, task)
    made.reply("1")
    assert made.verdict().success, "the next one is played, by a new process where that is needed"


@needs_verifiers
@pytest.mark.slow
def test_what_was_exported_comes_back_with_its_verdicts(written: Path, tmp_path: Path) -> None:
    opened(written, "programs_env")
    folder, logs = written / "programs_env", tmp_path / "logs.jsonl"
    bench("portability", folder, "record", "--out", logs, "--n", 6)
    found = bench("imported", folder, logs, "--through", "verifiers", "--python", PYTHON)
    assert json.loads(found.splitlines()[-1])["differ"] == 0


def bench(name: str, *words: object) -> str:
    """What a script of `bench/` says."""
    file = Path(__file__).parents[2] / "bench" / f"{name}.py"
    command = [sys.executable, str(file), *map(str, words)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return done.stdout


@needs_verifiers
def test_a_taskset_that_is_not_there_is_a_sentence(tmp_path: Path) -> None:
    said = refused("check", "verifiers:no_such_taskset", "--set", f"environment.python={PYTHON}")
    assert "the taskset 'no_such_taskset' cannot be loaded" in said


def test_a_folder_without_a_package_is_a_sentence(tmp_path: Path) -> None:
    said = refused("check", f"verifiers:{tmp_path}")
    assert "is no Python package and holds none called" in said
    assert "say which one, a taskset" in refused("check", "verifiers:")


def test_a_python_that_is_none_is_a_sentence() -> None:
    said = refused("check", "verifiers:x", "--set", "environment.python=/no/such/python")
    assert said == "environment.python: '/no/such/python' is no program that can be started"


@pytest.mark.skipif(importlib.util.find_spec("verifiers") is not None, reason="verifiers is installed here")
def test_a_python_without_verifiers_says_what_to_install() -> None:
    said = refused("check", "verifiers:x")
    assert "has no package verifiers 0.4: install it there (pip install 'verifiers==0.4.*')" in said


def player(tmp_path: Path, script: str, **limits: float) -> Process:
    """A process of another kind in the player's place: a real one, that misbehaves."""
    file = tmp_path / "python"
    file.write_text(f"#!/bin/sh\nread told\n{script}\n", encoding="utf-8")
    file.chmod(0o755)
    return Process({"taskset": "t", "path": ""}, python=str(file), limit_s=limits.get("limit_s", 5.0))


def test_a_process_that_ends_at_once_is_a_sentence(tmp_path: Path) -> None:
    process = player(tmp_path, "echo 'No space left' >&2; exit 3")
    with pytest.raises(
        UsageError, match="verifiers:t cannot be played: the process has ended: No space left"
    ):
        process.begin("begin", {"given": {}, "row": 0})


def test_a_process_that_does_not_answer_fails_attempts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifiers, "_PING_S", 0.3)
    process = player(tmp_path, "echo '{\"ready\": 1}'\nwhile read order; do :; done", limit_s=0.3)
    name = process.begin("begin", {"given": {}, "row": 0})
    with pytest.raises(RolloutError, match=r"took longer than 0\.3 s"):
        process.answer(name)
    process.close()


def test_a_process_that_ends_later_fails_the_attempts_it_had(tmp_path: Path) -> None:
    process = player(tmp_path, "echo '{\"ready\": 1}'\nread order\necho 'Killed' >&2")
    name = process.begin("begin", {"given": {}, "row": 0})
    with pytest.raises(RolloutError, match="The environment's process has ended: Killed"):
        process.answer(name)
    assert process.begin("begin", {"given": {}, "row": 0}) == name + 1, "another one is started"
    process.close()


HANGS = """
import json, subprocess, sys, time

child = subprocess.Popen(["sleep", "100"])
with open(sys.argv[1], "w") as file:
    file.write(str(child.pid))
print(json.dumps({"ready": 1}), flush=True)
for order in map(json.loads, sys.stdin):
    if order["op"] == "reply":
        time.sleep(100)
    if order["op"] != "begin":
        print(json.dumps({"id": order["id"], "count": 10}), flush=True)
"""


@pytest.mark.long
def test_a_process_that_hangs_is_ended_with_its_children_and_a_slow_one_is_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(verifiers, "_PING_S", 1.0)
    file = tmp_path / "hangs.py"
    file.write_text(HANGS, encoding="utf-8")
    process = player(tmp_path, f"exec {sys.executable} {file} {tmp_path}/child", limit_s=0.3)
    name, pids = process.begin("begin", {}), list[str]()
    for hangs in (False, True):
        if hangs:
            process.tell({"op": "reply", "id": name})
        with pytest.raises(RolloutError, match=r"took longer than 0\.3 s") as raised:
            process.answer(name)
        assert ("hung" in str(raised.value)) == hangs
        pids.append((tmp_path / "child").read_text())
        assert process.count({}, 10) == 10
    first, second = pids[0], (tmp_path / "child").read_text()
    assert first != second, "another process was started"
    assert not Path(f"/proc/{first}").exists() or "Z" in Path(f"/proc/{first}/stat").read_text().split()
    process.close()


WAITS_FOR_TWO = """
import json, sys

replied = []
print(json.dumps({"ready": 1}), flush=True)
for order in map(json.loads, sys.stdin):
    asks = {"seat": "", "messages": [{"role": "user", "content": "Go."}], "tools": []}
    answers = {"begin": [{"asks": asks}], "count": [{"count": 10}]}.get(order["op"], [])
    replied += [order["id"]] * (order["op"] == "reply")
    for answer in answers:
        print(json.dumps({"id": order["id"], **answer}), flush=True)
    while len(replied) == 2:
        print(json.dumps({"id": replied.pop(0), "ended": {"seats": {"a": {"reward": 1, "parts": {}}}}}))
        print(json.dumps({"id": replied.pop(0), "ended": {"seats": {"a": {"reward": 0, "parts": {}}}}}))
        sys.stdout.flush()
"""


def test_replies_of_rollouts_overlap(tmp_path: Path) -> None:
    file = tmp_path / "waits_for_two.py"
    file.write_text(WAITS_FOR_TWO, encoding="utf-8")
    settings = {"step_s": 3.0, "rows": 4, "held_out": 2}
    env = Verifiers(VerifiersConfig().model_validate(settings), "t")
    env.world = player(tmp_path, f"exec {sys.executable} {file}", limit_s=3.0)
    sampling = Sampling(temperature=1.0, max_new_tokens=40, timeout_s=60, seed=1)
    policy = ScriptedSampler(lambda prompt, rng: "yes")
    (group,) = asyncio.run(roll_out(env, policy, [task_of(env, row=0)], rollouts=2, sampling=sampling))
    assert sorted(trace.reward for trace in group.traces) == [0.0, 1.0], "each waits for the other's reply"
    close_environment(env)


# environments of several agents


def pair_of(folder: Path, **settings: Any) -> Verifiers:
    (folder / "guessing_pairs").mkdir(exist_ok=True)
    (folder / "guessing_pairs" / "__init__.py").write_text(PAIR, encoding="utf-8")
    name = f"verifiers:{folder / 'guessing_pairs'}"
    given = {"python": PYTHON, "base": 4, "held_out": 2, "roles": ["teller", "guesser"], **settings}
    return cast(Verifiers, load_environment(name, environment_config(name).model_validate(given)))


@pytest.fixture(scope="module")
def pairs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Verifiers]:
    env = pair_of(tmp_path_factory.mktemp("pairs"))
    yield env
    close_environment(env)


def rolled(env: Verifiers, task: Task, scripts: Mapping[str, Any], *, rollouts: int = 2) -> dict[str, Group]:
    sampling = Sampling(temperature=1.0, max_new_tokens=40, timeout_s=60, seed=1)
    players = {
        seat: Player(sampler=ScriptedSampler(script), sampling=sampling, agent=seat)
        for seat, script in scripts.items()
    }
    groups = asyncio.run(roll_out_seats(cast(Any, env), players, [task], rollouts=rollouts))
    return {group.seat: group for group in groups}


def guesses(text: str, rng: Any) -> str:
    """1, then 2, then 3."""
    return str(text.count("[assistant] "))


@needs_verifiers
def test_the_roles_of_an_environment_are_seats_with_their_own_views_and_rewards(pairs: Verifiers) -> None:
    assert pairs.seats == ("teller", "guesser")
    task = task_of(pairs, row=2)
    assert [one.content for one in task.messages] == ["Say how to find 2."]
    found = rolled(pairs, task, {"teller": lambda text, rng: "look", "guesser": guesses})
    teller, guesser = (found[seat].traces[0] for seat in pairs.seats)
    assert [(one.role, one.content) for one in teller.messages] == [
        *[("assistant", "look"), ("user", "It is not 1."), ("assistant", "look")]
    ]
    assert [(one.role, one.content) for one in guesser.messages] == [
        *[("user", "Hint: look"), ("assistant", "1"), ("user", "Hint: look"), ("assistant", "2")]
    ]
    assert (guesser.reward, guesser.success) == (1.0, True)
    assert (teller.reward, teller.explanation) == (1.0, "The environment gives 1 (short 0.25, helped 0.75).")
    found = rolled(pairs, task, {"teller": lambda text, rng: "b" * 25, "guesser": lambda text, rng: "9"})
    assert {trace.reward for group in found.values() for trace in group.traces} == {0.0}
    assert {trace.stop_reason for group in found.values() for trace in group.traces} == {StopReason.DONE}


@needs_verifiers
def test_the_simulated_user_of_verifiers_is_a_seat(tmp_path: Path) -> None:
    (tmp_path / "adding_numbers").mkdir()
    own = TASKSET.replace('__all__ = ["AddTaskset", "TwiceEnv"]', '__all__ = ["AddTaskset"]')
    (tmp_path / "adding_numbers" / "__init__.py").write_text(own, encoding="utf-8")
    name = f"verifiers:{tmp_path / 'adding_numbers'}"
    given = {"python": PYTHON, "base": 4, "held_out": 2, "vary": {"step": [1, 2]}}
    given |= {"roles": ["user", "assistant"], "env": {"id": "user-sim"}}
    env = cast(Verifiers, load_environment(name, environment_config(name).model_validate(given)))
    task = task_of(env, step=2, row=5)
    assert [one.role for one in task.messages] == ["system", "user"]
    assert "What is 5 + 2?" in task.messages[0].content
    asked = {"user": lambda text, rng: "###DONE###" if "7" in text else "What is 5 + 2?"}
    found = rolled(env, task, {**asked, "assistant": lambda text, rng: "7"})
    close_environment(env)
    user, assistant = (found[seat].traces[0] for seat in ("user", "assistant"))
    assert user.replies == ("What is 5 + 2?", "###DONE###")
    assert [one.content for one in assistant.messages] == ["What is 5 + 2?", "7"]
    assert (assistant.reward, assistant.success, user.reward) == (1.0, True, 0.0)


@needs_verifiers
def test_roles_that_are_asked_at_the_same_time_reply_in_turn(tmp_path: Path) -> None:
    env = pair_of(tmp_path, env={"at_once": True, "max_concurrent_agents": 2})
    task = task_of(env, row=4)
    found = rolled(env, task, {"teller": lambda text, rng: "look", "guesser": lambda text, rng: "4"})
    close_environment(env)
    assert {seat: [one.reward for one in group.traces] for seat, group in found.items()} == {
        "teller": [1.0, 1.0],
        "guesser": [1.0, 1.0],
    }


@needs_verifiers
def test_a_run_trains_two_agents_at_the_roles(tmp_path: Path) -> None:
    close_environment(pair_of(tmp_path))
    file = tmp_path / "pairs.toml"
    file.write_text(
        f"""
[environment]
name = "verifiers:{tmp_path / "guessing_pairs"}"
python = "{PYTHON}"
roles = ["teller", "guesser"]
seats = {{ teller = "one", guesser = "two" }}
base = 4
held_out = 2
[agents.one]
[agents.two]
[run]
rounds = 1
[agent]
rollouts = 2
max_new_tokens = 8
team_weight = 0.5
[simulator]
contexts = 2
source = "variation"
[curriculum]
base_share = 0.5
[policy]
backend = "scripted"
""",
        encoding="utf-8",
    )
    succeeds("train", file, "--out", tmp_path / "run")
    line = json.loads((tmp_path / "run" / "metrics.jsonl").read_text().splitlines()[-1])
    assert line["agents/one/attempts"] == line["agents/two/attempts"] > 0
    assert line["agent/failed_traces"] == 0
    for old, new, sentence in (
        ('"one", guesser', '"code", guesser', "no code plays a seat of verifiers:"),
        ('seats = { teller = "one", guesser = "two" }', "", "in environment.seats (teller, guesser)"),
        ('roles = ["teller", "guesser"]', 'roles = ["guesser", "teller"]', "but 'teller' is asked first in"),
        ('roles = ["teller", "guesser"]', 'roles = ["teller"]', "names 'guesser', but"),
        ('roles = ["teller", "guesser"]', 'roles = ["teller", "guesser", "judge"]', "the seat 'judge' of"),
    ):
        text = file.read_text(encoding="utf-8")
        assert old in text
        (tmp_path / "bad.toml").write_text(text.replace(old, new), encoding="utf-8")
        assert sentence in refused("train", tmp_path / "bad.toml", "--out", tmp_path / "bad")


@needs_verifiers
@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"roles": []}, "It is played by 2 agents: name the roles that are seats in environment.roles"),
        ({"roles": ["teller"]}, r"give each other one a model and a client in environment\.env \(guesser\)"),
        ({"roles": ["teller", "judge"]}, "It has no role 'judge'; its roles are guesser, teller"),
        ({"roles": ["teller", "guesser", "teller"]}, "environment.roles names teller twice"),
        ({"env": {"guesser": "x"}}, r"a table, but environment\.env\.guesser is none"),
        ({"env": {"guesser": {"model": "x"}}}, "guesser is a seat .* and has a model or a client"),
    ],
)
def test_roles_that_do_not_fit_are_a_sentence(tmp_path: Path, settings: Any, sentence: str) -> None:
    env = pair_of(tmp_path, **settings)
    with pytest.raises(UsageError, match=sentence):
        env.seeds()
    close_environment(env)


@needs_verifiers
def test_no_code_plays_a_role(pairs: Verifiers) -> None:
    with pytest.raises(
        UsageError, match="no code plays guesser of guessing_pairs: give this seat an agent in"
    ):
        rolled(pairs, task_of(pairs, row=2), {"teller": lambda text, rng: "look"})
