"""Sessions of MCP servers: each has a process and a folder to itself, and each call is sent once."""

from __future__ import annotations

import asyncio
import json
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bundles import EXAMPLES, call
from genenv.backends.scripted import ScriptedSampler
from genenv.environments.stepwise import StepwiseRollout
from genenv.gate.gate import examined
from genenv.progress import Silent
from genenv.rollout.driver import Sampling, roll_out
from genenv.tools.environment import Tools
from genenv.tools.generate.make_bundle import Wanted, make
from genenv.tools.settings import ToolsConfig
from genenv.tools.worlds.base import GONE, Session
from genenv.tools.worlds.mcp.world import McpSource, McpWorld
from genenv.tools.worlds.origins import McpOrigin

ACCOUNTS = {
    f"A-{number}": {"owner": owner, "city": city, "balance": 10 * number}
    for number, (owner, city) in enumerate(
        [("Ada Wong", "Oslo"), ("Ben Ruiz", "Porto"), ("Cleo Park", "Izmir"), ("Dan Ito", "Kyoto")], 1
    )
}
DEPOSIT, READ = call("deposit", account_id="A-1", amount=5), call("get_account", account_id="A-1")
Opens = Callable[..., McpWorld]


@pytest.fixture
def accounts(tmp_path: Path) -> Path:
    folder = tmp_path / "accounts"
    folder.mkdir()
    (folder / "accounts.json").write_text(json.dumps({"accounts": ACCOUNTS}))
    return folder


def command(mode: str, accounts: Path) -> tuple[str, ...]:
    return (sys.executable, "-S", str(EXAMPLES / "bare_server.py"), mode, str(log_of(accounts)))


def log_of(accounts: Path) -> Path:
    """What the servers write down themselves: a line for each start, and for each call."""
    log = accounts.with_name("log") / "calls"
    log.parent.mkdir(exist_ok=True)
    log.touch()
    return log


def counted(accounts: Path) -> Counter[str]:
    return Counter(log_of(accounts).read_text().split())


@pytest.fixture
def opens(accounts: Path) -> Iterator[Opens]:
    opened: list[McpWorld] = []

    def open_world(mode: str = "waits", *, fresh: bool = False, call_s: float = 20.0) -> McpWorld:
        may_write = (str(log_of(accounts).parent),)
        running = McpSource(command=command(mode, accounts), fresh=fresh, may_write=may_write)
        opened.append(McpWorld(accounts, running, call_s=call_s))
        return opened[-1]

    yield open_world
    for world in opened:
        world.close()


@pytest.mark.long
@pytest.mark.parametrize("fresh", [False, True])
def test_each_call_is_sent_once_and_no_session_sees_another(
    opens: Opens, accounts: Path, *, fresh: bool
) -> None:
    world = opens("keeps" if fresh else "honest", fresh=fresh)

    async def one(times: int, all_open: asyncio.Barrier) -> tuple[object, object]:
        async with world.session() as session:
            await session.state()
            await all_open.wait()
            for _ in range(times):
                await session.call(DEPOSIT)
            answer = await session.call(READ)
            return answer.result, await session.state()

    async def both() -> list[tuple[object, object]]:
        all_open = asyncio.Barrier(3)
        return await asyncio.gather(*(one(times, all_open) for times in (0, 1, 3)))

    for rounds in (1, 2):
        for (result, state), times in zip(asyncio.run(both()), (0, 1, 3), strict=True):
            played = world.play([*[DEPOSIT] * times, READ])
            assert (result, state) == (played.outcomes[-1].result, played.state)
            assert result == {**ACCOUNTS["A-1"], "balance": 10 + 5 * times}
        found = counted(accounts)
        assert found["deposit"] == 4 * rounds + 4  # the programs are executed in the first round
        assert found["get_account"] == 3 * rounds + 3
        assert 0 <= found["start"] - (3 * rounds + 3 if fresh else 3) <= 2 * fresh  # two are started ahead


@pytest.mark.long
def test_eight_sessions_wait_together_and_the_event_loop_goes_on(opens: Opens, accounts: Path) -> None:
    world, seconds = opens(), 0.25
    longest = 0.0

    async def one(all_open: asyncio.Barrier) -> float:
        async with world.session() as session:
            await session.state()
            await all_open.wait()
            start = time.perf_counter()
            await session.call(call("wait", seconds=seconds))
            return time.perf_counter() - start

    async def all_of_them() -> list[float]:
        nonlocal longest
        all_open = asyncio.Barrier(9)
        calls = [asyncio.create_task(one(all_open)) for _ in range(8)]
        await all_open.wait()
        while not all(one.done() for one in calls):
            start = time.perf_counter()
            await asyncio.sleep(0.001)
            longest = max(longest, time.perf_counter() - start)
        return [one.result() for one in calls]

    took = asyncio.run(all_of_them())
    assert max(took) < 8 * seconds
    assert longest < seconds
    assert counted(accounts) == {"start": 8, "wait": 8}


