"""Servers in Python that are loaded once, and forked for each session."""

from __future__ import annotations

import asyncio
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from bundles import EXAMPLES, call
from genenv.gate.gate import examined
from genenv.progress import Silent
from genenv.tools.bundle import Bundle
from genenv.tools.generate.make_bundle import Wanted, make
from genenv.tools.worlds.base import GONE
from genenv.tools.worlds.folder import WorkingFolder
from genenv.tools.worlds.mcp import stdio
from genenv.tools.worlds.mcp import world as worlds
from genenv.tools.worlds.mcp.world import McpSource, McpWorld
from genenv.tools.worlds.origins import McpOrigin

LEND, SHOW = call("lend_book", book_id="B-1", reader_id="R-2"), call("show_book", book_id="B-1")
MOVE = call("move_book", book_id="B-1", shelf="attic")
Opens = Callable[..., McpWorld]


def command(*modes: str) -> tuple[str, ...]:
    return (sys.executable, str(EXAMPLES / "library_server.py"), *modes)


@pytest.fixture
def log(tmp_path: Path) -> Path:
    """What the servers write down themselves: a line for each time they are loaded, and for each call."""
    file = tmp_path / "log" / "calls"
    file.parent.mkdir()
    file.touch()
    return file


@pytest.fixture
def opens(tmp_path: Path, log: Path) -> Iterator[Opens]:
    opened: list[McpWorld] = []

    def open_world(*modes: str, forked: bool = True, seeded: bool = False) -> McpWorld:
        running = McpSource(
            command=command("--log", str(log), *modes),
            fresh=True,
            forked=forked,
            seeded=seeded,
            may_write=(str(log.parent),),
        )
        opened.append(McpWorld(tmp_path / "files", running, call_s=20))
        return opened[-1]

    yield open_world
    for world in opened:
        world.close()


def counted(log: Path) -> Counter[str]:
    return Counter(log.read_text().split())


@pytest.mark.parametrize("mode", ["lines", "asyncio"])
def test_each_session_begins_as_a_new_process_does_without_loading_the_server(
    opens: Opens, log: Path, mode: str
) -> None:
    world = opens(mode)
    assert world.is_forked
    for _ in range(10):
        first, again, shown = world.play_uncached([LEND, LEND, SHOW]).outcomes
        assert (first.error, again.error) == (None, "somebody has it")
        assert isinstance(shown.result, dict)
        assert shown.result["reader"] == "R-2"
    told = counted(log)
    assert told["lend_book"] == 20
    assert told["loaded"] <= 4, "a few are loaded ahead of use"


@pytest.mark.long
def test_sessions_at_the_same_time_do_not_see_each_other(opens: Opens, log: Path) -> None:
    world = opens()

    async def rollout() -> list[str | None]:
        async with world.session() as session:
            return [(await session.call(LEND)).error for _ in range(2)]

    async def together() -> list[list[str | None]]:
        return await asyncio.gather(*(rollout() for _ in range(6)))

    for _ in range(3):
        assert asyncio.run(together()) == [[None, "somebody has it"]] * 6
    assert counted(log)["loaded"] <= 6 + 3


@pytest.mark.long
@pytest.mark.parametrize("mode", ["thread", "process"])
def test_a_server_that_cannot_be_forked_or_behaves_otherwise_then_is_started_anew(
    opens: Opens, log: Path, tmp_path: Path, mode: str
) -> None:
    world = opens(mode)
    assert world.is_forked == (mode == "process")
    if mode == "thread":
        for _ in range(2):
            assert [one.error for one in world.play_uncached([LEND, LEND]).outcomes] == [
                None,
                "somebody has it",
            ]
        assert counted(log)["loaded"] >= 3
    source = completed(tmp_path, mode)
    assert source is not None
    assert (source.fresh, source.forked) == (True, False)


def completed(folder: Path, *modes: str) -> McpSource | None:
    """What `genenv env new` finds out about a server after some calls."""
    origin = McpOrigin(command(*modes))
    source = origin.bring(folder / "brought")
    world = source.open(folder / "brought")
    assert isinstance(world, McpWorld)
    try:
        for program in ([LEND], [SHOW], [MOVE, SHOW]):
            world.play(program)
        found = origin.complete(world, source, folder / "brought")
    finally:
        world.close()
    assert found is None or isinstance(found, McpSource)
    return found


@pytest.mark.long
def test_a_server_whose_memory_outlives_a_session_is_forked(tmp_path: Path) -> None:
    source = completed(tmp_path)
    assert source == McpSource(command=command(), fresh=True, forked=True, seeded=True)


def test_a_server_without_python_is_as_it_was(tmp_path: Path) -> None:
    plain = (sys.executable, "-I", "-S", str(EXAMPLES / "library_server.py"))
    running = McpSource(command=plain, fresh=True, forked=True)
    world = McpWorld(tmp_path, running, call_s=20)
    try:
        assert not world.is_forked
        for _ in range(2):
            assert world.play_uncached([LEND]).outcomes[0].error is None
    finally:
        world.close()


@pytest.mark.long
def test_a_call_that_ends_the_server_ends_its_session_alone(opens: Opens, log: Path) -> None:
    world, crash = opens("crash"), call("crash")
    for _ in range(3):
        outcomes = world.play_uncached([LEND, crash, SHOW]).outcomes
        assert [one.error for one in outcomes] == [None, GONE, GONE]
        assert world.play_uncached([LEND]).outcomes[0].error is None
    assert counted(log)["loaded"] <= 4 + 3


