"""Runs work that has an event loop of its own from wherever it is called, a notebook's cell too."""

from __future__ import annotations

import asyncio
import ctypes
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")
_LOOK_S = 0.5
"""So often an interrupt is looked for that does not wake a thread that waits."""


def apart(work: Callable[[], T]) -> T:
    """Do work that runs an event loop of its own; where one runs already, in a thread beside it.

    An interrupt (Ctrl-C, a notebook's stop button) ends the work, in the thread too.

    Args:
        work: what is done.

    Returns:
        What it returns; what it raises is raised.
    """
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return work()
    found: list[T] = []
    thread = _Thread(lambda: found.append(work()))
    thread.start()
    try:
        thread.wait()
    except KeyboardInterrupt:
        thread.interrupt()
        thread.wait()
        raise
    if thread.error is not None:
        raise thread.error
    return found[0]


class _Thread(threading.Thread):
    """A thread whose error is kept, and that can be interrupted."""

    def __init__(self, work: Callable[[], None]) -> None:
        super().__init__(name="genenv", daemon=True)
        self._work = work
        self.error: BaseException | None = None
        self._ended = threading.Event()

    def run(self) -> None:
        """Do the work."""
        try:
            self._work()
        except BaseException as error:  # noqa: BLE001 - it is raised where the work was asked for
            self.error = error
        finally:
            self._ended.set()

    def wait(self) -> None:
        """Until the work has ended. After an interrupt `join` would say that it has."""
        while not self._ended.wait(_LOOK_S):
            pass

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the thread, before its next instruction."""
        if self.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self.ident), ctypes.py_object(KeyboardInterrupt)
            )
