"""A taskset of verifiers as an environment: its rows are tasks, its rewards verdicts.

What needs the package runs where a Python has it: this one, or that of GENENV_VERIFIERS_PYTHON.
"""

from __future__ import annotations

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest

from genenv.environments import close_environment, environment_config, load_environment
from genenv.environments.stepwise import StepwiseRollout
from genenv.errors import RolloutError, UsageError
from genenv.gate.gate import base_task
from genenv.interop.imported.verifiers import Process, Verifiers
from genenv.types import Rejection, Task
from interop.conftest import opened
from typed import refused

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
        process.begin({"given": {}, "row": 0})


def test_a_process_that_does_not_answer_fails_attempts(tmp_path: Path) -> None:
    process = player(tmp_path, "echo '{\"ready\": 1}'\nwhile read order; do :; done", limit_s=0.3)
    name = process.begin({"given": {}, "row": 0})
    with pytest.raises(RolloutError, match=r"took longer than 0\.3 s"):
        process.answer(name)
    process.close()


def test_a_process_that_ends_later_fails_the_attempts_it_had(tmp_path: Path) -> None:
    process = player(tmp_path, "echo '{\"ready\": 1}'\nread order\necho 'Killed' >&2")
    name = process.begin({"given": {}, "row": 0})
    with pytest.raises(RolloutError, match="The environment's process has ended: Killed"):
        process.answer(name)
    assert process.begin({"given": {}, "row": 0}) == name + 1, "another one is started"
    process.close()
