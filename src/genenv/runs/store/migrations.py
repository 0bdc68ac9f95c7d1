"""The tables of a run's store, as numbered steps: step N takes a database from version N-1 to version N.

A released step is never edited. A change of the tables is one more step at the end of the list. The version
is SQLite's `user_version`; `application_id` identifies the file as a genenv store.

A step that changes rows of committed rounds recomputes their checksums (`ROUND_PARTS`), but only
those that matched before. Damaged rows are copied unchanged, so that the checksums still detect them.

All rows of a round reference `rounds.number` with `ON DELETE CASCADE`, so dropping a round is one delete.
Columns named `n` hold only the order of insertion. Wall-clock values are in `rounds.committed_at` and
`rounds.timings`, so that two equal runs are equal in all other columns.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path

from genenv.errors import DataError
from genenv.runs.store.codec import sha256_of, strings_from_json, to_json
from genenv.types import AGENT

APPLICATION_ID = 0x47456E56  # "GEnV"

_FIRST_TABLES = (
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
    )""",
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
    )""",
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
        batch_position INTEGER,
        PRIMARY KEY (round, position)
    )""",
    "CREATE INDEX groups_by_task ON groups (task_id)",
    "CREATE INDEX groups_by_batch ON groups (batch_context_id)",
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
        replies TEXT NOT NULL,
        reward REAL NOT NULL,
        success INTEGER NOT NULL,
        explanation TEXT NOT NULL,
        stop_reason TEXT NOT NULL,
        FOREIGN KEY (round, group_position) REFERENCES groups (round, position) ON DELETE CASCADE
    )""",
    "CREATE INDEX traces_by_group ON traces (round, group_position)",
    "CREATE INDEX traces_by_task ON traces (task_id)",
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
        explanation TEXT NOT NULL,
        PRIMARY KEY (round, position)
    )""",
    "CREATE INDEX evaluations_by_task ON evaluations (task_id)",
    f"PRAGMA application_id = {APPLICATION_ID}",
)

_STATE = "CASE WHEN json_valid(state) THEN state ELSE '{}' END"  # a damaged state is found when it is read
_NO_GROWTH = (
    """CREATE TABLE reminders (
        round INTEGER NOT NULL REFERENCES rounds (number) ON DELETE CASCADE,
        position INTEGER NOT NULL,
        task_id TEXT NOT NULL,
        PRIMARY KEY (round, position)
    )""",
    f"""INSERT INTO reminders (round, position, task_id)
        SELECT round, row_number() OVER (PARTITION BY round ORDER BY task_id) - 1, task_id FROM (
            SELECT rounds.number AS round, seen.key AS task_id
            FROM (SELECT {_STATE} AS state FROM rounds ORDER BY number DESC LIMIT 1) AS last,
                 json_each(last.state, '$.replay.seen') AS seen
            JOIN rounds ON rounds.number = seen.value
            WHERE NOT EXISTS (SELECT 1 FROM groups WHERE groups.task_id = seen.key AND round = seen.value)
        )""",  # noqa: S608 - a constant
    f"""UPDATE rounds SET state = json_remove(state, '$.replay.seen')
        WHERE json_type({_STATE}, '$.replay.seen') IS NOT NULL""",  # noqa: S608 - a constant
    "CREATE INDEX tasks_by_origin ON tasks (origin, round)",
)
"""Moves the round in which each task was last seen from every round's state to the table `reminders`."""

_CHECKSUMS = (
    # One row. A run of an older genenv gets its id late: checkpoints up to `legacy_until` do not name it.
    """CREATE TABLE run (
        id TEXT NOT NULL,
        legacy_until INTEGER NOT NULL
    )""",
    "INSERT INTO run SELECT lower(hex(randomblob(16))), coalesce(max(number), -1) FROM rounds",
    # `round` is NULL for base data.
    """CREATE TABLE checksums (
        round INTEGER REFERENCES rounds (number) ON DELETE CASCADE,
        part TEXT NOT NULL,
        sha256 BLOB NOT NULL,
        UNIQUE (round, part)
    )""",
)

