"""Lists of tasks, and the side file by which they are sorted and searched.

A store has no index of success rates, seeds, reasons or words: each would make every commit of a run slower.
The viewer keeps them in a file of its own in the cache folder, and adds a run's new rounds in the background.
"""

from __future__ import annotations

import hashlib
import json
import re
import sqlite3
import threading
import time
from concurrent.futures import Future, ThreadPoolExecutor, wait
from contextlib import closing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from sqlite3 import Row

from genenv.errors import DataError
from genenv.runs.folder import RunFolder
from genenv.runs.store.database import Database
from genenv.runs.store.reader import LEADING_AGENT, leading_seat, rollouts_that_count
from genenv.viewer.folders import NotFound, Run, reading, state_of

PAGE = 50
"""Rows of a page."""
SORTS = {
    "new": ("n", "DESC"),
    "old": ("n", "ASC"),
    "hard": ("rate", "ASC"),
    "easy": ("rate", "DESC"),
}
"""Order of tasks -> column and direction."""
CHANGES = {"unlearned": "last < (held > 0)", "learned": "last > first"}
"""Change of a held-out task -> its condition: solved before and not now, or now and not at first."""

NEW = "new"
"""An origin: tasks that were generated in the round of the list, without those that came back in it."""


def evaluations_that_count(db: Database) -> str:
    """Return the condition that an evaluation counts: with seats, if it is one of the leading agent."""
    return f"evaluations.agent = ({LEADING_AGENT})" if leading_seat(db) else "1"


def last_evaluations(where: str) -> str:
    """Return the evaluations of a round that fit a condition: for each task the last one of each agent."""
    return f"""(SELECT task_id, agent, success, max(position) AS place FROM evaluations
        WHERE round = ? AND {where} GROUP BY task_id, agent)"""  # noqa: S608 - constants


def _rates(db: Database, more: str = "") -> tuple[str, str]:
    """Return how often a row of `tasks` was tried, and how often it was solved, as SQL."""
    where = f"FROM traces WHERE task_id = tasks.id AND {rollouts_that_count(db)}{more}"
    return f"(SELECT count(*) {where})", f"(SELECT sum(success) {where})"


