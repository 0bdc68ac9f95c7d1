"""Reads TravelPlanner's tables from a folder, as the user has downloaded them.

Rows with an empty cell are left out, as the benchmark leaves them out (pandas' `dropna`), but for the roads,
where an empty cell says that there is none. A line that cannot be read ends in a `UsageError` with the file
and the line.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple, TypeVar

from genenv.environments.travel.database import (
    Accommodation,
    Attraction,
    Database,
    Flight,
    Restaurant,
    Road,
    Tables,
)
from genenv.environments.travel.rows import BadRow
from genenv.environments.travel.rows import rows as csv_rows
from genenv.errors import UsageError, first_line

FILES = {
    "flights": ("flights/clean_Flights_2022.csv", "flights/flights_from_ref_info.csv"),
    "accommodations": ("accommodations/clean_accommodations_2022.csv",),
    "restaurants": ("restaurants/clean_restaurant_2022.csv",),
    "attractions": ("attractions/attractions.csv",),
    "roads": ("googleDistanceMatrix/distance.csv",),
    "states": ("background/citySet_with_states.txt",),
}
"""Table -> where it may be; the first that exists is read. The full flights are a download of 300 MB, those
of the reference information a part of it."""

_EMPTY = frozenset(
    [
        *["", "#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN"],
        *["<NA>", "N/A", "NA", "NULL", "NaN", "None", "n/a", "nan", "null"],
    ]
)
"""What pandas takes for an empty cell."""

_Row = TypeVar("_Row")


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
        """A number that is not below zero."""
        number = self.number_in(column)
        if number < 0:
            raise self.broken(f"{column} is {self.cells[column][:40]!r}, below zero")
        return number

    def broken(self, problem: str) -> UsageError:
        return UsageError(f"{self.file}, line {self.number}: {problem}; mend or remove the line")


@functools.lru_cache(maxsize=2)
def load_database(folder: str) -> Database:
    """`read_database`, once for each folder."""
    return read_database(folder)


def read_database(folder: str, *, flights: Sequence[Flight] | None = None) -> Database:
    """The tables of a folder laid out like TravelPlanner's `database`.

    Args:
        folder: which.
        flights: those that there are, instead of the folder's table of flights.

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
    root: Path, table: str, read: Callable[[_Line], _Row], columns: int, *, keep_empty: bool = False
) -> list[_Row]:
    file = _find(root, table)
    lines = _lines(file, columns)
    rows = [read(line) for line in lines if keep_empty or not _EMPTY & set(line.cells.values())]
    if not rows:
        raise UsageError(f"{file} has no complete line; download TravelPlanner's database again")
    return rows


def _lines(file: Path, least: int) -> Iterator[_Line]:
    """The lines of a table below its header, which has so many columns at least."""
    try:
        for number, cells in csv_rows(_texts(file), least=least):
            yield _Line(file, number, cells)
    except BadRow as error:
        raise _Line(file, error.line, {}).broken(str(error)) from None


def _texts(file: Path) -> Iterator[str]:
    """The lines of a file, each with its end, all of them text without NUL.

    Raises:
        UsageError: the file cannot be read, or a line is not text.
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