@pytest.mark.long
@pytest.mark.parametrize("mode", ["closed", "dies", "hangs", "output"])
def test_a_server_whose_first_or_second_fork_fails_is_started_anew(
    opens: Opens, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    for module in (stdio, worlds):
        monkeypatch.setattr(module, "FORK_S", 1.0)
    world = opens(mode)
    assert not world.is_forked
    begun = time.monotonic()
    for _ in range(3):
        assert [one.error for one in world.play_uncached([LEND, LEND]).outcomes] == [None, "somebody has it"]
    assert time.monotonic() - begun < 10, "no session waits for a fork"


def test_a_server_whose_folder_cannot_be_read_when_it_is_loaded_is_not_forked(
    opens: Opens, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fails(_: WorkingFolder) -> bool:
        raise MemoryError

    monkeypatch.setattr(WorkingFolder, "begin", fails)
    begun, world = time.monotonic(), opens()
    assert not world.is_forked
    assert world.play_uncached([LEND]).outcomes[0].error is None
    assert time.monotonic() - begun < 10


@pytest.mark.long
@pytest.mark.parametrize("mode", ["closed", "output"])
def test_a_server_whose_forks_fail_is_not_forked_in_the_bundle(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: str
) -> None:
    monkeypatch.setattr(worlds, "FORK_S", 1.0)
    source = completed(tmp_path, mode)
    assert source is not None
    assert (source.fresh, source.forked) == (True, False)


@pytest.mark.long
def test_a_fork_that_fails_later_is_the_last_one(
    opens: Opens, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    world = opens()
    assert world.is_forked
    monkeypatch.setattr(worlds, "FORK_S", 0.0)
    end = time.monotonic() + 10
    while world.is_forked and time.monotonic() < end:
        assert world.play_uncached([LEND]).outcomes[0].error is None
    assert not world.is_forked
    before = counted(log)["loaded"]
    for _ in range(6):
        assert world.play_uncached([LEND]).outcomes[0].error is None
    assert counted(log)["loaded"] > before


@pytest.mark.long
def test_a_loaded_server_is_replaced_after_some_time(
    opens: Opens, log: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(worlds, "_MOST_LOADED_S", 1.5)
    world, end = opens(), time.monotonic() + 4
    while time.monotonic() < end:
        assert world.play_uncached([LEND]).outcomes[0].error is None
    assert world.is_forked
    assert 4 < counted(log)["loaded"] < counted(log)["lend_book"]


def test_temporary_files_are_as_they_were_when_the_server_was_loaded(opens: Opens) -> None:
    world = opens("temporary")
    assert world.is_forked
    begun = world.play_uncached([SHOW]).outcomes
    assert isinstance(begun[0].result, dict)
    assert (begun[0].result["note"], begun[0].result["files"]) == ("nobody", 1)
    for _ in range(5):
        lent = world.play_uncached([LEND]).outcomes[0].result
        assert isinstance(lent, dict)
        assert (lent["note"], lent["files"]) == ("R-2", 2)
        assert world.play_uncached([SHOW]).outcomes == begun


@pytest.mark.long
def test_a_fork_that_ends_does_nothing_of_what_the_loaded_server_does_at_its_end(
    opens: Opens, log: Path
) -> None:
    world = opens("exit")
    assert world.is_forked
    for _ in range(4):
        assert world.play_uncached([call("crash")]).outcomes[0].error == GONE
        for _ in range(3):
            shown = world.play_uncached([SHOW]).outcomes[0].result
            assert isinstance(shown, dict)
            assert shown["kept"]
    assert counted(log)["ended"] == 0


def test_the_folder_is_as_it_was_when_the_server_was_loaded(opens: Opens) -> None:
    world = opens("folder")
    begun = {"files": {"made.txt": "begun"}, "folders": {".": None}}
    for _ in range(5):
        assert world.play_uncached([]).state == begun
        assert world.play_uncached([MOVE]).state == {**begun, "files": {"made.txt": "attic"}}


@pytest.mark.long
def test_what_is_drawn_at_random_is_as_in_a_new_process(opens: Opens) -> None:
    forked, new = opens("luck", seeded=True), opens("luck", forked=False, seeded=True)
    assert forked.is_forked
    wanted = new.play_uncached([SHOW]).outcomes
    assert all(forked.play_uncached([SHOW]).outcomes == wanted for _ in range(3))


def test_no_process_is_left(opens: Opens, log: Path) -> None:
    world = opens()
    world.play_uncached([LEND])
    assert servers_with(log)
    world.close()
    end = time.monotonic() + 10
    while servers_with(log) and time.monotonic() < end:
        time.sleep(0.05)
    assert not servers_with(log)


def servers_with(log: Path) -> list[str]:
    """The processes whose command names a log."""
    found: list[str] = []
    for one in Path("/proc").glob("[0-9]*"):
        try:
            ended = (one / "stat").read_text().rpartition(")")[2].split()[0] == "Z"
            line = (one / "cmdline").read_text()
        except OSError:
            continue
        if str(log) in line and not ended:
            found.append(line)
    return found


@pytest.mark.long
def test_most_tools_of_a_server_that_keeps_all_in_memory_are_in_tasks(tmp_path: Path) -> None:
    wanted = Wanted(origin=McpOrigin(command()), base=16, held_out=4)
    found = make(tmp_path / "library", wanted, examined, Silent())
    assert set(found.graph.recipes) == {
        *("list_books", "show_book", "list_readers", "lend_book", "take_back", "move_book"),
    }
    writers = {name for name, one in found.graph.recipes.items() if one.writes}
    assert writers == {"lend_book", "take_back", "move_book"}
    source = Bundle.open(tmp_path / "library").about.source
    assert isinstance(source, McpSource)
    assert source.forked
    assert (found.base, found.held_out) == (16, 4)