ASKED = "CASE WHEN json_valid(messages) THEN substr(json_extract(messages, '$[#-1].content'), 1, 400) END"
"""What a row of `tasks` asks, as SQL: the beginning of its last message."""
_FORMAT = 2
"""Part of the file's name; another number after each change of its tables."""
_TABLES = """
    CREATE TABLE upto (run TEXT, round INTEGER, committed_at TEXT, base INTEGER);
    CREATE TABLE tasks (n INTEGER PRIMARY KEY, round INTEGER, origin TEXT, seed_id TEXT,
        tried INTEGER DEFAULT 0, solved INTEGER DEFAULT 0, rate REAL,
        evaluated INTEGER DEFAULT 0, held INTEGER DEFAULT 0, first INTEGER, last INTEGER);
    CREATE INDEX tasks_by_rate ON tasks (rate, n) WHERE rate IS NOT NULL;
    CREATE INDEX tasks_by_seed ON tasks (seed_id, origin, n);
    CREATE INDEX tasks_by_round ON tasks (round, n);
    CREATE INDEX tasks_by_origin ON tasks (origin, n);
    CREATE INDEX tasks_by_origin_and_rate ON tasks (origin, rate, n) WHERE rate IS NOT NULL;
    CREATE INDEX tasks_held_out ON tasks (n) WHERE evaluated > 0;
    CREATE TABLE rates (round INTEGER, n INTEGER, tried INTEGER, solved INTEGER, PRIMARY KEY (round, n))
        WITHOUT ROWID;
    CREATE TABLE skills (skill TEXT, n INTEGER, PRIMARY KEY (skill, n)) WITHOUT ROWID;
    CREATE TABLE refused (n INTEGER PRIMARY KEY, reason TEXT, round INTEGER);
    CREATE INDEX refused_by_reason ON refused (reason, n);
    CREATE INDEX refused_by_round ON refused (round, n);
    CREATE VIRTUAL TABLE words USING fts5 (text, content = '');
    CREATE VIRTUAL TABLE refused_words USING fts5 (text, content = '');
"""
_KEPT_S = 30 * 86_400
"""A file that was not used for so long is deleted."""
_ROWS, _CHUNK_S = 4000, 0.5
"""Rows, and seconds of reading, after which what was read is written."""
_FIRST_S, _NEXT_S = 1.0, 0.05
"""Seconds that a page waits for a new file, and for new rounds."""
_FEW = 10_000
"""Rows that are sorted by their rate at once. Of more tasks with a text the newest are sorted."""
_LONGEST = 20_000
"""Characters of a text that can be found."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Index:
    """The side file of a run, as far as it is built."""

    path: Path | None
    """None before its first rows."""
    note: str
    """A sentence if rounds are missing in it; "" if it is whole."""


class Indices:
    """The side files of runs, and the thread that builds them."""

    def __init__(self, folder: Path) -> None:
        """Keep them in a folder, which need not exist."""
        self._folder = folder
        self._worker = ThreadPoolExecutor(1, thread_name_prefix="genenv-index")
        self._jobs: dict[Path, Future[None]] = {}
        self._known: dict[Path, object] = {}
        """By side file: the state of the store that it has everything of."""
        self._progress: dict[Path, str] = {}
        self._lock = threading.Lock()
        self._ends = False

    def close(self) -> None:
        """End the thread after the rows that it writes."""
        self._ends = True
        self._worker.shutdown(cancel_futures=True)

    def of(self, run: Run) -> Index:
        """Return the side file of a run, after waiting a moment for what is missing in it.

        Raises:
            DataError: the store of the run, or the cache folder, cannot be used.
        """
        name = hashlib.sha256(str(run.path).encode(errors="surrogateescape")).hexdigest()[:32]
        path, state = self._folder / f"{name}.{_FORMAT}.db", state_of(RunFolder(run.path).pool)
        with self._lock:
            if self._known.get(path) == state and path.exists():
                return Index(path=path, note="")
            job = self._jobs.get(path)
            is_new = job is None or job.done()
            if job is None or job.done():
                job = self._jobs[path] = self._worker.submit(self._build, run, path)
        if is_new:
            wait([job], _NEXT_S if path in self._known else _FIRST_S)
        if job.done():
            job.result()
            return Index(path=path, note="")
        missing = self._progress.get(path)
        waits = "The index of this run is being built: look again in a moment."
        return Index(path=path if missing else None, note=missing or waits)

    def _build(self, run: Run, path: Path) -> None:
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            if path not in self._known:
                self._clean(path)
            with closing(sqlite3.connect(path, isolation_level=None, timeout=60)) as side:
                side.execute("PRAGMA journal_mode = WAL")
                side.execute("PRAGMA synchronous = NORMAL")
                state: object = None
                while not self._ends and state != (now := state_of(RunFolder(run.path).pool)):
                    state = now
                    self._follow(run, side, path)
                self._known[path] = state
        except (OSError, sqlite3.Error) as error:
            if getattr(error, "sqlite_errorcode", 0) & 0xFF in (
                sqlite3.SQLITE_CORRUPT,
                sqlite3.SQLITE_NOTADB,
            ):
                path.unlink(missing_ok=True)
            raise DataError(
                f"the index in {self._folder} cannot be used ({error}); set GENENV_CACHE"
            ) from error

    def _follow(self, run: Run, side: sqlite3.Connection, path: Path) -> None:
        """Add all rounds that a side file lacks."""
        while not self._ends:
            side.execute("BEGIN IMMEDIATE")
            try:
                upto = _upto(side)
                chunk = reading(run, lambda db, upto=upto: _chunk(db, upto))
                if chunk.anew:
                    _empty(side)
                _write(side, chunk)
                side.execute("COMMIT")
            finally:
                if side.in_transaction:
                    side.execute("ROLLBACK")
            self._progress[path] = (
                f"The index of this run is being built, so rounds after {chunk.upto[1]} of {chunk.last} are "
                "missing here."
            )
            if chunk.upto[1] == chunk.last:
                return

    def _clean(self, path: Path) -> None:
        """Delete files that nobody used for long, and mark this one as used."""
        for file in self._folder.glob("*.db*"):
            with suppress(OSError):
                if time.time() - file.stat().st_mtime > _KEPT_S:
                    file.unlink()
        with suppress(OSError):
            path.touch()


_Upto = tuple[str, int, str, int]
"""The run's id; the last round in the side file, and when it was committed; the last task without a round."""


