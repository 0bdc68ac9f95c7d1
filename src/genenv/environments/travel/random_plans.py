"""A well-formed but uninformed attempt: entries of the right cities, drawn blindly."""

from __future__ import annotations

import json
import random
from collections.abc import Sequence
from typing import TypeVar, cast

from genenv.environments.travel.check import query_of
from genenv.environments.travel.database import Database
from genenv.environments.travel.query import MEALS, Query
from genenv.environments.travel.trips import TripDay, Way, named, way_text
from genenv.types import Json, JsonObject, Task

_NIGHTS = 2
"""Each city is stayed in as long as in the benchmark's plans."""

_Item = TypeVar("_Item")


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
    menu = database.restaurants(city)
    eaten = [row.name for row in rng.sample(menu, min(len(menu), len(MEALS)))]
    breakfast, lunch, dinner = [*eaten, *["-"] * (len(MEALS) - len(eaten))]
    sight = _one(database.attractions(city), rng)
    room = _one(database.accommodations(city), rng)
    return {
        "breakfast": breakfast,
        "attraction": sight.name if sight else "-",
        "lunch": lunch,
        "dinner": dinner,
        "accommodation": room.name if room else "-",
    }


def _one(rows: Sequence[_Item], rng: random.Random) -> _Item | None:
    """Any row; None where there is none."""
    return rng.choice(rows) if rows else None


def _complete(city: str, database: Database) -> bool:
    """Whether a city has all that a day needs."""
    full = len(database.restaurants(city)) >= len(MEALS)
    return full and bool(database.attractions(city) and database.accommodations(city))


def _plan(query: Query, database: Database, rng: random.Random) -> list[Json]:
    cities = [query.destination]
    if query.days > 3:
        known = [city for city in database.cities_of(query.destination) if city != query.origin]
        able = [city for city in known if _complete(city, database)]
        able = able if len(able) >= query.cities else known
        cities = rng.sample(able, min(query.cities, len(able)))
    days: list[Json] = []
    for start, end in zip([query.origin, *cities], [*cities, query.origin], strict=True):
        last = end == query.origin
        stay = None if last else _one(database.accommodations(end), rng)
        room = named(stay.name, end) if stay else "-"
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
    told = _city_day(here, database, rng) if database.restaurants(here) else dict.fromkeys(MEALS, "-")
    places = {field: "-" if name == "-" else named(str(name), here) for field, name in told.items()}
    return {
        "days": number,
        "current_city": f"from {day.cities[0]} to {here}" if len(day.cities) > 1 else here,
        "transportation": way_text(day.way) if day.way else "-",
        **places,
        "attraction": f"{places.get('attraction', '-')};",
        "accommodation": room,
    }
