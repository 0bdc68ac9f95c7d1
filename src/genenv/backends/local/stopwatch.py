"""Comparing the cost of a few ways to do the same, on a machine that may be busy with other things."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import TypeVar

from genenv.backends.local.cpu.waiting import asleep

_Name = TypeVar("_Name")

FEWEST_TURNS = 5


def cpu_seconds(works: Mapping[_Name, Callable[[], object]], *, budget_s: float) -> dict[_Name, float]:
    """The least processor time, of all threads together, that each work took in many turns.

    Not time by the clock: beside other processes that says who else was there, and two threads that must
    wait for one another then look slower than one. Processor time hardly changes as long as threads wait
    asleep, which they do here; what emptied caches add to it, the best of many turns leaves out.

    Args:
        works: by name; a first turn of each is not timed. They take turns, each as often first as any other.
        budget_s: time by the clock for all turns together, seconds; `FEWEST_TURNS` are made in any case.
    """
    with asleep():
        for work in works.values():
            work()
        return _best(works, budget_s)


def _best(works: Mapping[_Name, Callable[[], object]], budget_s: float) -> dict[_Name, float]:
    names = list(works)
    best = dict.fromkeys(names, float("inf"))
    end, turn = time.perf_counter() + budget_s, 0
    while turn < FEWEST_TURNS or time.perf_counter() < end:
        first = turn % len(names)
        for name in names[first:] + names[:first]:
            start = time.process_time()
            works[name]()
            best[name] = min(best[name], time.process_time() - start)
        turn += 1
    return best
