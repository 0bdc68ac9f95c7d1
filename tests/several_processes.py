"""Programs in one process or, by torchrun, in several: how tests run them and read what they found."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

TORCHRUN = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node"]


def ran(*words: object) -> subprocess.CompletedProcess[str]:
    """A Python program that has ended; it may import what lies beside this file."""
    path = f"{Path(__file__).parent}:{os.environ.get('PYTHONPATH', '')}"
    return subprocess.run(
        [sys.executable, *map(str, words)],
        env=os.environ | {"PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def found(*words: object) -> dict[str, Any]:
    """What a program has found: the JSON of its only line that begins with `found `."""
    done = ran(*words)
    assert done.returncode == 0, done.stderr[-3000:]
    (line,) = [line for line in done.stdout.splitlines() if line.startswith("found ")]
    return json.loads(line.removeprefix("found "))


def numbers(value: Any) -> list[float]:
    """All numbers of a JSON value, tables by the order of their names."""
    if isinstance(value, dict):
        return [n for name in sorted(value) for n in numbers(value[name])]
    return [n for each in value for n in numbers(each)] if isinstance(value, list) else [float(value)]
