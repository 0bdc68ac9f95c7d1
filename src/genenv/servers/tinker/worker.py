"""One thread for all heavy work.

Requests to one model are worked in the order of their numbers; completions that wait together are sampled
together.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import queue
import threading
from collections import deque
from collections.abc import Callable, Sequence
from typing import NamedTuple, TypeVar

from genenv.backends.served import PromptRequest, PromptResult
from genenv.errors import GenenvError, out_of_memory
from genenv.servers.tinker.replies import Drew, Failed, Reply

log = logging.getLogger(__name__)

_Result = TypeVar("_Result")
Work = Callable[[], Reply]
Answer = Callable[[Sequence[PromptRequest]], list[PromptResult]]

_QUIET_S, _PATIENCE_S = 0.004, 0.05
"""Completions are waited for until none has come for so long, at most for so long."""
_GAP_S = 330.0
"""A request whose predecessor has not come by then fails: clients try for five minutes to send one."""


_MOST_EARLY = 8192
"""So many refused requests to a model are remembered, so that others do not wait for them."""


class _Todo(NamedTuple):
    work: Work
    done: asyncio.Future[Reply]


class Worker:
    """What is ready is worked in the order in which it became ready. For one event loop."""

    def __init__(self, slow_s: float = 0.0) -> None:
        """A worker; `slow_s` seconds go by before each piece of work."""
        self._slow_s = slow_s
        self._ready: deque[_Todo | str] = deque()
        self._waiting: dict[str, tuple[Answer, list[tuple[PromptRequest, asyncio.Future[Reply]]]]] = {}
        self._something = asyncio.Event()
        self._tasks: queue.SimpleQueue[Callable[[], None] | None] = queue.SimpleQueue()
        threading.Thread(target=self._work, name="tinker-server", daemon=True).start()

    def put(self, work: Work, done: asyncio.Future[Reply]) -> None:
        """Have something worked; what comes of it is the result of `done`."""
        self._ready.append(_Todo(work, done))
        self._something.set()

    def sample(self, key: str, answer: Answer, asked: PromptRequest, done: asyncio.Future[Reply]) -> None:
        """Have completions sampled, with all that wait under the same key at that time.

        Args:
            key: names the weights.
            answer: samples with them.
            asked: what is wanted.
            done: gets what comes of it.
        """
        if key not in self._waiting:
            self._waiting[key] = answer, []
            self._ready.append(key)
            self._something.set()
        self._waiting[key][1].append((asked, done))

    async def run(self) -> None:
        """Work until cancelled."""
        while True:
            await self._something.wait()
            while self._ready:
                first = self._ready.popleft()
                if self._slow_s:
                    await asyncio.sleep(self._slow_s)
                if isinstance(first, str):
                    await self._sample(first)
                else:
                    _settle(first.done, await self.aside(functools.partial(outcome, first.work)))
            self._something.clear()

    def close(self) -> None:
        """End the thread, once it has done what it is at."""
        self._tasks.put(None)

    async def aside(self, function: Callable[[], _Result]) -> _Result:
        """The result of a function that runs in the thread."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[_Result] = loop.create_future()

        def task() -> None:
            try:
                found = function()
            except BaseException as error:  # noqa: BLE001 - handed on to whoever waits
                _call(loop, done.set_exception, error)
            else:
                _call(loop, done.set_result, found)

        self._tasks.put(task)
        return await done

    async def _sample(self, key: str) -> None:
        _, requests = self._waiting[key]
        for _ in range(round(_PATIENCE_S / _QUIET_S)):
            before = len(requests)
            await asyncio.sleep(_QUIET_S)
            if len(requests) == before:
                break
        answer, requests = self._waiting.pop(key)
        asked = [one for one, _ in requests]
        found = await self.aside(lambda: _answers(answer, asked))
        for (_, done), reply in zip(requests, found, strict=True):
            _settle(done, reply)

    def _work(self) -> None:
        while (task := self._tasks.get()) is not None:
            task()


class Line:
    """Requests to one model: each waits until those with smaller numbers are on their way."""

    def __init__(self, worker: Worker) -> None:
        self._worker, self._next = worker, 1
        self._early: dict[int, tuple[Work, asyncio.Future[Reply]]] = {}

    def put(self, number: int | None, work: Work, done: asyncio.Future[Reply]) -> None:
        """Have a request worked in its turn; one without a number, at once."""
        if number is None or number < self._next:
            self._worker.put(work, done)
            return
        self._early[number] = work, done
        while self._next in self._early:
            self._worker.put(*self._early.pop(self._next))
            self._next += 1
        if self._early:
            asyncio.get_running_loop().call_later(_GAP_S, self._give_up, self._next)

    def skip(self, number: int | None) -> None:
        """A request was refused: those after it do not wait for it."""
        if number is not None and number >= self._next and len(self._early) < _MOST_EARLY:
            loop = asyncio.get_running_loop()
            self.put(number, lambda: Failed(error="refused"), loop.create_future())

    def _give_up(self, missing: int) -> None:
        """Fail what waits for a request that has not come."""
        if missing != self._next or not self._early:
            return
        for number in sorted(self._early):
            _, done = self._early.pop(number)
            _settle(done, Failed(error=f"request {missing} never came, which request {number} waited for"))
            self._next = number + 1


def outcome(work: Work) -> Reply:
    """What comes of work, errors included: what the client can mend in one sentence, all else logged."""
    try:
        return work()
    except GenenvError as error:
        return Failed(error=str(error))
    except (RuntimeError, MemoryError) as error:
        if not out_of_memory(error):
            return _fault(error)
        return Failed(
            error="memory ran out, also with smaller batches; send fewer or shorter sequences",
            category="server",
        )
    except Exception as error:  # noqa: BLE001 - one request must not end the server
        return _fault(error)


def _fault(error: Exception) -> Failed:
    log.error("a request failed", exc_info=error)
    return Failed(error=f"a fault of the server: {type(error).__name__}: {error}", category="server")


def _answers(answer: Answer, asked: Sequence[PromptRequest]) -> list[Reply]:
    """Answers to requests; where the batch fails, each alone."""

    def whole() -> list[Reply]:
        return [Drew(answered=one) for one in answer(asked)]

    try:
        return whole()
    except (GenenvError, RuntimeError, MemoryError):
        return [outcome(lambda one=one: Drew(answered=answer([one])[0])) for one in asked]


def _settle(done: asyncio.Future[Reply], reply: Reply) -> None:
    if not done.done():
        done.set_result(reply)


def _call(loop: asyncio.AbstractEventLoop, function: Callable[[_Result], None], value: _Result) -> None:
    """Call something in the event loop, unless that has ended."""
    if not loop.is_closed():
        loop.call_soon_threadsafe(lambda: function(value))
