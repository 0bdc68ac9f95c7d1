"""One SQLite file: opened with the right settings, checked, and with errors that are sentences."""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import TypeVar

from genenv.errors import DataError
from genenv.runs.store.codec import SqlValue
from genenv.runs.store.migrations import migrate

ReadT = TypeVar("ReadT")

_BUSY_S = 30.0
"""How long to wait for another process that is writing."""

MEND = "restore a copy of it, or start a new run"
"""What to do about damage."""

_SENTENCES: Mapping[int, str] = {
    sqlite3.SQLITE_FULL: "the disk is full, {path} stays at its last whole round; "
    "free some space and continue the run",
    sqlite3.SQLITE_BUSY: "{path} is in use by another process; wait for it to end, and try again",
    sqlite3.SQLITE_LOCKED: "{path} is in use by another process; wait for it to end, and try again",
    sqlite3.SQLITE_READONLY: "{path} cannot be written; check the permissions of the file and its folder",
    sqlite3.SQLITE_PERM: "{path} cannot be read; check the permissions of the file and its folder",
    sqlite3.SQLITE_CANTOPEN: "{path} cannot be opened; check that its folder exists and can be written",
    sqlite3.SQLITE_IOERR: "{path} cannot be read or written ({error}); check the disk",
    sqlite3.SQLITE_CORRUPT: f"{{path}} is damaged ({{error}}); {MEND}",
    sqlite3.SQLITE_NOTADB: f"{{path}} is damaged ({{error}}); {MEND}",
}


class Database:
    """A connection in autocommit mode; writes happen inside `transaction`."""

    def __init__(self, path: Path, connection: sqlite3.Connection) -> None:
        """Use `Database.open`."""
        self.path = path
        self._connection = connection

    @classmethod
    def open(cls, path: Path, *, create: bool, check: bool = True) -> Database:
        """Open, check and migrate a file.

        Args:
            path: the file.
            create: make it when it is not there.
            check: read all of it, to see whether SQLite finds it whole.

        Raises:
            DataError: it is missing (unless `create`), damaged, in use, newer than the code, or not a store.
        """
        if not create and not path.is_file():
            raise DataError(f"{path} is missing; {MEND}")
        with sentences(path):
            connection = sqlite3.connect(path, timeout=_BUSY_S, isolation_level=None)
            try:
                _prepare(connection, path, check=check)
            except BaseException:
                connection.close()
                raise
        return cls(path, connection)

    @classmethod
    @contextmanager
    def peek(cls, path: Path) -> Generator[Database]:
        """A connection that writes nothing and checks nothing: it serves read-only folders, and at once.

        Raises:
            DataError: the file is damaged or cannot be read.
        """
        # Without a `-wal` file nobody has it open, and a folder that cannot be written does no harm.
        mode = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "immutable=1"
        uri = f"{path.absolute().as_uri()}?{mode}"
        with sentences(path), closing(sqlite3.connect(uri, uri=True)) as connection:
            connection.row_factory = sqlite3.Row
            yield cls(path, connection)

    def close(self) -> None:
        """Close the file; harmless when it is closed already."""
        self._connection.close()

    def rows(self, sql: str, values: Sequence[SqlValue] | Mapping[str, SqlValue] = ()) -> list[sqlite3.Row]:
        """All rows of a query."""
        with sentences(self.path), closing(self._connection.execute(sql, values)) as cursor:
            return cursor.fetchall()

    def read(
        self, of: Callable[[sqlite3.Row], ReadT], sql: str, values: Sequence[SqlValue] = ()
    ) -> list[ReadT]:
        """What each row of a query stands for; one that cannot be decoded means a damaged file."""
        with self.decoding():
            return [of(row) for row in self.rows(sql, values)]

    def has_table(self, name: str) -> bool:
        """Whether there is a table of this name."""
        return bool(self.rows("SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = ?", (name,)))

    def each(self, sql: str, values: Sequence[SqlValue] = ()) -> Generator[sqlite3.Row]:
        """The rows of a query one by one, for what does not fit into memory."""
        with sentences(self.path), closing(self._connection.execute(sql, values)) as cursor:
            yield from cursor

    def run(self, sql: str, values: Sequence[SqlValue] = ()) -> int:
        """Execute one statement; returns how many rows it changed."""
        with sentences(self.path), closing(self._connection.execute(sql, values)) as cursor:
            return cursor.rowcount

    def copy_to(self, path: Path) -> None:
        """Copy the whole database, as it is at this moment, into a file that is not there yet."""
        with sentences(path), closing(sqlite3.connect(path)) as target:
            self._connection.backup(target)

    @contextmanager
    def transaction(self) -> Generator[None]:
        """All writes inside happen together, or none of them does."""
        self.run("BEGIN IMMEDIATE")
        try:
            yield
            self.run("COMMIT")
        finally:
            # After some errors SQLite has rolled back by itself.
            if self._connection.in_transaction:
                self.run("ROLLBACK")

    @contextmanager
    def snapshot(self) -> Generator[None]:
        """All reads inside see the file as it was at the first of them, whatever is committed meanwhile."""
        self.run("BEGIN")
        try:
            yield
        finally:
            if self._connection.in_transaction:
                self.run("ROLLBACK")

    @contextmanager
    def decoding(self) -> Generator[None]:
        """Values that cannot be decoded mean a damaged file."""
        try:
            yield
        except ValueError as err:
            raise DataError(f"{self.path} is damaged ({err}); {MEND}") from err


