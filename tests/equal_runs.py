"""Runs that are compared whole, and runs that are killed at a chosen instant."""

from __future__ import annotations

import json
import subprocess
import sys
import textwrap
from pathlib import Path

from genenv.runs.checkpoint import COMMITTED, MANIFEST
from genenv.runs.store.store import PoolStore
from genenv.types import Group

DIES = """
    import importlib, os, sys
    place, call = sys.argv.pop(1), int(sys.argv.pop(1))
    module, _, path = place.partition(":")
    owner, (*outer, name) = importlib.import_module(module), path.split(".")
    for one in outer:
        owner = getattr(owner, one)
    function, calls = getattr(owner, name), 0

    def dies(*values, **options):
        global calls
        calls += 1
        if calls == call:
            os._exit(9)
        return function(*values, **options)

    setattr(owner, name, dies)
    from genenv.cli.app import main
    main()
"""


def killed(config: Path, out: Path, place: str, call: int, *more: str) -> None:
    """Train until the process ends in a call of a function, `module:name`; `more` are settings."""
    words = [place, str(call), "train", str(config), "--out", str(out)]
    words += [word for one in more for word in ("--set", one)]
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(DIES), *words], capture_output=True)
    assert done.returncode == 9, done.stderr.decode()


def metrics(path: Path) -> list[dict[str, float]]:
    """The metrics of each round, without times."""
    lines = map(json.loads, (path / "metrics.jsonl").read_text(encoding="utf-8").splitlines())
    return [{name: value for name, value in line.items() if not name.startswith("time/")} for line in lines]


def contents(path: Path) -> dict[str, object]:
    """All that two equal runs have in common."""
    with PoolStore.open(path / "pool.db", create=False) as store:
        found: dict[str, object] = {"store": store.digest(), "damage": store.damage(whole=True)}
    files = [one for one in (path / "checkpoints").rglob("*") if one.is_file()]
    kept = [one for one in files if one.name not in (MANIFEST, COMMITTED)]
    found |= {one.relative_to(path).as_posix(): one.read_bytes() for one in kept}
    return found | {"metrics": metrics(path)}


def groups_of(path: Path, number: int) -> tuple[Group, ...]:
    """The groups of a round."""
    with PoolStore.open(path / "pool.db", create=False) as store:
        return store.groups(number)