_MESSAGES = (
    # Created again: the definition that ALTER TABLE leaves depends on SQLite's version.
    "ALTER TABLE traces RENAME TO traces_with_replies",
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
        version INTEGER,
        FOREIGN KEY (round, group_position) REFERENCES groups (round, position) ON DELETE CASCADE
    )""",
    """INSERT INTO traces (n, id, round, group_position, task_id, token_ids, sampled, logprobs, prompt_tokens,
                           messages, reward, success, explanation, stop_reason)
        SELECT n, id, round, group_position, task_id, token_ids, sampled, logprobs, prompt_tokens,
               CAST(as_messages(CAST(replies AS BLOB)) AS TEXT), reward, success, explanation, stop_reason
        FROM traces_with_replies""",
    "DROP TABLE traces_with_replies",
    "CREATE INDEX traces_by_group ON traces (round, group_position)",
    "CREATE INDEX traces_by_task ON traces (task_id)",
)

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


def _change(connection: sqlite3.Connection, *, table: str, statements: Sequence[str]) -> None:
    """Change a table, and recompute the checksums of its rows that matched before."""
    kept = connection.execute("SELECT round, sha256 FROM checksums WHERE part = ?", (table,)).fetchall()
    whole = [round_ for round_, sha256 in kept if _sha256(connection, table, round_) == sha256]
    connection.create_function("as_messages", 1, _as_messages, deterministic=True)
    for statement in statements:
        connection.execute(statement)
    for round_ in whole:
        connection.execute(
            "UPDATE checksums SET sha256 = ? WHERE round = ? AND part = ?",
            (_sha256(connection, table, round_), round_, table),
        )


def _sha256(connection: sqlite3.Connection, table: str, round_: int) -> bytes | None:
    """Return the checksum of a round's rows; None if SQLite cannot read them."""
    try:
        return sha256_of(connection.execute(ROUND_PARTS[table], (round_,)))
    except sqlite3.Error:
        return None


def _as_messages(replies: bytes) -> bytes:
    """Convert a JSON list of replies to assistant messages. Anything else is returned unchanged."""
    try:
        said = strings_from_json(replies.decode())
    except ValueError:
        return replies
    return to_json([{"role": "assistant", "content": reply} for reply in said]).encode()


Step = tuple[str | Callable[[sqlite3.Connection], None], ...]
"""SQL statements, and functions if SQL is not enough. A step is applied in one transaction."""

MIGRATIONS: tuple[Step, ...] = (
    _FIRST_TABLES,
    _NO_GROWTH,
    _CHECKSUMS,
    # The conversation and the weight version of a trace instead of only its replies. For older traces, the
    # environment's messages and the version are unknown.
    (partial(_change, table="traces", statements=_MESSAGES),),
    # Whether a trace could be parsed and graded. For older traces this is unknown.
    (partial(_change, table="traces", statements=["ALTER TABLE traces ADD COLUMN readable INTEGER"]),),
    # For which agent a context is, and which agent was rolled out. In older runs there is one.
    tuple(
        partial(
            _change,
            table=table,
            statements=[f"ALTER TABLE {table} ADD COLUMN agent TEXT NOT NULL DEFAULT '{AGENT}'"],
        )
        for table in ("contexts", "groups", "evaluations")
    ),
    # Whether rollouts only scored a task. In older runs the agent trained on all tasks.
    (
        partial(
            _change,
            table="generations",
            statements=["ALTER TABLE generations ADD COLUMN scored_only INTEGER NOT NULL DEFAULT 0"],
        ),
    ),
)
"""Item N-1 of the list creates version N."""


def migrate(connection: sqlite3.Connection, path: Path) -> None:
    """Bring a database to the newest version. The newest version is left unchanged.

    Args:
        connection: in autocommit mode; each step is one transaction.
        path: the file, for error messages.

    Raises:
        DataError: the file is another program's database, or a newer genenv wrote it.
    """
    version = int(connection.execute("PRAGMA user_version").fetchone()[0])
    if version > len(MIGRATIONS):
        raise DataError(
            f"{path} has format {version}, but this genenv reads formats up to {len(MIGRATIONS)}; "
            "install the genenv that wrote it, or start a new run"
        )
    if not _is_ours(connection, version):
        raise DataError(f"{path} is not a store of genenv; name another file, or start a new run")
    for number, step in enumerate(MIGRATIONS[version:], start=version + 1):
        connection.execute("BEGIN IMMEDIATE")
        try:
            # Another process may have opened the same new file at the same time.
            if int(connection.execute("PRAGMA user_version").fetchone()[0]) < number:
                for statement in step:
                    if isinstance(statement, str):
                        connection.execute(statement)
                    else:
                        statement(connection)
                connection.execute(f"PRAGMA user_version = {number}")
            connection.execute("COMMIT")
        finally:
            if connection.in_transaction:
                connection.execute("ROLLBACK")


def _is_ours(connection: sqlite3.Connection, version: int) -> bool:
    """Return whether a file is a genenv store, or is empty and can become one."""
    if int(connection.execute("PRAGMA application_id").fetchone()[0]) == APPLICATION_ID:
        return True
    tables = int(connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
    return version == 0 and tables == 0
