"""One thread for the model: requests that come while it is busy, or within a moment, run as one batch."""

from __future__ import annotations

import asyncio
import logging
import queue
import threading
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple, TypeVar

from genenv.errors import GenenvError, first_line
from genenv.sampling import Completion, SampleRequest

if TYPE_CHECKING:
    from genenv.backends.local.served.models import LoadedBase

log = logging.getLogger(__name__)

Result = TypeVar("Result")

_QUIET_S, _PATIENCE_S = 0.004, 0.05
"""Requests are waited for until none has come for so long, at most for so long."""


_END = object()


class Fault(GenenvError):
    """The server failed, not the request."""


class _Asked(NamedTuple):
    adapter: str
    request: SampleRequest
    settle: Callable[[Completion | BaseException], None]


class _Aside(NamedTuple):
    work: Callable[[], None]


class Worker:
    """Samples with a base, and loads its adapters, in a thread."""

    def __init__(self, base: LoadedBase, slow_s: float = 0.0) -> None:
        """A worker.

        Args:
            base: what samples.
            slow_s: seconds that go by before each batch: a server that is far, or larger.
        """
        self._base, self._slow_s = base, slow_s
        self._waiting: queue.SimpleQueue[_Asked | _Aside | None] = queue.SimpleQueue()
        threading.Thread(target=self._run, name="genenv-serve", daemon=True).start()

    async def sample(self, adapter: str, request: SampleRequest) -> Completion:
        """One completion. Raises what sampling raises."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Completion] = loop.create_future()
        self._waiting.put(_Asked(adapter, request, _settling(loop, done)))
        return await done

    async def aside(self, function: Callable[[], Result]) -> Result:
        """The result of a function that runs between batches."""
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Result] = loop.create_future()
        settle = _settling(loop, done)

        def work() -> None:
            try:
                settle(function())
            except BaseException as error:  # noqa: BLE001 - handed on to whoever waits
                settle(_told(error))

        self._waiting.put(_Aside(work))
        return await done

    def close(self) -> None:
        """End the thread, once it has done what it is at."""
        self._waiting.put(None)

    def _run(self) -> None:
        while (first := self._waiting.get()) is not None:
            if isinstance(first, _Aside):
                first.work()
                continue
            batch, after = self._batch(first)
            self._sample(batch)
            if isinstance(after, _Aside):
                after.work()
            elif after is _END:
                return

    def _batch(self, first: _Asked) -> tuple[list[_Asked], _Aside | object | None]:
        """Requests that come one after the other, and what came between them and the next."""
        batch, until = [first], time.monotonic() + _PATIENCE_S
        while time.monotonic() < until:
            try:
                other = self._waiting.get(timeout=_QUIET_S)
            except queue.Empty:
                break
            if not isinstance(other, _Asked):
                return batch, _END if other is None else other
            batch.append(other)
        return batch, None

    def _sample(self, batch: list[_Asked]) -> None:
        if self._slow_s:
            time.sleep(self._slow_s)
        by_adapter: defaultdict[str, list[_Asked]] = defaultdict(list)
        for one in batch:
            by_adapter[one.adapter].append(one)
        for adapter, asked in by_adapter.items():
            for one, completion in zip(asked, self._completions(adapter, asked), strict=True):
                one.settle(completion)

    def _completions(self, adapter: str, asked: Sequence[_Asked]) -> Sequence[Completion | BaseException]:
        """Answers to requests. Where the batch fails each runs alone, so that the others are answered."""
        try:
            return self._base.sample(adapter, [one.request for one in asked])
        except BaseException as error:  # noqa: BLE001 - libraries in Rust raise those, too
            if len(asked) > 1:
                return [found for one in asked for found in self._completions(adapter, [one])]
            return [_told(error)]


def _told(error: BaseException) -> GenenvError:
    """An error as whoever waits is to have it; a fault of the server is logged, too."""
    if isinstance(error, GenenvError):
        return error
    log.error("a request failed", exc_info=error)
    return Fault(f"a fault of the server: {type(error).__name__}: {first_line(error)}")


def _settling(
    loop: asyncio.AbstractEventLoop, done: asyncio.Future[Result]
) -> Callable[[Result | BaseException], None]:
    """Sets the result of a future of another thread's loop; one who has gone is not told."""

    def settle(found: Result | BaseException) -> None:
        def told() -> None:
            if done.done():
                return
            if isinstance(found, BaseException):
                done.set_exception(found)
            else:
                done.set_result(found)

        try:
            loop.call_soon_threadsafe(told)
        except RuntimeError:  # the loop has ended
            return

    return settle