def _upto(side: sqlite3.Connection) -> _Upto | None:
    if not side.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
        return None
    return side.execute("SELECT * FROM upto").fetchone()


def _empty(side: sqlite3.Connection) -> None:
    """Make the tables anew."""
    names = "SELECT name FROM sqlite_schema WHERE type = 'table' AND sql IS NOT NULL"
    for virtual in ("words", "refused_words"):
        side.execute(f"DROP TABLE IF EXISTS {virtual}")
    for (name,) in side.execute(names).fetchall():
        side.execute(f"DROP TABLE {name}")
    for statement in _TABLES.split(";"):
        side.execute(statement)


@dataclass(slots=True, kw_only=True)
class _Chunk:
    """What the side file gets of some rounds."""

    anew: bool
    """The file is of another run, or of rounds that are no more."""
    upto: _Upto
    last: int
    """The last round of the store."""
    tasks: list[Row] = field(default_factory=list[Row])
    skills: list[Row] = field(default_factory=list[Row])
    rates: list[Row] = field(default_factory=list[Row])
    evaluations: list[Row] = field(default_factory=list[Row])
    refused: list[Row] = field(default_factory=list[Row])


_SAID = """SELECT coalesce(group_concat(content, char(10)), '') FROM (
    SELECT json_extract(value, '$.content') AS content, json_extract(value, '$.role') AS role
    FROM (SELECT CASE type WHEN 'object' THEN value ELSE '{}' END AS value FROM json_each(messages))
    ) WHERE role IS NOT 'system'"""
_TASKS = f"""SELECT n, round, origin, seed_id, substr(
        id || char(10) || CASE WHEN json_valid(messages) THEN ({_SAID}) ELSE messages END
           || char(10) || oracle, 1, {_LONGEST})
    FROM tasks WHERE round"""  # noqa: S608 - constants
_SKILLS = """SELECT value, n FROM tasks, json_each(CASE WHEN json_valid(skills) THEN skills ELSE '[]' END)
             WHERE round"""
_RATES_OF = """SELECT one.round, tasks.n, count(*), sum(success) FROM
        (SELECT round, task_id, success FROM traces WHERE round = ? AND {}) AS one
    JOIN tasks ON tasks.id = task_id GROUP BY task_id"""
"""The condition that a rollout counts is filled in."""
_EVALUATIONS = f"""SELECT tasks.n, success FROM evaluations JOIN tasks ON tasks.id = task_id
    WHERE evaluations.round = ? AND agent = ({LEADING_AGENT}) ORDER BY position"""  # noqa: S608 - a constant
"""Of the first agent alone: outcomes of one agent are compared from round to round."""
_REFUSED = f"""SELECT generations.n, reason, contexts.round,
            substr(generations.id || char(10) || generations.text || char(10) || explanation, 1, {_LONGEST})
    FROM contexts JOIN generations ON context_id = contexts.id
         JOIN rejections ON generation_id = generations.id
    WHERE contexts.round = ?"""  # noqa: S608 - constants


