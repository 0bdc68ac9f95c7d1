"""A benchmark like TravelPlanner's, made by us: genenv's own sandbox, queries drawn here, the solver's plans.

It is written in the files of the benchmark, so that what is known of the real one is tested on a fresh clone
too. No row is the benchmark's.
"""

from __future__ import annotations

import csv
import functools
import json
import math
import random
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from genenv.environments.travel.constraints import total_cost
from genenv.environments.travel.database import Database, Flight
from genenv.environments.travel.query import MEALS, HouseRule, Query, RoomType, Transport, cities_of
from genenv.environments.travel.sandbox import CUISINES, DATES, sandbox
from genenv.environments.travel.solver import solve
from genenv.environments.travel.trips import written

Plan = list[dict[str, Any]]
EACH = {"train": 1, "validation": 1}
"""Queries of each level and length; nine a split."""
_DAYS = (3, 5, 7)
_LEVELS = {"easy": 0, "medium": 1, "hard": 3}
"""Wishes of a query."""


@dataclass(frozen=True, kw_only=True)
class Made:
    """A query, and a cheap plan for it."""

    query: Query
    level: str
    text: str
    plan: Plan


@functools.cache
def made(split: str) -> list[Made]:
    """The queries of a split; a budget is a tenth above the plan's cost."""
    rng = random.Random(f"made/{split}")
    return [_one(level, days, rng) for level in _LEVELS for days in _DAYS for _ in range(EACH[split])]


def _one(level: str, days: int, rng: random.Random) -> Made:
    while True:
        query = _drawn(_LEVELS[level], days, rng)
        solution = solve(query, sandbox())
        if solution is not None:
            plan = _with_dinner(written(solution.trip), rng)
            paid = replace(query, budget=float(math.ceil(1.1 * total_cost(query, plan, sandbox()))))
            text = f"{query.people} of us go from {query.origin} to {query.destination}, for {days} days."
            return Made(query=paid, level=level, text=text, plan=plan)


def _with_dinner(plan: Plan, rng: random.Random) -> Plan:
    """The cheapest plan has no meal on the first day of travel: one more."""
    there = cities_of(plan[0])[1]
    eaten = {day[meal] for day in plan for meal in MEALS}
    names = [f"{row.name}, {there}" for row in sandbox().restaurants(there)]
    if plan[0]["dinner"] == "-":
        plan[0]["dinner"] = rng.choice([name for name in names if name not in eaten])
    return plan


def _drawn(n_wishes: int, days: int, rng: random.Random) -> Query:
    data, start = sandbox(), rng.randrange(len(DATES) - days)
    state = rng.choice(("Texas", "Colorado", "Oregon"))
    wishes = {
        "house_rule": rng.choice(get_args(HouseRule)),
        "cuisines": tuple(rng.sample(CUISINES, 2)),
        "room_type": rng.choice(get_args(RoomType)),
        "transport": rng.choice(get_args(Transport)),
    }
    return Query(
        origin=rng.choice(["Tucson", "Joplin", "Atlanta"]),
        destination=rng.choice(data.cities_of(state)) if days == 3 else state,
        days=days,
        cities=(days - 1) // 2,
        dates=tuple(DATES[start : start + days]),
        people=rng.randint(1, 6),
        budget=1e9,
        **{name: wishes[name] for name in rng.sample(sorted(wishes), n_wishes)},
    )


# --- as files ---


def write(folder: Path) -> None:
    """The benchmark's files, in `travelplanner` of a folder."""
    root = folder / "travelplanner"
    _tables(root / "database", sandbox())
    for split in EACH:
        items = made(split)
        _write_rows(root / f"{split}.csv", [_row(item) for item in items])
        (root / f"{split}_ref_info.jsonl").write_text(
            "".join(json.dumps(_information(item.query)) + "\n" for item in items), encoding="utf-8"
        )


def _row(item: Made) -> dict[str, Any]:
    query = item.query
    local = {
        "house rule": query.house_rule,
        "cuisine": list(query.cuisines) or None,
        "room type": query.room_type,
        "transportation": query.transport,
    }
    return {
        "org": query.origin,
        "dest": query.destination,
        "days": query.days,
        "visiting_city_number": query.cities,
        "date": str(list(query.dates)),
        "people_number": query.people,
        "local_constraint": str(local),
        "budget": query.budget,
        "query": item.text,
        "level": item.level,
        "annotated_plan": str([{"org": query.origin}, item.plan]),
        "reference_information": "[{'Description': 'made by us', 'Content': '-'}]",
    }


