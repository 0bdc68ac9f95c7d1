"""One thread for a model: work in the order in which it came, requests that wait together as one batch."""

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
"""Requests are waited for until none has come for so long, at most for so long."""


class _Batch(NamedTuple):
    """Requests that wait to be answered together, each with the future of its answer."""

    answer: Callable[[Sequence[Any]], Sequence[Any]]
    requests: list[tuple[Any, asyncio.Future[Any]]]


class Worker:
    """Works in one thread, for one event loop."""

    def __init__(self, name: str, failed: Callable[[BaseException], Any], slow_s: float = 0.0) -> None:
        """Start the thread.

        Args:
            name: of the thread.
            failed: makes of an error what its future gets; an exception is raised there.
            slow_s: seconds that go by before each piece of work: a server that is far, or larger.
        """
        self._failed, self._slow_s = failed, slow_s
        self._ready: deque[_Batch | str] = deque()
        """Pieces of work, and keys of batches that still grow, in the order in which they came."""
        self._batches: dict[str, _Batch] = {}
        self._something = asyncio.Event()
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name=name, daemon=True).start()

    def put(self, work: Callable[[], T], done: asyncio.Future[T]) -> None:
        """Have something done in its turn; what comes of it is the result of `done`."""

        def answer(_: Sequence[Any]) -> list[T]:
            return [work()]

        self._ready.append(_Batch(answer, [(None, done)]))
        self._something.set()

    def sample(
        self, key: str, answer: Callable[[Sequence[Q]], Sequence[T]], request: Q, done: asyncio.Future[T]
    ) -> None:
        """Have a request answered, with all that wait under the same key at that time.

        Args:
            key: names the weights.
            answer: answers requests; where it fails each is answered alone.
            request: what is wanted.
            done: gets the answer.
        """
        if key not in self._batches:
            self._batches[key] = _Batch(answer, [])
            self._ready.append(key)
            self._something.set()
        self._batches[key].requests.append((request, done))

    async def do(self, work: Callable[[], T]) -> T:
        """What comes of work that is done in its turn."""
        done: asyncio.Future[T] = asyncio.get_running_loop().create_future()
        self.put(work, done)
        return await done

    async def run(self) -> None:
        """Work until cancelled."""
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
        """End the thread, once it has done what it is at."""
        self._tasks.put(None)

    async def aside(self, function: Callable[[], T]) -> T:
        """The result of a function that runs in the thread next."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[T] = loop.create_future()

        def task() -> None:
            try:
                found = function()
            except BaseException as error:  # noqa: BLE001 - handed on to whoever waits
                found = error
            with contextlib.suppress(RuntimeError):  # the loop has ended
                loop.call_soon_threadsafe(_settle, done, found)

        self._tasks.put(task)
        return await done

    async def _grown(self, key: str) -> _Batch:
        """A batch, once no more requests come for it."""
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
        """Answers to requests. Where the batch fails each runs alone, so that the others are answered."""
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
    """Give a future its result; one whose owner has gone is left alone."""
    if done.done():
        return
    if isinstance(found, BaseException):
        done.set_exception(found)
    else:
        done.set_result(found)
