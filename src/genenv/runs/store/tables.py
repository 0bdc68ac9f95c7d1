"""The tables of a run's store, and the check that a file has them.

The format is SQLite's `user_version`; `application_id` identifies the file as a genenv store. A store of
another format is refused. A format's definitions never change, because they are compared (`database.py`).

All rows of a round reference `rounds.number` with `ON DELETE CASCADE`, so dropping a round is one delete.
Columns named `n` hold only the order of insertion. Wall-clock values are in `rounds.committed_at` and
`rounds.timings`, so that two equal runs are equal in all other columns.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping
from pathlib import Path

from genenv.errors import DataError

FORMAT = 7
_APPLICATION_ID = 0x47456E56  # "GEnV"

_TABLES = (
    """CREATE TABLE rounds (
        number INTEGER PRIMARY KEY,
        metrics TEXT NOT NULL,
        state TEXT NOT NULL,
        timings TEXT NOT NULL,
        committed_at TEXT NOT NULL
    )""",
    """CREATE TABLE seeds (
        n INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        domain TEXT NOT NULL,
        spec TEXT NOT NULL,
        skills TEXT NOT NULL
    )""",
    """CREATE TABLE contexts (
        n INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        round INTEGER NOT NULL REFERENCES rounds (number) ON DELETE CASCADE,
        seed_id TEXT NOT NULL REFERENCES seeds (id),
        messages TEXT NOT NULL
    , agent TEXT NOT NULL DEFAULT 'agent')""",
    "CREATE INDEX contexts_by_round ON contexts (round)",
    """CREATE TABLE generations (
        n INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        context_id TEXT NOT NULL REFERENCES contexts (id) ON DELETE CASCADE,
        prompt_ids BLOB NOT NULL,
        token_ids BLOB NOT NULL,
        logprobs BLOB NOT NULL,
        text TEXT NOT NULL,
        finished INTEGER NOT NULL,
        novelty REAL
    , scored_only INTEGER NOT NULL DEFAULT 0)""",
    "CREATE INDEX generations_by_context ON generations (context_id)",
    """CREATE TABLE rejections (
        generation_id TEXT PRIMARY KEY REFERENCES generations (id) ON DELETE CASCADE,
        reason TEXT NOT NULL,
        explanation TEXT NOT NULL
    )""",
    """CREATE TABLE tasks (
        n INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        round INTEGER REFERENCES rounds (number) ON DELETE CASCADE,
        domain TEXT NOT NULL,
        skills TEXT NOT NULL,
        messages TEXT NOT NULL,
        spec TEXT NOT NULL,
        payload TEXT NOT NULL,
        oracle TEXT NOT NULL,
        origin TEXT NOT NULL,
        seed_id TEXT REFERENCES seeds (id),
        context_id TEXT REFERENCES contexts (id) ON DELETE CASCADE,
        generation_id TEXT UNIQUE REFERENCES generations (id) ON DELETE CASCADE,
        surface TEXT
    )""",
    "CREATE INDEX tasks_by_round ON tasks (round)",
    "CREATE INDEX tasks_by_context ON tasks (context_id)",
    """CREATE TABLE batches (
        context_id TEXT PRIMARY KEY REFERENCES contexts (id) ON DELETE CASCADE,
        round INTEGER NOT NULL REFERENCES rounds (number) ON DELETE CASCADE,
        position INTEGER NOT NULL,
        p_hat REAL,
        env_reward REAL NOT NULL,
        selected INTEGER NOT NULL,
        UNIQUE (round, position)
    )""",
    """CREATE TABLE groups (
        round INTEGER NOT NULL REFERENCES rounds (number) ON DELETE CASCADE,
        position INTEGER NOT NULL,
        task_id TEXT NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
        batch_context_id TEXT REFERENCES batches (context_id) ON DELETE CASCADE,
        batch_position INTEGER, agent TEXT NOT NULL DEFAULT 'agent',
        PRIMARY KEY (round, position)
    )""",
    "CREATE INDEX groups_by_task ON groups (task_id)",
    "CREATE INDEX groups_by_batch ON groups (batch_context_id)",
    """CREATE TABLE simulator_samples (
        round INTEGER NOT NULL REFERENCES rounds (number) ON DELETE CASCADE,
        position INTEGER NOT NULL,
        generation_id TEXT NOT NULL REFERENCES generations (id) ON DELETE CASCADE,
        weight REAL NOT NULL,
        PRIMARY KEY (round, position)
    )""",
    "CREATE INDEX simulator_samples_by_generation ON simulator_samples (generation_id)",
    """CREATE TABLE evaluations (
        round INTEGER NOT NULL REFERENCES rounds (number) ON DELETE CASCADE,
        position INTEGER NOT NULL,
        task_id TEXT NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
        success INTEGER NOT NULL,
        reward REAL NOT NULL,
        replies TEXT NOT NULL,
        explanation TEXT NOT NULL, agent TEXT NOT NULL DEFAULT 'agent',
        PRIMARY KEY (round, position)
    )""",
    "CREATE INDEX evaluations_by_task ON evaluations (task_id)",
    """CREATE TABLE reminders (
        round INTEGER NOT NULL REFERENCES rounds (number) ON DELETE CASCADE,
        position INTEGER NOT NULL,
        task_id TEXT NOT NULL,
        PRIMARY KEY (round, position)
    )""",
    "CREATE INDEX tasks_by_origin ON tasks (origin, round)",
    """CREATE TABLE run (
        id TEXT NOT NULL,
        legacy_until INTEGER NOT NULL
    )""",
    """CREATE TABLE checksums (
        round INTEGER REFERENCES rounds (number) ON DELETE CASCADE,
        part TEXT NOT NULL,
        sha256 BLOB NOT NULL,
        UNIQUE (round, part)
    )""",
    """CREATE TABLE traces (
        n INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        round INTEGER NOT NULL,
        group_position INTEGER NOT NULL,
        task_id TEXT NOT NULL REFERENCES tasks (id) ON DELETE CASCADE,
        token_ids BLOB NOT NULL,
        sampled BLOB NOT NULL,
        logprobs BLOB NOT NULL,
        prompt_tokens INTEGER NOT NULL,
        messages TEXT NOT NULL,
        reward REAL NOT NULL,
        success INTEGER NOT NULL,
        explanation TEXT NOT NULL,
        stop_reason TEXT NOT NULL,
        version INTEGER, readable INTEGER,
        FOREIGN KEY (round, group_position) REFERENCES groups (round, position) ON DELETE CASCADE
    )""",
    "CREATE INDEX traces_by_group ON traces (round, group_position)",
    "CREATE INDEX traces_by_task ON traces (task_id)",
    "INSERT INTO run VALUES (lower(hex(randomblob(16))), -1)",
    f"PRAGMA application_id = {_APPLICATION_ID}",
    f"PRAGMA user_version = {FORMAT}",
)
"""Creates the tables. `run` has one row: the run's id, and a number without a meaning. In `checksums`, the
round of base data is NULL."""

ROUND_PARTS: Mapping[str, str] = {
    "rounds": "SELECT * FROM rounds WHERE number = ?",
    "contexts": "SELECT * FROM contexts WHERE round = ? ORDER BY n",
    "generations": """SELECT generations.* FROM contexts
        JOIN generations ON generations.context_id = contexts.id WHERE round = ? ORDER BY generations.n""",
    "rejections": """SELECT rejections.* FROM contexts
        JOIN generations ON generations.context_id = contexts.id
        JOIN rejections ON rejections.generation_id = generations.id
        WHERE round = ? ORDER BY generations.n""",
    "tasks": "SELECT * FROM tasks WHERE round = ? ORDER BY n",
    "batches": "SELECT * FROM batches WHERE round = ? ORDER BY position",
    "groups": "SELECT * FROM groups WHERE round = ? ORDER BY position",
    "traces": "SELECT * FROM traces WHERE round = ? ORDER BY n",
    "simulator_samples": "SELECT * FROM simulator_samples WHERE round = ? ORDER BY position",
    "evaluations": "SELECT * FROM evaluations WHERE round = ? ORDER BY position",
    "reminders": "SELECT * FROM reminders WHERE round = ? ORDER BY position",
}
"""The rows of a round by table, each with a checksum of its own (`store.py`)."""


def has_tables(connection: sqlite3.Connection, path: Path) -> bool:
    """Return whether a file is a store of this format; False for an empty file, which can become one.

    Raises:
        DataError: the file is another program's database, or a store of another format.
    """
    (own,), (version,) = (
        connection.execute(f"PRAGMA {name}").fetchone() for name in ("application_id", "user_version")
    )
    if own != _APPLICATION_ID:
        if version == 0 and not connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]:
            return False
        raise DataError(f"{path} is not a store of genenv; name another file, or start a new run")
    if version != FORMAT:
        which = "an earlier" if version < FORMAT else "a newer"
        raise DataError(
            f"{path} was written by {which} version of genenv (store format {version}, this one reads "
            f"{FORMAT}); open it with the commit that wrote it, or start a new run"
        )
    return True


def make_tables(connection: sqlite3.Connection, path: Path) -> None:
    """Create the tables in an empty file, in one transaction; a store stays as it is.

    Raises:
        DataError: see `has_tables`.
    """
    if has_tables(connection, path):
        return
    connection.execute("BEGIN IMMEDIATE")
    try:
        if not has_tables(connection, path):  # another process may have opened the same new file
            for statement in _TABLES:
                connection.execute(statement)
        connection.execute("COMMIT")
    finally:
        if connection.in_transaction:
            connection.execute("ROLLBACK")
