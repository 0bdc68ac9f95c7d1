"""The grammar of whole programs: what tasks and variations look like is written under it, and only that."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bundles import asked, by_hand, call, made, recipe
from genenv.environments.common import MOST_SCHEMA_CHARS
from genenv.simulator.schema_sampling import sample_json
from genenv.tools import grammar
from genenv.tools.audit import audit
from genenv.tools.discover.recipes import FRESH
from genenv.tools.discover.slots import items
from genenv.tools.environment import Tools
from genenv.tools.settings import ToolsConfig
from genenv.tools.spec import Program
from genenv.types import JsonObject, Seed, Task

Written = Callable[[JsonObject, JsonObject], bool]

LOANS = '''
"""A store of costumes."""

costumes = {
    f"K-{n}": {"label": label, "price": price, "out": False}
    for n, (label, price) in enumerate(
        [("fairy", 19.99), ("pirate", 49.0), ("wizard", 120.5), ("queen", 7.1), ("clown", 80.3)], 1
    )
}


def costume_of(label: str) -> str:
    """Return the costume id of a costume by its label."""
    return next(key for key, one in costumes.items() if one["label"] == label)


def at_price(price: float) -> list[dict]:
    """List the costumes that cost exactly a price."""
    return [{"costume_id": key, **one} for key, one in costumes.items() if one["price"] == price]


def card(costume_id: str) -> dict:
    """Show the card of a costume."""
    return {"card.id": costume_id, "card.label": costumes[costume_id]["label"]}


def relabel(label: str, costume_id: str) -> dict:
    """Give a costume another label."""
    costumes[costume_id]["label"] = label
    return {"costume_id": costume_id}


def discard(costume_id: str) -> dict:
    """Throw a costume away."""
    return {"label": costumes.pop(costume_id)["label"]}


def how_many() -> int:
    """Count the costumes."""
    return len(costumes)
'''


@pytest.mark.long
@pytest.mark.parametrize("longest", [MOST_SCHEMA_CHARS, 100])
def test_tasks_of_a_bundle_are_written_under_its_grammar_and_nearly_all_variations(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, written_under: Written, longest: int
) -> None:
    (tmp_path / "loans.py").write_text(LOANS, encoding="utf-8")
    made(tmp_path / "loans", tmp_path / "loans.py")
    monkeypatch.setattr(grammar, "MOST_SCHEMA_CHARS", longest)
    env, rng = Tools(ToolsConfig(), tmp_path / "loans"), random.Random(0)
    try:
        programs = [Program.model_validate(seed.spec) for seed in env.seeds()]
        results = {use.path for one in programs for step in one.calls for use in step.uses}
        assert () in results  # a result that is one bare value
        assert all(written_under(env.spec_schema(seed), seed.spec) for seed in env.seeds())
        varied = [(seed, env.variation(seed, rng)) for seed in env.seeds() for _ in range(4)]
        written = [written_under(env.spec_schema(seed), spec) for seed, spec in varied]
        assert sum(written) >= 0.9 * len(written)  # not those with a record that calls before the task made
        for seed in env.seeds():
            Program.model_validate(sample_json(env.spec_schema(seed), rng))
    finally:
        env.world.close()


COUNTER = '''
"""A counter at a door."""

inside = {"people": 0}


def enter() -> int:
    """Note that a person came in."""
    inside["people"] += 1
    return inside["people"]


def leave() -> int:
    """Note that a person went out."""
    inside["people"] -= 1
    return inside["people"]
'''


def test_tools_without_arguments_have_no_gaps_and_no_references(tmp_path: Path) -> None:
    recipes = recipe("enter", writes=True), recipe("leave", writes=True)
    env = Tools(ToolsConfig(), by_hand(tmp_path / "door", COUNTER, *recipes, user_answers=True))
    try:
        spec = {"n_calls": 1, "chained": False, "answer": False, "n_tools": 2, "calls": [_call("enter")]}
        seed, rng = Seed(id="one", environment="tools", spec=spec, skills=()), random.Random(0)
        drawn = [Program.model_validate(sample_json(env.spec_schema(seed), rng)) for _ in range(50)]
        assert {one.gap for one in drawn} == {"none"}
        assert not any(one.chained for one in drawn)
        assert {step.tool for one in drawn for step in one.calls} == {"enter", "leave"}
    finally:
        env.world.close()


YARD = '''
"""Boats of a yard, whose ids are integers."""

from typing_extensions import TypedDict

boats = {n: {"name": name, "afloat": True} for n, name in enumerate(["Ebba", "Nora", "Siv"], 41)}
last = {"moved": ""}


class Move(TypedDict):
    boat: int
    berth: int
    along: list[int] | None


def lift(boat_id: int) -> None:
    """Take a boat out of the water."""
    boats[boat_id]["afloat"] = False


def wash(boat_ids: list[int]) -> None:
    """Wash boats."""
    for boat_id in boat_ids:
        boats[boat_id]["clean"] = True


def move(moves: list[Move]) -> None:
    """Give boats other berths."""
    for one in moves:
        for boat_id in (one["boat"], *(one["along"] or ())):
            boats[boat_id]["berth"] = one["berth"]


def note(boat_id: int) -> None:
    """Note that a boat was seen."""
    assert boat_id in boats
    last["moved"] = "a boat"
'''


@pytest.fixture
def yard(tmp_path: Path) -> Iterator[Tools]:
    kind = "boats.#"
    moved = {"moves": FRESH, "moves.boat": kind, "moves.along": kind, "moves.gone": kind}
    recipes = (
        *(recipe(name, writes=True, boat_id=kind) for name in ("lift", "note")),
        recipe("wash", writes=True, boat_ids=kind),
        recipe("move", writes=True, **moved),
    )
    env = Tools(ToolsConfig(), by_hand(tmp_path / "yard", YARD, *recipes))
    yield env
    env.world.close()


@pytest.mark.parametrize("longest", [MOST_SCHEMA_CHARS, 6000])
def test_ids_that_are_integers_or_in_lists_or_in_records_are_of_records_that_exist(
    yard: Tools, monkeypatch: pytest.MonkeyPatch, longest: int
) -> None:
    monkeypatch.setattr(grammar, "MOST_SCHEMA_CHARS", longest)
    spec = {"n_calls": 1, "chained": False, "answer": False, "n_tools": 4, "calls": [_call("lift")]}
    seed, rng = Seed(id="one", environment="tools", spec=spec, skills=()), random.Random(0)
    schema = yard.spec_schema(seed)
    assert ("anyOf" in schema) == (
        longest == MOST_SCHEMA_CHARS
    )  # else fields need not agree, but ids are listed
    drawn = [Program.model_validate(sample_json(schema, rng)) for _ in range(200)]
    named: dict[str, set[int]] = {}
    for step in (step for one in drawn for step in one.calls):
        for value in (value for argument in step.args.values() for value in items(argument)):
            moved = isinstance(value, dict)
            named.setdefault(step.tool, set()).update([value["boat"], *value["along"]] if moved else [value])
    assert named == {tool: {41, 42, 43} for tool in ("lift", "wash", "move", "note")}


def test_the_audit_tries_other_ids_of_any_form(yard: Tools) -> None:
    rows: dict[str, JsonObject] = {
        "lift": {"boat_id": 41},
        "wash": {"boat_ids": [41]},
        "move": {"moves": [{"boat": 41, "berth": 7, "along": [42]}]},
    }
    for tool, args in rows.items():
        task = asked(yard, call(tool, **args))
        assert isinstance(task, Task)
        assert audit(yard, task) is None
    task = asked(yard, call("note", boat_id=41))
    assert isinstance(task, Task)
    problem = audit(yard, task)
    assert problem is not None
    assert problem.explanation == "With another boat_id of note the end is the same."


def _call(tool: str) -> JsonObject:
    return {"tool": tool, "args": {}}
