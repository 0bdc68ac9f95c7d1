"""The sandbox database that plans are made from and checked against: TravelPlanner's tables, row by row.

Where a look-up is stranger than it needs to be (names match as sub-strings, flights without their date, of
several rows the first counts), it is as in TravelPlanner's evaluator (arXiv:2402.01622, MIT), so that one
checker serves both for training and for the benchmark.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Literal, NamedTuple, TypeVar

from genenv.environments.travel.reading import name_and_city

Mode = Literal["self-driving", "taxi"]
"""How a road is travelled."""

_SELF_DRIVING_USD_PER_KM = 0.05


class Flight(NamedTuple):
    """One departure on one day."""

    number: str
    price: float  # USD a person
    departure: str  # HH:MM
    arrival: str  # HH:MM
    elapsed: str
    date: str  # YYYY-MM-DD
    origin: str
    destination: str
    distance: float  # miles, as in the benchmark


class Accommodation(NamedTuple):
    """A place to stay."""

    name: str
    room_type: str
    price: float  # USD a night and room
    minimum_nights: float
    review_rate: float
    house_rules: str  # "No pets & No smoking"
    maximum_occupancy: int  # people a room
    city: str


class Restaurant(NamedTuple):
    """A place to eat."""

    name: str
    city: str
    cuisines: str  # "Tea, Pizza, Italian"
    average_cost: float  # USD a person and meal
    rating: float


class Attraction(NamedTuple):
    """Something to see; it costs nothing."""

    name: str
    latitude: float
    longitude: float
    address: str
    phone: str
    website: str
    city: str


class Road(NamedTuple):
    """The way from one city to another, by car."""

    origin: str
    destination: str
    duration: str  # "8 hours 25 mins", empty when there is no road
    distance: str  # "1,144 km", empty when there is no road

    @property
    def distance_km(self) -> float:
        """The distance, in kilometers. There must be one."""
        return float(self.distance.replace("km", "").replace(",", ""))


class Tables(NamedTuple):
    """All rows, in the order of their files."""

    flights: Sequence[Flight]
    accommodations: Sequence[Accommodation]
    restaurants: Sequence[Restaurant]
    attractions: Sequence[Attraction]
    roads: Sequence[Road]
    states: Mapping[str, str]
    """City -> state."""


_Row = TypeVar("_Row", Accommodation, Restaurant, Attraction)
_Any = TypeVar("_Any")
_Key = TypeVar("_Key")


class Database:
    """The tables, and the ways to look things up in them."""

    def __init__(self, tables: Tables) -> None:
        self.tables = tables
        self._flights = _grouped(tables.flights, lambda row: (row.origin, row.destination, row.date))
        self._numbers = _grouped(tables.flights, lambda row: row.number)
        self._rooms = _grouped(tables.accommodations, lambda row: row.city)
        self._restaurants = _grouped(tables.restaurants, lambda row: row.city)
        self._attractions = _grouped(tables.attractions, lambda row: row.city)
        self._roads = _grouped(tables.roads, lambda row: (row.origin, row.destination))
        self._cities = _grouped(tables.states, lambda city: tables.states[city])

    def state_of(self, city: str) -> str | None:
        """The state a city is in; None for an unknown city."""
        return self.tables.states.get(city)

    def states(self) -> list[str]:
        """All states, in alphabetical order."""
        return sorted(self._cities)

    def cities_of(self, state: str) -> Sequence[str]:
        """The cities of a state, none for an unknown one."""
        return self._cities.get(state, ())

    def flights(self, origin: str, destination: str, date: str) -> Sequence[Flight]:
        """The flights between two cities on a day."""
        return self._flights.get((origin, destination, date), ())

    def flights_numbered(self, number: str) -> Sequence[Flight]:
        """The flights of a number."""
        return self._numbers.get(number, ())

    def accommodations(self, city: str) -> Sequence[Accommodation]:
        """Where one can stay in a city."""
        return self._rooms.get(city, ())

    def restaurants(self, city: str) -> Sequence[Restaurant]:
        """Where one can eat in a city."""
        return self._restaurants.get(city, ())

    def attractions(self, city: str) -> Sequence[Attraction]:
        """What one can see in a city."""
        return self._attractions.get(city, ())

    def accommodations_named(self, name: str, city: str) -> list[Accommodation]:
        """The accommodations of a city whose name contains the given one."""
        return _named(self.accommodations(city), name)

    def restaurants_named(self, name: str, city: str) -> list[Restaurant]:
        """The restaurants of a city whose name contains the given one."""
        return _named(self.restaurants(city), name)

    def attractions_named(self, name: str, city: str) -> list[Attraction]:
        """The attractions of a city whose name contains the given one."""
        return _named(self.attractions(city), name)

    def road(self, origin: str, destination: str) -> Road | None:
        """The road between two cities; None where there is none, or it takes a day or more."""
        rows = self._roads.get((origin, destination), ())
        if not rows or not rows[0].duration or not rows[0].distance or "day" in rows[0].duration:
            return None
        return rows[0]

    def road_cost(self, origin: str, destination: str, mode: Mode) -> int | None:
        """What a car costs from one city to another, in USD; None without a road (see `road`)."""
        road = self.road(origin, destination)
        if road is None:
            return None
        return int(road.distance_km * (_SELF_DRIVING_USD_PER_KM if mode == "self-driving" else 1))


def clear(rows: Sequence[_Row]) -> list[_Row]:
    """The rows of a city that are found by their own name.

    It is part of no earlier row's, has no `;`, and a plan that has it as `Name, City` is read as it is meant.
    """
    return [row for row in rows if _legible(row) and _named(rows, row.name.strip())[0] is row]


def _legible(row: _Row) -> bool:
    name = row.name.strip()
    read = name_and_city(f"{row.name}, {row.city}")
    return ";" not in name and name not in ("", "-") and read == (name, row.city)


def _grouped(rows: Iterable[_Any], key: Callable[[_Any], _Key]) -> dict[_Key, list[_Any]]:
    groups: defaultdict[_Key, list[_Any]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return dict(groups)


def _named(rows: Sequence[_Row], name: str) -> list[_Row]:
    return [row for row in rows if name in row.name]
