"""Filters of tools that read, counts, and days that no name tells: they are in tasks."""

from __future__ import annotations

import inspect
import random
import re
from datetime import date
from pathlib import Path

import pytest

from bundles import made
from genenv.environments import load_environment
from genenv.environments.common import closed_object
from genenv.gate.gate import base_tasks
from genenv.progress import Silent
from genenv.tools.check import calls_of
from genenv.tools.discover.answers import shown_by
from genenv.tools.discover.asking import with_questions
from genenv.tools.discover.exploring import Explorer
from genenv.tools.discover.recipes import Graph, Held, Recipe, draw_arguments
from genenv.tools.discover.slots import filters, slots
from genenv.tools.discover.state_values import Records, held_in
from genenv.tools.worlds.base import Outcome, Tool
from genenv.tools.worlds.in_process import InProcessWorld
from genenv.types import Json

TEXT: Json = {"type": "string"}
_STATUSES = ("booked", "moored", "left")


class Quay:
    """Stays of boats: most filters leave few of them, and all statuses have equally many."""

    def __init__(self) -> None:
        self.stays = {
            100 + n: {
                "boat": f"Tern {n}",
                "arrival": f"2024-0{1 + n % 8}-1{n % 9}",
                "status": _STATUSES[n % 3],
                "length": 5.0 + n,
                "insured": "2027-01-01",
            }
            for n in range(9)
        }

    def list_stays(
        self,
        from_date: str | None = None,
        date_to: str | None = None,
        only_long: bool = False,
        min_length: float | None = None,
    ) -> list[dict[str, object]]:
        """List stays."""
        found = [{"stay_id": key, **one} for key, one in self.stays.items()]
        if date_to is not None:
            found = [one for one in found if str(one["arrival"]) <= date_to]
        if from_date is not None:
            found = [one for one in found if str(one["arrival"]) >= from_date]
        if only_long:
            found = [one for one in found if float(str(one["length"])) > 12]
        if min_length is not None:
            found = [one for one in found if float(str(one["length"])) >= min_length]
        return found

    def late(self, as_of: str) -> list[int]:
        """Stays whose insurance ends before a day."""
        return [key for key, one in self.stays.items() if str(one["arrival"]) < as_of]

    def count_stays(self, status: str) -> int:
        """Number of stays with a status."""
        return sum(one["status"] == status for one in self.stays.values())

    def set_status(self, stay_id: int, status: str) -> None:
        """Set the status of a stay."""
        if status not in _STATUSES:
            raise ValueError(status)
        self.stays[int(stay_id)]["status"] = status

    def renew(self, stay_id: int, term: str) -> None:
        """Renew the insurance of a boat, term: ISO date."""
        date.fromisoformat(term)
        self.stays[int(stay_id)]["insured"] = term


@pytest.fixture(scope="module", params=range(3))
def quay(request: pytest.FixtureRequest) -> Graph:
    world = InProcessWorld(f"{__name__}:Quay")
    explorer = Explorer(world, random.Random(request.param))
    return with_questions(explorer, explorer.explore(), world, request.param, Silent())[1]


def test_filters_that_often_find_nothing_are_given(quay: Graph) -> None:
    ways = quay.recipes["list_stays"].ways
    assert "only_long" in ways
    assert ways["min_length"].endswith(".length")
    assert ways["from_date"].endswith(".arrival")
    assert ways["date_to"].endswith(".arrival")


def test_a_bound_that_leaves_all_for_any_other_text_is_a_day_that_there_is(quay: Graph) -> None:
    assert quay.recipes["late"].ways["as_of"].endswith(".arrival")


def test_a_count_is_asked_for_though_it_is_the_same_for_all_at_first(quay: Graph) -> None:
    assert quay.recipes["count_stays"].told == ("",)


def test_an_error_that_tells_of_days_has_days_tried_first(quay: Graph) -> None:
    assert "arrival" in quay.recipes["renew"].ways["term"] or "insured" in quay.recipes["renew"].ways["term"]


