"""Blocking work and event loops in threads, so that either can be called from the other."""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import threading
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from genenv.sampling import not_blocking

T = TypeVar("T")
_LOOK_S = 0.5
"""So often an interrupt is looked for that does not wake a thread that waits."""


def run_with_own_loop(work: Callable[[], T]) -> T:
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


def run_coroutine(make: Callable[[], Coroutine[Any, Any, T]], limit_s: float) -> T:
    """Run a coroutine to completion from synchronous code, with a timeout.

    It runs in a thread with a loop of its own: where a loop runs already, no second one can be run in it.

    Raises:
        TimeoutError: it took longer; its thread goes on, and nobody waits for it.
    """
    done: list[T] = []
    thread = _Thread(lambda: done.append(asyncio.run(make())))
    thread.start()
    thread.join(limit_s)
    if thread.error is not None:
        raise thread.error
    if not done:
        raise TimeoutError(f"no answer within {limit_s:g} s")
    return done[0]


class WorkerThread:
    """Runs blocking coroutines in one worker thread, so that the event loop goes on with remote sampling.

    They run one after the other. One that is cancelled runs to its end, and nobody waits for it.
    """

    def __init__(self, name: str) -> None:
        """A thread, which begins with the first that is to do in it.

        Args:
            name: of the thread.
        """
        self._name = name
        self._thread: ThreadPoolExecutor | None = None

    async def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """The result of a coroutine that is made and run there, in the context from here."""
        context = contextvars.copy_context()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=self._name)

        def there() -> T:
            with not_blocking():
                return asyncio.run(make())

        return await asyncio.get_running_loop().run_in_executor(self._thread, context.run, there)

    def close(self) -> None:
        """Wait for what is being done there, and end the thread; what comes later begins another one."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
            self._thread = None
