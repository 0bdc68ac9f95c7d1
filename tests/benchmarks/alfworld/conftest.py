"""A small hand-written house in the layout of ALFWorld's files, and a model that says what it is told to."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from importlib import resources
from pathlib import Path
from typing import Any

import pytest

from genenv.benchmarks.alfworld import TYPES
from genenv.errors import ContextOverflow
from genenv.evaluation.data import DataFolder
from recited import Recited

GRAMMAR = """grammar :: "{ "task": [{"rhs": "Your task is to: do the thing."}] }";
action PutObject { template :: "move {o} to {r}"; feedback :: "moved"; }
action help {
    template :: "help";
    feedback :: "
Ask nobody.
";
}
"""
PROBLEM = """
(define (problem house)
(:domain alfred)
(:objects agent1 - agent)
(:init
    (atLocation agent1 loc_bar_9)
    (receptacleType Fridge_bar_1 FridgeType) (receptacleAtLocation Fridge_bar_1 loc_bar_1)
    (receptacleType Shelf_bar_1 ShelfType) (receptacleAtLocation Shelf_bar_1 loc_bar_2)
    (receptacleType Shelf_bar_2 ShelfType) (receptacleAtLocation Shelf_bar_2 loc_bar_3)
    (receptacleType Microwave_bar_1 MicrowaveType) (receptacleAtLocation Microwave_bar_1 loc_bar_4)
    (receptacleType Sink_bar_1_bar_SinkBasin SinkBasinType)
    (receptacleAtLocation Sink_bar_1_bar_SinkBasin loc_bar_5)
    (openable Fridge_bar_1) (openable Microwave_bar_1) (opened Microwave_bar_1)
    (canContain ShelfType MugType) (canContain ShelfType PenType) (canContain MicrowaveType MugType)
    (canContain FridgeType MugType) (canContain SinkBasinType MugType)
    (objectType Mug_bar_1 MugType) (objectType Mug_bar_2 MugType) (objectType Pen_bar_1 PenType)
    (objectType DeskLamp_bar_1 DeskLampType) (objectType Chair_bar_1 ChairType)
    (pickupable Mug_bar_1) (pickupable Mug_bar_2) (pickupable Pen_bar_1)
    (cleanable Mug_bar_1) (heatable Mug_bar_1) (coolable Mug_bar_1) (isReceptacleObject Mug_bar_2)
    (cleanable Mug_bar_2) (heatable Mug_bar_2) (coolable Mug_bar_2) (isCool Mug_bar_1)
    (toggleable DeskLamp_bar_1) (inReceptacleObject Pen_bar_1 Mug_bar_2)
    (inReceptacle Mug_bar_1 Fridge_bar_1)
    (inReceptacle Mug_bar_2 Shelf_bar_1) (inReceptacle Mug_bar_2 Shelf_bar_2)
    (inReceptacle Pen_bar_1 Shelf_bar_1) (inReceptacle DeskLamp_bar_1 Shelf_bar_2)
    (objectAtLocation Mug_bar_1 loc_bar_1) (objectAtLocation Mug_bar_2 loc_bar_2)
    (objectAtLocation Pen_bar_1 loc_bar_2) (objectAtLocation DeskLamp_bar_1 loc_bar_3)
    (objectAtLocation Chair_bar_1 loc_bar_9)
)
(:goal GOAL)
)
"""
"""Ids count down as numbers count up: `Mug_bar_1` is mug 2, in the fridge; `Mug_bar_2` is mug 1, on shelf 2
and, by a quirk that the real files have, on shelf 1 as well; `Shelf_bar_1` is shelf 2."""
PLACED = "(exists (?r - receptacle) (exists (?o - object) (and {} (objectType ?o {}Type)"
PLACED += " (receptacleType ?r {}Type) (inReceptacle ?o ?r))))"
PICK = PLACED.format("", "Pen", "Shelf")
GOALS = {
    "pick": PLACED.format("", "Mug", "Microwave"),
    "clean": PLACED.format("(cleanable ?o) (isClean ?o)", "Mug", "Shelf"),
    "heat": PLACED.format("(heatable ?o) (isHot ?o)", "Mug", "Shelf"),
    "cool": PLACED.format("(coolable ?o) (isCool ?o)", "Mug", "Shelf"),
    "two": "(exists (?r - receptacle) (exists (?o1 - object) (and (objectType ?o1 MugType)"
    " (receptacleType ?r FridgeType) (inReceptacle ?o1 ?r) (exists (?o2 - object) (and (not (= ?o1 ?o2))"
    " (objectType ?o2 MugType) (receptacleType ?r FridgeType) (inReceptacle ?o2 ?r))))))",
    "light": "(and (exists (?l - object ?r - receptacle ?a - agent ?p - location) (and (isToggled ?l)"
    " (objectType ?l DeskLampType) (toggleable ?l) (inReceptacle ?l ?r) (receptacleAtLocation ?r ?p)"
    " (atLocation ?a ?p))) (exists (?o - object ?a - agent) (and (objectType ?o PenType) (holds ?a ?o))))",
}
SOLUTIONS = {
    "pick": ["go to shelf 1", "take mug 1 from shelf 1", "go to microwave 1", "move mug 1 to microwave 1"],
    "clean": [
        *("go to shelf 1", "take mug 1 from shelf 1", "go to sinkbasin 1", "clean mug 1 with sinkbasin 1"),
    ],
    "heat": ["go to shelf 1", "take mug 1 from shelf 1", "go to microwave 1", "heat mug 1 with microwave 1"],
    "cool": [
        *("go to fridge 1", "open fridge 1", "take mug 2 from fridge 1", "go to shelf 1"),
        "move mug 2 to shelf 1",
    ],
    "two": [
        *("go to shelf 1", "take mug 1 from shelf 1", "go to fridge 1", "open fridge 1"),
        "move mug 1 to fridge 1",
    ],
    "light": ["go to shelf 2", "take pen 1 from shelf 2", "go to shelf 1", "use desklamp 1"],
}
"""`clean` and `heat` are won where the mug is treated, for it is on a shelf still: shelf 2."""


NAMES = {kind: name for name, kind in TYPES.items()}


def written(kind: str = "pick", **changes: Any) -> dict[str, Any]:
    """The content of a `game.tw-pddl`."""
    content = {
        "pddl_domain": "(define (domain alfred))",
        "grammar": GRAMMAR,
        "pddl_problem": PROBLEM.replace("GOAL", GOALS[kind]),
        "solvable": True,
        "walkthrough": SOLUTIONS[kind],
    }
    return content | changes


SHORTEST = {
    "cool": ["go to shelf 1", "take mug 1 from shelf 1", "go to fridge 1", "cool mug 1 with fridge 1"],
}
"""Where a solution above takes a longer way on purpose."""


def playable(kind: str) -> dict[str, Any]:
    """The content of a `game.tw-pddl` that TextWorld opens as well, on ALFWorld's environment and grammar."""
    alfworld = pytest.importorskip(
        "alfworld", reason="alfworld is not installed: pip install --no-deps alfworld"
    )
    files = resources.files(alfworld) / "data"
    grammar = (files / "alfred.twl2").read_text().replace("UNKNOWN GOAL", "do the thing.")
    helped = re.search(r'"help\.feedback": \[\s*\{\s*"rhs": "([^"]*)"', grammar)
    assert helped is not None
    grammar = grammar.replace("#help.feedback#", helped[1].replace("\\n", "\n"))  # as recorded games have it
    problem = PROBLEM.replace("GOAL", GOALS[kind]).replace("agent1 - agent", declared())
    env = (files / "alfred.pddl").read_text()
    changes = {"pddl_domain": env, "pddl_problem": problem, "grammar": grammar}
    return written(kind, **changes, walkthrough=SHORTEST.get(kind, SOLUTIONS[kind]))


