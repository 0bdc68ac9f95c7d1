"""A worker thread for a model: runs work in order of arrival, and batches requests that wait together."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, TypeVar

T = TypeVar("T")
Q = TypeVar("Q")

_QUIET_S, _PATIENCE_S = 0.004, 0.05
"""Seconds without a new request after which a batch is closed, and the most seconds that it stays open."""
_CLOSING_S = 5.0
"""Seconds for which the end of the thread is waited for."""


class _Batch(NamedTuple):
    """Requests that are answered by one call, each with the future of its answer."""

    answer: Callable[[Sequence[Any]], Sequence[Any]]
    requests: list[tuple[Any, asyncio.Future[Any]]]


class Worker:
    """Runs work for a model in one thread, submitted from one event loop; both HTTP servers use it."""

    def __init__(self, name: str, failed: Callable[[BaseException], Any], slow_s: float = 0.0) -> None:
        """Start the thread.

        Args:
            name: the name of the thread.
            failed: maps an exception to the answer of the request; an exception it returns is raised by the
                future.
            slow_s: seconds to wait before each piece of work, to imitate a slower server.
        """
        self._failed, self._slow_s = failed, slow_s
        self._ready: deque[_Batch | str] = deque()
        """Pieces of work, and keys of batches that still take requests, in order of arrival."""
        self._batches: dict[str, _Batch] = {}
        self._something = asyncio.Event()
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._work, name=name, daemon=True)
        self._thread.start()

    def put(self, work: Callable[[], T], done: asyncio.Future[T]) -> None:
        """Queue a function; `done` gets its result."""

        def answer(_: Sequence[Any]) -> list[T]:
            return [work()]

        self._ready.append(_Batch(answer, [(None, done)]))
        self._something.set()

    def sample(
        self, key: str, answer: Callable[[Sequence[Q]], Sequence[T]], request: Q, done: asyncio.Future[T]
    ) -> None:
        """Queue a request, to be answered in one batch with all waiting requests of the same key.

        Args:
            key: identifies the weights.
            answer: answers a batch of requests; if it fails, each request is answered separately.
            request: the request, in a form that `answer` takes.
            done: the future that gets the answer.
        """
        if key not in self._batches:
            self._batches[key] = _Batch(answer, [])
            self._ready.append(key)
            self._something.set()
        self._batches[key].requests.append((request, done))

    async def do(self, work: Callable[[], T]) -> T:
        """Queue a function and return its result."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.put(work, done)
        return await done

    async def run(self) -> None:
        """Process queued work until cancelled."""
        while True:
            await self._something.wait()
            while self._ready:
                first = self._ready.popleft()
                if self._slow_s:
                    await asyncio.sleep(self._slow_s)
                answer, requests = first if isinstance(first, _Batch) else await self._grown(first)
                asked = [request for request, _ in requests]
                found = await self.aside(functools.partial(self._answers, answer, asked))
                for (_, done), one in zip(requests, found, strict=True):
                    _settle(done, one)
            self._something.clear()

    def close(self) -> None:
        """End the thread after its current work, and wait some seconds for that.

        An interpreter that ends while a thread is in torch aborts.
        """
        self._tasks.put(None)
        self._thread.join(_CLOSING_S)

    async def aside(self, function: Callable[[], T]) -> T:
        """Run a function in the thread, ahead of queued requests, and return its result."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def task() -> None:
            try:
                found = function()
            except BaseException as error:  # noqa: BLE001 - handed on to whoever waits
                found = error
            with contextlib.suppress(RuntimeError):  # the event loop is closed
                loop.call_soon_threadsafe(_settle, done, found)

        self._tasks.put(task)
        return await done

    async def _grown(self, key: str) -> _Batch:
        """Return a batch once no new requests arrive for it."""
        requests = self._batches[key].requests
        for _ in range(round(_PATIENCE_S / _QUIET_S)):
            before = len(requests)
            await asyncio.sleep(_QUIET_S)
            if len(requests) == before:
                break
        return self._batches.pop(key)

    def _answers(
        self, answer: Callable[[Sequence[Any]], Sequence[Any]], requests: Sequence[Any]
    ) -> list[Any]:
        """Answer a batch of requests; if that fails, answer each separately."""
        try:
            return list(answer(requests))
        except BaseException as error:  # noqa: BLE001 - libraries in Rust raise those, too
            if len(requests) == 1:
                return [self._failed(error)]
            return [found for one in requests for found in self._answers(answer, [one])]

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()


def _settle(done: asyncio.Future[Any], found: Any) -> None:  # noqa: ANN401
    """Set the result or exception of a future, unless it is done already (its owner cancelled it)."""
    if done.done():
        return
    if isinstance(found, BaseException):
        done.set_exception(found)
    else:
        done.set_result(found)
