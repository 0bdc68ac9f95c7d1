"""The folder that Python tools run in: put back before every attempt, part of the state where they write.

Runs in the process that holds the user's code. An audit hook says what was opened, so that a folder that
nobody wrote in costs nothing.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import os
import shutil
import sqlite3
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, cast

from genenv.tools.worlds.jsonable import NotPlain, Row, state_of, tables_of

_WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_APPEND
_CHANGES = frozenset(
    {
        "os.remove",
        "os.rename",
        "os.mkdir",
        "os.rmdir",
        "os.truncate",
        "os.symlink",
        "os.link",
        "shutil.rmtree",
    }
    | {"shutil.move", "shutil.copyfile", "shutil.copytree", "sqlite3.connect"}
)
JOURNALS = ("-wal", "-shm", "-journal")
_SQLITE = b"SQLite format 3\x00"
_MOST_BYTES = 1 << 20
_MOST_ROWS_BYTES, _MOST_ROWS_S = 16 << 20, 2.0
"""Of the rows of a database, and of reading them."""
_NO_DATA = frozenset(
    {".py", ".pyc", ".md", ".toml", ".lock", ".sqlite-wal", ".sqlite-shm", ".db-wal", ".db-shm"}
)


class Folder:
    """A folder that is put back to what it was.

    Args:
        path: it; the process runs there.
        original: what it was.
    """

    def __init__(self, path: Path, original: Path) -> None:
        self._path, self._original = path, original
        self._touched = self._reading = False
        self._before: dict[frozenset[str], dict[str, Any]] = {}
        self.asked: set[str] = set()
        """Files that were to be read and are not there, relative to the folder."""
        sys.addaudithook(self._heard)

    def _heard(self, event: str, args: tuple[Any, ...]) -> None:
        if self._reading:
            return
        if event in _CHANGES:
            self._touched = True
            if event == "sqlite3.connect":
                self._missing(args[0])
        elif event == "open":
            if isinstance(args[2], int) and args[2] & _WRITES:
                self._touched = True
            self._missing(args[0])

    def _missing(self, name: object) -> None:
        if isinstance(name, str | bytes | os.PathLike):
            path = os.path.normpath(os.path.join(str(self._path), os.fsdecode(cast(Any, name))))
            if not os.path.exists(path) and path.startswith(f"{self._path}{os.sep}"):
                self.asked.add(os.path.relpath(path, self._path))

    def keep(self) -> None:
        """From now on it is put back to what it holds now: what the file made when it was imported stays."""
        if self._touched:
            kept = Path(tempfile.mkdtemp(prefix="kept-"))
            shutil.copytree(self._path, kept, dirs_exist_ok=True, symlinks=True)
            self._original, self._touched = kept, False

    def restore(self) -> None:
        """Put it back."""
        if not self._touched:
            return
        for entry in self._path.iterdir():
            shutil.rmtree(entry) if entry.is_dir() and not entry.is_symlink() else entry.unlink()
        shutil.copytree(self._original, self._path, dirs_exist_ok=True, symlinks=True)
        self._touched = False

    def contents(self, taken: Iterable[str] = ()) -> dict[str, Any]:
        """The files of data, by name without ending: rows of tables, JSON as it is, else text.

        Args:
            taken: names that something else has; such a file keeps its ending.
        """
        self._reading = True
        try:
            names = frozenset(taken)
            if names not in self._before:
                files = _files(self._original, names)
                self._before[names] = {name: content_of(path) for name, path in files.items()}
            original = self._before[names]
            if not self._touched:
                return original
            files = _files(self._path, names)
            return {
                name: original[name]
                if name in original and _same(path, self._original / path.relative_to(self._path))
                else content_of(path)
                for name, path in files.items()
            }
        finally:
            self._reading = False


def _files(folder: Path, taken: frozenset[str]) -> dict[str, Path]:
    """Those that are no code, by name; with their ending where two are called alike, or the name is taken."""
    found: dict[str, Path] = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file() and path.suffix not in _NO_DATA and not path.name.endswith(JOURNALS):
            whole = path.relative_to(folder)
            short = str(whole.with_suffix(""))
            found[str(whole) if short in found or short in taken else short] = path
    return found


def _same(one: Path, other: Path) -> bool:
    """Whether two files hold the same. Not so while a database has changes in its journal."""
    journals = [one.with_name(f"{one.name}{ending}") for ending in JOURNALS]
    return (
        other.is_file()
        and not any(journal.exists() and journal.stat().st_size for journal in journals)
        and one.stat().st_size == other.stat().st_size
        and one.read_bytes() == other.read_bytes()
    )


def is_table_file(path: Path) -> bool:
    """Whether it is an SQLite database."""
    with contextlib.suppress(OSError), path.open("rb") as file:
        return file.read(len(_SQLITE)) == _SQLITE
    return False


def content_of(path: Path) -> Any:  # noqa: ANN401 - JSON
    """What a file holds: rows of tables, JSON as it is, else text.

    What is damaged, nested too deeply or too large is known by its digest.
    """
    try:
        if path.stat().st_size <= _MOST_BYTES:
            content = path.read_bytes()
            with contextlib.suppress(NotPlain, RecursionError, MemoryError, sqlite3.Error, csv.Error):
                return state_of(_parsed(path, content))
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").hexdigest()
        return f"{path.stat().st_size} bytes, {digest}"
    except OSError as error:
        return f"it cannot be read: {error.strerror}"


def _parsed(path: Path, content: bytes) -> object:
    if content.startswith(_SQLITE):
        with closing(sqlite3.connect(path)) as database:
            return tables_of(database, _bounded(database))
    text = content.decode("utf-8", "replace")
    with contextlib.suppress(ValueError):
        if path.suffix == ".json":
            return json.loads(text)
    with contextlib.suppress(ValueError):
        if path.suffix in (".json", ".jsonl"):  # some write lines into either
            return [json.loads(line) for line in text.splitlines() if line.strip()]
    return list(csv.DictReader(io.StringIO(text))) if path.suffix == ".csv" else text


def _bounded(database: sqlite3.Connection) -> Callable[[sqlite3.Cursor, Row], Row]:
    """Have a small file not make much of itself, as computed columns can; returns what counts its rows."""
    left, until = _MOST_ROWS_BYTES, time.monotonic() + _MOST_ROWS_S

    def row(_: sqlite3.Cursor, cells: Row) -> Row:
        nonlocal left
        left -= sum(len(one) if isinstance(one, str | bytes) else 8 for one in cells)
        if left < 0:
            raise NotPlain("rows that are too large")
        return cells

    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_BYTES)
    database.set_progress_handler(lambda: time.monotonic() > until, 10_000)
    return row