def declared() -> str:
    """Everything that the problem names, with its type: our engine does without, TextWorld does not."""
    kinds = {
        "location": r"\bloc_bar_\d+",
        "object": r"\(objectType (\w+)",
        "otype": r"\(objectType \w+ (\w+)",
        "receptacle": r"\(receptacleType (\w+)",
        "rtype": r"\(receptacleType \w+ (\w+)",
    }
    found = {kind: sorted(set(re.findall(pattern, PROBLEM))) for kind, pattern in kinds.items()}
    return "agent1 - agent " + " ".join(f"{name} - {kind}" for kind, names in found.items() for name in names)


class Houses:
    """A data folder with hand-written games."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def add(self, split: str, name: str, content: dict[str, Any] | str) -> Path:
        path = self.root / "alfworld" / "json_2.1.1" / split / name / "trial_1" / "game.tw-pddl"
        path.parent.mkdir(parents=True)
        text = content if isinstance(content, str) else json.dumps(content)
        path.write_text(text, encoding="utf-8")
        return path

    def data(self) -> DataFolder:
        return DataFolder(self.root, known={})


@pytest.fixture
def recorded(whose: str, request: pytest.FixtureRequest) -> DataFolder:
    """Recorded games: the real ones, or one of each type in each split on the hand-written house."""
    if whose == "official":
        return request.getfixturevalue("data_folder")
    ours = Houses(request.getfixturevalue("tmp_path"))
    for split in ("valid_seen", "valid_unseen"):
        for kind in GOALS:
            ours.add(split, f"{NAMES[kind]}-1", playable(kind))
    return ours.data()


@pytest.fixture
def houses(tmp_path: Path) -> Houses:
    return Houses(tmp_path)


FULL = ContextOverflow("the conversation has 9 tokens, the window 8")


@pytest.fixture
def speaker() -> Callable[[Sequence[str]], Recited]:
    """A conversation whose replies are given; when they run out, the window is full."""
    return lambda replies: Recited(*replies, FULL)


@pytest.fixture
def game() -> Callable[..., dict[str, Any]]:
    return written


@pytest.fixture(params=GOALS)
def kind(request: pytest.FixtureRequest) -> str:
    return request.param


@pytest.fixture
def solution() -> Callable[[str], list[str]]:
    return lambda kind: list(SOLUTIONS[kind])
