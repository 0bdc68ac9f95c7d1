"""TravelPlanner's tables: row types, a reader of their CSV files, and queries over them."""

from __future__ import annotations

import csv
import functools
import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Literal, NamedTuple, TypeVar

from genenv.environments.travel.query import name_and_city
from genenv.errors import UsageError, first_line


class BadRow(ValueError):
    """Raised if a row of a CSV file cannot be read."""

    def __init__(self, line: int, problem: str) -> None:
        """Store the position and the problem.

        Args:
            line: the first line of the row, from 1.
            problem: a description of the fault.
        """
        super().__init__(problem)
        self.line = line


def rows(lines: Iterable[str], *, least: int = 0) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Yield each row below the header with the number of its first line; a row may span several lines.

    Args:
        lines: the lines of a file with their line ends.
        least: the minimum number of columns.

    Raises:
        BadRow: there are fewer columns, a row is cut off, or a row has not as many cells as the header.
    """
    reader = csv.reader(lines, strict=True)
    line = 1
    try:
        header = next(reader, list[str]())
        if len(header) < least:
            raise BadRow(line, f"{len(header)} columns, not {least}")
        line = reader.line_num + 1
        for cells in reader:
            if len(cells) != len(header):
                raise BadRow(line, f"{len(cells)} cells, not {len(header)}")
            yield line, dict(zip(header, cells, strict=True))
            line = reader.line_num + 1
    except csv.Error as error:
        raise BadRow(line, first_line(error)) from None


Mode = Literal["self-driving", "taxi"]
"""The vehicle on a road."""

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
    """A sight; it costs nothing."""

    name: str
    latitude: float
    longitude: float
    address: str
    phone: str
    website: str
    city: str


class Road(NamedTuple):
    """The connection from one city to another by car."""

    origin: str
    destination: str
    duration: str  # "8 hours 25 mins", empty when there is no road
    distance: str  # "1,144 km", empty when there is no road

    @property
    def distance_km(self) -> float:
        """The distance in kilometers. `distance` must not be empty."""
        return float(self.distance.replace("km", "").replace(",", ""))


class Tables(NamedTuple):
    """All rows in the order of their files."""

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
    """The tables with indices for lookups."""

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
        """Return the state of a city, or None for an unknown city."""
        return self.tables.states.get(city)

    def states(self) -> list[str]:
        """Return all states in alphabetical order."""
        return sorted(self._cities)

    def cities_of(self, state: str) -> Sequence[str]:
        """Return the cities of a state; empty for an unknown state."""
        return self._cities.get(state, ())

    def flights(self, origin: str, destination: str, date: str) -> Sequence[Flight]:
        """Return the flights between two cities on a day."""
        return self._flights.get((origin, destination, date), ())

    def flights_numbered(self, number: str) -> Sequence[Flight]:
        """Return the flights with a number."""
        return self._numbers.get(number, ())

    def accommodations(self, city: str) -> Sequence[Accommodation]:
        """Return the accommodations in a city."""
        return self._rooms.get(city, ())

    def restaurants(self, city: str) -> Sequence[Restaurant]:
        """Return the restaurants in a city."""
        return self._restaurants.get(city, ())

    def attractions(self, city: str) -> Sequence[Attraction]:
        """Return the attractions in a city."""
        return self._attractions.get(city, ())

    def accommodations_named(self, name: str, city: str) -> list[Accommodation]:
        """Return the accommodations of a city whose names contain the given one."""
        return _named(self.accommodations(city), name)

    def restaurants_named(self, name: str, city: str) -> list[Restaurant]:
        """Return the restaurants of a city whose names contain the given one."""
        return _named(self.restaurants(city), name)

    def attractions_named(self, name: str, city: str) -> list[Attraction]:
        """Return the attractions of a city whose names contain the given one."""
        return _named(self.attractions(city), name)

    def road(self, origin: str, destination: str) -> Road | None:
        """Return the road between two cities; None if there is none or the drive takes a day or more."""
        rows = self._roads.get((origin, destination), ())
        if not rows or not rows[0].duration or not rows[0].distance or "day" in rows[0].duration:
            return None
        return rows[0]

    def road_cost(self, origin: str, destination: str, mode: Mode) -> int | None:
        """Return the cost in USD of a car between two cities, or None without a road (see `road`)."""
        road = self.road(origin, destination)
        if road is None:
            return None
        return int(road.distance_km * (_SELF_DRIVING_USD_PER_KM if mode == "self-driving" else 1))


def clear(rows: Sequence[_Row]) -> list[_Row]:
    """Return the rows of a city that a plan can name unambiguously.

    The name must find this row first, contain no `;`, and be parsed correctly from `Name, City`.
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


