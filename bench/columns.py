"""A run read into columns, to be compared with another bit for bit.

Every column of every table of its store, every metric but `time/*`, every tensor and JSON value of its
checkpoints.
"""

from __future__ import annotations

import hashlib
import json
import sqlite3
import struct
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

Columns = dict[str, list[Any]]
"""The values of each column, in the order of its rows."""

LEFT_OUT = {
    "run": "the run's id is random",
    "checksums": "sums over what is compared here, and over manifests that name the run",
    "rounds.timings": "seconds",
    "rounds.committed_at": "the wall clock",
    "rounds.metrics": "the same as metrics.jsonl, which is compared metric by metric",
    "MANIFEST.json:run": "random",
    "MANIFEST.json:files": "sums over files, which are compared themselves",
    "COMMITTED": "says the same in every run",
}
"""What is not compared, and why."""


def read(run: Path) -> dict[str, Columns]:
    """A run in canonical form."""
    return {"store": read_store(run), "metrics": read_metrics(run), "checkpoints": read_checkpoints(run)}


def read_store(run: Path) -> Columns:
    """Every column of every table, its rows in the order of the primary key."""
    found: Columns = {}
    with closing(sqlite3.connect(f"{(run / 'pool.db').absolute().as_uri()}?mode=ro", uri=True)) as store:
        for (table,) in store.execute("SELECT name FROM sqlite_schema WHERE type = 'table'").fetchall():
            columns = store.execute(f"PRAGMA table_info({table})").fetchall()
            keys = [name for _, name, *_, place in sorted(columns, key=lambda column: column[5]) if place]
            order = ", ".join(keys) or "rowid"
            for _, name, *_ in columns:
                if not LEFT_OUT.keys() & {table, f"{table}.{name}"}:
                    rows = store.execute(f"SELECT {name} FROM {table} ORDER BY {order}")  # noqa: S608
                    found[f"{table}.{name}"] = [value for (value,) in rows]
    return found


def read_metrics(run: Path) -> Columns:
    """Every metric but times; `None` in rounds that lack it."""
    lines = list(map(json.loads, (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()))
    names = sorted({name for line in lines for name in line if not name.startswith("time/")})
    return {name: [line.get(name) for line in lines] for name in names}


def read_checkpoints(run: Path) -> Columns:
    """Every tensor, and every value of the JSON files."""
    found: Columns = {}
    for path in sorted(path for path in (run / "checkpoints").rglob("*") if path.is_file()):
        values: dict[str, Any] = {"all": sha256(path.read_bytes())}
        if path.suffix == ".safetensors":
            values = dict(tensors(path.read_bytes()))
        elif path.suffix == ".json":
            content = json.loads(path.read_bytes())
            values = {name: json.dumps(value, sort_keys=True) for name, value in content.items()}
        where = path.relative_to(run / "checkpoints")
        for name, value in values.items():
            if not LEFT_OUT.keys() & {path.name, f"{path.name}:{name}"}:
                found[f"{where}:{name}"] = [value]
    return found


def tensors(data: bytes) -> Iterator[tuple[str, str]]:
    """Of each tensor of a file in safetensors' format: name; type, shape and a sum of its bytes."""
    (length,) = struct.unpack("<Q", data[:8])
    for name, entry in json.loads(data[8 : 8 + length]).items():
        if name != "__metadata__":
            start, end = (8 + length + offset for offset in entry["data_offsets"])
            yield name, f"{entry['dtype']} {entry['shape']} {sha256(data[start:end])}"


def sha256(data: str | bytes) -> str:
    return hashlib.sha256(data if isinstance(data, bytes) else data.encode()).hexdigest()


def differences(old: Columns, new: Columns) -> Iterator[str]:
    """Of each column of the older side that is not the same in the newer: its name, and where first."""
    for name, values in old.items():
        others = new.get(name)
        if others is None:
            yield f"{name} is missing"
        elif len(values) != len(others):
            yield f"{name} has {len(others)} rows, not {len(values)}"
        elif repr(values) != repr(others):  # as 1 == 1.0
            shown = enumerate(zip(map(repr, values), map(repr, others), strict=True))
            row, value, other = next((n, *pair) for n, pair in shown if pair[0] != pair[1])
            yield f"{name}, row {row}: {value[:60]}, now {other[:60]}"
