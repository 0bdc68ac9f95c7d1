"""Which processes there are, for tests of what they leave behind."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path


def running_in(folder: Path) -> list[int]:
    """Processes that work in a folder, or in one that was there before it was removed."""
    found: list[int] = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            where = str((path / "cwd").readlink()).removesuffix(" (deleted)")
            over = (path / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
        except OSError:
            continue
        if where.startswith(str(folder)) and not over:
            found.append(int(path.name))
    return found


def comes_true(condition: Callable[[], bool], limit_s: float = 20.0) -> bool:
    """Whether a condition comes to hold within some seconds."""
    until = time.monotonic() + limit_s
    while not (held := condition()) and time.monotonic() < until:
        time.sleep(0.02)
    return held
