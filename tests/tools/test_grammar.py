"""The grammar of whole programs: what tasks and variations look like is written under it, and only that."""

from __future__ import annotations

import random
from collections.abc import Callable
from pathlib import Path

import pytest

from bundles import by_hand, made, recipe
from genenv.environments.common import MOST_SCHEMA_CHARS
from genenv.simulator.schema_sampling import sample_json
from genenv.tools import grammar
from genenv.tools.environment import Tools
from genenv.tools.settings import ToolsConfig
from genenv.tools.spec import Program
from genenv.types import JsonObject, Seed

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


def _call(tool: str) -> JsonObject:
    return {"tool": tool, "args": {}}
