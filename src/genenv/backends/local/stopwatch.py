"""Comparing the cost of a few ways to do the same, on a machine that may be busy with other things."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TypeVar

_Name = TypeVar("_Name")

FEWEST_TURNS = 5
BUSY = 0.05
"""Seconds that threads lacked a core, in a second: from here on the machine counts as busy."""
_PATIENCE = 8
"""On a busy machine so many times the budget is spent, if need be."""


def cpu_seconds(works: Mapping[_Name, Callable[[], object]], *, budget_s: float) -> dict[_Name, float]:
    """The least processor time, of all threads together, that each work took in many turns.

    Not time by the clock: beside other processes that says who else was there, and two threads that must
    wait for one another then look slower than one. Processor time hardly changes; what emptied caches add to
    it, and threads that wait awake for one that has no core, the best of many turns leaves out: there are
    `FEWEST_TURNS` that nobody disturbed, if that can be had.

    Args:
        works: by name; a first turn of each is not timed. They take turns, each as often first as any other.
        budget_s: time by the clock for all turns together, seconds; `FEWEST_TURNS` are made in any case, and
            more where other processes disturb them.
    """
    names = list(works)
    for work in works.values():
        work()
    best = dict.fromkeys(names, float("inf"))
    begin, turn, undisturbed = time.perf_counter(), 0, 0
    while turn < FEWEST_TURNS or time.perf_counter() < begin + budget_s * (
        1 if undisturbed >= FEWEST_TURNS else _PATIENCE
    ):
        lacked, turned = lacked_s(), time.perf_counter()
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            start = time.process_time()
            works[name]()
            best[name] = min(best[name], time.process_time() - start)
        turn += 1
        after = lacked_s()
        if lacked is None or after is None or after - lacked < BUSY * (time.perf_counter() - turned):
            undisturbed += 1
    return best


def lacked_s() -> float | None:
    """How long the threads of this process, all together, have had work and no core; None if unknown."""
    total_ns = 0
    try:
        for task in Path("/proc/self/task").iterdir():
            try:
                total_ns += int((task / "schedstat").read_text(encoding="ascii").split()[1])
            except ProcessLookupError:  # it has ended meanwhile
                continue
            except FileNotFoundError:
                if task.exists():
                    return None
    except (OSError, ValueError, IndexError):
        return None
    return total_ns / 1e9