def _chunk(db: Database, upto: _Upto | None) -> _Chunk:
    """Read some rounds that come after those of a side file."""
    run = str(db.rows("SELECT id FROM run")[0][0])
    last = int(db.rows("SELECT coalesce(max(number), -1) FROM rounds")[0][0])
    if upto is not None:
        known = db.rows("SELECT committed_at FROM rounds WHERE number = ?", (upto[1],))
        same = upto[0] == run and upto[2] == (known[0][0] if known else "")
        upto = upto if same else None
    found = _Chunk(anew=upto is None, upto=upto or (run, -1, "", -1), last=last)
    found.tasks = db.rows(f"{_TASKS} IS NULL AND n > ? ORDER BY n", (found.upto[3],))
    found.skills = db.rows(f"{_SKILLS} IS NULL AND n > ?", (found.upto[3],))
    base = found.tasks[-1][0] if found.tasks else found.upto[3]
    found.upto = (*found.upto[:3], base)
    until, rates = time.monotonic() + _CHUNK_S, _RATES_OF.format(rollouts_that_count(db))
    later = "SELECT number, committed_at FROM rounds WHERE number > ? ORDER BY number LIMIT 500"
    for number, committed_at in db.rows(later, (found.upto[1],)):
        found.tasks += db.rows(f"{_TASKS} = ? ORDER BY n", (number,))
        found.skills += db.rows(f"{_SKILLS} = ?", (number,))
        found.rates += db.rows(rates, (number,))
        found.evaluations += db.rows(_EVALUATIONS, (number,))
        found.refused += db.rows(_REFUSED, (number,))
        found.upto = (run, number, committed_at, base)
        if len(found.tasks) + len(found.refused) > _ROWS or time.monotonic() > until:
            break
    return found


def _write(side: sqlite3.Connection, chunk: _Chunk) -> None:
    """Add what was read to a side file, inside of a transaction."""
    side.executemany(
        "INSERT INTO tasks (n, round, origin, seed_id) VALUES (?, ?, ?, ?)",
        (row[:4] for row in chunk.tasks),
    )
    side.executemany(
        "INSERT INTO words (rowid, text) VALUES (?, ?)", ((row[0], row[4]) for row in chunk.tasks)
    )
    side.executemany("INSERT OR IGNORE INTO skills VALUES (?, ?)", map(tuple, chunk.skills))
    side.executemany("INSERT INTO rates VALUES (?, ?, ?, ?)", map(tuple, chunk.rates))
    side.executemany(
        """UPDATE tasks SET tried = tried + ?1, solved = solved + ?2,
               rate = (solved + ?2) * 1.0 / (tried + ?1) WHERE n = ?3""",
        ((row[2], row[3], row[1]) for row in chunk.rates),
    )
    side.executemany(
        """UPDATE tasks SET evaluated = evaluated + 1, held = held + ?1, first = coalesce(first, ?1),
               last = ?1 WHERE n = ?2""",
        ((row[1], row[0]) for row in chunk.evaluations),
    )
    side.executemany("INSERT INTO refused VALUES (?, ?, ?)", (row[:3] for row in chunk.refused))
    side.executemany(
        "INSERT INTO refused_words (rowid, text) VALUES (?, ?)", ((row[0], row[3]) for row in chunk.refused)
    )
    side.execute("DELETE FROM upto")
    side.execute("INSERT INTO upto VALUES (?, ?, ?, ?)", chunk.upto)


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which tasks a page lists, and where it begins."""

    round: int | None = None
    """Tasks that were written or rolled out in it; their rates are then those of this round."""
    origin: str = ""
    """One of the store, or `NEW`."""
    skill: str = ""
    change: str = ""
    """A key of `CHANGES`."""
    low: float | None = None
    high: float | None = None
    """Bounds of the success rate."""
    reward_low: float | None = None
    reward_high: float | None = None
    """Bounds of the simulator's reward for the batch of the task; the upper one is not included."""
    text: str = ""
    """Words, one after the other, of the messages, the demonstration or the id; the last may be cut off."""
    sort: str = "new"
    marked: tuple[str, ...] | None = None
    """Ids; None for all tasks."""
    after: str = ""
    """The sorting key of the last row of the page before, as `n` or `n,rate`."""

    is_common: bool = False
    """Whether many tasks need the skill."""

    @property
    def indexed(self) -> bool:
        """Whether the store alone cannot answer this quickly."""
        given = (self.origin, self.skill, self.change, self.text)
        return any(given) or self.low is not None or self.high is not None or self.sort in ("hard", "easy")


