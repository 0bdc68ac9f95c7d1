"""Tasks whose call the tool refuses: the agent tries it, changes nothing, and says that it cannot be done."""

from __future__ import annotations

import contextlib
import random
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from bundles import asked, call
from genenv.gate.gate import base_tasks, examined
from genenv.progress import Silent
from genenv.tools.discover.recipes import is_said_refusal
from genenv.tools.environment import Tools
from genenv.tools.generate.make_bundle import Asked, redraw
from genenv.tools.language.declining import reports_refusal
from genenv.tools.settings import ToolsConfig
from genenv.tools.worlds.base import GONE, Call, Outcome
from genenv.tools.worlds.python import PythonWorld
from genenv.types import Json, Rejection, Task
from sharing import Shared

TRIED = 'cancel_order(order_id="O-5001")'
SAID = "I could not do that.\nRefused: order O-5001 is delivered."


@pytest.fixture(scope="module")
def folder(desk_bundle: Path, shared: Shared) -> Path:
    """The desk, of which some tasks ask for what its tools refuse."""

    def make(path: Path) -> None:
        shutil.copytree(desk_bundle, path)
        about = (path / "bundle.toml").read_text()
        assert "refusals = false" in about
        (path / "bundle.toml").write_text(about.replace("refusals = false", "refusals = true"))
        redraw(path, Asked(base=40, held_out=12, seed=3), examined, Silent())

    return shared("desk-of-refusals", make)


@pytest.fixture(scope="module")
def env(folder: Path) -> Iterator[Tools]:
    found = Tools(folder=folder)
    yield found
    found.world.close()


@pytest.fixture
def task(env: Tools) -> Task:
    found = asked(env, call("cancel_order", order_id="O-5001"), gap="refused")
    assert isinstance(found, Task)
    return found


def test_the_prompt_says_what_to_do(env: Tools, task: Task) -> None:
    assert "If a tool refuses what is asked for, change nothing, and" in task.messages[0].content
    assert "say so instead" not in task.messages[0].content, "no task lacks a tool or a value"
    assert env.audit(task, random.Random(0)) is None


@pytest.mark.parametrize(
    ("replies", "complaint"),
    [
        ((TRIED, SAID), ""),
        (('get_order(order_id="O-5001")', TRIED, "**Refused:** it is delivered."), ""),
        (("cancel_order(order_id='o-5001')", TRIED, "Refused: that is not possible."), ""),
        (("cancel_order(order_id='o-5001')", "Refused: there is no such order."), "was not tried"),
        ((TRIED, "Refused: 1"), "has no line"),
        (("Refused: I cannot do that.",), "Nothing is called."),
        ((TRIED, "Sorry, it was refused."), "has no line"),
        (('get_order(order_id="O-5001")', SAID), "was not tried"),
        (('cancel_order(order_id="O-9999")', SAID), "was not tried"),
        ((TRIED, "Done, it is cancelled."), "has no line"),
        ((TRIED,), "has no line"),
        ((TRIED, 'cancel_order(order_id="O-5002")', SAID), "The state differs"),
    ],
)
def test_a_refusal_is_tried_and_reported(
    env: Tools, task: Task, replies: tuple[str, ...], complaint: str
) -> None:
    verdict = env.check(task, replies)
    assert verdict.success is not bool(complaint)
    assert complaint in verdict.explanation


def test_what_is_not_refused_in_words_is_no_such_task(env: Tools) -> None:
    cases: list[tuple[str, Mapping[str, Json], str]] = [
        ("cancel_order", {"order_id": "O-5002"}, "does not refuse it"),
        ("cancel_order", {"order": "O-5002"}, "order"),
        ("get_order", {"order_id": "O-5001"}, "does not refuse it"),
    ]
    for tool, args, said in cases:
        refused = asked(env, call(tool, **args), gap="refused")
        assert isinstance(refused, Rejection)
        assert said in refused.explanation
    refused = asked(env, call("cancel_order", order_id="O-5001"), gap="refused", answer=True)
    assert isinstance(refused, Rejection)


