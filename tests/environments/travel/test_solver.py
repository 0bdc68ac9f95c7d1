"""The oracle finds the cheapest plan, and its model agrees with the checker on what fits."""

from __future__ import annotations

import itertools
import random
import sys
from dataclasses import replace

import pytest

from genenv.environments.travel.check import broken, judge
from genenv.environments.travel.constraints import score, total_cost
from genenv.environments.travel.query import Query, UnreadableError
from genenv.environments.travel.sandbox import DATES, sandbox
from genenv.environments.travel.seeds import Atlas
from genenv.environments.travel.solver import cp_model, fits, solve
from genenv.environments.travel.trips import read_trip, written
from genenv.errors import UsageError

pytest.importorskip("ortools", reason="OR-Tools is not installed: pip install 'genenv[travel]'.")


def test_the_cheapest_plan_of_the_small_world_is_found_by_hand(query, small):
    """Own car 40 + 39, no taxi or plane; Fig and Fig Tree and Elm 3 * 60; Calm Inn 2 * 2 * 80."""
    found = solve(query, small)
    assert found is not None
    assert found.cost == 40 + 39 + 3 * (10 + 20 + 30) + 320
    assert total_cost(query, written(found.trip), small) == found.cost


@pytest.mark.parametrize(
    ("wishes", "cost"),
    [
        ({"transport": "no self-driving"}, 3 * 220 + 180 + 320),  # by plane
        ({"transport": "no self-driving", "people": 8}, 8 * 220 + 8 * 60 + 2 * 4 * 80),  # taxis cost 3200
        ({"transport": "no flight", "people": 6}, 80 + 78 + 6 * 60 + 2 * 3 * 80),  # two own cars
        ({"cuisines": ("American",)}, 79 + 3 * (10 + 20 + 40) + 320),  # Oak for Elm
        (
            {"cuisines": ("American", "Mexican", "French", "Italian")},
            79 + 3 * 100 + 320,
        ),  # one on a day of travel
        ({"house_rule": "pets"}, None),
        ({"cuisines": ("Indian",)}, None),
        ({"room_type": "private room"}, None),
    ],
)
def test_limits_change_the_cheapest_plan(query, small, wishes, cost):
    found = solve(replace(query, **wishes), small)
    assert (found.cost if found else None) == cost


def _query(rng: random.Random, days: int) -> Query:
    data = sandbox()
    place = rng.choice(data.cities_of("Texas")) if days == 3 else "Texas"
    start = rng.randrange(31 - days)
    return Query(
        origin=rng.choice(["Denver", "Tucson", "Joplin", "Atlanta"]),
        destination=place,
        days=days,
        cities=(days - 1) // 2,
        dates=DATES[start : start + days],
        people=rng.randint(1, 8),
        budget=1e9,
        house_rule=rng.choice([None, "pets", "parties"]),
        cuisines=tuple(rng.sample(["French", "Indian", "Italian"], rng.randint(0, 3))),
        transport=rng.choice([None, "no flight", "no self-driving"]),
    )