FILES = {
    "flights": ("flights/clean_Flights_2022.csv", "flights/flights_from_ref_info.csv"),
    "accommodations": ("accommodations/clean_accommodations_2022.csv",),
    "restaurants": ("restaurants/clean_restaurant_2022.csv",),
    "attractions": ("attractions/attractions.csv",),
    "roads": ("googleDistanceMatrix/distance.csv",),
    "states": ("background/citySet_with_states.txt",),
}
"""Table -> its possible files; the first that exists is read. The full flights are a download of 300 MB,
those of the reference information a part of it."""

_EMPTY = frozenset(
    [
        *["", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"],
        *["<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"],
    ]
)
"""Cell texts that pandas reads as empty."""

_Parsed = TypeVar("_Parsed")


class _Line(NamedTuple):
    """One line of a table."""

    file: Path
    number: int
    cells: Mapping[str, str]

    def text(self, column: str) -> str:
        if column not in self.cells:
            raise self._replace(number=1).broken(f"there is no column {column!r}")
        return self.cells[column]

    def number_in(self, column: str) -> float:
        text = self.text(column)
        try:
            number = float(text)
        except ValueError:
            number = math.nan
        if not math.isfinite(number):
            raise self.broken(f"{column} is {text[:40]!r}, not a number")
        return number

    def amount_in(self, column: str) -> float:
        """Return a number that is not below zero."""
        number = self.number_in(column)
        if number < 0:
            raise self.broken(f"{column} is {self.cells[column][:40]!r}, below zero")
        return number

    def broken(self, problem: str) -> UsageError:
        return UsageError(f"{self.file}, line {self.number}: {problem}; mend or remove the line")


@functools.lru_cache(maxsize=2)
def load_database(folder: str) -> Database:
    """Return `read_database(folder)`, cached per folder."""
    return read_database(folder)


def read_database(folder: str, *, flights: Sequence[Flight] | None = None) -> Database:
    """Read the tables of a folder with the layout of TravelPlanner's `database`.

    Args:
        folder: the path of the folder.
        flights: flights to use instead of the folder's table of flights.

    Raises:
        UsageError: a table is missing, or a line of it cannot be read; the sentence names file and line.
    """
    root = Path(folder)
    if not root.is_dir():
        raise UsageError(
            f"environment.database: there is no folder {folder!r}; name TravelPlanner's `database`, or "
            f"nothing"
        )
    return Database(
        Tables(
            flights=_rows(root, "flights", _flight, 9) if flights is None else flights,
            accommodations=_rows(root, "accommodations", _accommodation, 8),
            restaurants=_rows(root, "restaurants", _restaurant, 5),
            attractions=_rows(root, "attractions", _attraction, 7),
            roads=_rows(root, "roads", _road, 4, keep_empty=True),
            states=_states(_find(root, "states")),
        )
    )


def _find(root: Path, table: str) -> Path:
    for name in FILES[table]:
        try:
            if (root / name).is_file():
                return root / name
        except OSError as error:
            raise UsageError(f"{root / name} cannot be read: {first_line(error)}; mend that") from None
    raise UsageError(
        f"environment.database: {root} has no {FILES[table][0]}; download TravelPlanner's database again"
    )


def _rows(
    root: Path, table: str, read: Callable[[_Line], _Parsed], columns: int, *, keep_empty: bool = False
) -> list[_Parsed]:
    file = _find(root, table)
    lines = _lines(file, columns)
    rows = [read(line) for line in lines if keep_empty or not _EMPTY & set(line.cells.values())]
    if not rows:
        raise UsageError(f"{file} has no complete line; download TravelPlanner's database again")
    return rows


def _lines(file: Path, least: int) -> Iterator[_Line]:
    """Yield the lines of a table below its header, which must have at least `least` columns."""
    try:
        for number, cells in rows(_texts(file), least=least):
            yield _Line(file, number, cells)
    except BadRow as error:
        raise _Line(file, error.line, {}).broken(str(error)) from None


def _texts(file: Path) -> Iterator[str]:
    """Yield the lines of a text file with their line ends.

    Raises:
        UsageError: the file cannot be read, is not UTF-8 or contains NUL.
    """
    number = 0
    try:
        with file.open("rb") as stream:
            for number, line in enumerate(stream, 1):
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
                if "\0" in text:
                    raise _Line(file, number, {}).broken("it has a NUL byte")
                yield text
    except UnicodeDecodeError:
        raise _Line(file, number, {}).broken("it is not text in UTF-8") from None
    except OSError as error:
        problem = error.strerror or first_line(error)
        raise UsageError(f"{file} cannot be read: {problem}; mend that, or download it again") from None


def _flight(line: _Line) -> Flight:
    return Flight(
        number=line.text("Flight Number"),
        price=line.amount_in("Price"),
        departure=line.text("DepTime"),
        arrival=line.text("ArrTime"),
        elapsed=line.text("ActualElapsedTime"),
        date=line.text("FlightDate"),
        origin=line.text("OriginCityName"),
        destination=line.text("DestCityName"),
        distance=line.amount_in("Distance"),
    )


def _accommodation(line: _Line) -> Accommodation:
    occupancy = int(line.number_in("maximum occupancy"))
    if occupancy < 1:
        raise line.broken(f"maximum occupancy is {occupancy}")
    return Accommodation(
        name=line.text("NAME"),
        room_type=line.text("room type"),
        price=line.amount_in("price"),
        minimum_nights=line.amount_in("minimum nights"),
        review_rate=line.number_in("review rate number"),
        house_rules=line.text("house_rules"),
        maximum_occupancy=occupancy,
        city=line.text("city"),
    )


def _restaurant(line: _Line) -> Restaurant:
    return Restaurant(
        name=line.text("Name"),
        city=line.text("City"),
        cuisines=line.text("Cuisines"),
        average_cost=line.amount_in("Average Cost"),
        rating=line.number_in("Aggregate Rating"),
    )


def _attraction(line: _Line) -> Attraction:
    return Attraction(
        name=line.text("Name"),
        latitude=line.number_in("Latitude"),
        longitude=line.number_in("Longitude"),
        address=line.text("Address"),
        phone=line.text("Phone"),
        website=line.text("Website"),
        city=line.text("City"),
    )


def _road(line: _Line) -> Road:
    duration, distance = (
        "" if line.text(column) in _EMPTY else line.text(column) for column in ("duration", "distance")
    )
    road = Road(line.text("origin"), line.text("destination"), duration, distance)
    try:
        km = road.distance_km if road.distance else 0
    except ValueError:
        km = math.nan
    if not 0 <= km < math.inf:
        raise line.broken(f"distance is {road.distance[:40]!r}, not kilometers")
    return road


def _states(file: Path) -> dict[str, str]:
    states: dict[str, str] = {}
    for number, text in enumerate(_texts(file), 1):
        line = text.rstrip("\r\n")
        city, tab, state = line.partition("\t")
        if line and not (city and tab and state):
            raise _Line(file, number, {}).broken("it should be a city, a tab, and its state")
        if states.get(city, state) != state:
            raise _Line(file, number, {}).broken(f"{city[:40]} is in {states[city][:40]} by an earlier line")
        if line:
            states[city] = state
    if not states:
        raise UsageError(f"{file} names no city; download TravelPlanner's database again")
    return states
