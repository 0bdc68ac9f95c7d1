"""Which run a store is of and how far it is, read without writing and without a check of the whole file.

A run in a read-only folder can be measured, and a store of gigabytes answers at once.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Generator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path

from genenv.errors import DataError
from genenv.runs.store.database import MEND, sentences
from genenv.runs.store.records import Identity

IDENTITY = "SELECT id, legacy_until FROM run"
"""Has one row in a whole store."""


def identity_in(path: Path, found: Sequence[tuple[object, ...]]) -> Identity:
    """The identity in the rows of `IDENTITY`.

    Raises:
        DataError: there is not one row.
    """
    if len(found) != 1:
        raise DataError(f"{path} is damaged (it does not say which run it is of); {MEND}")
    ((run, legacy_until),) = found
    return Identity(id=str(run), legacy_until=int(str(legacy_until)))


def read_identity(path: Path) -> Identity:
    """Which run a store is of.

    Args:
        path: the store; one of an older genenv has no id yet, and all of its checkpoints may lack one.

    Raises:
        DataError: the file is damaged or cannot be read.
    """
    with reading(path) as connection:
        if not _has_table(connection, "run"):
            last = connection.execute("SELECT coalesce(max(number), -1) FROM rounds").fetchone()[0]
            return Identity(id="", legacy_until=last)
        found = connection.execute(IDENTITY).fetchall()
    return identity_in(path, found)


def read_last_round(path: Path) -> int | None:
    """The last committed round of a store; None before the first, and for a file without tables.

    Raises:
        DataError: the file is damaged or cannot be read.
    """
    with reading(path) as connection:
        if not _has_table(connection, "rounds"):
            return None
        return connection.execute("SELECT max(number) FROM rounds").fetchone()[0]


@contextmanager
def reading(path: Path) -> Generator[sqlite3.Connection]:
    """A connection to a store that writes nothing.

    Raises:
        DataError: the file is damaged or cannot be read.
    """
    # Without a `-wal` file nobody has it open, and a folder that cannot be written does no harm.
    mode = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "immutable=1"
    uri = f"{path.absolute().as_uri()}?{mode}"
    with sentences(path), closing(sqlite3.connect(uri, uri=True)) as connection:
        yield connection


def _has_table(connection: sqlite3.Connection, name: str) -> bool:
    found = connection.execute("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?", (name,))
    return found.fetchone() is not None
