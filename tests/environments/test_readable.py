"""Every environment says which replies cannot be parsed or executed: no *valid* trace of D_train."""

from __future__ import annotations

import random
from functools import cache
from typing import Literal

import pytest

from genenv.environments import environment_names, load_environment
from genenv.environments.base import Environment
from genenv.environments.household.spec import HouseholdConfig
from genenv.gate.gate import base_tasks
from genenv.tools.tool_calling.environment import ToolCallingConfig
from genenv.types import Task


@cache
def some_of(name: str) -> tuple[Environment, list[Task]]:
    env = load_environment(name)
    return env, list(base_tasks(env, list(env.seeds())[:30], seed=0).values())


@pytest.mark.long
@pytest.mark.parametrize("name", [name for name in environment_names() if name not in ("dataset", "mixture")])
def test_solutions_and_wrong_answers_are_read_and_rubbish_is_not(name: str) -> None:
    env, tasks = some_of(name)
    for index, task in enumerate(tasks):
        assert env.check(task, task.oracle).readable
        assert not env.check(task, ()).readable
        assert not env.check(task, ("",)).readable
        wrong = env.check(task, env.random_replies(task, random.Random(index)))
        assert not wrong.success or name == "control"  # random actions may reach a goal, if hardly ever
        # a random call may have arguments that its tool does not take
        assert wrong.readable or name == "tool_calling"


@pytest.mark.parametrize("reply", ["launch()", "get_weather(", "I would call a tool.", "note(town=3)"])
def test_a_call_that_no_tool_takes_is_not_read(reply: str) -> None:
    env, tasks = some_of("tool_calling")
    for task in [task for task in tasks if task.payload["gap"] == "none"]:
        assert not env.check(task, (reply,)).readable


def test_a_refusal_is_read_where_a_task_has_a_gap() -> None:
    env, tasks = some_of("tool_calling")
    gaps = [task for task in tasks if task.payload["gap"] != "none"]
    assert gaps
    for task in gaps:
        assert env.check(task, ("What a day.",)).readable
        assert not env.check(task, ("get_weather(",)).readable


@pytest.mark.parametrize("mode", ["episode", "single"])
def test_a_command_that_does_nothing_is_not_read(mode: Literal["episode", "single"]) -> None:
    env = load_environment("household", HouseholdConfig(mode=mode))
    for task in base_tasks(env, list(env.seeds())[:10], seed=0).values():
        assert env.check(task, ("look",)).readable
        assert not env.check(task, ("go to the moon",)).readable


def test_in_several_turns_one_call_that_ran_is_enough() -> None:
    env = load_environment("tool_calling", ToolCallingConfig(mode="multi"))
    tasks = base_tasks(env, list(env.seeds())[:60], seed=0).values()
    for task in [task for task in tasks if task.payload["gap"] == "none"]:
        assert env.check(task, ("launch()", task.oracle[0])).readable
        assert not env.check(task, ("launch()",)).readable
