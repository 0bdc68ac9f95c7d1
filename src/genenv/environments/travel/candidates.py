"""What may be in a trip: the stays, legs and restaurants that the solver chooses from.

Only what can be in a cheapest plan, unless all of it is asked for: of the rooms that fit a stay the cheapest,
of the ways to travel a leg on a day the own car and the cheaper of plane and taxi, of the restaurants with
the same wanted cuisines as many of the cheapest as a city can have meals. No stay has more full days than its
city has attractions.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from genenv.environments.travel.database import Accommodation, Database, Flight, Restaurant, clear
from genenv.environments.travel.query import MEALS, Query
from genenv.environments.travel.trips import Way

CENTS = 100
_SEATS = {"self-driving": 5, "taxi": 4}
_ROOM_TYPES = {
    "shared room": ("Shared room",),
    "private room": ("Private room",),
    "entire room": ("Entire home/apt",),
    "not shared room": ("Private room", "Entire home/apt"),
}


class Leg(NamedTuple):
    """A way that may be chosen."""

    position: int  # 0 leads to the first city, `query.cities` back to the origin
    way: Way
    day: int  # from 0
    cents: int


class Room(NamedTuple):
    """A stay that may be chosen."""

    position: int
    city: str
    nights: int
    row: Accommodation
    cents: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """All that may be chosen."""

    rooms: Sequence[Room]
    legs: Sequence[Leg]
    meals: Sequence[Restaurant]


def fits_wishes(row: Accommodation, query: Query) -> bool:
    """Whether an accommodation is of the type, and allows what, a query wants."""
    allowed = f"No {query.house_rule}" not in row.house_rules.split(" & ")
    return allowed and (query.room_type is None or row.room_type in _ROOM_TYPES[query.room_type])


def candidates(query: Query, database: Database) -> Candidates:
    """What can be in the cheapest plan for a query."""
    cities = cities_to_visit(query, database)
    sights = {city: len(clear(database.attractions(city))) for city in cities}
    return Candidates(
        rooms=[
            room
            for room in stays(
                query, {city: clear(database.accommodations(city)) for city in cities}, best=True
            )
            if room.nights - 1 <= sights[room.city]
        ],
        legs=list(_legs(query, cities, database)),
        meals=[row for city in cities for row in _menu(query, clear(database.restaurants(city)))],
    )


def cities_to_visit(query: Query, database: Database) -> list[str]:
    """The cities that may be visited."""
    if query.days == 3:
        return [query.destination] if query.destination != query.origin else []
    return [city for city in database.cities_of(query.destination) if city != query.origin]


def longest_stay(query: Query) -> int:
    """The most nights in one city: each other city has one at least."""
    return query.days - query.cities


def stays(query: Query, places: Mapping[str, Sequence[Accommodation]], *, best: bool) -> Iterable[Room]:
    """Stays of every length at every position.

    Args:
        query: rules and the number of people.
        places: the rooms to choose from, by city.
        best: only the cheapest that fits.
    """
    for city, rows in places.items():
        fitting = [row for row in dict.fromkeys(rows) if fits_wishes(row, query)]
        for nights in range(1, longest_stay(query) + 1):
            open_to = [row for row in fitting if row.minimum_nights <= nights]
            priced = sorted((_night_cents(query, row) * nights, row.name, row) for row in open_to)
            for cents, _, row in priced[:1] if best else priced:
                yield from (Room(position, city, nights, row, cents) for position in range(query.cities))


def _night_cents(query: Query, row: Accommodation) -> int:
    return round(row.price * CENTS) * math.ceil(query.people / row.maximum_occupancy)


def _legs(query: Query, cities: Sequence[str], database: Database) -> Iterable[Leg]:
    last = query.cities
    for position in range(last + 1):
        starts = cities if position else [query.origin]
        ends = cities if position < last else [query.origin]
        for origin, destination in itertools.product(starts, ends):
            if origin == destination:
                continue
            for day in _travel_days(query, position):
                for way in _ways(query, origin, destination, day, database):
                    cents = leg_cents(query, way, database)
                    if cents is not None:
                        yield Leg(position, way, day, cents)


def _travel_days(query: Query, position: int) -> Sequence[int]:
    """The days, from 0, on which a leg can be travelled: each city is stayed in for a night at least."""
    if position in (0, query.cities):
        return (0 if position == 0 else query.days - 1,)
    return range(position, query.days - 1 - (query.cities - position) + 1)


def _ways(query: Query, origin: str, destination: str, day: int, database: Database) -> Iterable[Way]:
    """The own car, and the cheaper of plane and taxi."""
    if query.transport != "no self-driving":
        yield Way(origin, destination, car="self-driving")
    others: list[Way] = [Way(origin, destination, car="taxi")]
    flights = database.flights(origin, destination, query.dates[day])
    if flights and query.transport != "no flight":
        cheapest: Flight = min(flights, key=lambda row: (row.price, row.number))
        others.append(Way(origin, destination, flight=cheapest))
    priced = [(cents, way) for way in others if (cents := leg_cents(query, way, database)) is not None]
    if priced:
        yield min(priced, key=lambda pair: pair[0])[1]


def leg_cents(query: Query, way: Way, database: Database) -> int | None:
    """What a way costs for everybody; None where there is no road."""
    if way.flight is not None:
        return round(way.flight.price * CENTS) * query.people
    mode = way.car or "taxi"
    cost = database.road_cost(way.origin, way.destination, mode)
    return None if cost is None else cost * CENTS * math.ceil(query.people / _SEATS[mode])


def _menu(query: Query, rows: Sequence[Restaurant]) -> Iterable[Restaurant]:
    """For each set of wanted cuisines as many of the cheapest restaurants as a city can have meals."""
    most = len(MEALS) * (longest_stay(query) - 1 + (2 if query.cuisines else 0))
    taken: dict[tuple[bool, ...], int] = {}
    for row in sorted(rows, key=lambda row: (row.average_cost, row.name)):
        kind = tuple(cuisine in row.cuisines for cuisine in query.cuisines)
        taken[kind] = taken.get(kind, 0) + 1
        if taken[kind] <= most:
            yield row
