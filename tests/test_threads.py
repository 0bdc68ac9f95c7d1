"""A thread beside the event loop: context goes along, errors come back, and the loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from genenv.progress import Silent, advance, staged
from genenv.sampling import blocked_s, blocking
from genenv.threads import CallTimeout, WorkerThread, cores, run_in_loop, without_loop


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


async def loop_id() -> int:
    await asyncio.sleep(0)
    return id(asyncio.get_running_loop())


async def blocks() -> None:
    while True:
        time.sleep(0.01)


async def waits() -> None:
    await asyncio.sleep(60)


async def ends() -> None:
    raise SystemExit(3)


def test_calls_of_a_thread_have_one_loop_whatever_they_raise() -> None:
    first = run_in_loop(loop_id(), 5)
    with pytest.raises(SystemExit):
        run_in_loop(ends(), 5)
    with pytest.raises(CallTimeout):
        run_in_loop(waits(), 0.05)
    assert run_in_loop(loop_id(), 5) == first


def test_a_blocked_loop_is_given_up_and_its_thread_ends() -> None:
    run_in_loop(loop_id(), 5)
    before = threading.active_count()
    with pytest.raises(CallTimeout):
        run_in_loop(blocks(), 0.05)
    assert run_in_loop(loop_id(), 5)
    end = time.monotonic() + 5
    while threading.active_count() > before and time.monotonic() < end:
        time.sleep(0.01)
    assert threading.active_count() <= before


@pytest.mark.long
def test_threads_do_not_wait_for_each_other() -> None:
    async def slow() -> int:
        time.sleep(0.3)
        return 1

    with ThreadPoolExecutor(4) as threads:
        calls = [threads.submit(lambda: run_in_loop(slow(), 1.0)) for _ in range(4)]
        stuck = threads.submit(lambda: run_in_loop(blocks(), 0.05))
        assert [one.result() for one in calls] == [1] * 4
        assert isinstance(stuck.exception(), CallTimeout)


def test_a_forked_process_has_a_loop_of_its_own() -> None:
    run_in_loop(loop_id(), 5)
    forked = multiprocessing.get_context("fork").Process(target=lambda: run_in_loop(loop_id(), 2))
    forked.start()
    forked.join(10)
    assert forked.exitcode == 0


def test_synchronous_code_may_start_a_loop_inside_of_one() -> None:
    async def inside() -> tuple[int, bool]:
        own = asyncio.get_running_loop()
        found = without_loop(lambda: asyncio.run(loop_id()))
        return found, asyncio.get_running_loop() is own

    other, is_back = asyncio.run(inside())
    assert other
    assert is_back
