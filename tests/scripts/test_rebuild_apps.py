"""The states and tasks of the apps are those that the script draws."""

from __future__ import annotations

import itertools
import json

import pytest

import rebuild_apps
from genenv.tools.bundle import program_line
from genenv.tools.tool_calling.environment import BUNDLE


def lines(file: str) -> list[str]:
    return (BUNDLE / file).read_text(encoding="utf-8").splitlines()


@pytest.mark.parametrize("number", [0, 15, 16, 31])
def test_states_are_those_that_are_drawn(number: int) -> None:
    assert rebuild_apps.state_of(number) == json.loads(lines("files/states.jsonl")[number])


@pytest.mark.parametrize(("which", "lot"), [("base", 544), ("held-out", 200)])
def test_tasks_are_those_that_are_drawn(which: str, lot: int) -> None:
    rebuild_apps.known.clear()
    drawn = rebuild_apps.programs(0, lot, measuring=which != "base")
    some = [program_line(program) for program in itertools.islice(drawn, 25)]
    assert some == lines(f"tasks/{which}.jsonl")[:25]
