"""The base data and the held-out tasks of the apps: what they are of, and that they share nothing."""

from __future__ import annotations

import itertools
import json
import random
from collections import Counter
from collections.abc import Iterator
from functools import cache
from typing import Any

import pytest

from genenv.gate.gate import base_tasks, examined
from genenv.tools.bundle import Bundle
from genenv.tools.spec import Program
from genenv.tools.tool_calling.environment import BUNDLE, ToolCalling
from genenv.types import Task

ENVIRONMENT = ToolCalling()
SIDES = ("training", "measuring")


@cache
def tasks(side: str) -> list[Task]:
    if side == "training":
        return list(base_tasks(ENVIRONMENT, ENVIRONMENT.seeds(), seed=0).values())
    return list(ENVIRONMENT.held_out())


def programs(side: str) -> list[Program]:
    bundle = Bundle.open(BUNDLE)
    return list((bundle.base if side == "training" else bundle.held_out).values())


@pytest.mark.long
def test_there_are_as_many_as_promised() -> None:
    assert (len(tasks("training")), len(tasks("measuring")), ENVIRONMENT.main_held_out) == (544, 1000, 200)


@pytest.mark.parametrize(("side", "lot"), [("training", 544), ("measuring", 200)])
def test_each_lot_has_the_whole_mix(side: str, lot: int) -> None:
    for some in lots(side, lot):
        calls = Counter(one.n_calls for one in some)
        gaps = Counter(one.gap for one in some)
        assert calls[2] == round(0.28 * lot)
        assert calls[3] == round(0.12 * lot)
        assert gaps["missing_info"] + gaps["no_tool"] == round(0.12 * lot)
        assert abs(gaps["missing_info"] - gaps["no_tool"]) <= 1
        assert sum(one.chained for one in some) == round(0.08 * lot)
        shown = Counter(one.n_tools for one in some)
        assert set(shown) == {2, 3, 4, 6, 8}
        assert max(shown.values()) - min(shown.values()) <= lot // 10


def lots(side: str, lot: int) -> Iterator[list[Program]]:
    listed = programs(side)
    return (listed[start : start + lot] for start in range(0, len(listed), lot))


@pytest.mark.parametrize("side", SIDES)
def test_every_tool_is_asked_for_alone(side: str) -> None:
    alone = {one.calls[0].tool for one in programs(side) if one.n_calls == 1 and one.gap == "none"}
    assert alone == set(ENVIRONMENT.world.tools)


@pytest.mark.parametrize("side", SIDES)
@pytest.mark.long
def test_all_pass_the_gate_and_no_request_comes_twice_or_is_long(side: str) -> None:
    texts = [task.messages[-1].content for task in tasks(side)]
    if side == "measuring":  # of seeds the run decides how they are said
        assert len(set(texts)) == len(texts)
        assert max(len(text.split()) for text in texts) <= 48
        assert not any(" that this gives" in text for text in texts)
    assert not any("{" in text for text in texts)
    for task in tasks(side):
        assert examined(ENVIRONMENT, task, random.Random(0)) is None, task.messages[-1].content


def test_the_sides_share_no_wording() -> None:
    bundle = Bundle.open(BUNDLE)
    other = bundle.measuring_wordings
    assert other is not None
    first, second = (
        {line.casefold() for one in side.values() for line in one} for side in (bundle.wordings, other)
    )
    assert not first & second
    assert set(other) & set(bundle.wordings) >= set(ENVIRONMENT.world.tools)


def test_the_sides_share_no_value_but_closed_choices() -> None:
    bundle = Bundle.open(BUNDLE)
    closed = {"units", "currency"}
    for kind, listed in bundle.spoken_values.kinds(None).items():
        if kind.removeprefix("said.").split("[")[0] not in closed:
            assert not set(listed) & set(bundle.measuring_spoken_values.kinds(None).get(kind, ()))
    used = [said(side) for side in SIDES]
    assert not used[0] & used[1]


def said(side: str) -> set[Any]:
    """The values in calls, without closed choices, by the parameters that take them."""
    found: set[Any] = set()
    for program in programs(side):
        for step in program.calls:
            ways = ENVIRONMENT.graph.recipes[step.tool].ways
            found |= {
                (ways[name], json.dumps(value))
                for name, value in step.args.items()
                if ways[name] != "new" and not ways[name].startswith(("said.units", "said.currency"))
            }
    return found


def test_no_two_tools_meet_on_both_sides() -> None:
    pairs = [
        {
            frozenset(pair)
            for one in programs(side)
            for pair in itertools.combinations({step.tool for step in one.calls}, 2)
        }
        for side in SIDES
    ]
    assert min(map(len, pairs)) > 30
    assert not pairs[0] & pairs[1]


def test_the_sides_begin_in_other_states() -> None:
    starts = Bundle.open(BUNDLE).about.starts
    assert starts is not None
    states = [{starts.state_of(one) for one in programs(side)} for side in SIDES]
    assert states[0] == set(starts.states())
    assert states[1] == set(starts.states(measuring=True))


def test_what_is_written_by_hand_names_tools_and_parameters_there_are() -> None:
    bundle, tools = Bundle.open(BUNDLE), ENVIRONMENT.world.tools
    kinds = bundle.spoken_values.kinds(None).keys() | {"said.date", "said.span[0]", "said.span[1]"}
    assert set(bundle.graph.recipes) == set(tools)
    for recipe in bundle.graph.recipes.values():
        assert set(recipe.ways) == set(tools[recipe.tool].properties)
        assert {way for way in recipe.ways.values() if way.startswith("said.")} <= kinds
    assert {one for group in bundle.about.groups.values() for one in group} == set(tools)
    for wordings in (bundle.wordings, bundle.measuring_wordings or {}):
        for key in wordings:
            assert set(key.split(" without ")[0].split(">")) <= set(tools)
