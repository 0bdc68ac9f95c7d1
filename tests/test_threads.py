"""A thread beside the event loop: context goes along, errors come back, and the loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import os
import threading
import time
from pathlib import Path

import pytest

from genenv.progress import Silent, advance, staged
from genenv.sampling import blocked_s, blocking
from genenv.threads import WorkerThread, cores


def test_the_loop_goes_on_and_nothing_counts_as_blocking_it() -> None:
    beside, ticks = WorkerThread("test-trainer"), list[float]()

    async def long() -> str:
        with blocking():
            time.sleep(0.2)
        return threading.current_thread().name

    async def tick() -> None:
        while True:
            ticks.append(time.monotonic())
            await asyncio.sleep(0.01)

    async def go() -> str:
        ticking = asyncio.ensure_future(tick())
        await asyncio.sleep(0)
        found = await beside.run(long)
        ticking.cancel()
        return found

    before = blocked_s()
    assert asyncio.run(go()).startswith("test-trainer")
    assert len(ticks) >= 5
    assert blocked_s() == before
    beside.close()


def test_progress_is_that_of_the_stage_it_was_started_in() -> None:
    done = list[int]()

    class Telling(Silent):
        def stage(self, name, *, items, unit):  # type: ignore[override]
            return self

        def __enter__(self):
            return lambda tokens, items, note="": done.append(items)

        def __exit__(self, *_):
            return None

    async def work() -> None:
        advance(items=3)

    async def go() -> None:
        with staged(Telling(), "learning", items=3, unit="things"):
            await beside.run(work)

    beside = WorkerThread("test-trainer")
    asyncio.run(go())
    beside.close()
    assert done == [3]


def test_an_error_comes_back_and_a_closed_one_can_begin_again() -> None:
    async def fails() -> None:
        raise ZeroDivisionError

    async def works() -> int:
        return 1

    beside = WorkerThread("test-trainer")
    with pytest.raises(ZeroDivisionError):
        asyncio.run(beside.run(fails))
    beside.close()
    beside.close()
    assert asyncio.run(beside.run(works)) == 1
    beside.close()


def test_one_after_the_other_also_where_one_was_cancelled() -> None:
    log = list[str]()

    async def slow() -> None:
        log.append("begin")
        time.sleep(0.1)
        log.append("end")

    async def quick() -> None:
        log.append("quick")

    async def go() -> None:
        first = asyncio.ensure_future(beside.run(slow))
        await asyncio.sleep(0.02)
        first.cancel()
        await beside.run(quick)

    beside = WorkerThread("test-trainer")
    asyncio.run(go())
    beside.close()
    assert log == ["begin", "end", "quick"]


@pytest.mark.parametrize(
    ("groups", "files", "found"),
    [
        ("0::/job/task\n", {"job/cpu.max": "250000 100000\n", "job/task/cpu.max": "max 100000\n"}, 3),
        ("0::/\n", {"cpu.max": "50000 100000\n"}, 1),
        ("0::/\n", {"cpu.max": "max 100000\n"}, 8),
        (
            "3:memory:/\n2:cpu,cpuacct:/docker/a\n",
            {"cpu/cpu.cfs_quota_us": "200000\n", "cpu/cpu.cfs_period_us": "100000\n", "cpu.max": "1 1"},
            2,
        ),
        ("2:cpu:/\n", {"cpu/cpu.cfs_quota_us": "-1\n", "cpu/cpu.cfs_period_us": "100000\n"}, 8),
        (None, {}, 8),
    ],
)
def test_cores_are_those_that_a_container_or_a_batch_system_allows(
    groups: str | None,
    files: dict[str, str],
    found: int,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(8), raising=False)
    for name, text in {f"sys/fs/cgroup/{name}": text for name, text in files.items()}.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    if groups is not None:
        (tmp_path / "proc/self").mkdir(parents=True)
        (tmp_path / "proc/self/cgroup").write_text(groups)
    assert cores(tmp_path) == found
