"""Which run a store is of, read without writing: a run in a read-only folder can be measured."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from pathlib import Path

from genenv.errors import DataError
from genenv.pools.database import MEND, sentences
from genenv.pools.records import Identity


def read_identity(path: Path) -> Identity:
    """Which run a store is of, and no more: nothing else in the file is looked at, and nothing is changed.

    Args:
        path: the store; one of an older genenv has no id yet, and all of its checkpoints may lack one.

    Raises:
        DataError: the file is damaged or cannot be read.
    """
    # Without a `-wal` file nobody has it open, and a folder that cannot be written does no harm.
    mode = "mode=ro" if path.with_name(f"{path.name}-wal").exists() else "immutable=1"
    uri = f"{path.absolute().as_uri()}?{mode}"
    with sentences(path), closing(sqlite3.connect(uri, uri=True)) as connection:
        if not connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'run'").fetchone():
            last = connection.execute("SELECT coalesce(max(number), -1) FROM rounds").fetchone()[0]
            return Identity(id="", legacy_until=last)
        found = connection.execute("SELECT id, legacy_until FROM run").fetchall()
    if len(found) != 1:
        raise DataError(f"{path} is damaged (it does not say which run it is of); {MEND}")
    return Identity(id=str(found[0][0]), legacy_until=int(found[0][1]))