class Orchard:
    """Trees that take few supports each; the search has filters that no name of a field is."""

    def __init__(self) -> None:
        self.trees = [
            {"code": f"T{n}", "sort": sort, "worth_eur": 400.0 * n, "supports": n % 3}
            for n, sort in enumerate(("Russet", "Pippin", "Quince", "Medlar", "Damson", "Mirabelle"), start=1)
        ]

    def search(
        self,
        sort_contains: str | None = None,
        max_worth: float | None = None,
        cheaper_than: float | None = None,
        written: str | None = None,
        secret: str | None = None,
    ) -> list[dict[str, object]]:
        """Search trees."""
        if secret is not None:
            raise PermissionError("no secrets here")
        found = self.trees
        for least in (max_worth, cheaper_than):
            found = [one for one in found if least is None or float(str(one["worth_eur"])) <= least]
        for text in (sort_contains, written):
            found = [one for one in found if text is None or text in str(one["sort"])]
        return list(found)

    def add_support(self, tree: str, count: int = 1) -> int:
        """Add supports to a tree."""
        found = next(one for one in self.trees if one["code"] == tree)
        if count < 1 or int(str(found["supports"])) + count > 4:
            raise ValueError("no more than 4 of them")
        found["supports"] = int(str(found["supports"])) + count
        return int(str(found["supports"]))


@pytest.fixture(scope="module", params=range(3))
def orchard(request: pytest.FixtureRequest) -> Graph:
    return Explorer(InProcessWorld(f"{__name__}:Orchard"), random.Random(request.param)).explore()


def test_filters_take_values_that_there_are_whatever_they_are_called(orchard: Graph) -> None:
    ways = orchard.recipes["search"].ways
    assert ways["max_worth"] == ways["cheaper_than"] == "trees.*.worth_eur"
    assert ways["sort_contains"] == ways["written"] == "trees.*.sort"


def test_a_count_of_which_large_ones_fail_is_given(orchard: Graph) -> None:
    assert orchard.recipes["add_support"].ways["count"] == "new"


def test_an_optional_argument_that_is_never_given_has_a_reason(orchard: Graph) -> None:
    (only,) = orchard.recipes["search"].unused.items()
    assert only[0] == "secret"
    assert re.fullmatch(r'tried ".+; last refusal: .*no secrets here', only[1])
    assert not orchard.recipes["add_support"].unused


def test_what_begins_and_ends_is_of_one_record() -> None:
    months = [f"2024-0{number}" for number in range(1, 9)]
    state: Json = {"stays": {one: {"arrival": f"{one}-01", "departure": f"{one}-09"} for one in months}}
    tool = Tool(name="price", parameters=closed_object({"begin": TEXT, "end": TEXT, "also": TEXT}))
    ways = {"begin": "stays.*.arrival", "end": "stays.*.departure", "also": "stays.#"}
    recipe = Recipe(tool="price", writes=False, ways=ways, success=1.0)
    held = Held(held_in(state, [ways]) | {"stays.#": [*months]}, Records(state))
    for number in range(8):
        args = draw_arguments(tool, recipe, held, random.Random(number))
        assert args is not None
        assert str(args["begin"])[:7] == str(args["end"])[:7]


def test_a_record_whose_name_has_a_point_is_given_as_a_whole() -> None:
    record = closed_object({"id": TEXT})
    tool = Tool(name="find", parameters=closed_object({"filter.x": record, "filter": record}))
    assert [*slots(tool)] == ["filter.x", "filter", "filter.id"]


def test_a_result_that_is_prose_is_not_asked_for() -> None:
    made_of = [({"n": n}, Outcome(result=f"Made order {n + 3}")) for n in range(2)]
    assert shown_by(made_of) == (("",), ())
    assert shown_by([({}, Outcome(result=word)) for word in ("open", "shut")]) == (("",), ("",))


@pytest.mark.long
def test_a_count_is_answered_in_its_line(tmp_path: Path) -> None:
    text = f"from datetime import date\n\n_STATUSES = {_STATUSES!r}\n\n\n{inspect.getsource(Quay)}"
    (tmp_path / "quay.py").write_text(text, encoding="utf-8")
    made(tmp_path / "quay", tmp_path / "quay.py", "Quay", base=30)
    env = load_environment(str(tmp_path / "quay"))
    tasks = base_tasks(env, env.seeds(), seed=0).values()
    counts = [
        one
        for one in tasks
        if one.payload["answers"] and calls_of(one.payload, "calls")[-1].tool == "count_stays"
    ]
    assert counts
    for task in counts:
        (count,) = task.payload["answers"]  # type: ignore[misc]
        assert "tell me the result that this gives" in task.messages[-1].content
        assert task.oracle[-1] == f"Answer: {count}"


def test_no_value_of_a_record_says_where_a_list_goes_on() -> None:
    firsts: dict[str, Json] = {"orders.#": "O-1", "orders.total": 20}
    named = ("pageToken", "cursor", "offset", "status")
    tool = Tool(name="list", parameters=closed_object(dict.fromkeys(named, TEXT)))
    assert [name for name in named if filters(tool, name, firsts)] == ["status"]
