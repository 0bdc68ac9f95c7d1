"""Which processes there are, for tests of what they leave behind."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any


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


def running() -> dict[int, str]:
    """The programs of all processes by number, but for those that have ended."""
    found: dict[int, str] = {}
    for path in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            name, _, rest = (path / "stat").read_text().partition("(")[2].rpartition(")")
            if rest.split()[0] != "Z":
                found[int(path.name)] = name
    return found


def descendants(process: int) -> list[int]:
    """The processes that a process has started, and those that they have started."""
    found: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{process}/task").iterdir():
            for child in map(int, (thread / "children").read_text().split()):
                found += [child, *descendants(child)]
    return found


def scratches(processes: Iterable[int]) -> set[Path]:
    """The private folders of tools in which processes work."""
    places = {Path(f"/proc/{one}/cwd").readlink() for one in processes}
    named = {parent for place in places for parent in (place, *place.parents)}
    return {one for one in named if one.name.startswith("genenv-world-")}


def comes_true(condition: Callable[[], bool], limit_s: float = 20.0) -> bool:
    """Whether a condition comes to hold within some seconds."""
    until = time.monotonic() + limit_s
    while not (held := condition()) and time.monotonic() < until:
        time.sleep(0.02)
    return held


def comes(what: Callable[[], Any], limit_s: float = 200.0) -> Any:
    """The first value that is true of what is asked again and again; it has to come within some seconds."""
    until = time.monotonic() + limit_s
    while not (found := what()) and time.monotonic() < until:
        time.sleep(0.05)
    assert found
    return found
