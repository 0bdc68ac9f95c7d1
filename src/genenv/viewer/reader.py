"""What a reader adds to the pages: marks on tasks, in a file of the reader's own, and queries in SQL."""

from __future__ import annotations

import json
import os
import sqlite3
import threading
import time
from collections.abc import Sequence
from contextlib import closing, suppress
from dataclasses import dataclass
from datetime import UTC, datetime
from itertools import islice
from pathlib import Path
from typing import cast

from genenv.errors import DataError, UsageError
from genenv.runs.store.database import Database
from genenv.viewer.folders import LIMIT_S
from genenv.viewer.tasks import readable

SQL_ROWS, SQL_CHARS = 200, 500
"""Rows, and characters of a value, that a query may give."""
_MOST_MARKS = 16 << 20
"""Bytes of a file of marks that are read."""
_LONGEST_ID = 1000
_LONGEST_SQL = 10_000
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 16 << 20,
    sqlite3.SQLITE_LIMIT_COLUMN: 100,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 200,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 100,
}
"""Limits of SQLite, so that no query fills the memory, or is busy without a look at the clock."""

EXAMPLES = {
    "success by round": "SELECT round, count(*) AS rollouts, avg(success) AS success, avg(reward) AS reward\n"
    "FROM traces GROUP BY round ORDER BY round",
    "refusals by reason and round": "SELECT contexts.round, reason, count(*) AS refused\n"
    "FROM rejections JOIN generations ON generations.id = generation_id\n"
    "     JOIN contexts ON contexts.id = context_id\nGROUP BY 1, 2 ORDER BY 1, 3 DESC",
    "skills of the last round": "SELECT value AS skill, count(DISTINCT traces.task_id) AS tasks, "
    "avg(success) AS success\nFROM traces JOIN tasks ON tasks.id = task_id, json_each(skills)\n"
    "WHERE traces.round = (SELECT max(number) FROM rounds)\nGROUP BY 1 ORDER BY 3",
    "tasks with mixed outcomes": "SELECT round, task_id, sum(success) AS solved, count(*) AS tried\n"
    "FROM traces GROUP BY round, group_position\nHAVING solved > 0 AND solved < tried\n"
    "ORDER BY round DESC LIMIT 50",
    "why rollouts end": "SELECT round, stop_reason, count(*) AS rollouts,\n"
    "       avg(length(sampled) - prompt_tokens) AS tokens\nFROM traces GROUP BY 1, 2 ORDER BY 1, 3 DESC",
    "most common reasons of failure": "SELECT substr(explanation, 1, 80) AS says, count(*) AS rollouts\n"
    "FROM traces WHERE success = 0 GROUP BY 1 ORDER BY 2 DESC LIMIT 30",
    "held-out tasks that flip": "SELECT task_id, count(*) AS evaluated, sum(success) AS solved,\n"
    "       group_concat(success, '') AS outcomes\nFROM (SELECT * FROM evaluations ORDER BY round)\n"
    "GROUP BY task_id HAVING solved BETWEEN 1 AND evaluated - 1 ORDER BY solved",
    "seeds whose variations are refused": "SELECT seed_id, count(*) AS written, count(reason) AS refused\n"
    "FROM contexts JOIN generations ON context_id = contexts.id\n"
    "     LEFT JOIN rejections ON generation_id = generations.id\n"
    "GROUP BY 1 ORDER BY 1.0 * refused / written DESC, written DESC LIMIT 30",
    "reward of the simulator by success rate": "SELECT round(p_hat, 1) AS p_hat, count(*) AS contexts, "
    "avg(env_reward) AS reward, sum(selected) AS trained_on\nFROM batches GROUP BY 1 ORDER BY 1",
    "the tables": "SELECT name, sql FROM sqlite_schema WHERE type = 'table'",
}
"""Title -> a query that a researcher may begin with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The result of a query."""

    columns: Sequence[str]
    rows: Sequence[Sequence[str]]
    """Values as text, cut off."""
    more: bool
    """Whether rows were left out."""
    seconds: float