@pytest.mark.long
def test_a_session_without_answer_ends_alone_and_its_process_serves_no_other(
    opens: Opens, accounts: Path
) -> None:
    world = opens(call_s=0.5)

    async def two() -> None:
        async with world.session() as one, world.session() as other:
            await one.call(DEPOSIT)
            before = await one.state()
            assert (await one.call(call("hang"))).error == GONE
            assert (await one.call(READ)).error == GONE
            assert await one.state() == before
            assert (await other.call(READ)).result == ACCOUNTS["A-1"]

    async def cancelled() -> None:
        async with world.session() as session:
            await session.state()
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(session.call(call("hang")), 0.05)

    asyncio.run(two())
    asyncio.run(cancelled())
    assert world.play_uncached([READ]).outcomes[0].result == ACCOUNTS["A-1"]
    assert len(world._idle) == len(world._processes) == 1
    assert counted(accounts)["hang"] == 2


def test_a_session_that_was_left_gives_its_process_back(opens: Opens, accounts: Path) -> None:
    world = opens()

    async def left(session: Session) -> None:
        await session.call(DEPOSIT)
        raise LookupError

    async def several() -> None:
        for _ in range(4):
            with pytest.raises(LookupError):
                async with world.session() as session:
                    await left(session)

    asyncio.run(several())
    assert counted(accounts) == {"start": 1, "deposit": 4}
    assert len(world._idle) == 1


@pytest.fixture(params=[False, True], ids=["restored", "fresh"])
def env(request: pytest.FixtureRequest, accounts: Path, tmp_path: Path) -> Iterator[Tools]:
    """A bundle of a server that is restored by its folder, or of one that remembers."""
    origin = McpOrigin(command("honest", accounts), (), accounts)
    origin.may_write = (str(log_of(accounts).parent),)
    made = make(tmp_path / "bank", Wanted(origin=origin, base=6, held_out=2), examined, Silent())
    if request.param:
        about = made.bundle.path / "bundle.toml"
        about.write_text(about.read_text().replace("fresh = false", "fresh = true"))
    opened = Tools(ToolsConfig(), tmp_path / "bank")
    yield opened
    opened.world.close()


@pytest.mark.long
def test_a_rollout_and_its_verdict_send_no_call_twice(env: Tools, accounts: Path) -> None:
    task = max(env.held_out(), key=env.steps)
    fresh = env.bundle.about.source.fresh  # type: ignore[union-attr]
    verdicts = [env.check(task, task.oracle)] * 4
    before = counted(accounts)
    sampler = ScriptedSampler(lambda prompt, rng: task.oracle[prompt.count("assistant") - 1])
    sampling = Sampling(temperature=1.0, max_new_tokens=200, timeout_s=30.0, seed=0)
    (group,) = asyncio.run(roll_out(env, sampler, [task], rollouts=4, sampling=sampling))
    assert [(one.reward, one.explanation) for one in verdicts] == [
        (trace.reward, trace.explanation) for trace in group.traces
    ]
    assert all(trace.success for trace in group.traces)
    sent = counted(accounts) - before
    assert sent.pop("start", 0) <= 4 + 2
    assert sent.total() == 4 * (env.steps(task) + len(task.payload["before"]))  # type: ignore[arg-type]
    stepwise = StepwiseRollout(env, task)
    for reply in task.oracle:
        if not stepwise.done:
            stepwise.reply(reply)
    assert stepwise.done
    assert stepwise.verdict().success
    del stepwise
    StepwiseRollout(env, task)  # left before its first reply
    assert len(env.world._processes) == (2 if fresh else 4)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("mode", "said"),
    [
        ("paged", {}),
        ("circle", {"further tools": "the server's list of tools begins again and does not end"}),
        ("endless", {"further tools": "the server lists its tools on more than 100 pages"}),
    ],
)
def test_a_list_of_tools_in_pages_is_read_and_one_without_end_is_said(
    mode: str, said: dict[str, str], opens: Opens
) -> None:
    world = opens(mode)
    assert len(world.tools) == 6
    assert world.left_out == said
