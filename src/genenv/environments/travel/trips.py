"""Trips: plans whose entries are resolved to database rows, and the candidate rows for a query."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from genenv.environments.travel.database import (
    Accommodation,
    Attraction,
    Database,
    Flight,
    Mode,
    Restaurant,
    clear,
)
from genenv.environments.travel.query import (
    MEALS,
    Day,
    Plan,
    Query,
    UnreadableError,
    before_parenthesis,
    cities_of,
    from_to,
    name_and_city,
    said,
)
from genenv.statistics import counted
from genenv.types import Json


class Way(NamedTuple):
    """The transport from one city to the next."""

    origin: str
    destination: str
    car: Mode | None = None
    flight: Flight | None = None
    """Set if there is no car."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TripDay:
    """A day of a trip."""

    cities: tuple[str, ...]
    """Both cities on a travel day, else one."""
    way: Way | None = None
    meals: tuple[Restaurant | None, ...] = (None, None, None)
    """Breakfast, lunch, dinner."""
    attractions: tuple[Attraction, ...] = ()
    accommodation: Accommodation | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Trip:
    """A whole trip."""

    days: tuple[TripDay, ...]

    @property
    def ways(self) -> list[tuple[int, Way]]:
        """The index and the transport of each travel day."""
        return [(index, day.way) for index, day in enumerate(self.days) if day.way is not None]

    @property
    def restaurants(self) -> list[Restaurant]:
        """The restaurants of all meals in order."""
        return [meal for day in self.days for meal in day.meals if meal is not None]

    @property
    def cities(self) -> list[str]:
        """The visited cities in order."""
        return [way.destination for _, way in self.ways[:-1]]


# --- writing ---


def written(trip: Trip) -> list[dict[str, Json]]:
    """Return the trip as a plan in the benchmark's form."""
    return [_written_day(number, day) for number, day in enumerate(trip.days, 1)]


def _written_day(number: int, day: TripDay) -> dict[str, Json]:
    start, end = day.cities[0], day.cities[-1]
    breakfast, lunch, dinner = (named(meal.name, meal.city) if meal else "-" for meal in day.meals)
    place = day.accommodation
    return {
        "days": number,
        "current_city": f"from {start} to {end}" if len(day.cities) > 1 else start,
        "transportation": way_text(day.way) if day.way else "-",
        "breakfast": breakfast,
        "attraction": "".join(f"{named(row.name, row.city)};" for row in day.attractions) or "-",
        "lunch": lunch,
        "dinner": dinner,
        "accommodation": named(place.name, place.city) if place else "-",
    }


def named(name: str, city: str) -> str:
    """Return an entry in the form of plans, `Name, City`."""
    return f"{name}, {city}"


def way_text(way: Way) -> str:
    """Return a transport in the form of plans."""
    leg = f"from {way.origin} to {way.destination}"
    if way.flight is not None:
        return f"Flight Number: {way.flight.number}, {leg}"
    return f"{'Self-driving' if way.car == 'self-driving' else 'Taxi'}, {leg}"


# --- reading ---


def read_trip(query: Query, plan: Plan, database: Database) -> Trip:
    """Resolve a plan to a trip.

    Raises:
        UnreadableError: an entry is not in the database, or in the wrong city or on the wrong day.
    """
    if len(plan) != query.days:
        raise UnreadableError(f"the plan has {len(plan)} days, not {query.days}")
    days: list[TripDay] = []
    city = query.origin
    for number, (day, date) in enumerate(zip(plan, query.dates, strict=True), 1):
        try:
            read = _read_day(day, date, city, database)
        except UnreadableError as error:
            raise UnreadableError(f"day {number}: {error}") from None
        days.append(read)
        city = read.cities[-1]
    return Trip(days=tuple(days))


def _read_day(day: Day, date: str, start: str, database: Database) -> TripDay:
    cities = cities_of(day)
    if cities[0] != start:
        raise UnreadableError(f"it begins in {cities[0]}, the one before ended in {start}")
    here = set(cities)
    stay, sights = said(day, "accommodation"), _pieces(said(day, "attraction"))
    if len(cities) == 1 and not sights:
        raise UnreadableError("there is no attraction")
    rows = [(database.restaurants, said(day, meal)) for meal in MEALS]
    return TripDay(
        cities=cities,
        way=_read_way(day, date, cities, database),
        meals=tuple(None if text is None else _row(find, text, here) for find, text in rows),
        attractions=tuple(_row(database.attractions, text, here) for text in sights),
        accommodation=None if stay is None else _row(database.accommodations, stay, {cities[-1]}),
    )


def _pieces(sights: str | None) -> list[str]:
    return [piece for piece in (sights or "").split(";") if piece.strip()]


_Row = TypeVar("_Row", Accommodation, Attraction, Restaurant)


def _row(find: Callable[[str], Sequence[_Row]], text: str, cities: set[str]) -> _Row:
    name, city = name_and_city(text)
    if city not in cities:
        raise UnreadableError(f"{text[:60]!r} is not in {' or '.join(sorted(cities))}")
    rows = [row for row in find(city) if row.name.strip() == name]
    if not rows:
        raise UnreadableError(f"{text[:60]!r} is not an entry of the database")
    return rows[0]


