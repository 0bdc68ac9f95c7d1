"""The environment's own gate: does the query say what the spec says and no more, and do two checks agree?"""

from __future__ import annotations

import random
import re
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import cast

from genenv.environments.travel.candidates import fits_wishes
from genenv.environments.travel.check import judge, query_of
from genenv.environments.travel.choices import Atlas
from genenv.environments.travel.hard import total_cost
from genenv.environments.travel.query import MEALS, Plan, Query
from genenv.environments.travel.reading import UnreadableError
from genenv.environments.travel.sandbox import CUISINES
from genenv.environments.travel.solver import fits
from genenv.environments.travel.spec import TravelSpec
from genenv.environments.travel.trips import Trip, named, read_trip
from genenv.environments.travel.words import stray, unstated
from genenv.types import JsonObject, Rejection, RejectReason, Task

_PLENTY = 1e9
_CODE = re.compile(r"[{}\[\]<>|\\]")
_FLIGHT = re.compile(r"\bF\d{4,}")


def audit(task: Task, rng: random.Random, atlas: Atlas) -> Rejection | None:
    """None if all is well, else the first thing that is wrong."""
    spec = TravelSpec.model_validate(task.spec)
    query, budget = query_of(task), round(query_of(task).budget)
    if (leak := _leak(spec, query, atlas)) is not None:
        return Rejection(RejectReason.LEAK, leak)
    if (field := unstated(spec.query, spec, budget)) is not None:
        return Rejection(RejectReason.UNSTATED, f"The query does not state the {field}.")
    if (problem := stray(spec.query, spec, budget, atlas.names())) is not None:
        explanation = f"{problem[0].upper()}{problem[1:]}."
        return Rejection(RejectReason.INCONSISTENT, explanation)
    return _checks_agree(task, query, rng, atlas)


def _leak(spec: TravelSpec, query: Query, atlas: Atlas) -> str | None:
    """The query names no entry of the database that a plan could use, no flight, and has no code."""
    text, data = spec.query.lower(), atlas.database
    if match := _CODE.search(spec.query):
        return f"The query contains a piece of code: {match[0]!r}."
    if match := _FLIGHT.search(spec.query):
        return f"The query names the flight {match[0]}."
    cities = [query.destination] if query.days == 3 else list(data.cities_of(query.destination))
    for city in cities:
        for rows in (data.accommodations(city), data.restaurants(city), data.attractions(city)):
            if (
                row := next((row for row in rows if " " in row.name and row.name.lower() in text), None)
            ) is not None:
                return f"The query names {row.name}, which could be part of the plan."
    return None


def _checks_agree(task: Task, query: Query, rng: random.Random, atlas: Atlas) -> Rejection | None:
    """The checker and the solver's model give the same verdict on the oracle's plan and on broken ones."""
    data = atlas.database
    plan = cast(Plan, task.payload["plan"])
    try:
        tries = [("the oracle's plan", query, plan), *broken(query, plan, rng, atlas)]
    except UnreadableError as error:
        sentence = f"The oracle's plan cannot be read back: {error}."
        return Rejection(RejectReason.CHECKS_DISAGREE, sentence)
    for name, asked, tried in tries:
        checked = judge(asked, tried, data, strict=True).success
        modelled = _fits_model(asked, tried, atlas)
        if checked != modelled or checked != (tried is plan and asked is query):
            sentence = f"Of {name} the checker says {checked}, the solver's model says {modelled}."
            return Rejection(RejectReason.CHECKS_DISAGREE, sentence)
    return None


def _fits_model(query: Query, plan: Plan, atlas: Atlas) -> bool:
    try:
        trip = read_trip(query, plan, atlas.database)
    except UnreadableError:
        return False
    return fits(query, trip, atlas.database)


def broken(query: Query, plan: Plan, rng: random.Random, atlas: Atlas) -> Iterator[tuple[str, Query, Plan]]:
    """The oracle's plan or its query with one thing wrong: (what, query, plan)."""
    data = atlas.database
    trip = read_trip(query, plan, data)
    rich = replace(query, budget=_PLENTY)
    cost = total_cost(query, plan, data)
    yield "a plan over the budget", replace(query, budget=cost - 1), plan
    full = rng.choice([index for index, day in enumerate(trip.days) if len(day.cities) == 1])
    city = trip.days[full].cities[0]
    first, second = rng.sample(MEALS, 2)
    yield "a restaurant twice", rich, _with(plan, full, {first: plan[full][second]})
    away = data.restaurants(query.origin)
    if away:
        yield "a meal in another city", rich, _with(plan, full, {first: named(away[0].name, query.origin)})
    yield "no attraction", rich, _with(plan, full, {"attraction": "-"})
    yield "a blank attraction", rich, _with(plan, full, {"attraction": " "})
    yield "a missing meal", rich, _with(plan, full, {first: "-"})
    if (other := next((food for food in CUISINES if not _serves(trip, food)), None)) is not None:
        yield "a missing cuisine", replace(rich, cuisines=(*query.cuisines, other)), plan
    way = trip.ways[0][1]
    ruled_out = "no flight" if way.flight else "no self-driving" if way.car == "self-driving" else None
    if ruled_out is not None:
        yield "the wrong way to travel", replace(rich, transport=ruled_out), plan
    if way.car == "self-driving":
        yield (
            "the wrong way to travel, in small letters",
            replace(rich, transport="no self-driving"),
            _spelled(plan),
        )
    nights = sum(day.accommodation is not None and day.cities[-1] == city for day in trip.days)
    rooms = data.accommodations(city)
    fitting = [row for row in rooms if fits_wishes(row, query)]
    for name, row in (
        ("a stay too short", next((row for row in fitting if row.minimum_nights > nights), None)),
        ("a room that does not fit", next((row for row in rooms if row not in fitting), None)),
    ):
        if row is not None:
            yield name, rich, _with_room(plan, city, named(row.name, city))


def _spelled(plan: Plan) -> Plan:
    """The plan with `self-driving` in small letters."""
    ways = (str(day["transportation"]).replace("Self-driving", "self-driving") for day in plan)
    return [{**day, "transportation": way} for day, way in zip(plan, ways, strict=True)]


def _serves(trip: Trip, cuisine: str) -> bool:
    return any(cuisine in row.cuisines for row in trip.restaurants)


def _with(plan: Plan, index: int, fields: JsonObject) -> Plan:
    return [{**day, **fields} if i == index else day for i, day in enumerate(plan)]


def _with_room(plan: Plan, city: str, room: str) -> Sequence[JsonObject]:
    """The plan with another room on all nights in a city."""
    return [
        {**day, "accommodation": room} if str(day["accommodation"]).endswith(f", {city}") else day
        for day in plan
    ]
