"""Stores as older versions of genenv left them, made of new ones by the steps that made their tables."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from genenv.runs.store.codec import sha256_of
from genenv.runs.store.migrations import MIGRATIONS, ROUND_PARTS

BEFORE_CHECKSUMS, BEFORE_MESSAGES, BEFORE_READABLE, BEFORE_AGENTS, BEFORE_SCORED_ONLY = 1, 3, 4, 5, 6
_REPLIES = """(SELECT json_group_array(json_extract(value, '$.content')) FROM json_each(messages)
    WHERE json_extract(value, '$.role') = 'assistant')"""


def make_older(path: Path, version: int) -> None:
    """Make of a store what it was in an older format, with the checksums of that format where it had some."""
    older = path.with_name("older.db")
    with closing(sqlite3.connect(older, isolation_level=None)) as database:
        for step in MIGRATIONS[:version]:
            for statement in step:
                database.execute(statement) if isinstance(statement, str) else statement(database)
        database.execute(f"PRAGMA user_version = {version}")
        tables = [name for (name,) in database.execute("SELECT name FROM sqlite_schema WHERE type = 'table'")]
        database.execute("ATTACH ? AS newer", (str(path),))
        for table in tables:
            names = [row[1] for row in database.execute(f"PRAGMA main.table_info({table})")]
            kept = "replies" in names and table == "traces"
            values = ", ".join(_REPLIES if kept and name == "replies" else name for name in names)
            database.execute(f"DELETE FROM main.{table}")  # noqa: S608 - names of tables and columns
            database.execute(
                f"INSERT INTO main.{table} ({', '.join(names)}) SELECT {values} FROM newer.{table}"  # noqa: S608
            )
        if "checksums" in tables:
            for (number,) in database.execute("SELECT number FROM rounds").fetchall():
                for part in (
                    "traces",
                    "contexts",
                    "groups",
                    "evaluations",
                    "generations",
                ):  # without the newer columns
                    rows = database.execute(ROUND_PARTS[part], (number,))
                    database.execute(
                        "UPDATE checksums SET sha256 = ? WHERE round = ? AND part = ?",
                        (sha256_of(rows), number, part),
                    )
    for file in path.parent.glob(f"{path.name}-*"):
        file.unlink()
    older.replace(path)


def forget(path: Path, *, until: int) -> None:
    """Leave of conversations up to a round what older formats kept: replies, and no version of weights."""
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(
            """UPDATE traces SET version = NULL, messages = (
                   SELECT json_group_array(json(value)) FROM json_each(messages)
                   WHERE json_extract(value, '$.role') = 'assistant') WHERE round <= ?""",
            (until,),
        )
