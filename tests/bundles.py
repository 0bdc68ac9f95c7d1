"""Tools as a user has them, for tests of environments made of them."""

from __future__ import annotations

import math
import shutil
import sqlite3
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from genenv.gate.gate import examined
from genenv.progress import Silent
from genenv.tools.discover import exploring
from genenv.tools.generate.make_bundle import Made, Wanted, make
from genenv.tools.worlds.base import Call
from genenv.tools.worlds.origins import PythonOrigin

EXAMPLES = Path(__file__).parent / "tools" / "examples"


def call(tool: str, **args: Any) -> Call:
    return Call(tool=tool, args=args)


def made(folder: Path, file: str | Path = "desk.py", made_of: str = "", **wanted: Any) -> Made:
    """A bundle of an example, with few tasks; what is tried does not depend on how busy the machine is."""
    origin = PythonOrigin(EXAMPLES / file, made_of)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(exploring, "_SECONDS", math.inf)
        patch.setattr(exploring, "_RECORD_SECONDS", math.inf)
        patch.setattr(exploring, "_ALL_SECONDS", math.inf)
        usual: dict[str, Any] = {"base": 24, "held_out": 8, "first_day": date(2026, 1, 5)}
        return make(folder, Wanted(origin=origin, **{**usual, **wanted}), examined, Silent())


def fewer(bundle: Path, to: Path, *, base: int, held_out: int) -> Path:
    """A copy of a bundle with its first tasks."""
    shutil.copytree(bundle, to)
    for name, count in (("base", base), ("held-out", held_out)):
        file = to / "tasks" / f"{name}.jsonl"
        lines = file.read_text(encoding="utf-8").splitlines(keepends=True)
        assert len(lines) >= count
        file.write_text("".join(lines[:count]), encoding="utf-8")
    return to


def ledger(folder: Path) -> Path:
    """The ledger's files, with an SQLite database; the file of its tools."""
    for name in ("ledger.py", "ledger_money.py", "settings.json"):
        (folder / name).write_text((EXAMPLES / name).read_text())
    with closing(sqlite3.connect(folder / "ledger.db")) as database:
        database.execute("CREATE TABLE accounts (name TEXT PRIMARY KEY, amount REAL)")
        database.executemany("INSERT INTO accounts VALUES (?, ?)", [("savings", 100.0), ("rent", 20.0)])
        database.commit()
    return folder / "ledger.py"
