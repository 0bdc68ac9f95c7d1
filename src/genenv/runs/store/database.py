"""One SQLite file: opened with the right settings, checked, and with errors that are readable sentences."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import cache
from pathlib import Path
from typing import TypeVar

from genenv.errors import DataError
from genenv.runs.store.codec import SqlValue
from genenv.runs.store.tables import has_tables, make_tables

ReadT = TypeVar("ReadT")

_BUSY_S = 30.0
"""How long to wait for another process that is writing, in seconds."""
_PEEK_S = 5.0
"""The same for a reader that changes nothing."""
_STEPS = 10_000
"""Steps of SQLite's virtual machine between two looks at the clock."""

MEND = "restore a copy of it, or start a new run"
"""The advice in messages about damage."""

_SENTENCES: Mapping[int, str] = {
    sqlite3.SQLITE_FULL: "the disk is full, {path} stays at its last whole round; "
    "free some space and continue the run",
    sqlite3.SQLITE_BUSY: "{path} is in use by another process; wait for it to end, and try again",
    sqlite3.SQLITE_LOCKED: "{path} is in use by another process; wait for it to end, and try again",
    sqlite3.SQLITE_READONLY: "{path} cannot be written; check the permissions of the file and its folder",
    sqlite3.SQLITE_PERM: "{path} cannot be read; check the permissions of the file and its folder",
    sqlite3.SQLITE_CANTOPEN: "{path} cannot be opened; check that its folder exists and can be written",
    sqlite3.SQLITE_IOERR: "{path} cannot be read or written ({error}); check the disk",
    sqlite3.SQLITE_INTERRUPT: "{path} is too large for this within the limit of time; choose one round",
    sqlite3.SQLITE_CORRUPT: f"{{path}} is damaged ({{error}}); {MEND}",
    sqlite3.SQLITE_NOTADB: f"{{path}} is damaged ({{error}}); {MEND}",
}