def tasks(db: Database, wanted: Wanted) -> tuple[list[Row], str]:
    """Return rows of tasks with `tried` and `solved`, and the key after which the next page begins.

    Args:
        db: the store, with the side file as `side` if `wanted.indexed`.
        wanted: which tasks.
    """
    origin = "generated" if wanted.origin == NEW else wanted.origin
    column, direction = SORTS.get(wanted.sort, SORTS["new"])
    values: dict[str, str | int | float | None] = {
        **{name: getattr(wanted, name) for name in ("round", "skill", "low", "high")},
        **{
            "origin": origin,
            "text": phrase(wanted.text),
            "most": PAGE + 1,
            "marked": json.dumps(wanted.marked),
            "few": _FEW,
        },
    }
    if wanted.skill and wanted.indexed:
        few = f"SELECT count(*) FROM (SELECT 1 FROM side.skills WHERE skill = ? LIMIT {_FEW})"  # noqa: S608
        wanted = replace(wanted, is_common=db.rows(few, (wanted.skill,))[0][0] == _FEW)
    if wanted.indexed:
        found, n, rate, where = _indexed(wanted)
    else:
        found, n, rate = "SELECT n, NULL AS rate FROM tasks", "n", "NULL"
        where = [] if wanted.round is None else [f"n IN ({_IN_ROUND})"]
    if wanted.reward_low is not None or wanted.reward_high is not None:
        low, high = wanted.reward_low, wanted.reward_high
        values |= {"least": -1e9 if low is None else low, "below": 1e9 if high is None else high}
        batches = "SELECT context_id FROM batches WHERE env_reward >= :least AND env_reward < :below"
        batches += " AND batches.round = :round" if wanted.round is not None else ""
        rewarded = f"SELECT n FROM main.tasks WHERE context_id IN ({batches})"  # noqa: S608 - constants
        where.append(f"{n} IN ({rewarded})")
    if wanted.marked is not None:
        ids = "SELECT n FROM main.tasks WHERE id IN (SELECT value FROM json_each(:marked))"
        where.append(f"{n} IN ({ids})")
    if wanted.after:
        sign, key = ">" if direction == "ASC" else "<", wanted.after.split(",")
        try:
            values |= {"n": row_number(key[0]), "key": float(key[-1])}
        except ValueError:
            values["n"] = None
        if values["n"] is None:
            raise NotFound("the address of this page is not whole")
        where.append(f"({rate}, {n}) {sign} (:key, :n)" if column == "rate" else f"{n} {sign} :n")
    order = f"{n} {direction}" if column == "n" else f"{column} {direction}, {n} {direction}"
    per_round = "" if wanted.round is None else " AND traces.round = :round"
    tried, solved = ("page.tried", "page.solved") if wanted.indexed else _rates(db, per_round)
    of_task = f"FROM evaluations WHERE task_id = tasks.id AND {evaluations_that_count(db)}"
    sql = f"""
        SELECT tasks.n, tasks.id, tasks.round, tasks.origin, tasks.skills, {ASKED} AS asked, page.rate,
               {tried} AS tried, {solved} AS solved,
               (SELECT count(*) {of_task}) AS evaluated, (SELECT sum(success) {of_task}) AS held
        FROM ({found} WHERE {" AND ".join(where or ["1"])} ORDER BY {order} LIMIT :most) AS page
             JOIN tasks ON tasks.n = page.n
        ORDER BY page.{column} {direction}, page.n {direction}"""  # noqa: S608 - constants
    return page(db.rows(sql, values), column)


_IN_ROUND = """SELECT tasks.n FROM groups JOIN tasks ON tasks.id = task_id WHERE groups.round = :round
    UNION SELECT n FROM tasks WHERE round = :round"""
_OF_ROUND = """SELECT n FROM side.rates WHERE round = :round
    UNION SELECT n FROM side.tasks WHERE round = :round"""


