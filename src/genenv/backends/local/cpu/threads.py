# pyright: standard
"""How CPU threads wait for each other, and a timer of processor time for busy machines.

Every product of a sampling step ends with threads that wait for the last one. GNU OpenMP, which torch uses on
Linux, lets them spin for up to about ten milliseconds. That is fastest if each thread has a core. If another
process is busy, a thread now and then has no core. The others then spin for whole scheduler ticks, at product
after product, and a step takes ten times as long. Sleeping threads free their core for other work, but waking
them costs a third of the speed on an idle machine.

So the choice follows the machine. OpenMP's threads sleep while they wait if there are more of them than cores
(the libgomp manual under GOMP_SPINCOUNT). A second team of idle threads suffices for that. The number of
computing threads stays the same, and with it every digit of the results.
"""

from __future__ import annotations

import atexit
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
"""Seconds per second in which threads had no core; above this, the machine counts as busy."""
_SHORTEST_S, _LONGEST_S = 1.0, 32.0
"""How long threads sleep while waiting before spinning is tried again; doubled after each failed trial."""
_TRIAL_S = 0.5
_SHARE_OF_A_THREAD = 2**17
"""Minimum elements per thread of an operation that torch runs on all threads."""


@functools.cache
def follow_the_machine() -> None:
    """Start a thread that switches between spinning and sleeping, for the whole process (Linux).

    It ends before the interpreter does. Python ends a thread that comes back from torch later by unwinding
    C++ code that must not be unwound, and the whole process aborts ("terminate called without an active
    exception").
    """
    if sys.platform != "linux":
        return
    end = threading.Event()
    thread = threading.Thread(target=_follow, args=(end,), name="waiting", daemon=True)
    thread.start()

    def stop() -> None:
        end.set()
        thread.join()

    atexit.register(stop)


def _follow(end: threading.Event) -> None:
    choice, crowd = Choice(), None
    before, then = lacked_s(), time.perf_counter()
    while not end.wait(_LOOK_EVERY_S):
        lacked, now = lacked_s(), time.perf_counter()
        asleep = lacked is None or before is None or choice.asleep(lacked - before, now - then)
        before, then = lacked, now
        if asleep and crowd is None:
            crowd = Crowd()
        elif not asleep and crowd is not None:
            crowd.leave()
            crowd = None
    if crowd is not None:
        crowd.leave()


class Choice:
    """Decides from measurements whether threads should sleep while they wait."""

    def __init__(self) -> None:
        self._rest_s = _SHORTEST_S
        self._left_s, self._awake_s = 0.0, _TRIAL_S

    def asleep(self, lacked_s: float, passed_s: float) -> bool:
        """Return whether threads should sleep from now on.

        Args:
            lacked_s: total time since the last call in which threads had work but no core, seconds.
            passed_s: time since the last call, seconds.
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
    """A team of idle OpenMP threads; while it exists, all other OpenMP threads sleep while they wait."""

    def __init__(self) -> None:
        self._end, there = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._stay, args=(there,), name="crowd", daemon=True)
        self._thread.start()
        there.wait()

    def _stay(self, there: threading.Event) -> None:
        try:
            torch.zeros(torch.get_num_threads() * _SHARE_OF_A_THREAD, dtype=torch.uint8).add_(1)
        finally:
            there.set()
        self._end.wait()  # OpenMP keeps a thread's team as long as the thread lives

    def leave(self) -> None:
        """End the team."""
        self._end.set()
        self._thread.join()


@contextlib.contextmanager
def asleep() -> Iterator[None]:
    """Context manager: threads sleep while they wait, whatever suits the machine."""
    crowd = Crowd() if torch.get_num_threads() > 1 else None
    try:
        yield
    finally:
        if crowd is not None:
            crowd.leave()


def lacked_s() -> float | None:
    """Return the total time that living threads had work but no core, seconds; None if unknown."""
    total_ns = 0
    try:
        for task in Path("/proc/self/task").iterdir():
            try:
                total_ns += int((task / "schedstat").read_text(encoding="ascii").split()[1])
            except ProcessLookupError:  # the thread has ended meanwhile
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
    """Return for each work the smallest processor time, of all threads together, over many runs.

    Wall time would depend on other processes: two threads that must wait for each other then look slower than
    one. Processor time hardly changes if threads sleep while they wait, as they do in this measurement. The
    minimum over many runs excludes the cost of emptied caches.

    Args:
        works: functions by name; the first run of each is not timed. Each is equally often the first of a
            round.
        budget_s: wall time of all runs together, seconds; `FEWEST_TURNS` rounds are made in any case.
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
