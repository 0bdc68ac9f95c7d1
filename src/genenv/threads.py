"""Runs coroutines from synchronous code and blocking work from coroutines, in threads; counts cores."""

from __future__ import annotations

import asyncio
import contextvars
import ctypes
import math
import os
import threading
import time
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, cast

from genenv.sampling import not_blocking

T = TypeVar("T")
_LOOK_S = 0.5
"""Interval at which a waiting thread checks for interrupts, in seconds."""


def cores(root: Path = Path("/")) -> int:
    """Return the number of cores that this process may use, by its affinity and its control groups.

    Args:
        root: folder that contains `proc` and `sys`.
    """
    own = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    for folder in control_groups("cpu", root):
        quota = words_in(folder / "cpu.max")
        quota = quota or words_in(folder / "cpu.cfs_quota_us") + words_in(folder / "cpu.cfs_period_us")
        if quota and quota[0].isdecimal():  # "max" and "-1": no limit
            own = min(own, math.ceil(int(quota[0]) / int(quota[1])))
    return max(1, own)


def control_groups(controller: str, root: Path = Path("/")) -> Iterator[Path]:
    """Yield the folders of the control groups of this process and their parents (Linux; versions 1 and 2).

    Containers and batch systems limit memory and cores there.

    Args:
        controller: `cpu` or `memory`.
        root: folder that contains `proc` and `sys`.
    """
    lines = words_in(root / "proc/self/cgroup", "\n")
    for _, controllers, path in (line.split(":", 2) for line in lines if line.count(":") > 1):
        if controllers and controller not in controllers.split(","):
            continue
        top = root / "sys/fs/cgroup" / (controller if controllers else "")
        own = top / path.lstrip("/")
        yield from (folder for folder in (own, *own.parents) if folder.is_relative_to(top))


def words_in(file: Path, between: str | None = None) -> list[str]:
    """Return the words of a file of the system, or its parts between separators; none if it is missing."""
    try:
        return file.read_text("utf-8").split(between)
    except OSError:
        return []


class CallTimeout(BaseException):
    """Raised when a call exceeds its time limit. No `Exception`: code that hangs does not catch it."""


