"""The folder in which tools run: a copy for each session, and its data files as JSON.

Data files are part of the state: databases and CSV files as rows, JSON files as JSON, others as text.
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
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

from genenv.tools.worlds.jsonable import NotJson, Row, state_of, tables_of

JOURNALS = ("-wal", "-shm", "-journal")
_SQLITE = b"SQLite format 3\x00"
_MOST_FOLDER_BYTES = 1 << 20
_MOST_ROWS_BYTES, _MOST_ROWS_S = 16 << 20, 2.0
"""Of the rows of a database, and of reading them."""
_NO_DATA = frozenset(
    {".py", ".pyc", ".md", ".toml", ".lock", ".sqlite-wal", ".sqlite-shm", ".db-wal", ".db-shm"}
)


@dataclass(frozen=True, slots=True)
class DataFile:
    """A file of data as it was when the tools were loaded."""

    size: int
    mtime_ns: int
    content: object
    """As JSON."""


def data_files(folder: Path) -> dict[str, DataFile]:
    """The files of data in a folder, by path, read once for all sessions."""
    found: dict[str, DataFile] = {}
    for path in _files(folder, frozenset()).values():
        status = path.stat()
        content = content_of(path)
        found[str(path.relative_to(folder))] = DataFile(status.st_size, status.st_mtime_ns, content)
    return found


class SessionFolder:
    """A session's own copy of the tools' folder.

    Args:
        original: the folder.
        place: where the copy is made, in `files`, beside a folder `tmp` for temporary files.
        data: the original's files of data; those that a session leaves alone are not read again.
    """

    def __init__(self, original: Path, place: Path, data: Mapping[str, DataFile]) -> None:
        self._place, self._data, self._reading = place, data, False
        self.path = place / "files"
        self.asked: set[str] = set()
        """Files that were to be read and are not there, relative to the folder."""
        (place / "tmp").mkdir(parents=True)
        shutil.copytree(original, self.path, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        sys.addaudithook(self._heard)

    def _heard(self, event: str, args: tuple[Any, ...]) -> None:
        if event in ("open", "sqlite3.connect") and not self._reading:
            name = args[0]
            if isinstance(name, str | bytes | os.PathLike):
                path = os.path.normpath(os.path.join(str(self.path), os.fsdecode(cast(Any, name))))
                if path.startswith(f"{self.path}{os.sep}") and not os.path.exists(path):
                    self.asked.add(os.path.relpath(path, self.path))

    def contents(self, taken: Iterable[str] = ()) -> dict[str, Any]:
        """The files of data as JSON, by name without ending.

        Args:
            taken: names that something else has; such a file keeps its ending.
        """
        self._reading = True
        try:
            return {name: self._content(path) for name, path in _files(self.path, frozenset(taken)).items()}
        finally:
            self._reading = False

    def _content(self, path: Path) -> object:
        known = self._data.get(str(path.relative_to(self.path)))
        with contextlib.suppress(OSError):
            status = path.stat()
            if known is not None and (known.size, known.mtime_ns) == (status.st_size, status.st_mtime_ns):
                journals = [path.with_name(f"{path.name}{ending}") for ending in JOURNALS]
                if not any(one.exists() and one.stat().st_size for one in journals):
                    return known.content
        return content_of(path)

    def signature(self) -> str:
        """Return a text that changes if anything in the folder changes: names, sizes, times."""
        found: list[tuple[str, int, int, int]] = []
        for where, folders, files in os.walk(self.path):
            for name in (*folders, *files):
                with contextlib.suppress(OSError):
                    status = os.lstat(os.path.join(where, name))
                    found.append(
                        (os.path.join(where, name), status.st_size, status.st_mtime_ns, status.st_ino)
                    )
        return repr(sorted(found))

    def remove(self) -> None:
        """Remove it, and all that is in it."""
        shutil.rmtree(self._place, ignore_errors=True)


def _files(folder: Path, taken: frozenset[str]) -> dict[str, Path]:
    """Files that are not code, by name; with their ending where two have one name, or the name is taken."""
    whole: list[str] = []
    for where, folders, files in os.walk(folder):
        folders[:] = [one for one in folders if one != "__pycache__"]
        whole += [os.path.relpath(os.path.join(where, one), folder) for one in files if _holds_data(one)]
    found: dict[str, Path] = {}
    for name in sorted(whole, key=lambda one: one.split(os.sep)):
        path = folder / name
        if path.is_file():
            short = os.path.splitext(name)[0]
            found[name if short in found or short in taken else short] = path
    return found


def _holds_data(name: str) -> bool:
    return os.path.splitext(name)[1] not in _NO_DATA and not name.endswith(JOURNALS)


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
        if path.stat().st_size <= _MOST_FOLDER_BYTES:
            content = path.read_bytes()
            with contextlib.suppress(NotJson, RecursionError, MemoryError, sqlite3.Error, csv.Error):
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
            raise NotJson("rows that are too large")
        return cells

    database.setlimit(sqlite3.SQLITE_LIMIT_LENGTH, _MOST_FOLDER_BYTES)
    database.set_progress_handler(lambda: time.monotonic() > until, 10_000)
    return row
