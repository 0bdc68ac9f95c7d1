"""The information that stands in the prompt: tables as lines, cut to a length, with all that the oracle uses.

What the oracle's plan does not use is distraction, and is left out from a fixed random order until the rest
fits. Where all that concerns the trip is shorter than asked for, tables of other cities are added. Rows stand
in the database's order, so that their place tells nothing.
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from genenv.environments.travel.database import Accommodation, Database, Flight, Restaurant
from genenv.environments.travel.query import Query
from genenv.environments.travel.trips import Trip, Way

CHARS_PER_TOKEN = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """One line of a table."""

    title: str
    text: str
    used: bool
    """By the oracle."""


def reference(
    query: Query,
    trip: Trip,
    database: Database,
    *,
    tokens: int,
    city: str | None,
    left_out: Collection[str] = (),
) -> str:
    """The information for a query.

    Args:
        query: what is asked for.
        trip: the oracle's, whose entries are always there.
        database: where the lines come from.
        tokens: the length to come to, at 4 characters a token. The oracle's entries may take more.
        city: only what this city has to offer; None: the whole trip.
        left_out: cities that are not added as distraction.
    """
    cities = [city] if city is not None else _cities(query, trip, database)
    lines = [line for place in cities for line in _city_lines(place, trip, database)]
    if city is None:
        lines += _way_lines(query, trip, cities, database)
    rng = random.Random(f"{query.origin}/{query.destination}/{query.dates}/{query.people}/{query.budget}")
    others = sorted(set(database.tables.states) - {*cities, query.origin, *left_out})
    while others and _size(lines) < tokens * CHARS_PER_TOKEN:
        lines += _city_lines(others.pop(rng.randrange(len(others))), trip, database)
    kept = _cut(lines, tokens * CHARS_PER_TOKEN, rng)
    titles = list(dict.fromkeys(line.title for line in kept))
    return "\n".join(
        "\n".join([f"{title}:", *(line.text for line in kept if line.title == title)]) for title in titles
    )


def _size(lines: Sequence[Line]) -> int:
    """Characters of lines and their titles."""
    titles = {line.title for line in lines}
    return sum(len(line.text) + 1 for line in lines) + sum(len(title) + 2 for title in titles)


def _cut(lines: Sequence[Line], most: int, rng: random.Random) -> list[Line]:
    """The lines that fit; those of the oracle first, then others at random."""
    keep = {index for index, line in enumerate(lines) if line.used}
    titles = {lines[index].title for index in keep}
    size = _size([lines[index] for index in keep])
    for index in rng.sample(range(len(lines)), len(lines)):
        line = lines[index]
        more = len(line.text) + 1 + (0 if line.title in titles else len(line.title) + 2)
        if index not in keep and size + more <= most:
            keep.add(index)
            titles.add(line.title)
            size += more
    return [line for index, line in enumerate(lines) if index in keep]


def _cities(query: Query, trip: Trip, database: Database) -> list[str]:
    """All cities that may be visited; those of the oracle are among them."""
    if query.days == 3:
        return trip.cities
    return [city for city in database.cities_of(query.destination) if city != query.origin]


def _city_lines(city: str, trip: Trip, database: Database) -> Iterator[Line]:
    rooms = {day.accommodation for day in trip.days}
    eaten = set(trip.restaurants)
    seen = {row for day in trip.days for row in day.attractions}
    for room in database.accommodations(city):
        yield Line(title=f"Rooms in {city}", text=room_line(room), used=room in rooms)
    for restaurant in database.restaurants(city):
        yield Line(title=f"Restaurants in {city}", text=restaurant_line(restaurant), used=restaurant in eaten)
    for row in database.attractions(city):
        yield Line(title=f"Attractions in {city}", text=row.name, used=row in seen)


def _way_lines(query: Query, trip: Trip, cities: Sequence[str], database: Database) -> Iterator[Line]:
    """Flights and roads of the oracle's legs on their days, and others of the first and the last day."""
    taken = {(way.origin, way.destination, query.dates[day]): way for day, way in trip.ways}
    ends = [(query.origin, city, query.dates[0]) for city in cities]
    ends += [(city, query.origin, query.dates[-1]) for city in cities]
    between = [(one, other, "") for one in cities for other in cities if one != other]
    known = {(one, other) for one, other, _ in taken}
    legs = [*taken, *(leg for leg in ends + between if leg[:2] not in known)]
    for origin, destination, date in legs:
        title = f"From {origin} to {destination}"
        way = taken.get((origin, destination, date))
        for text in road_lines(origin, destination, database):
            used = way is not None and way.car is not None and text.lower().startswith(way.car)
            yield Line(title=title, text=text, used=used)
        for flight in database.flights(origin, destination, date):
            yield Line(title=title, text=flight_line(flight), used=_flies(way, flight))


def _flies(way: Way | None, flight: Flight) -> bool:
    return way is not None and way.flight == flight


def road_lines(origin: str, destination: str, database: Database) -> list[str]:
    """What a car costs on a road; none without a road."""
    costs = {
        "Self-driving": database.road_cost(origin, destination, "self-driving"),
        "Taxi": database.road_cost(origin, destination, "taxi"),
    }
    return [f"{name}, cost {cost}" for name, cost in costs.items() if cost is not None]


def flight_line(row: Flight) -> str:
    """A flight, shortly."""
    return f"Flight Number: {row.number}, {row.date}, {row.departure}-{row.arrival}, cost {row.price:g}"


def room_line(row: Accommodation) -> str:
    """A room, shortly."""
    nights, people = f"{row.minimum_nights:g}+ nights", f"{row.maximum_occupancy} people"
    return f"{row.name}, {row.room_type}, cost {row.price:g}, {nights}, {people}, {row.house_rules}"


def restaurant_line(row: Restaurant) -> str:
    """A restaurant, shortly."""
    return f"{row.name}, cost {row.average_cost:g}, {row.cuisines}"