def _indexed(wanted: Wanted) -> tuple[str, str, str, list[str]]:
    """Return a query of the side file, its column of the order, its rate, and its conditions."""
    n, of, where = "one.n", "side.tasks AS one", list[str]()
    by_rate = SORTS.get(wanted.sort, ("n",))[0] == "rate"
    # The first table is the one by which rows are found, in the order of its `n`. If tasks are sorted by
    # their rate, that is the index of rates, unless few tasks have the skill.
    if wanted.text:
        n, of = "words.rowid", "side.words CROSS JOIN side.tasks AS one ON one.n = words.rowid"
        if by_rate:
            newest = "SELECT rowid FROM side.words WHERE words MATCH :text ORDER BY rowid DESC LIMIT :few"
            of = of.replace("side.words", f"({newest}) AS words", 1)
        else:
            where.append("words MATCH :text")
    elif wanted.skill and not (by_rate and wanted.is_common):
        n, of = (
            "with_skill.n",
            "side.skills AS with_skill CROSS JOIN side.tasks AS one ON one.n = with_skill.n",
        )
        where.append("with_skill.skill = :skill")
    elif wanted.round is not None:
        n, of = "of_round.n", f"({_OF_ROUND}) AS of_round CROSS JOIN side.tasks AS one ON one.n = of_round.n"
    tried, solved, rate = "one.tried", "one.solved", "one.rate"
    if wanted.round is not None:
        of += " LEFT JOIN side.rates AS now ON now.round = :round AND now.n = one.n"
        tried, solved = "coalesce(now.tried, 0)", "now.solved"
        rate = "now.solved * 1.0 / nullif(now.tried, 0)"
        where.append("(one.round = :round OR now.n IS NOT NULL)")
    if wanted.skill and n != "with_skill.n":
        where.append("EXISTS (SELECT 1 FROM side.skills WHERE skill = :skill AND n = one.n)")
    if wanted.origin:
        where.append("one.origin = :origin")
    if wanted.origin == NEW and wanted.round is not None:
        where.append("one.round = :round")
    if wanted.change in CHANGES:
        where.append(f"one.evaluated > 0 AND {CHANGES[wanted.change]}")
    if wanted.round is None and (wanted.change in CHANGES or wanted.origin == "held_out"):
        rate = "one.held * 1.0 / nullif(one.evaluated, 0)"  # these are evaluated, and not trained on
    bound = rate if by_rate else f"+{rate}"  # with + SQLite goes by `n` and ends at the first page
    where += [f"{bound} IS NOT NULL"] * by_rate
    where += [f"{bound} >= :low"] * (wanted.low is not None) + [f"{bound} <= :high"] * (
        wanted.high is not None
    )
    query = f"SELECT {n} AS n, {tried} AS tried, {solved} AS solved, {rate} AS rate FROM {of}"  # noqa: S608
    return query, n, rate, where


def phrase(text: str) -> str:
    """Return the pattern of FTS5 for words that follow each other, the last of which may be cut off."""
    return '"{}" *'.format(text.replace('"', '""').replace("\0", " "))


def page(rows: list[Row], column: str) -> tuple[list[Row], str]:
    """Return the rows of a page, and the key after which the next one begins; "" if they are the last.

    Args:
        rows: as many as are shown, or one more.
        column: by which they are sorted: `n`, or `rate` and `n`.
    """
    shown = rows[:PAGE]
    if len(rows) <= PAGE:
        return shown, ""
    return shown, f"{shown[-1]['n']}" + (f",{shown[-1]['rate']!r}" if column == "rate" else "")


def row_number(text: str) -> int | None:
    """Return the number of a row in the address of a page; None if it is none that SQLite can have."""
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None


def relatives(db: Database, where: str, *values: str | int | None) -> list[Row]:
    """Return short rows of the tasks of a store that fit a condition, with `tried` and `solved`."""
    tried, solved = _rates(db)
    return db.rows(
        f"""SELECT n, id, tasks.round, origin, tasks.context_id, p_hat, {ASKED} AS asked, {tried} AS tried,
                   {solved} AS solved
            FROM main.tasks LEFT JOIN batches ON batches.context_id = tasks.context_id WHERE {where}""",  # noqa: S608
        values,
    )


def of_seed(db: Database, schema: str, seed_id: str | None, origin: str, most: int) -> list[Row]:
    """Return the newest tasks of a seed as `relatives` does, found in the side file `side` or in `main`."""
    sql = f"SELECT n FROM {schema}.tasks WHERE seed_id = ? AND origin = ? ORDER BY n DESC LIMIT ?"  # noqa: S608
    found = [int(row[0]) for row in db.rows(sql, (seed_id, origin, most))]
    return relatives(db, f"n IN ({', '.join('?' * len(found))}) ORDER BY n DESC", *found)
