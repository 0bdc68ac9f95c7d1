"""Loads TravelPlanner's queries, reference information and tables.

In sole planning, flights are those of the split's reference information: a plan may use no others, and the
authors' table of all flights of 2022 is a download of 300 MB. All other data are in the authors' tables.
"""

from __future__ import annotations

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast, get_args

from genenv.benchmarks.travelplanner.entries import Places
from genenv.benchmarks.travelplanner.two_stage import Searches
from genenv.environments.travel.database import FILES, BadRow, Database, Flight, read_database, rows
from genenv.environments.travel.query import HouseRule, Query, RoomType, Transport, benchmark_query
from genenv.errors import DataError, UsageError
from genenv.evaluation.data import DataFolder

FOLDER = "travelplanner"
TEST = "test"
"""The split with hidden constraints: its rows have only the query's text and information."""
LEVELS = ("easy", "medium", "hard")
_DAYS = (3, 5, 7)


@dataclass(frozen=True, kw_only=True)
class Split:
    """The data that all questions of a split share."""

    places: Places
    """The names and cities of the split's database, for parsing replies."""
    texts: Sequence[str]
    """The text of each query, in order."""
    template: str | None = None
    """The authors' prompt for planning, with `prompt: authors`."""
    searching: str | None = None
    """The authors' prompt for searching, with `prompt: authors`."""
    searches: Searches | None = None
    """The search tools of the two-stage mode."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A query with the data for its prompt and its grade."""

    query: Query | None
    """The parsed query; None in the test split, which only the authors can grade."""
    groups: Mapping[str, str]
    """The level and number of days, if the file has them."""
    text: str
    """The query in words."""
    information: str
    """The reference information, as in the authors' prompt."""
    database: Database
    """The database, shared by all questions of a split."""
    number: int
    """The position in the split, from 1: the authors' `idx`."""
    split: Split


def read_questions(
    data: DataFolder,
    split: str,
    template: str | None = None,
    *,
    searching: str | None = None,
    two_stage: bool = False,
) -> list[Question]:
    """Return the questions of a split, in the order of its file.

    Args:
        data: the benchmark's files.
        split: the name of the split.
        template: the authors' prompt for planning, if it is used.
        searching: the authors' prompt for searching, if it is used.
        two_stage: whether to load the tools, and the table of all flights.

    Raises:
        DataError: a file is missing, changed or damaged; the message names file and line.
    """
    name = f"{FOLDER}/{split}.csv"
    read = list(_rows(data, name))
    database = _database(data, split, whole=two_stage)
    shared = Split(
        places=Places(database),
        searching=searching,
        searches=Searches(database, _cities(data)) if two_stage else None,
        texts=[row.get("query", "") for _, row in read],
        template=template,
    )
    questions = [
        _question(data, name, (number, line), row, shared, graded=split != TEST)
        for number, (line, row) in enumerate(read, 1)
    ]
    if not questions:
        raise DataError(f"{data.root / name} holds no query; fetch the file again")
    return questions


def _rows(data: DataFolder, name: str) -> Iterator[tuple[int, Mapping[str, str]]]:
    """Yield the line numbers and cells of a CSV file."""
    try:
        yield from rows(io.StringIO(data.read(name), newline=""))
    except BadRow as error:
        place = f"{data.root / name}, line {error.line}"
        raise DataError(f"{place}: {error}; the file may be cut off, fetch it again") from error


def _question(
    data: DataFolder, name: str, place: tuple[int, int], row: Mapping[str, str], split: Split, *, graded: bool
) -> Question:
    """The question of a row; of the test split, which is not graded here, only the text is known."""
    number, line = place
    try:
        query = benchmark_query(row) if graded else None
    except DataError as error:
        raise DataError(f"{data.root / name}, line {line}: {error}") from error

    def read() -> Question:
        groups = {key: row[key] for key in ("level", "days") if row.get(key)}
        if query is not None:
            _check(query, row["level"])
            groups["days"] = str(query.days)
        return Question(
            query=query,
            groups=groups,
            text=row["query"],
            information=row["reference_information"],
            database=split.places.database,
            number=number,
            split=split,
        )

    return data.reading(name, f"line {line}", read)


def _check(query: Query, level: str) -> None:
    """Check that a query's values are known to the rules.

    Raises:
        ValueError: they are not.
    """
    wishes = {"house rule": (query.house_rule, HouseRule), "room type": (query.room_type, RoomType)}
    wishes["transportation"] = (query.transport, Transport)
    for what, (wish, known) in wishes.items():
        if wish is not None and wish not in get_args(known):
            raise ValueError(f"an unknown {what}, {wish!r}")
    if level not in LEVELS or query.days not in _DAYS or query.people < 1:
        raise ValueError("an unknown level or number of days, or no people")
    if not all(isinstance(cuisine, str) for cuisine in cast(Sequence[object], query.cuisines)):
        raise ValueError("cuisines that are not texts")


# --- the database ---


def _cities(data: DataFolder) -> list[str]:
    """Return the cities that can be searched for, in the order of their file."""
    return data.read(f"{FOLDER}/database/background/citySet.txt").strip().split("\n")


def _database(data: DataFolder, split: str, *, whole: bool) -> Database:
    """Return the tables, after recording their files' hashes; `whole` includes the table of all flights.

    The test split gets no flights: its plans are parsed, but not graded.
    """
    for table, names in FILES.items():
        if table != "flights" or whole:
            data.read(f"{FOLDER}/database/{names[0]}")
    flights: list[Flight] | None
    if whole or split == TEST:
        flights = None if whole else []
    else:
        flights = _flights(data, f"{FOLDER}/{split}_ref_info.jsonl")
    try:
        return read_database(str(data.root / FOLDER / "database"), flights=flights)
    except UsageError as error:
        raise DataError(str(error)) from error


def _flights(data: DataFolder, name: str) -> list[Flight]:
    """Return the flights of a split's reference information, without duplicates, in order."""
    found: dict[Flight, None] = {}
    for flights in data.each_line(name, _flights_in):
        found |= flights
    return list(found)


def _flights_in(information: Mapping[str, Any]) -> dict[Flight, None]:
    """Return the flights of one query. The text `There is no flight ...` means none."""
    lists = [value for key, value in information.items() if key.startswith("Flight from ")]
    return dict.fromkeys(_flight(row) for rows in lists if not isinstance(rows, str) for row in rows)


def _flight(row: Mapping[str, Any]) -> Flight:
    return Flight(
        number=str(row["Flight Number"]),
        price=float(row["Price"]),
        departure=str(row["DepTime"]),
        arrival=str(row["ArrTime"]),
        elapsed=str(row["ActualElapsedTime"]),
        date=str(row["FlightDate"]),
        origin=str(row["OriginCityName"]),
        destination=str(row["DestCityName"]),
        distance=float(row["Distance"]),
    )
