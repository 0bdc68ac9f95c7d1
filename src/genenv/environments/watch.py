"""A limit on how long a piece of somebody else's code may take, where the system has timers for that.

The alarm rings in the main thread and ends what runs there, also a loop that never waits. Without such an
alarm (another thread, Windows) nothing is limited.
"""

from __future__ import annotations

import contextlib
import functools
import signal
import threading
import types
from collections.abc import Callable, Coroutine, Generator
from types import FrameType
from typing import Any, Self

LIMIT_S = 120.0
"""Seconds that one call of an environment, or one turn of its episode, may take."""


class CallTimeout(Exception):
    """The call took too long."""


class Watch:
    """Ends what runs inside `with` after so many seconds. Not for use inside itself."""

    def __init__(self, limit_s: float) -> None:
        self._limit_s = limit_s
        self._paused = False

    def __enter__(self) -> Self:
        """The time begins."""
        self._before = signal.getsignal(signal.SIGALRM) if _can_ring() else None
        if self._before is not None and not self._paused:
            signal.signal(signal.SIGALRM, _ring)
            signal.setitimer(signal.ITIMER_REAL, self._limit_s)
        return self

    def __exit__(self, *_: object) -> None:
        """It is over."""
        if self._before is not None:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, self._before)

    @contextlib.contextmanager
    def pause(self) -> Generator[None]:
        """What runs inside is not watched, though what is calls it; afterwards the time begins anew."""
        self._paused = True
        if _can_ring():
            signal.setitimer(signal.ITIMER_REAL, 0)
        try:
            yield
        finally:
            self._paused = False
            if _can_ring():
                signal.signal(signal.SIGALRM, _ring)
                signal.setitimer(signal.ITIMER_REAL, self._limit_s)

    @types.coroutine
    def steps(self, coroutine: Coroutine[Any, Any, None]) -> Generator[Any, Any, None]:
        """Await a coroutine, its every step watched; while it waits, others may run and are not."""
        step: Callable[[], Any] = functools.partial(coroutine.send, None)
        while True:
            try:
                with self:
                    waits_for = step()
            except StopIteration:
                return
            try:
                step = functools.partial(coroutine.send, (yield waits_for))
            except BaseException as error:  # noqa: BLE001 - a cancellation, say: it is the coroutine's
                step = functools.partial(coroutine.throw, error)


def _can_ring() -> bool:
    return hasattr(signal, "setitimer") and threading.current_thread() is threading.main_thread()


def _ring(number: int, frame: FrameType | None) -> None:
    raise CallTimeout