def _read_way(day: Day, date: str, cities: Sequence[str], database: Database) -> Way | None:
    text = said(day, "transportation")
    if text is None:
        if len(cities) > 1:
            raise UnreadableError("there is no transportation")
        return None
    pair = from_to(text)
    if pair is None or tuple(before_parenthesis(city) for city in pair) != tuple(cities):
        raise UnreadableError(f"{text[:60]!r} does not go from {' to '.join(cities)}")
    origin, destination = cities
    if text.startswith("Flight Number: "):
        number = text.removeprefix("Flight Number: ").split(",")[0]
        flights = [row for row in database.flights(origin, destination, date) if row.number == number]
        if not flights:
            raise UnreadableError(f"no flight {number[:20]!r} leaves on {date}")
        return Way(origin, destination, flight=flights[0])
    for start, car in _CARS.items():
        if text.lower().startswith(start):
            return Way(origin, destination, car=car)
    raise UnreadableError(f"{text[:60]!r} is no flight, self-driving or taxi")


_CARS: dict[str, Mode] = {"self-driving": "self-driving", "taxi": "taxi"}


CENTS = 100
_SEATS = {"self-driving": 5, "taxi": 4}
_ROOM_TYPES = {
    "shared room": ("Shared room",),
    "private room": ("Private room",),
    "entire room": ("Entire home/apt",),
    "not shared room": ("Private room", "Entire home/apt"),
}


class Leg(NamedTuple):
    """A transport that the solver may choose."""

    position: int  # 0 leads to the first city, `query.cities` back to the origin
    way: Way
    day: int  # from 0
    cents: int


class Room(NamedTuple):
    """A stay that the solver may choose."""

    position: int
    city: str
    nights: int
    row: Accommodation
    cents: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidates:
    """All rows that the solver may choose."""

    rooms: Sequence[Room]
    legs: Sequence[Leg]
    meals: Sequence[Restaurant]


def fits_wishes(row: Accommodation, query: Query) -> bool:
    """Return whether an accommodation has the type and allows the activity that a query asks for."""
    allowed = f"No {query.house_rule}" not in row.house_rules.split(" & ")
    return allowed and (query.room_type is None or row.room_type in _ROOM_TYPES[query.room_type])


def candidates(query: Query, database: Database) -> Candidates:
    """Return the rows that can occur in the cheapest plan for a query."""
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
    """Return the cities that a trip may visit."""
    if query.days == 3:
        return [query.destination] if query.destination != query.origin else []
    return [city for city in database.cities_of(query.destination) if city != query.origin]


def broken_rule(query: Query, trip: Trip, database: Database) -> str | None:
    """Return the first rule that a trip breaks and that the benchmark's evaluator does not see, or None.

    The evaluator compares entries by how they are written, prices a taxi as a car where its text also says
    self-driving, and in trips of 3 days lets any city pass. Here the rows themselves count.
    """
    cities = cities_to_visit(query, database)
    if (other := next((city for city in trip.cities if city not in cities), None)) is not None:
        return f"it goes to {other}, and the query asks for {query.destination}"
    if len(trip.cities) != query.cities:
        return f"it visits {counted(len(trip.cities), 'place')}, not {query.cities}"
    sights = [row for day in trip.days for row in day.attractions]
    for kind, entries in (("restaurant", trip.restaurants), ("attraction", sights)):
        if len({(row.name.strip(), row.city) for row in entries}) < len(entries):
            return f"a {kind} comes twice, spelled differently"
    cars = [way.car for _, way in trip.ways]
    if "self-driving" in cars and any(car != "self-driving" for car in cars):
        return "it drives the own car on some legs and not on others"
    if None in cars and query.transport == "no flight":
        return "the query wants no flight"
    cents = cents_of(query, trip, database)
    if cents > math.floor(query.budget * CENTS):
        return f"it costs ${cents / CENTS:,.0f} by its entries, and the budget is ${query.budget:,.0f}"
    return None


def cents_of(query: Query, trip: Trip, database: Database) -> int:
    """Return the cost of a trip for all people in cents; a leg without a road costs nothing."""
    legs = sum(leg_cents(query, way, database) or 0 for _, way in trip.ways)
    meals = sum(round(row.average_cost * CENTS) * query.people for row in trip.restaurants)
    nights = (day.accommodation for day in trip.days)
    return legs + meals + sum(_night_cents(query, row) for row in nights if row is not None)


def longest_stay(query: Query) -> int:
    """Return the maximum nights in one city; each other city needs at least one night."""
    return query.days - query.cities


def stays(query: Query, places: Mapping[str, Sequence[Accommodation]], *, best: bool) -> Iterable[Room]:
    """Yield stays of every length at every position.

    Args:
        query: gives the wishes and the number of people.
        places: the rooms of each city.
        best: whether to yield only the cheapest suitable room of each city and length.
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
    """Return the days, from 0, on which a leg is possible, with at least one night in each city."""
    if position in (0, query.cities):
        return (0 if position == 0 else query.days - 1,)
    return range(position, query.days - 1 - (query.cities - position) + 1)


def _ways(query: Query, origin: str, destination: str, day: int, database: Database) -> Iterable[Way]:
    """Yield the private car, and the cheaper of flight and taxi."""
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
    """Return the cost of a transport for all people in cents, or None if there is no road."""
    if way.flight is not None:
        return round(way.flight.price * CENTS) * query.people
    mode = way.car or "taxi"
    cost = database.road_cost(way.origin, way.destination, mode)
    return None if cost is None else cost * CENTS * math.ceil(query.people / _SEATS[mode])


def _menu(query: Query, rows: Sequence[Restaurant]) -> Iterable[Restaurant]:
    """Yield, for each set of wanted cuisines, the cheapest restaurants, as many as a city can have meals."""
    most = len(MEALS) * (longest_stay(query) - 1 + (2 if query.cuisines else 0))
    taken: dict[tuple[bool, ...], int] = {}
    for row in sorted(rows, key=lambda row: (row.average_cost, row.name)):
        kind = tuple(cuisine in row.cuisines for cuisine in query.cuisines)
        taken[kind] = taken.get(kind, 0) + 1
        if taken[kind] <= most:
            yield row