def answer(db: Database, sql: str) -> Answer:
    """Answer one SELECT.

    Args:
        db: a read-only store with a limit of time.
        sql: the query of a reader.

    Raises:
        UsageError: it is no SELECT, it is wrong, or it takes too long or too much memory.
    """
    if len(sql) > _LONGEST_SQL:
        raise UsageError(f"the query is longer than {_LONGEST_SQL:,} characters")
    db.rows("SELECT 1 FROM json_each('[]'), json_tree('[]')")  # SQLite makes these tables at their first use
    start = time.monotonic()
    with db.restricted(_allowed) as connection:
        for limit, value in _LIMITS.items():
            connection.setlimit(limit, value)
        try:
            with closing(connection.execute(sql)) as cursor:
                columns = [str(one[0]) for one in cursor.description or ()]
                rows = [[_value(value) for value in row] for row in islice(cursor, SQL_ROWS + 1)]
        except (sqlite3.Error, sqlite3.Warning, ValueError, OverflowError, MemoryError) as error:
            raise UsageError(_sentence(error)) from error
    if not columns:
        raise UsageError("write one SELECT")
    seconds = time.monotonic() - start
    return Answer(columns=columns, rows=rows[:SQL_ROWS], more=len(rows) > SQL_ROWS, seconds=seconds)


def _sentence(error: BaseException) -> str:
    code = getattr(error, "sqlite_errorcode", None)
    if code == sqlite3.SQLITE_INTERRUPT:
        return f"the query took longer than {LIMIT_S:g} seconds; choose rounds with WHERE, or fewer columns"
    if code == sqlite3.SQLITE_AUTH or "not authorized" in str(error):
        return f"only SELECT is allowed ({error})"
    return f"SQLite cannot answer this: {error}"


_READS = {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_RECURSIVE, sqlite3.SQLITE_FUNCTION}


def _allowed(action: int, _: str | None, function: str | None, *__: str | None) -> int:
    """Allow reading alone, for `sqlite3.Connection.set_authorizer`."""
    reads = action in _READS and not (action == sqlite3.SQLITE_FUNCTION and function == "load_extension")
    return sqlite3.SQLITE_OK if reads else sqlite3.SQLITE_DENY


def _value(value: object) -> str:
    if value is None:
        return "NULL"
    if isinstance(value, bytes):
        return f"{len(value):,} bytes: {value[:16].hex()}{'…' if len(value) > 16 else ''}"
    if isinstance(value, float):
        return f"{value:.6g}"
    text = readable(value) if isinstance(value, str) else str(value)
    return text if len(text) <= SQL_CHARS else f"{text[:SQL_CHARS]} … ({len(text):,} characters)"


def state_folder() -> Path:
    """Return the folder for files that a user writes by using genenv: `genenv` in the user's state folder."""
    return Path(os.environ.get("XDG_STATE_HOME") or Path.home() / ".local" / "state") / "genenv"


class Marks:
    """Tasks that a reader marked: they do not say what is asked.

    The file has a JSON object per line, `{"run": ID, "task": ID, "unclear": BOOL, "at": TIME}`; the last line
    of a task counts. The run's id is that of its store, so a folder that is moved keeps its marks.
    """

    def __init__(self, file: Path) -> None:
        """Keep marks in a file, which need not exist."""
        self.file = file
        self._lock = threading.Lock()
        self._known: tuple[object, dict[str, dict[str, None]]] = (None, {})

    def of(self, run: str) -> tuple[str, ...]:
        """Return the marked tasks of a run, in the order in which they were marked."""
        with self._lock:
            at: object = None
            with suppress(OSError):
                found = self.file.stat()
                at = (found.st_ino, found.st_size, found.st_mtime_ns)
            if at != self._known[0]:
                self._known = (at, self._read())
            return tuple(self._known[1].get(run, ()))

    def set(self, run: str, task: str, *, unclear: bool) -> None:
        """Mark a task, or take its mark away.

        Raises:
            DataError: the file cannot be written.
            UsageError: the id is too long, or the file has no more room.
        """
        if len(task) > _LONGEST_ID:
            raise UsageError("the id of the task is too long to be marked")
        line = {
            "run": run,
            "task": task,
            "unclear": unclear,
            "at": datetime.now(UTC).isoformat(timespec="seconds"),
        }
        try:
            self.file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            with self._lock, self.file.open("a", encoding="utf-8") as file:
                if file.tell() > _MOST_MARKS:
                    raise UsageError(f"{self.file} is full; move it away to begin a new one")
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            raise DataError(f"{self.file} cannot be written ({error.strerror})") from error

    def _read(self) -> dict[str, dict[str, None]]:
        found = dict[str, dict[str, None]]()
        with suppress(OSError), self.file.open("rb") as file:
            for line in file.read(_MOST_MARKS * 2).splitlines():
                with suppress(ValueError, RecursionError):
                    given = cast("object", json.loads(line))
                    if isinstance(given, dict):
                        mark = cast("dict[str, object]", given)
                        tasks = found.setdefault(str(mark.get("run")), {})
                        tasks.pop(str(mark.get("task")), None)
                        if mark.get("unclear") is True:
                            tasks[str(mark.get("task"))] = None
        return found
