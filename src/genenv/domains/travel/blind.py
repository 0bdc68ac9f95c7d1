"""A well-formed but uninformed attempt: entries of the right cities, drawn blindly."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import cast

from genenv.domains.travel.check import query_of
from genenv.domains.travel.database import Database
from genenv.domains.travel.query import Query
from genenv.domains.travel.trips import TripDay, Way, named, way_text
from genenv.types import Json, JsonObject, Task

_NIGHTS = 2
"""Each city is stayed in as long as in the benchmark's plans."""


def random_replies(task: Task, rng: random.Random, database: Database) -> tuple[str, ...]:
    """One reply with a random plan, or a random missing day."""
    query, missing = query_of(task), task.payload["missing"]
    if isinstance(missing, int):
        plan = cast(Sequence[JsonObject], task.payload["plan"])
        answer: Json = _city_day(str(plan[missing]["current_city"]), database, rng)
    else:
        answer = _plan(query, database, rng)
    return (json.dumps(answer, ensure_ascii=False, separators=(",", ":")),)


def _city_day(city: str, database: Database, rng: random.Random) -> dict[str, Json]:
    breakfast, lunch, dinner = (row.name for row in rng.sample(database.restaurants(city), 3))
    return {
        "breakfast": breakfast,
        "attraction": rng.choice(database.attractions(city)).name,
        "lunch": lunch,
        "dinner": dinner,
        "accommodation": rng.choice(database.accommodations(city)).name,
    }


def _plan(query: Query, database: Database, rng: random.Random) -> list[Json]:
    cities = [query.destination]
    if query.days > 3:
        able = [city for city in database.cities_of(query.destination) if len(database.restaurants(city)) > 2]
        cities = rng.sample(able, query.cities)
    days: list[Json] = []
    for start, end in zip([query.origin, *cities], [*cities, query.origin], strict=True):
        last = end == query.origin
        room = "-" if last else named(rng.choice(database.accommodations(end)).name, end)
        way = _way(start, end, query.dates[len(days)], database, rng)
        days.append(_day(len(days) + 1, TripDay(cities=(start, end), way=way), room, database, rng))
        for _ in range(0 if last else _NIGHTS - 1):
            days.append(_day(len(days) + 1, TripDay(cities=(end,)), room, database, rng))
    return days


def _way(origin: str, destination: str, date: str, database: Database, rng: random.Random) -> Way:
    flights = database.flights(origin, destination, date)
    ways = [Way(origin, destination, flight=row) for row in flights]
    if database.road(origin, destination):
        ways += [Way(origin, destination, car="self-driving"), Way(origin, destination, car="taxi")]
    return rng.choice(ways or [Way(origin, destination, car="taxi")])


def _day(number: int, day: TripDay, room: str, database: Database, rng: random.Random) -> dict[str, Json]:
    here = day.cities[-1]
    told = _city_day(here, database, rng) if database.restaurants(here) else {}
    places = {field: named(str(name), here) for field, name in told.items()}
    return {
        "days": number,
        "current_city": f"from {day.cities[0]} to {here}" if len(day.cities) > 1 else here,
        "transportation": way_text(day.way) if day.way else "-",
        **places,
        "attraction": f"{places.get('attraction', '-')};",
        "accommodation": room,
    }
