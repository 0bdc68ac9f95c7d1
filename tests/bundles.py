"""Tools as a user has them, for tests of environments made of them."""

from __future__ import annotations

import math
import random
import shutil
import sqlite3
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from genenv.gate.gate import examined
from genenv.progress import Silent
from genenv.tools.bundle import About, Bundle, about_toml, graph_json, wordings_toml
from genenv.tools.discover import exploring
from genenv.tools.discover.recipes import Graph, Recipe
from genenv.tools.environment import Tools
from genenv.tools.generate.make_bundle import Made, Wanted, make, write_tasks
from genenv.tools.generate.plans import sizes_shown
from genenv.tools.spec import Program
from genenv.tools.worlds.base import Call
from genenv.tools.worlds.origins import PythonOrigin
from genenv.tools.worlds.sources import PythonSource
from genenv.types import Lineage, Origin, Rejection, Task

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


def by_hand(folder: Path, text: str, *recipes: Recipe, **about: Any) -> Path:
    """A bundle without tasks whose recipes are given, so that no tool has to be tried."""
    (folder / "files").mkdir(parents=True)
    (folder / "files" / "tools.py").write_text(text, encoding="utf-8")
    settings = About(name=folder.name, source=PythonSource(file="tools.py", seeded=True), **about)
    (folder / "bundle.toml").write_text(about_toml(settings), encoding="utf-8")
    graph = Graph(recipes={one.tool: one for one in recipes})
    (folder / "graph.json").write_text(graph_json(graph), encoding="utf-8")
    (folder / "wordings.toml").write_text(wordings_toml({}), encoding="utf-8")
    write_tasks(Bundle.open(folder), {False: [], True: []})
    Bundle.open(folder).opened_before()  # suppresses the warning about code
    return folder


def recipe(tool: str, *, writes: bool = False, **ways: str) -> Recipe:
    return Recipe(tool=tool, writes=writes, ways=ways, success=1.0)


def asked(env: Tools, *calls: Call, **more: Any) -> Task | Rejection:
    """The task of some calls, on the side that they belong to."""
    steps = [one.json for one in calls]
    shown = max(sizes_shown(len(env.world.tools), len(calls)))
    shape = {"n_calls": len(calls), "n_tools": shown, "chained": False, "answer": False}
    program = Program.model_validate({**shape, "calls": steps, **more})
    lineage = Lineage(origin=Origin.HELD_OUT if env.is_for_measuring(program) else Origin.SEED)
    return env.build(program, task_id="t", lineage=lineage, rng=random.Random(0))


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