@contextmanager
def sentences(path: Path) -> Generator[None]:
    """Turn SQLite's errors about the file into `DataError`; errors of the caller stay what they are.

    Raises:
        DataError: the file is damaged, in use, or cannot be written.
        ValueError: a row breaks a rule of the tables, such as an id that is used twice.
    """
    try:
        yield
    except sqlite3.IntegrityError as err:
        raise ValueError(f"{path} cannot hold this: {err}") from err
    except UnicodeDecodeError as err:  # SQLite quotes the name of a damaged table
        raise DataError(_SENTENCES[sqlite3.SQLITE_CORRUPT].format(path=path, error=err)) from err
    except sqlite3.DatabaseError as err:
        # Without a code the error is the module's own: text that is not UTF-8, or a misuse, which is a bug.
        code = getattr(err, "sqlite_errorcode", None)
        if code is None and isinstance(err, sqlite3.OperationalError):
            code = sqlite3.SQLITE_CORRUPT
        if code == sqlite3.SQLITE_ERROR and str(err).startswith("no such "):  # our tables and columns exist
            code = sqlite3.SQLITE_CORRUPT
        sentence = None if code is None else _SENTENCES.get(code & 0xFF)  # the low byte; the rest is detail
        if sentence is None:
            raise
        raise DataError(sentence.format(path=path, error=err)) from err


def _prepare(connection: sqlite3.Connection, path: Path, *, check: bool) -> None:
    connection.row_factory = sqlite3.Row
    found = str(connection.execute("PRAGMA quick_check(1)").fetchone()[0]) if check else "ok"
    if found != "ok":
        found = found.splitlines()[-1]  # the first line names the database of the connection
        raise DataError(f"{path} is damaged ({found}); {MEND}")
    connection.execute("PRAGMA synchronous = FULL")
    # A commit moves on into the file itself, so that a lost `-wal` file costs no committed round.
    connection.execute("PRAGMA wal_autocheckpoint = 1")
    try:
        migrate(connection, path)  # before WAL: another program's database must stay as it is
    except (sqlite3.OperationalError, sqlite3.IntegrityError) as err:
        if isinstance(err, sqlite3.OperationalError) and err.sqlite_errorcode != sqlite3.SQLITE_ERROR:
            raise
        # A step that was done already, or rows that break a rule.
        raise DataError(f"{path} is damaged ({err}); {MEND}") from err
    connection.execute("PRAGMA foreign_keys = ON")  # not before: a step moves damaged rows as they are
    _check_tables(connection, path)
    connection.execute("PRAGMA journal_mode = WAL")


_TABLES = "SELECT type, name, tbl_name, sql FROM sqlite_schema"


@cache
def _tables() -> frozenset[tuple[object, ...]]:
    """The definitions that a store of the newest format has."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as fresh:
        migrate(fresh, Path("a new store"))
        return frozenset(tuple(row) for row in fresh.execute(_TABLES))


def _check_tables(connection: sqlite3.Connection, path: Path) -> None:
    """A bit that flipped in a definition leaves a file that is sound but no store of this format.

    Raises:
        DataError: tables or indices are not those that the migrations make.
    """
    if _tables() - {tuple(row) for row in connection.execute(_TABLES)}:
        raise DataError(f"{path} is damaged (its tables are not those of a store); {MEND}")
