"""Arguments that are lists of records: what a record names belongs together, and each item does something."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any, cast

import pytest

from bundles import made
from genenv.gate.gate import examined
from genenv.tools.audit import _with_less
from genenv.tools.discover.state_values import records
from genenv.tools.environment import Tools
from genenv.tools.spec import Program, Step
from genenv.types import Lineage, Origin, Rejection

LINKS = '''
from typing_extensions import TypedDict


class Link(TypedDict):
    source: str
    target: str
    kind: str


class Links:
    """Who knows whom; what is to be removed and is not there is passed over."""

    def __init__(self) -> None:
        self.links = [
            {"source": "Ada", "target": "Acme", "kind": "works at"},
            {"source": "Ben", "target": "Cleo", "kind": "knows"},
            {"source": "Cleo", "target": "Leeds", "kind": "lives in"},
            {"source": "Dan", "target": "Ben", "kind": "manages"},
            {"source": "Eve", "target": "Dan", "kind": "pays"},
            {"source": "Fay", "target": "Hull", "kind": "moved to"},
        ]

    def remove_links(self, links: list[Link]) -> int:
        """Remove links."""
        before = len(self.links)
        self.links = [one for one in self.links if one not in links]
        return before - len(self.links)
'''


def test_records_are_found_with_their_own_values() -> None:
    state = {
        "orders": {"O-1": {"item": "lamp", "tags": ["a", "b"]}, "O-2": {"item": "desk", "tags": []}},
        "links": [{"from": "Ada", "to": "Ben"}],
    }
    assert records(state) == {
        "orders.*": [
            {"orders.#": ["O-1"], "orders.*.item": ["lamp"], "orders.*.tags.*": ["a", "b"]},
            {"orders.#": ["O-2"], "orders.*.item": ["desk"]},
        ],
        "links.*": [{"links.*.from": ["Ada"], "links.*.to": ["Ben"]}],
    }
    assert records(3) == {}


def test_each_item_of_each_list_is_left_out_once() -> None:
    assert list(_with_less([1, 2])) == [[2], [1]]
    assert list(_with_less([{"a": [1, 2]}])) == [[{"a": [2]}], [{"a": [1]}]]
    assert list(_with_less({"a": [1], "b": "xy"})) == []


@pytest.mark.long
def test_a_list_of_records_names_those_that_are_there(tmp_path: Path) -> None:
    (tmp_path / "links.py").write_text(LINKS)
    found = made(tmp_path / "links", tmp_path / "links.py", base=12, held_out=2)
    recipe = found.graph.recipes["remove_links"]
    assert recipe.ways["links.source"] == "links.*.source"
    assert recipe.success > 0.5  # three values at random fit together once in 36
    env = Tools(folder=tmp_path / "links")
    longest = 0
    for program in (*env.bundle.base.values(), *env.bundle.held_out.values()):
        begun = env.begun(program).state["links"]  # type: ignore[index,call-overload]
        for step in program.calls:
            assert all(link in begun for link in step.args["links"])  # type: ignore[union-attr,operator]
            longest = max(longest, len(step.args["links"]))  # type: ignore[arg-type]
    assert longest > 1

    def judged(*links: dict[str, str]) -> Rejection | None:
        for side in (Origin.SEED, Origin.HELD_OUT):
            step = Step(tool="remove_links", args={"links": cast(Any, list(links))})
            program = Program(n_calls=1, chained=False, answer=False, n_tools=1, calls=(step,))
            rng = random.Random(0)
            task = env.build(program, task_id="one", lineage=Lineage(origin=side), rng=rng)
            if not isinstance(task, Rejection):
                return examined(env, task, rng)
        raise AssertionError(task)

    there = {"source": "Ada", "target": "Acme", "kind": "works at"}
    gone = {"source": "Ada", "target": "Leeds", "kind": "works at"}
    assert judged(there) is None
    refused = judged(there, gone)
    assert refused is not None
    assert refused.reason == "trivial"
    assert refused.explanation == "Without one of the links of remove_links the end is the same."
