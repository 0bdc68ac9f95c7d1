"""One thread for all: completions that wait together are one batch, and what fails fails alone."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Coroutine, Sequence
from typing import Any

import numpy as np
import pytest

from genenv.backends.served import ForwardResult, PromptRequest, PromptResult
from genenv.errors import UsageError
from genenv.servers.tinker import sessions as module
from genenv.servers.tinker.replies import FailedReply, JsonReply, Reply, SampledReply, TooMuch, TrainReply
from genenv.servers.tinker.sessions import Futures, RequestOrder
from genenv.servers.worker import Worker


def working(test: Any) -> None:
    """Run a test beside a worker."""

    async def both() -> None:
        worker = Worker("tinker-server", FailedReply.of)
        task = asyncio.create_task(worker.run())
        try:
            await test(worker)
        finally:
            task.cancel()
            worker.close()

    asyncio.run(both())


def future() -> asyncio.Future[Reply]:
    return asyncio.get_running_loop().create_future()


def test_what_waits_together_is_sampled_together_and_fails_alone() -> None:
    batches: list[int] = []

    def answer(asked: Sequence[PromptRequest]) -> list[Reply]:
        batches.append(len(asked))
        if any(one.prompt_ids == (13,) for one in asked):
            raise UsageError("no thirteen")
        return [SampledReply(answered=PromptResult(sequences=())) for _ in asked]

    async def test(worker: Worker) -> None:
        good = [future() for _ in range(5)]
        for done in good:
            worker.sample("a", answer, PromptRequest(prompt_ids=(1,)), done)
        assert [type(await done) for done in good] == [SampledReply] * 5
        assert batches == [5]
        mixed = [future() for _ in range(3)]
        for number, done in zip((1, 13, 2), mixed, strict=True):
            worker.sample("a", answer, PromptRequest(prompt_ids=(number,)), done)
        found = [await done for done in mixed]
        assert [isinstance(one, FailedReply) for one in found] == [False, True, False]
        assert batches == [5, 3, 1, 1, 1]

    working(test)


def test_the_order_is_that_of_the_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_GAP_S", 0.2)
    done: list[int] = []

    async def test(worker: Worker) -> None:
        line, futures = RequestOrder(worker), {}

        def put(number: int) -> None:
            def work() -> Reply:
                done.append(number)
                return JsonReply(json={})

            futures[number] = future()
            line.put(number, work, futures[number])

        put(3)
        line.skip(3)  # another request with its number is refused: the one that waits stays
        put(2)
        put(1)
        line.skip(4)
        put(5)
        await futures[5]
        assert done == [1, 2, 3, 5]
        put(7)  # 6 never comes
        lost = await futures[7]
        assert isinstance(lost, FailedReply)
        assert lost.error == "request 6 never came, which request 7 waited for"
        put(8)
        await futures[8]
        assert done == [1, 2, 3, 5, 8]

    working(test)


def test_a_fault_is_told_and_the_worker_goes_on(caplog: pytest.LogCaptureFixture) -> None:
    def fault() -> Reply:
        raise ZeroDivisionError("x / 0")

    async def test(worker: Worker) -> None:
        first, second = future(), future()
        worker.put(fault, first)
        worker.put(lambda: JsonReply(json={"thread": threading.current_thread().name}), second)
        found = await first
        assert isinstance(found, FailedReply)
        assert (found.category, found.error) == ("server", "a fault of the server: ZeroDivisionError: x / 0")
        assert await second == JsonReply(json={"thread": "tinker-server"})

    working(test)
    assert "a request failed" in caplog.text


def test_answers_have_a_bound_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_MOST_KEPT_BYTES", 100_000)

    def large() -> Reply:
        numbers = [np.zeros(5_000, np.float32)]
        return TrainReply(scored=ForwardResult(loss=0.0, logprobs=numbers, losses=numbers), metrics={})

    async def test() -> None:
        futures = Futures()

        async def answered(name: str, session: str) -> None:
            futures.open(name, session).set_result(large())
            await asyncio.sleep(0)

        for name in ("a", "b"):
            await answered(name, "one")
        await answered("c", "two")  # 120,000 bytes
        with pytest.raises(TooMuch, match=r"3 answers of 0 MiB were not fetched; fetch them before"):
            futures.open("d", "two")
        for name in ("b", "c"):
            await futures.fetch(name, 1)
        await answered("d", "two")
        assert [futures.known(name) for name in "abcd"] == [True, False, False, True]
        await answered("e", "two")
        with pytest.raises(TooMuch):
            futures.open("f", "two")
        futures.end("one")  # with the answer that it did not fetch
        futures.open("f", "two")

    asyncio.run(test())


def test_an_answer_is_waited_for_and_kept() -> None:
    async def test() -> None:
        futures = Futures()
        done = futures.open("a", "session")
        start = time.monotonic()
        assert await futures.fetch("a", 0.05) is None
        assert time.monotonic() - start >= 0.05
        done.set_result(JsonReply(json={"b": 1}))
        for _ in range(2):
            assert await futures.fetch("a", 1) == JsonReply(json={"b": 1})
            futures.sweep()
        futures.end("session")
        with pytest.raises(UsageError, match="there is no request a"):
            await futures.fetch("a", 1)

    run: Coroutine[Any, Any, None] = test()
    asyncio.run(run)
