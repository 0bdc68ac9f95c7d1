"""Tables with gaps and odd names, and texts that are made to take long."""

from __future__ import annotations

import random
import re
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from genenv.environments.travel import environment as travel
from genenv.environments.travel.check import judge, random_replies
from genenv.environments.travel.database import Database, clear
from genenv.environments.travel.environment import Travel
from genenv.environments.travel.query import before_parenthesis, from_to, name_and_city
from genenv.environments.travel.solver import solve
from genenv.environments.travel.spec import TravelSpec
from genenv.types import Lineage, Origin, Rejection, RejectReason, Task
from quickly import within

pytest.importorskip("ortools", reason="OR-Tools is not installed: pip install 'genenv[travel]'.")

WORDS = (
    "Please plan a trip from <origin> to <destination> for <days>, <dates>. "
    "Count on <people> and at most <budget>."
)


def with_rows(database: Database, **tables) -> Database:
    return Database(database.tables._replace(**tables))


def asking(query, *, missing: int | None = None) -> Task:
    payload = {"query": query.to_json(), "missing": missing, "plan": [{"current_city": "Bay"}]}
    lineage = Lineage(origin=Origin.GENERATED)
    return Task(
        id="t",
        environment="travel",
        skills=(),
        messages=(),
        spec={},
        payload=payload,
        oracle=(),
        lineage=lineage,
    )


@pytest.mark.parametrize("missing", [None, 0])
@pytest.mark.parametrize(("days", "destination"), [(3, "Bay"), (5, "Coast"), (7, "Coast")])
@pytest.mark.parametrize("table", ["restaurants", "attractions", "accommodations", "flights"])
def test_a_random_attempt_needs_no_full_tables(query, small, table, missing, days, destination):
    asked = replace(query, days=days, destination=destination, cities=(days - 1) // 2, dates=("",) * days)
    data = with_rows(small, **{table: []})
    (reply,) = random_replies(asking(asked, missing=missing), random.Random(0), data)
    assert reply.startswith("[" if missing is None else "{")


@pytest.mark.parametrize("name", ["Calm\nInn", "-", " ", "Inn;"])
def test_rows_whose_names_cannot_be_read_back_are_not_clear(small, name):
    room, other = small.accommodations("Bay")
    assert clear([room._replace(name=name), other]) == [other]
    assert clear([room._replace(name=" Calm Inn "), other])[0].name == " Calm Inn "


def test_the_oracle_keeps_clear_of_a_cheapest_room_with_two_lines(query, small):
    room, other = small.accommodations("Bay")
    odd = room._replace(name="A room\nwith a view", price=1.0)
    found = solve(query, with_rows(small, accommodations=[odd, room, other]))
    assert found is not None
    assert found.trip.days[0].accommodation == room


def test_a_plan_that_cannot_be_read_back_is_rejected_and_never_raised():
    env = Travel()
    spec = {"days": 3, "limits": 0, "slack": "fair", "people": 2, "origin": "Denver", "destination": "Tucson"}
    lineage = Lineage(origin=Origin.GENERATED)
    made = TravelSpec.model_validate({**spec, "start": 4, "query": WORDS})
    task = env.build(made, task_id="t", lineage=lineage, rng=random.Random(0))
    assert isinstance(task, Task), task
    days = [{**day, "accommodation": "A room\nwith a view, Tucson"} for day in task.payload["plan"]]
    broken = replace(task, payload={**task.payload, "plan": days})
    found = env.audit(broken, random.Random(0))
    assert isinstance(found, Rejection)
    assert found.reason is RejectReason.CHECKS_DISAGREE


def test_a_budget_is_loose_where_the_agent_has_nothing_to_pay():
    spec = TravelSpec(
        days=3, limits=0, slack="tight", people=1, origin="A", destination="B", start=1, query="q" * 9
    )
    for budget, slack in ((100, "tight"), (101, "loose")):
        found = travel._wrong_budget(spec.model_copy(update={"budget": budget, "slack": slack}), 100.0, 100.0)
        assert found is None
    wrong = travel._wrong_budget(spec.model_copy(update={"budget": 150}), 100.0, 100.0)
    assert wrong is not None
    assert "is loose, not tight" in wrong.explanation


@pytest.mark.parametrize("blank", [" ", ";", " ; ;", "\n"])
def test_blanks_are_no_attraction_though_the_benchmark_takes_them(query, plan, small, blank):
    rich, days = replace(query, budget=9999), plan(day2={"attraction": blank})
    assert judge(rich, plan(), small, strict=True).success
    assert not judge(rich, days, small, strict=True).success
    if blank in (" ", "\n"):
        assert judge(rich, days, small, strict=False).success


@pytest.mark.parametrize(("n", "found"), [(0, False), (1, True)])
def test_a_city_without_attractions_has_no_full_days(query, small, n, found):
    sights = list(small.attractions("Bay"))[:n]
    assert (solve(query, with_rows(small, attractions=sights)) is not None) == found


# --- reading ---

_FROM_TO = re.compile(r"from\s+(.+?)\s+to\s+([^,]+)(?=[,\s]|$)")
_NAME_CITY = re.compile(r"(.*?),\s*([^,]+)(\(\w[\w\s]*\))?$")
_PARENTHESIS = re.compile(r"^(.*?)\([^)]*\)")
PIECES = st.lists(
    st.sampled_from(
        ["from", "to", "to", "Bay", "St. Louis", "Taxi,", ",", ",,", "(a)", "(", ")", "-", "\n", "Tofrom", ""]
    ),
    max_size=14,
)


def _as_the_benchmark(text: str) -> tuple[str, str]:
    match = _NAME_CITY.search(text)
    if not match:
        return "-", "-"
    return match[1].strip(), _bare(match[2].strip()).strip()


def _bare(text: str) -> str:
    match = _PARENTHESIS.search(text)
    return match[1] if match else text


@settings(max_examples=200, deadline=None)
@given(text=PIECES.map(" ".join) | PIECES.map("".join) | st.text(" ,()\nab", max_size=20) | st.text())
def test_names_are_read_as_the_benchmark_reads_them(text):
    assert name_and_city(text) == _as_the_benchmark(text)
    assert before_parenthesis(text) == _bare(text)


@settings(max_examples=200, deadline=None)
@given(pieces=PIECES)
def test_ways_are_read_as_the_benchmark_reads_them(pieces):
    text = " ".join(piece for piece in pieces if piece)
    match = _FROM_TO.search(text)
    assert from_to(text) == ((match[1], match[2]) if match else None)


@pytest.mark.parametrize(
    "text",
    [
        "a" * 5000 + "," + " " * 15_000 + ",",
        "a" * 5000 + "," + " " * 15_000 + "(a,",
        "from " * 4000,
        "from" + " " * 20_000 + "to",
        "from a to " * 2000,
        "from a\nto , " * 1700,
        "to from " * 2500,
        "(" * 20_000,
        "," * 20_000,
    ],
)
def test_no_text_takes_long_to_read(text):
    with within(0.1):
        name_and_city(text), from_to(text), before_parenthesis(text)
