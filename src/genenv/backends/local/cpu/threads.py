# pyright: standard
"""How CPU threads wait for each other, and a stopwatch of processor time for busy machines.

Every product of a sampling step ends with threads that wait for the last of them. GNU OpenMP, torch's on
Linux, lets them spin meanwhile, for up to some ten milliseconds: nothing is faster where each has a core.
Beside another busy process one of them is without a core now and then. The others then spin on theirs for
whole ticks of the scheduler, at product after product: a step takes ten times as long. Threads that sleep
leave their core to whoever has work, but waking them costs a third of the speed of a quiet machine.

So the choice follows the machine. OpenMP's threads sleep while they wait as long as there are more of them
than cores (the libgomp manual under GOMP_SPINCOUNT): a second team of them, which does nothing, suffices. The
threads that calculate stay as many as they are, and with them every digit.
"""

from __future__ import annotations

import contextlib
import functools
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TypeVar

import torch

_LOOK_EVERY_S = 0.2
_BUSY = 0.1
"""Seconds that threads lacked a core, in a second: from here on the machine counts as busy."""
_SHORTEST_S, _LONGEST_S = 1.0, 32.0
"""For how long threads wait asleep before it is tried awake; twice as long after each trial that failed."""
_TRIAL_S = 0.5
_SHARE_OF_A_THREAD = 2**17
"""Numbers of which torch gives some to every thread."""


@functools.cache
def follow_the_machine() -> None:
    """From now on threads wait as it suits the machine. Changes the whole process; no result."""
    if sys.platform == "linux":
        threading.Thread(target=_follow, name="waiting", daemon=True).start()


def _follow() -> None:
    choice, crowd = Choice(), None
    before, then = lacked_s(), time.perf_counter()
    while True:
        time.sleep(_LOOK_EVERY_S)
        lacked, now = lacked_s(), time.perf_counter()
        asleep = lacked is None or before is None or choice.asleep(lacked - before, now - then)
        before, then = lacked, now
        if asleep and crowd is None:
            crowd = Crowd()
        elif not asleep and crowd is not None:
            crowd.leave()
            crowd = None


class Choice:
    """Whether threads are to wait asleep, decided anew at every look."""

    def __init__(self) -> None:
        self._rest_s = _SHORTEST_S
        self._left_s, self._awake_s = 0.0, _TRIAL_S

    def asleep(self, lacked_s: float, passed_s: float) -> bool:
        """Decide.

        Args:
            lacked_s: how long threads, all together, had work and no core since the last look.
            passed_s: time since the last look.
        """
        if self._left_s > 0:
            self._left_s -= passed_s
            self._awake_s = 0.0
            return self._left_s > 0
        self._awake_s += passed_s
        if lacked_s <= _BUSY * passed_s:
            return False
        self._rest_s = min(2 * self._rest_s, _LONGEST_S) if self._awake_s < _TRIAL_S else _SHORTEST_S
        self._left_s = self._rest_s
        return True


class Crowd:
    """OpenMP threads that do nothing: while they are there, all others wait asleep."""

    def __init__(self) -> None:
        self._end, there = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._stay, args=(there,), name="crowd", daemon=True)
        self._thread.start()
        there.wait()

    def _stay(self, there: threading.Event) -> None:
        torch.zeros(torch.get_num_threads() * _SHARE_OF_A_THREAD, dtype=torch.uint8).add_(1)
        there.set()
        self._end.wait()  # OpenMP keeps a thread's team for as long as the thread lives

    def leave(self) -> None:
        """End them."""
        self._end.set()
        self._thread.join()


@contextlib.contextmanager
def asleep() -> Iterator[None]:
    """Threads wait asleep meanwhile, whatever suits the machine."""
    crowd = Crowd() if torch.get_num_threads() > 1 else None
    try:
        yield
    finally:
        if crowd is not None:
            crowd.leave()


def lacked_s() -> float | None:
    """How long the living threads of this process have had work and no core, together; None if unknown."""
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