def _cheapest_by_trying(query: Query) -> float | None:
    """All rooms, ways and sets of restaurants of a trip of 3 days, within the limits."""
    data, city = sandbox(), query.destination
    rooms = [row for row in data.accommodations(city) if row.minimum_nights <= 2]
    if query.house_rule:
        word = {"pets": "No pets", "parties": "No parties"}[query.house_rule]
        rooms = [row for row in rooms if word not in row.house_rules]
    costs = [2 * row.price * -(-query.people // row.maximum_occupancy) for row in rooms]
    legs = [(query.origin, city, query.dates[0]), (city, query.origin, query.dates[2])]
    own = [data.road_cost(start, end, "self-driving") for start, end, _ in legs]
    ways = (
        [sum(own) * -(-query.people // 5)] if None not in own and query.transport != "no self-driving" else []
    )
    others: list[list[float]] = []
    for start, end, day in legs:
        taxi = data.road_cost(start, end, "taxi")
        prices = [row.price * query.people for row in data.flights(start, end, day)]
        prices = prices if query.transport != "no flight" else []
        others.append([*prices, *([taxi * -(-query.people // 4)] if taxi is not None else [])])
    if all(others):
        ways.append(sum(map(min, others)))
    menu = sorted(data.restaurants(city), key=lambda row: row.average_cost)
    meals = [
        sum(row.average_cost for row in group) * query.people
        for n in (3, 4)
        for group in itertools.combinations(menu, n)
        if all(any(food in row.cuisines for row in group) for food in query.cuisines)
    ]
    return min(costs) + min(ways) + min(meals) if costs and ways and meals else None


@pytest.mark.parametrize("seed", range(25))
def test_trying_everything_finds_nothing_cheaper(seed):
    query = _query(random.Random(seed), 3)
    found = solve(query, sandbox())
    assert (found.cost if found else None) == _cheapest_by_trying(query)


@pytest.mark.parametrize(("days", "seed"), list(itertools.product((3, 5, 7), range(6))))
def test_checker_and_model_agree_on_the_oracle_and_on_every_broken_plan(days, seed):
    rng, atlas = random.Random(seed), Atlas(sandbox())
    query = _query(rng, days)
    found = solve(query, atlas.database)
    if found is None:
        pytest.skip("Nothing fits this draw.")
    query, plan = replace(query, budget=found.cost), written(found.trip)
    assert score(query, plan, atlas.database).passed
    assert read_trip(query, plan, atlas.database) == found.trip
    assert fits(query, found.trip, atlas.database)
    tried = list(broken(query, plan, rng, atlas))
    assert len(tried) >= 6
    for name, asked, days_ in tried:
        assert not judge(asked, days_, atlas.database, strict=True).success, name
        try:
            trip = read_trip(asked, days_, atlas.database)
        except UnreadableError:
            continue
        assert not fits(asked, trip, atlas.database), name


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"day2": {"attraction": "Pier, Bay;Nowhere, Bay"}}, "is not an entry"),
        ({"day2": {"lunch": "Ash, Home"}}, "is not in Bay"),
        ({"day2": {"lunch": "ig Tre, Bay"}}, "is not an entry"),
        (
            {"day1": {"transportation": "Bicycle, from Home to Bay"}},
            "is no flight, self-driving or taxi",
        ),
        ({"day2": {"current_city": "Far"}}, "begins in Far"),
        ({"day2": {"transportation": "Taxi, from Bay to Home"}}, "does not go from Bay"),
    ],
)
def test_loopholes_of_the_evaluator_are_closed_in_strict_reading(query, plan, small, changes, sentence):
    with pytest.raises(UnreadableError, match=sentence):
        read_trip(query, plan(**changes), small)


def test_cars_are_read_in_small_letters_and_still_ruled_out(query, plan, small):
    ways = [f"self-driving, {leg}" for leg in ("from Home to Bay", "from Bay to Home")]
    days = plan(day1={"transportation": ways[0]}, day3={"transportation": ways[1]})
    rich = replace(query, budget=9999)
    assert judge(rich, days, small, strict=True).success
    assert score(replace(rich, transport="no self-driving"), days, small).passed  # the evaluator's oversight
    assert not judge(replace(rich, transport="no self-driving"), days, small, strict=True).success


def test_flights_leave_on_their_day_in_strict_reading(query, plan, small):
    late = replace(query, dates=("2022-03-02", "2022-03-03", "2022-03-04"))
    with pytest.raises(UnreadableError, match=r"day 1: no flight 'F1' leaves on 2022-03-02"):
        read_trip(late, plan(), small)


def test_without_or_tools_one_sentence_says_what_to_install(monkeypatch):
    for name in [*(name for name in sys.modules if name.startswith("ortools")), "ortools"]:
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=r"pip install 'genenv\[travel\]'"):
        cp_model()