def run_with_own_loop(work: Callable[[], T]) -> T:
    """Run work that starts an event loop. If a loop is already running, run the work in a new thread.

    An interrupt (Ctrl-C, a notebook's stop button) ends the work, also in the thread.

    Args:
        work: the function to call.

    Returns:
        The result of `work`. An exception of `work` is raised again.
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
    """An interruptible thread that stores the exception of its work."""

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

    def wait(self, limit_s: float = float("inf")) -> bool:
        """Wait until the work has ended; return whether it has, within the limit.

        `join` cannot be used: after an interrupt it returns too early.
        """
        end = time.monotonic() + limit_s
        while not self._ended.wait(max(0.0, min(_LOOK_S, end - time.monotonic()))):
            if time.monotonic() >= end:
                return False
        return True

    def interrupt(self) -> None:
        """Raise KeyboardInterrupt in the thread before its next instruction."""
        if self.ident is not None:
            ctypes.pythonapi.PyThreadState_SetAsyncExc(
                ctypes.c_ulong(self.ident), ctypes.py_object(KeyboardInterrupt)
            )


def run_coroutine(make: Callable[[], Coroutine[Any, Any, T]], limit_s: float) -> T:
    """Run a coroutine to completion from synchronous code, with a timeout.

    It runs in a new thread with a new event loop, because loops cannot be nested.

    Raises:
        TimeoutError: the limit has passed. The thread is interrupted, see `run_in_thread`.
    """
    try:
        return run_in_thread(lambda: asyncio.run(make()), limit_s)
    except CallTimeout:
        raise TimeoutError(f"no answer within {limit_s:g} s") from None


def run_in_thread(work: Callable[[], T], limit_s: float) -> T:
    """Run work in a new thread, with the caller's context variables and a timeout. It costs about 0.1 ms.

    A thread cannot be killed. One that exceeds the limit is interrupted before its next instruction, which
    ends a loop; a call into the system that never returns stays in the background.

    Raises:
        CallTimeout: the limit has passed.
    """
    done: list[T] = []
    context = contextvars.copy_context()
    thread = _Thread(lambda: done.append(context.run(work)))
    thread.start()
    try:
        ended = thread.wait(limit_s)
    except KeyboardInterrupt:
        thread.interrupt()
        raise
    if not ended:
        thread.interrupt()
        raise CallTimeout
    if thread.error is not None:
        raise thread.error
    return done[0]


def without_loop(work: Callable[[], T]) -> T:
    """Call synchronous work as if no event loop ran in this thread, so that it may start one of its own.

    The running loop waits meanwhile, as for any call that blocks.
    """
    running = asyncio._get_running_loop()
    if running is None:
        return work()
    swap: Callable[..., Any] | None = getattr(asyncio.tasks, "_swap_current_task", None)  # from Python 3.12
    task = None
    try:
        task = swap(running, None) if swap is not None else None
        asyncio._set_running_loop(None)
        return work()
    finally:
        asyncio._set_running_loop(running)
        if swap is not None:
            swap(running, task)


class _LoopThread:
    """An event loop that runs in a thread of its own until this object is deleted."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = _Thread(partial(_run_and_close, self.loop))
        self.thread.start()

    def give_up(self, future: Future[Any]) -> bool:
        """Cancel a coroutine that takes too long; return whether the loop goes on.

        Code that never comes back to the loop is interrupted, which ends the loop.
        """
        future.cancel()
        goes_on = threading.Event()
        with suppress(RuntimeError):  # of a closed loop
            self.loop.call_soon_threadsafe(goes_on.set)
        if goes_on.wait(_LOOK_S):
            return True
        self.stop()
        self.thread.interrupt()
        return False

    def stop(self) -> None:
        """End the loop as soon as it is free."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(self.loop.stop)

    def __del__(self) -> None:
        self.stop()


_own = threading.local()
"""The `_LoopThread` of each thread that has called `run_in_loop`."""


def run_in_loop(coming: Coroutine[Any, Any, T], limit_s: float) -> T:
    """Run a coroutine to completion from synchronous code, with a timeout.

    All calls of a thread have one event loop: clients that a user's code keeps between calls are bound to the
    loop in which they were used first. If code blocks the loop until the limit, the next call has a new one.

    Raises:
        CallTimeout: the limit has passed.
    """
    running: _LoopThread | None = getattr(_own, "running", None)
    if running is None or not running.thread.is_alive():  # as in a forked process
        running = _own.running = _LoopThread()
    future = asyncio.run_coroutine_threadsafe(_kept(coming), running.loop)
    try:
        found, error = future.result(limit_s)
    except BaseException as problem:
        if not running.give_up(future):
            del _own.running
        if isinstance(problem, TimeoutError):
            raise CallTimeout from None
        raise
    if error is not None:
        raise error
    return cast(T, found)


def _run_and_close(loop: asyncio.AbstractEventLoop) -> None:
    """Run a loop until it is stopped; what it has not finished is cancelled."""
    try:
        loop.run_forever()
    finally:
        try:
            left = asyncio.all_tasks(loop)
            for task in left:
                task.cancel()
            loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        finally:
            loop.close()


async def _kept(coming: Coroutine[Any, Any, T]) -> tuple[T | None, BaseException | None]:
    """Return what a coroutine returns or raises: SystemExit would end the loop of other calls."""
    try:
        return await coming, None
    except asyncio.CancelledError:
        raise
    except BaseException as error:  # noqa: BLE001 - it is raised where the call was made
        return None, error


class WorkerThread:
    """Runs blocking coroutines in one worker thread, so that the event loop can go on with remote sampling.

    The coroutines run one after another. A cancelled one runs to its end, but its result is dropped.
    """

    def __init__(self, name: str) -> None:
        """Prepare the worker; its thread starts with the first coroutine.

        Args:
            name: prefix of the thread's name.
        """
        self._name = name
        self._thread: ThreadPoolExecutor | None = None

    async def run(self, make: Callable[[], Coroutine[Any, Any, T]]) -> T:
        """Run a new coroutine in the worker thread, in a copy of the caller's context; return its result."""
        context = contextvars.copy_context()
        if self._thread is None:
            self._thread = ThreadPoolExecutor(max_workers=1, thread_name_prefix=self._name)

        def there() -> T:
            with not_blocking():
                return asyncio.run(make())

        return await asyncio.get_running_loop().run_in_executor(self._thread, context.run, there)

    def close(self) -> None:
        """Wait for the running coroutine and end the thread. A later `run` starts another thread."""
        if self._thread is not None:
            self._thread.shutdown(cancel_futures=True)
            self._thread = None
