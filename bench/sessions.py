"""What sessions of Python tools cost: milliseconds, memory, and whether calls wait for one another.

    python bench/sessions.py
    python bench/sessions.py tools.py --tool book_seat --args '{"seat": 700}'

On a quiet machine. A line of JSON each:

    session   ms from opening a session to its first state and its end; median of --repeats
    program   ms of an empty program as the gate executes it, in a fork of one session
    together  seconds for eight sessions whose call waits 0.25 s, started at the same time
    memory    MiB of 64 open sessions together (proportional set size, Linux)
    equal     sessions of two calls and two states that equal the first session, and whether a change shows
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import tempfile
import time
from contextlib import AsyncExitStack, closing
from pathlib import Path
from typing import Any

from turns import machine, say

from genenv.tools.worlds.base import Call
from genenv.tools.worlds.python import PythonWorld

WAITING = '''"""A tool that waits as a service on a network does."""
import time

orders = {"A-1": "open"}


def cancel(order_id: str) -> str:
    """Cancel an order."""
    if orders[order_id] != "open":
        raise ValueError("it is not open")
    orders[order_id] = "cancelled"
    return order_id


def wait(seconds: float) -> float:
    """Wait."""
    time.sleep(seconds)
    return seconds
'''


async def measure_session(world: PythonWorld, repeats: int) -> dict[str, Any]:
    """Milliseconds of sessions, one after the other: opened, asked for their state, and ended."""
    took: list[float] = []
    for _ in range(repeats):
        start = time.perf_counter()
        async with world.session() as session:
            await session.state()
        took.append(1000 * (time.perf_counter() - start))
    return {"ms": round(statistics.median(took), 2), "lowest": round(min(took), 2), "sessions": repeats}


def measure_program(world: PythonWorld, repeats: int) -> dict[str, Any]:
    """Milliseconds of an empty program, executed in a fork of one session."""
    took: list[float] = []
    for _ in range(repeats):
        start = time.perf_counter()
        world.play_uncached([])
        took.append(1000 * (time.perf_counter() - start))
    return {"ms": round(statistics.median(took), 2), "lowest": round(min(took), 2), "programs": repeats}


async def measure_together(world: PythonWorld, seconds: float = 0.25, sessions: int = 8) -> dict[str, Any]:
    """Seconds for sessions whose calls wait."""

    async def one() -> None:
        async with world.session() as session:
            await session.call(Call(tool="wait", args={"seconds": seconds}))

    start = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(sessions)))
    return {"seconds": round(time.perf_counter() - start, 3), "sessions": sessions}


async def measure_memory(world: PythonWorld, sessions: int = 64) -> dict[str, Any]:
    """Memory of open sessions that have made a call."""
    async with AsyncExitStack() as stack:
        opened = [await stack.enter_async_context(world.session()) for _ in range(sessions)]
        for one in opened:
            await one.call(Call(tool="wait", args={"seconds": 0.0}))
        sizes = [_proportional_kib(place) for place in Path("/proc").glob("[0-9]*")]
    return {"mib": round(sum(sizes) / 1024), "sessions": sessions}


def _proportional_kib(process: Path) -> int:
    try:
        if b"python_child" not in (process / "cmdline").read_bytes():
            return 0
        lines = (process / "smaps_rollup").read_text().splitlines()
        return next(int(line.split()[1]) for line in lines if line.startswith("Pss:"))
    except (OSError, StopIteration):
        return 0


async def measure_equal(world: PythonWorld, call: Call, sessions: int, at_once: int = 16) -> dict[str, Any]:
    """Sessions that do the same, many at a time: how many equal the first one."""

    async def one() -> str:
        async with world.session() as session:
            before = await session.state()
            outcomes = [await session.call(call) for _ in range(2)]
            after = await session.state()
        return json.dumps([before, [one.text for one in outcomes], after])

    found: list[str] = []
    start = time.perf_counter()
    for _ in range(0, sessions, at_once):
        found += await asyncio.gather(*(one() for _ in range(at_once)))
    before, _, after = json.loads(found[0])
    return {
        "equal": found.count(found[0]),
        "sessions": len(found),
        "change_seen": before != after,
        "ms": round(1000 * (time.perf_counter() - start) / len(found), 1),
    }


def main() -> None:
    """Measure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("file", nargs="?", help="a Python file with tools; left out, a small one")
    parser.add_argument("--tool", default="cancel", help="a tool that changes the state")
    parser.add_argument("--args", default='{"order_id": "A-1"}', help="its arguments, as JSON")
    parser.add_argument("--repeats", type=int, default=200)
    args = parser.parse_args()
    say(**machine())
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "waiting.py"
        file.write_text(WAITING, encoding="utf-8")
        with closing(PythonWorld(file.parent, file.name)) as world:
            say(measured="session", **asyncio.run(measure_session(world, args.repeats)))
            say(measured="program", **measure_program(world, args.repeats))
            say(measured="together", **asyncio.run(measure_together(world)))
            say(measured="memory", **asyncio.run(measure_memory(world)))
    if args.file:
        file = Path(args.file)
        with closing(PythonWorld(file.parent, file.name)) as world:
            call = Call(tool=args.tool, args=json.loads(args.args))
            say(measured="session", file=file.name, **asyncio.run(measure_session(world, args.repeats)))
            say(measured="equal", file=file.name, **asyncio.run(measure_equal(world, call, 160)))


if __name__ == "__main__":
    main()