def _information(query: Query) -> dict[str, Any]:
    """The flights of a query's dates, to and from what it may visit."""
    data = sandbox()
    cities = [query.destination] if query.days == 3 else data.cities_of(query.destination)
    stops = dict.fromkeys([query.origin, *cities])
    return {
        f"Flight from {start} to {end} on {day}": [
            _as_row(FLIGHT, row) for row in data.flights(start, end, day)
        ]
        for start in stops
        for end in stops
        if start != end
        for day in query.dates
    }


FLIGHT = (
    "Flight Number", "Price", "DepTime", "ArrTime", "ActualElapsedTime", "FlightDate", "OriginCityName",
    "DestCityName", "Distance",
)  # fmt: skip
_ROOM = (
    "NAME", "room type", "price", "minimum nights", "review rate number", "house_rules", "maximum occupancy",
    "city",
)  # fmt: skip


def _as_row(names: Sequence[str], row: Flight) -> dict[str, Any]:
    return dict(zip(names, row, strict=True))


def _tables(root: Path, data: Database) -> None:
    tables = data.tables
    for name, header, rows in (
        ("flights/flights_from_ref_info.csv", FLIGHT, tables.flights[:10]),
        ("accommodations/clean_accommodations_2022.csv", _ROOM, tables.accommodations),
        (
            "restaurants/clean_restaurant_2022.csv",
            ("Name", "City", "Cuisines", "Average Cost", "Aggregate Rating"),
            tables.restaurants,
        ),
        (
            "attractions/attractions.csv",
            ("Name", "Latitude", "Longitude", "Address", "Phone", "Website", "City"),
            tables.attractions,
        ),
        (
            "googleDistanceMatrix/distance.csv",
            ("origin", "destination", "duration", "distance"),
            tables.roads,
        ),
    ):
        _write_rows(root / name, [dict(zip(header, row, strict=True)) for row in rows])
    cities = root / "background/citySet_with_states.txt"
    cities.parent.mkdir(parents=True)
    cities.write_text(
        "\n".join(f"{city}\t{state}" for city, state in tables.states.items()), encoding="utf-8"
    )


def _write_rows(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w", encoding="utf-8", newline="") as stream:
        writer = csv.DictWriter(stream, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def damaged(plan: Plan, others: Sequence[Plan], rng: random.Random) -> Plan:
    """A plan with some texts from elsewhere: of other days and plans, or odd ones."""
    new = [dict(day) for day in plan]
    for _ in range(rng.randint(0, 3)):
        day, field = rng.choice(new), rng.choice(sorted(new[0]))
        if field in day and field != "days":
            donors = [
                other[field] for source in (plan, rng.choice(others)) for other in source if field in other
            ]
            day[field] = rng.choice([*donors, *_odd(day[field], rng)])
    return new[: rng.choice((None,) * 8 + (-1,))]


def damaged_plans(pairs: Sequence[tuple[Any, Plan]]) -> Iterator[tuple[Any, Plan]]:
    """Five damaged plans of each item, always the same."""
    rng, plans = random.Random("damaged"), [plan for _, plan in pairs]
    for _ in range(5):
        yield from ((item, damaged(plan, plans, rng)) for item, plan in pairs)


def _odd(text: Any, rng: random.Random) -> Iterator[str]:
    """Other forms of a text, and what is no entry."""
    text = str(text)
    yield from (
        "-",
        "",
        "-",
        text.lower(),
        text.rstrip(";"),
        f"{text};",
        f"{text} (20)",
        f"{text} (20, good)",
    )
    yield from (
        text.replace(", ", ","),
        text.replace("from ", "From "),
        text.replace(": ", ":"),
        text[1:],
        f" {text}",
    )
    yield from (
        "from Denver",
        "Taxi",
        "Self-driving",
        "Flight Number: F1, from Denver to Tucson",
        "Nowhere, Denver",
    )
    yield text.replace("Flight Number: ", rng.choice(("Flight ", "flight number: ", "Flight Number ")))