class Database:
    """A connection in autocommit mode. Writes that belong together go inside `transaction`."""

    def __init__(self, path: Path, connection: sqlite3.Connection, *, is_empty: bool = False) -> None:
        """Wrap an open connection. Call `Database.open` instead."""
        self.path, self.is_empty = path, is_empty
        """The file, and whether it has no tables yet."""
        self._connection = connection

    @classmethod
    def open(cls, path: Path, *, create: bool, check: bool = True) -> Database:
        """Open and check a file; create the tables in an empty one.

        Args:
            path: the file.
            create: create the file if it is missing.
            check: run SQLite's quick check, which reads the whole file.

        Raises:
            DataError: it is missing (unless `create`), damaged, in use, of another format, or not a store.
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
    def peek(cls, path: Path, *, limit_s: float | None = None) -> Generator[Database]:
        """Open a read-only connection, and check the format alone. It works in read-only folders, at once.

        Args:
            path: the file.
            limit_s: stop queries after so many seconds, and wait no longer for a writer. Text that is not
                UTF-8 then has replacement characters. None: no limit, and such text is damage.

        Raises:
            DataError: the file is damaged, of another format or cannot be read, or a query took too long.
        """
        # Without a `-wal` file no process has it open, so an immutable read works even in a read-only folder.
        mode = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "immutable=1"
        uri = f"{path.absolute().as_uri()}?{mode}"
        patience_s = _PEEK_S if limit_s is None else min(limit_s, _PEEK_S)
        with sentences(path), closing(sqlite3.connect(uri, uri=True, timeout=patience_s)) as connection:
            connection.row_factory = sqlite3.Row
            if limit_s is not None:
                until = time.monotonic() + limit_s
                connection.set_progress_handler(lambda: time.monotonic() > until, _STEPS)
                connection.text_factory = _readable
            yield cls(path, connection, is_empty=not has_tables(connection, path))

    def close(self) -> None:
        """Close the file; does nothing if it is closed."""
        self._connection.close()

    def rows(self, sql: str, values: Sequence[SqlValue] | Mapping[str, SqlValue] = ()) -> list[sqlite3.Row]:
        """Return all rows of a query."""
        with sentences(self.path), closing(self._connection.execute(sql, values)) as cursor:
            return cursor.fetchall()

    def read(
        self, of: Callable[[sqlite3.Row], ReadT], sql: str, values: Sequence[SqlValue] = ()
    ) -> list[ReadT]:
        """Return the decoded rows of a query. A row that cannot be decoded means a damaged file."""
        with self.decoding():
            return [of(row) for row in self.rows(sql, values)]

    def each(self, sql: str, values: Sequence[SqlValue] = ()) -> Generator[sqlite3.Row]:
        """Yield the rows of a query one by one, for results that do not fit into memory."""
        with sentences(self.path), closing(self._connection.execute(sql, values)) as cursor:
            yield from cursor

    def run(self, sql: str, values: Sequence[SqlValue] = ()) -> int:
        """Execute one statement; return the number of rows that it changed."""
        with sentences(self.path), closing(self._connection.execute(sql, values)) as cursor:
            return cursor.rowcount

    def copy_to(self, path: Path) -> None:
        """Copy the whole database, in its present state, into a new file."""
        with sentences(path), closing(sqlite3.connect(path)) as target:
            self._connection.backup(target)

    @contextmanager
    def transaction(self, begin: str = "BEGIN IMMEDIATE") -> Generator[None]:
        """Apply all writes in the block atomically.

        Args:
            begin: the statement that opens it; `BEGIN` where nothing is written.
        """
        self.run(begin)
        try:
            yield
            self.run("COMMIT")
        finally:
            # After some errors SQLite has rolled back by itself.
            if self._connection.in_transaction:
                self.run("ROLLBACK")

    def snapshot(self) -> AbstractContextManager[None]:
        """Make all reads in the block see one state of the file, whatever is committed in the meantime."""
        return self.transaction("BEGIN")

    @contextmanager
    def restricted(
        self, allowed: Callable[[int, str | None, str | None, str | None, str | None], int]
    ) -> Generator[sqlite3.Connection]:
        """Yield the connection for SQL of a user; SQLite refuses what the authorizer does not allow."""
        self._connection.set_authorizer(allowed)
        try:
            yield self._connection
        finally:
            self._connection.set_authorizer(None)

    @contextmanager
    def decoding(self) -> Generator[None]:
        """Turn decoding errors in the block into `DataError`, because they mean a damaged file."""
        try:
            yield
        except ValueError as err:
            raise DataError(f"{self.path} is damaged ({err}); {MEND}") from err


def _readable(raw: bytes) -> str:
    return raw.decode(errors="replace")


@contextmanager
def sentences(path: Path) -> Generator[None]:
    """Turn SQLite's errors about the file into `DataError`. Errors of the calling code are not changed.

    Raises:
        DataError: the file is damaged, in use, or cannot be written.
        ValueError: a row breaks a constraint of the tables, such as an id that is used twice.
    """
    try:
        yield
    except sqlite3.IntegrityError as err:
        raise ValueError(f"{path} cannot hold this: {err}") from err
    except UnicodeDecodeError as err:  # SQLite quotes the name of a damaged table
        raise DataError(_SENTENCES[sqlite3.SQLITE_CORRUPT].format(path=path, error=err)) from err
    except sqlite3.DatabaseError as err:
        # Errors without a code are from Python's module: text that is not UTF-8, or a misuse, which is a bug.
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
    # Each commit is moved into the main file, so that a lost `-wal` file costs no committed round.
    connection.execute("PRAGMA wal_autocheckpoint = 1")
    make_tables(connection, path)  # before WAL: another program's database must stay as it is
    connection.execute("PRAGMA foreign_keys = ON")
    _check_tables(connection, path)
    connection.execute("PRAGMA journal_mode = WAL")


_TABLES = "SELECT type, name, tbl_name, sql FROM sqlite_schema"


@cache
def _tables() -> frozenset[tuple[object, ...]]:
    """Return the definitions of tables and indices in a new store."""
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as fresh:
        make_tables(fresh, Path("a new store"))
        return frozenset(tuple(row) for row in fresh.execute(_TABLES))


def _check_tables(connection: sqlite3.Connection, path: Path) -> None:
    """Check the definitions of tables, since a flipped bit in one may leave a valid SQLite file.

    Raises:
        DataError: tables or indices are not those of a new store.
    """
    if _tables() - {tuple(row) for row in connection.execute(_TABLES)}:
        raise DataError(f"{path} is damaged (its tables are not those of a store); {MEND}")
