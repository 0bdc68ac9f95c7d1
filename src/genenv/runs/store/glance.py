"""A few tasks and measurements of a store, read without writing and without a check of the whole file."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from genenv.errors import DataError
from genenv.runs.store.database import MEND
from genenv.runs.store.encode import object_from_json
from genenv.runs.store.identity import reading
from genenv.runs.store.rows import messages_of
from genenv.types import Message

_FoundT = TypeVar("_FoundT")


def first_messages(path: Path, most: int) -> list[tuple[Message, ...]]:
    """What the agent sees first of some tasks: of the held-out ones, then of others.

    Args:
        path: the store.
        most: how many tasks.

    Raises:
        DataError: the file is damaged or cannot be read.
    """
    sql = "SELECT messages FROM tasks ORDER BY round IS NOT NULL, n LIMIT ?"
    return _read(path, lambda row: messages_of(row[0]), sql, most)


def last_measured(path: Path, metric: str, round_: int) -> tuple[int, float] | None:
    """The last round up to `round_` that has a metric, and the metric; None where none has.

    Raises:
        DataError: the file is damaged or cannot be read.
    """
    sql = "SELECT number, metrics FROM rounds WHERE number <= ? ORDER BY number DESC"
    for number, metrics in _read(path, lambda row: (int(row[0]), object_from_json(row[1])), sql, round_):
        value = metrics.get(metric)
        if isinstance(value, int | float):
            return number, float(value)
    return None


def _read(path: Path, of: Callable[[tuple[str, ...]], _FoundT], sql: str, value: int) -> list[_FoundT]:
    with reading(path) as connection:
        rows = connection.execute(sql, (value,)).fetchall()
    try:
        return [of(row) for row in rows]
    except ValueError as error:
        raise DataError(f"{path} is damaged ({error}); {MEND}") from error
