"""A tool environment from a Python file, whose tools run in a sandboxed child process.

Where the system allows it, the process has no network and writes in its scratch folder only. Memory and time
are limited. A call that hangs ends the process, not the run.
"""

from __future__ import annotations

import contextlib
import csv
import hashlib
import io
import json
import os
import selectors
import shutil
import sqlite3
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import Any, cast

from genenv.errors import EnvironmentCodeError, UsageError
from genenv.tools.worlds.base import GONE, Call, Outcome, Played, Tool, usable
from genenv.tools.worlds.jsonable import NotJson, Row, state_of, tables_of
from genenv.tools.worlds.processes import Scratch, ended_with, environment
from genenv.types import JsonObject

START_S = 60.0
"""How long importing the file may take."""
CALL_S = 5.0
"""How long one call may take."""
_MOST_BYTES = 64 << 20
"""Of an answer: results and the state."""


class NotStarted(UsageError):
    """The file gives no tools.

    Args:
        message: a sentence.
        asked: files of the folder that it wanted to read, and that are not there.
    """

    def __init__(self, message: str, asked: Sequence[str]) -> None:
        super().__init__(message)
        self.asked = tuple(asked)


class PythonWorld:
    """The tools of a Python file.

    Args:
        folder: what is in it is copied; tools run in the copy, which is put back for every attempt.
        file: of that folder; it is imported, by another process.
        name: of its class whose methods are the tools; left out, its functions, or its only class.
        call_s: how long a call may take.
        may_write: folders, beside the copy, in which the tools may write.

    Raises:
        UsageError: it cannot be imported, or holds no tools.
    """

    def __init__(
        self,
        folder: Path,
        file: str,
        name: str | None = None,
        *,
        call_s: float = CALL_S,
        may_write: Sequence[str] = (),
    ) -> None:
        self._folder, self._file, self._name, self._call_s = folder.resolve(), file, name, call_s
        self._may_write = tuple(may_write)
        self._process: subprocess.Popen[bytes] | None = None
        self._ended: Callable[[], object] | None = None
        self.received = 0
        """Bytes that the tools' process has sent so far."""
        self._lock = threading.RLock()  # one question at a time, whoever asks
        self._scratch = Scratch(self._folder)
        try:
            first = self._started()
        except BaseException:
            self.close()
            raise
        self.tools, left_out = usable({one["name"]: partial(Tool, **one) for one in first["tools"]})
        if not self.tools:
            self.close()
            reasons = "; ".join(f"{name}: {why}" for name, why in left_out.items())
            raise UsageError(f"nothing in {file} can be a tool ({reasons[:400]})")
        self.asked: set[str] = set()
        """Files of the folder that tools wanted to read, and that were not there."""
        self.left_out: dict[str, str] = {**first["left_out"], **left_out}
        """Functions that are no tools, and why."""
        permits = self._scratch.permits
        self.network: bool = permits.network
        """Whether the tools can reach the network: the system did not let us take it away."""
        self.confined: bool = permits.confined
        """Whether the tools can write in their own folder only: the system lets us see to that."""

    def play(self, calls: Sequence[Call], *, watch: bool = False) -> Played:
        """See `World`. A call that ends the process fails, and so does what comes after it.

        Raises:
            EnvironmentCodeError: the state cannot be copied or read.
        """
        with self._lock:
            return self._played(calls, watch=watch)

    def _played(self, calls: Sequence[Call], *, watch: bool) -> Played:
        request = {"calls": [call.json for call in calls], "states": watch, "call_s": self._call_s}
        answer = self._asked(request, 2 + 2 * self._call_s * max(1, len(calls)))
        if answer is None:
            return self._shortened(calls, watch=watch)
        self.asked.update(answer["asked"])
        if "refused" in answer:
            raise EnvironmentCodeError(f"{self._file}: {answer['refused']}")
        return Played(outcomes=tuple(Outcome(**one) for one in answer["outcomes"]), state=answer["state"])

    def _shortened(self, calls: Sequence[Call], *, watch: bool) -> Played:
        """The program up to the call that ends the process; it and what comes after it fail."""
        if not calls:
            raise EnvironmentCodeError(f"{self._file}: copying the state ends the process, or hangs")
        before = self._played(calls[:-1], watch=watch)
        gone = Outcome(error=GONE)
        return Played(outcomes=(*before.outcomes, gone), state=before.state)

    def close(self) -> None:
        """End the process, and remove its folder."""
        with self._lock:
            self._end()
            self._scratch.close()

    # the process

    def _started(self) -> dict[str, Any]:
        self._scratch.fill(self._folder)
        command = [sys.executable, "-m", "genenv.tools.worlds.python_child", str(self._folder), self._file]
        command += [self._name] if self._name else []
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            self._scratch.launched(command, may_write=self._may_write),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=self._scratch.files,
            env=environment(self._scratch.temporary),
            start_new_session=True,
        )
        self._ended = ended_with(self, self._process)
        answer = self._read(START_S)
        if answer is None:
            self._end()
            raise UsageError(
                f"{self._file} cannot be imported: it ends the process, or takes over {START_S:g} s"
            )
        if "refused" in answer:
            self._end()
            raise NotStarted(str(answer["refused"]), answer["asked"])
        return answer

    def _asked(self, request: JsonObject | Mapping[str, object], limit_s: float) -> dict[str, Any] | None:
        """The answer; None if the process has ended or takes too long, and is ended."""
        if self._process is None:
            self._started()
        process = cast("subprocess.Popen[bytes]", self._process)
        try:
            stdin = cast(Any, process.stdin)
            stdin.write(json.dumps(request).encode() + b"\n")
            stdin.flush()
            answer = self._read(limit_s)
        except OSError:
            answer = None
        if answer is None:
            self._end()
        return answer

    def _read(self, limit_s: float) -> dict[str, Any] | None:
        """A line that is an object; None if the process ends, takes too long, or writes something else.

        Raises:
            EnvironmentCodeError: it is longer than anything that could be of use.
        """
        out = cast(Any, cast("subprocess.Popen[bytes]", self._process).stdout)
        line, until = bytearray(), time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            while selector.select(max(0.0, until - time.monotonic())):
                piece = os.read(out.fileno(), 1 << 20)
                line += piece
                self.received += len(piece)
                if len(line) > _MOST_BYTES:
                    self._end()
                    raise EnvironmentCodeError(
                        f"{self._file}: the tools' state and results take more than {_MOST_BYTES >> 20} MiB; "
                        "make what they hold smaller"
                    )
                if not piece:
                    return None
                if piece.endswith(b"\n"):
                    try:
                        told: object = json.loads(line)
                    except (ValueError, RecursionError):
                        return None
                    return cast("dict[str, Any]", told) if isinstance(told, dict) else None
        return None

    def _end(self) -> None:
        if self._ended is not None:
            self._ended()
        self._process = self._ended = None


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
_MOST_FOLDER_BYTES = 1 << 20
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