@pytest.mark.long
def test_some_tasks_are_refused_unless_settings_leave_them_out(env: Tools, folder: Path) -> None:
    programs = [*env.bundle.base.values(), *env.bundle.held_out.values()]
    refused = [one for one in programs if one.gap == "refused"]
    assert 2 <= len(refused) <= len(programs) / 2
    tasks = [*base_tasks(env, env.seeds(), seed=0).values(), *env.held_out()]
    assert all(env.check(one, one.oracle).success for one in tasks)
    for settings in ({"refusals": False}, {"mode": "single"}):
        other = Tools(ToolsConfig.model_validate(settings), folder=folder)
        assert not [one for _, one in other.playable(env.bundle.base) if one.gap == "refused"]
        assert not any("refused" in one.get("gap", ()) for one in other.options("cancel_order"))
        assert "left out" in str(other.omitted)
        other.world.close()


@pytest.mark.parametrize(
    ("words", "right"),
    [
        ("Refused: it is delivered.", True),
        ("I tried.\n- **refused**: it is delivered", True),
        ("It was refused: it is delivered.", False),
        ("Done, unless it was refused.", False),
        ("Approved: 4\nRefused: 2", False),
        ("", False),
    ],
)
def test_a_line_says_that_something_was_refused(words: str, right: bool) -> None:
    assert reports_refusal(words) is right


def test_a_task_that_can_be_done_is_not_refused(env: Tools) -> None:
    ordinary = [one for one in env.held_out() if one.payload["gap"] == "none" and not one.payload["answers"]]
    assert ordinary
    for task in ordinary:
        assert env.check(task, (*task.oracle[:-1], "Done.")).success
        verdict = env.check(task, (*task.oracle[:-1], "Done.\nRefused: it is too late."))
        assert verdict.explanation == "It says that it was refused."


@pytest.mark.parametrize(
    ("outcome", "right"),
    [
        (Outcome(error="it is too late for that"), True),
        (Outcome(result={"error": "the loan is not out"}), True),
        (Outcome(result={"success": False, "code": 409, "status": "failed"}), False),  # it says not why
        (Outcome(error="list index out of range"), False),
        (Outcome(error="'NoneType' object has no attribute 'price'"), False),
        (Outcome(error="KeyError: 'a' of these"), False),
        (Outcome(error="Timed out after 5 seconds."), False),
        (Outcome(error="division by zero"), False),
        (Outcome(error="Quantity is out of range for this item"), True),
        (Outcome(error="HTTP 409: OrderError: already shipped"), True),
        (Outcome(error=GONE), False),
        (Outcome(error="KeyError: 'there is no such order'", is_raised=True), True),
        (Outcome(error="'a' is no whole number", is_raised=False), False),
        (Outcome(result={"order": 1, "note": "it is too late"}), False),
    ],
)
def test_a_fault_of_a_tool_is_no_refusal(outcome: Outcome, right: bool) -> None:
    assert is_said_refusal(outcome, {}) is right


TEAMS = """
import os

from pydantic import BaseModel, field_validator

class Sum(BaseModel):
    amount: int

    @field_validator("amount")
    def positive(cls, value):
        if value <= 0:
            raise ValueError("the amount has to be positive")
        return value

TEAMS = {"T-1": {"budget": 90, "members": 0}}

def split_budget(team_id: str) -> dict:
    return {"each": TEAMS[team_id]["budget"] / TEAMS[team_id]["members"]}

def close(team_id: str) -> dict:
    if team_id not in TEAMS:
        raise KeyError("no such team is here")
    assert not TEAMS[team_id]["budget"], "there is money left in it"
    return TEAMS.pop(team_id)

def plan(day: str) -> str:
    import datetime
    return datetime.date.fromisoformat(day).isoformat()

def pay(amount: int) -> dict:
    return Sum(amount=amount).model_dump()

def crash(team_id: str) -> None:
    os._exit(3)
"""


@pytest.mark.parametrize(
    ("tool", "args", "right"),
    [
        ("split_budget", {"team_id": "T-1"}, False),
        ("split_budget", {"team_id": "T-2"}, False),
        ("close", {"team_id": "T-2"}, True),
        ("close", {"team_id": "T-1"}, True),
        ("plan", {"day": "this is no day"}, False),
        ("crash", {"team_id": "T-1"}, False),
        ("pay", {"amount": 0}, True),
    ],
)
def test_only_what_the_tools_own_code_raises_is_a_refusal(
    tmp_path: Path, tool: str, args: Mapping[str, Json], right: bool
) -> None:
    (tmp_path / "teams.py").write_text(TEAMS)
    with contextlib.closing(PythonWorld(tmp_path, "teams.py")) as world:
        outcome = world.play([Call(tool=tool, args=args)]).outcomes[-1]
    assert outcome.error
    assert is_said_refusal(outcome, args) is right
