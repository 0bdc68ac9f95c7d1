"""A trip as rows of the database, written as a plan and read back from one.

Reading is strict where the evaluator is lenient: every entry is exactly one row and in a city of its day,
flights leave on their day, each day begins where the one before ended, and on days without travel nobody
travels and there is something to see. A plan that can be read means what it says.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple, TypeVar

from genenv.environments.travel.database import Accommodation, Attraction, Database, Flight, Mode, Restaurant
from genenv.environments.travel.query import MEALS, Day, Plan, Query
from genenv.environments.travel.reading import (
    UnreadableError,
    before_parenthesis,
    cities_of,
    from_to,
    name_and_city,
    said,
)
from genenv.types import Json


class Way(NamedTuple):
    """How one gets from a city to the next."""

    origin: str
    destination: str
    car: Mode | None = None
    flight: Flight | None = None
    """Given when there is no car."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TripDay:
    """A day of a trip."""

    cities: tuple[str, ...]
    """Both cities on a day of travel, else one."""
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
        """The index of each day of travel, and how one travels."""
        return [(index, day.way) for index, day in enumerate(self.days) if day.way is not None]

    @property
    def restaurants(self) -> list[Restaurant]:
        """Every meal in order."""
        return [meal for day in self.days for meal in day.meals if meal is not None]

    @property
    def cities(self) -> list[str]:
        """The cities that are visited, in order."""
        return [way.destination for _, way in self.ways[:-1]]


# --- writing ---


def written(trip: Trip) -> list[dict[str, Json]]:
    """The trip as a plan in the benchmark's form."""
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
    """An entry as plans name it."""
    return f"{name}, {city}"


def way_text(way: Way) -> str:
    """A way to travel as plans say it."""
    leg = f"from {way.origin} to {way.destination}"
    if way.flight is not None:
        return f"Flight Number: {way.flight.number}, {leg}"
    return f"{'Self-driving' if way.car == 'self-driving' else 'Taxi'}, {leg}"


# --- reading ---


def read_trip(query: Query, plan: Plan, database: Database) -> Trip:
    """A plan as a trip.

    Raises:
        UnreadableError: an entry is no row of the database, or not where or when it should be.
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
