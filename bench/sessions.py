"""What sessions of Python tools cost: milliseconds, memory, and whether calls wait for one another.

    python bench/sessions.py
    python bench/sessions.py tools.py --tool book_seat --args '{"seat": 700}'

On a quiet machine. A line of JSON each:

    session   ms from opening a session to its first state and its end; median of --repeats
    program   ms of an empty program as the gate executes it, in a fork of one session
    together  seconds for eight sessions whose call waits 0.25 s, started at the same time
    memory    MiB of 64 open sessions together (proportional set size, Linux)
    equal     sessions of two calls and two states that equal the first session, and whether a change shows

The same of an MCP server whose folder is restored, and of one that is started for each session (`fresh`):

    mcp session   as above
    mcp together  seconds of the longest of eight calls that wait 0.25 s, once their sessions are open
    mcp calls     calls that eight rollouts of a task made, those that the server counted, and its starts
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Generator
from contextlib import AsyncExitStack, closing, contextmanager
from pathlib import Path
from typing import Any

from turns import machine, say

from genenv.backends.scripted import ScriptedSampler
from genenv.gate.gate import examined
from genenv.progress import Silent
from genenv.rollout.driver import Sampling, roll_out
from genenv.tools.bundle import Bundle
from genenv.tools.check import calls_of
from genenv.tools.environment import Tools
from genenv.tools.generate.make_bundle import Wanted, make
from genenv.tools.settings import ToolsConfig
from genenv.tools.worlds.base import Call, World
from genenv.tools.worlds.mcp.world import McpSource, McpWorld
from genenv.tools.worlds.origins import McpOrigin
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


async def measure_session(world: World, repeats: int) -> dict[str, Any]:
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


SERVER = Path(__file__).parents[1] / "tests" / "tools" / "examples" / "bare_server.py"
"""It writes down its starts and its calls."""
ACCOUNTS = {
    f"A-{number}": {"owner": owner, "city": city, "balance": 10 * number}
    for number, (owner, city) in enumerate(
        [("Ada Wong", "Oslo"), ("Ben Ruiz", "Porto"), ("Cleo Park", "Izmir"), ("Dan Ito", "Kyoto")], 1
    )
}


class Served:
    """A server and its folder below another one, and the calls that it has counted.

    Args:
        folder: a new folder.
        mode: of the server.
    """

    def __init__(self, folder: Path, mode: str) -> None:
        self.files, self._log = folder / "files", folder / "log" / "calls"
        self.files.mkdir(parents=True)
        (self.files / "accounts.json").write_text(json.dumps({"accounts": ACCOUNTS}), encoding="utf-8")
        self._log.parent.mkdir()
        self._log.touch()
        self.command = (sys.executable, "-S", str(SERVER), mode, str(self._log))
        self.may_write = (str(self._log.parent),)

    @contextmanager
    def opened(self, *, fresh: bool) -> Generator[McpWorld]:
        """Its tools."""
        running = McpSource(command=self.command, fresh=fresh, may_write=self.may_write)
        with closing(McpWorld(self.files, running)) as world:
            yield world

    @property
    def counted(self) -> Counter[str]:
        """Its starts, and its calls by tool, so far."""
        return Counter(self._log.read_text(encoding="utf-8").split())


async def measure_waiting(world: World, seconds: float = 0.25, sessions: int = 8) -> dict[str, Any]:
    """Seconds of the longest call that waits, in sessions that are open."""
    all_open = asyncio.Barrier(sessions)

    async def one() -> float:
        async with world.session() as session:
            await session.state()
            await all_open.wait()
            start = time.perf_counter()
            await session.call(Call(tool="wait", args={"seconds": seconds}))
            return time.perf_counter() - start

    return {
        "seconds": round(max(await asyncio.gather(*(one() for _ in range(sessions)))), 3),
        "sessions": sessions,
    }


def measure_calls(folder: Path, *, fresh: bool, rollouts: int = 8) -> dict[str, Any]:
    """Calls of rollouts that solve a task, and calls and starts that the server counted.

    The bundle is that of a server that is restored; for `fresh` its file then says that it must not be.
    """
    served = Served(folder, "honest")
    origin = McpOrigin(served.command, (), served.files)
    origin.may_write = served.may_write
    bundle = make(folder / "bundle", Wanted(origin=origin, base=6, held_out=2), examined, Silent()).bundle
    about = bundle.path / "bundle.toml"
    text = about.read_text(encoding="utf-8")
    about.write_text(text.replace("fresh = false", f"fresh = {str(fresh).lower()}"), encoding="utf-8")
    Bundle.open(bundle.path).opened_before()
    env = Tools(ToolsConfig(), bundle.path)
    with closing(env.world):
        task = max(env.held_out(), key=env.steps)  # this executes its solution
        before = served.counted
        sampler = ScriptedSampler(lambda prompt, rng: task.oracle[prompt.count("assistant") - 1])
        sampling = Sampling(temperature=1.0, max_new_tokens=200, timeout_s=60.0, seed=0)
        (group,) = asyncio.run(roll_out(env, sampler, [task], rollouts=rollouts, sampling=sampling))
        counted = served.counted - before
    starts = counted.pop("start", 0)
    made = len(calls_of(task.payload, "before")) + env.steps(task)
    return {
        "made": rollouts * made,
        "counted": counted.total(),
        "starts": starts,
        "rollouts": rollouts,
        "passed": sum(trace.success for trace in group.traces),
    }


def measure_mcp(folder: Path, repeats: int) -> None:
    """Measure sessions of an MCP server, with its folder restored, and started for each."""
    for fresh in (False, True):
        place = folder / f"fresh-{fresh}"
        served = Served(place / "server", "waits")
        with served.opened(fresh=fresh) as world:
            say(measured="mcp session", fresh=fresh, **asyncio.run(measure_session(world, repeats)))
            say(measured="mcp together", fresh=fresh, **asyncio.run(measure_waiting(world)))
        say(measured="mcp calls", fresh=fresh, **measure_calls(place, fresh=fresh))


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
        measure_mcp(Path(folder) / "mcp", args.repeats)
    if args.file:
        file = Path(args.file)
        with closing(PythonWorld(file.parent, file.name)) as world:
            call = Call(tool=args.tool, args=json.loads(args.args))
            say(measured="session", file=file.name, **asyncio.run(measure_session(world, args.repeats)))
            say(measured="equal", file=file.name, **asyncio.run(measure_equal(world, call, 160)))


if __name__ == "__main__":
    main()
