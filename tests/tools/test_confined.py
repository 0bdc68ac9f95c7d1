"""Tools write in their own folder alone, whatever a call says, and people are told where that cannot be."""

from __future__ import annotations

import logging
import os
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from bundles import EXAMPLES, call, made
from genenv.errors import UsageError
from genenv.tools import bundle as bundles
from genenv.tools.bundle import Bundle
from genenv.tools.worlds import processes
from genenv.tools.worlds.mcp.world import McpSource, McpWorld
from genenv.tools.worlds.origins import McpOrigin, OpenApiOrigin, PythonOrigin, configure
from genenv.tools.worlds.python import PythonWorld
from genenv.tools.worlds.sources import PythonSource

_ASKED = """
import ctypes, sys
system = ctypes.CDLL(None)
sys.exit(system.syscall(444, None, ctypes.c_size_t(0), ctypes.c_uint32(1)) < int(sys.argv[1]))
"""


def landlock(version: int) -> bool:
    words = [sys.executable, "-c", _ASKED, str(version)]
    return sys.platform == "linux" and subprocess.run(words, check=False).returncode == 0


needs_landlock = pytest.mark.skipif(not landlock(1), reason="this system has no Landlock")
SERVER = str(EXAMPLES / "writer_server.py")


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A home with a file in it."""
    home = tmp_path / "home"
    home.mkdir()
    (home / "letter").write_text("Dear Ada")
    monkeypatch.setenv("HOME", str(home))
    return home


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "files").mkdir()
    shutil.copy(EXAMPLES / "writer.py", tmp_path / "files")
    return tmp_path / "files"


def errors(world: PythonWorld | McpWorld, home: Path) -> list[bool]:
    """Whether calls fail: three that leave the folder, then some that may be made."""
    played = world.play(
        [
            call("write_file", name=str(home / "new"), text="x"),
            call("write_file", name="../new", text="x"),
            call("delete_file", name=str(home / "letter")),
            call("read_file", name=str(home / "letter")),
            call("write_file", name="new.txt", text="x"),
            call("delete_file", name="new.txt"),
        ]
    )
    return [one.error is not None for one in played.outcomes]


@needs_landlock
def test_python_tools_write_in_their_copied_folder_alone(home: Path, files: Path) -> None:
    world = PythonWorld(files, "writer.py")
    try:
        assert world.confined
        assert errors(world, home) == [True, True, True, False, False, False]
        assert world.play([call("note", text="x")]).outcomes[0].result == "noted"
        assert set(world.play([call("note", text="x")]).state) == set(world.play([]).state)
    finally:
        world.close()
    assert [path.name for path in home.iterdir()] == ["letter"]


@needs_landlock
@pytest.mark.long
def test_a_server_writes_in_its_folder_alone(home: Path, tmp_path: Path) -> None:
    world = McpWorld(tmp_path / "none", McpSource(command=(sys.executable, SERVER), fresh=False))
    try:
        assert world.confined
        assert errors(world, home) == [True, True, True, False, False, False]
    finally:
        world.close()
    assert [path.name for path in home.iterdir()] == ["letter"]


@pytest.mark.skipif(not landlock(6), reason="Landlock of this system does not hold back signals")
def test_tools_signal_no_process_but_their_own(files: Path) -> None:
    world = PythonWorld(files, "writer.py")
    try:
        assert world.play([call("signal", number=os.getpid())]).outcomes[0].error
    finally:
        world.close()


@pytest.mark.long
@needs_landlock
def test_a_folder_that_the_user_names_may_be_written_too(home: Path, files: Path, tmp_path: Path) -> None:
    origin = PythonOrigin(files / "writer.py")
    configure(origin, [home], {})
    source = origin.bring(tmp_path / "brought")
    assert source == PythonSource(file="writer.py", may_write=(str(home),), seeded=True)
    world = source.open(tmp_path / "brought")
    try:
        assert world.play([call("write_file", name=str(home / "new"), text="x")]).outcomes[0].error is None
        assert world.play([call("write_file", name=str(tmp_path / "x"), text="x")]).outcomes[0].error
    finally:
        world.close()
    assert (home / "new").read_text() == "x"


@needs_landlock
@pytest.mark.parametrize(
    ("needed", "may_write"),
    [("~/.cache/lock", ("~/.cache", "~/.npm", "~/.local/share/uv")), ("~/other/lock", None)],
)
@pytest.mark.long
def test_a_server_that_needs_its_caches_gets_them_and_one_that_needs_more_is_a_sentence(
    needed: str, may_write: tuple[str, ...] | None, home: Path, tmp_path: Path
) -> None:
    (home / needed.split("/")[1]).mkdir()
    server = shlex.join([sys.executable, "-S", str(EXAMPLES / "bare_server.py"), "honest"])
    origin = McpOrigin(["sh", "-c", f"echo begun > {needed} && exec {server}"])
    if may_write is not None:
        source = origin.bring(tmp_path / "brought")
        assert isinstance(source, McpSource)
        assert (source.may_write, source.network) == (may_write, False)
        return
    with pytest.raises(UsageError, match=r"starts only where it may write outside its folder; .*--may-write"):
        origin.bring(tmp_path / "brought")
    configure(origin, [home / "other"], {})
    source = origin.bring(tmp_path / "brought again")
    assert isinstance(source, McpSource)
    assert source.may_write == (str(home / "other"),)


def test_an_option_that_does_not_fit_is_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="--from names neither"):
        configure(OpenApiOrigin("openapi.json", ()), [tmp_path], {})
    with pytest.raises(UsageError, match="none is not there; make the folder first"):
        configure(PythonOrigin(tmp_path / "tools.py"), [tmp_path / "none"], {})


@pytest.mark.long
def test_where_the_system_lacks_it_tools_run_and_it_is_said_once(
    files: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    older = tmp_path / "launch.py"  # as it is where the kernel does not know the system calls
    older.write_text(Path(processes.launch.__file__).read_text().replace("444, 445, 446", "4444, 4445, 4446"))
    monkeypatch.setattr(processes.launch, "__file__", str(older))
    bundles._say_that_nothing_confines.cache_clear()
    (tmp_path / "bundle.toml").write_text('name = "writer"\n[source]\nkind = "python"\nfile = "writer.py"\n')
    with caplog.at_level(logging.WARNING):
        for _ in range(2):
            world = Bundle.open(tmp_path).world(5.0)
            assert world.play([call("read_file", name="writer.py")]).outcomes[0].result
            world.close()
    assert [one.getMessage()[:58] for one in caplog.records[1:]] == [
        "this system cannot keep tools from writing outside their f"
    ]


@pytest.mark.long
def test_what_a_bundle_runs_is_said_when_it_is_first_opened_and_when_it_is_another(
    files: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    command = f'["{sys.executable}", "-S", "{EXAMPLES / "bare_server.py"}", "honest"]'
    text = f'name = "bank"\n[source]\nkind = "mcp"\ncommand = {command}\nnetwork = true\nfresh = false\n'
    (tmp_path / "bundle.toml").write_text(text)
    said: list[int] = []
    with caplog.at_level(logging.WARNING):
        for number in range(3):
            if number == 2:
                (files / "writer.py").write_text("# something else")
            Bundle.open(tmp_path).world(5.0).close()
            said.append(sum("runs code" in one.getMessage() for one in caplog.records))
    assert said == [1, 1, 2]
    told = caplog.records[0].getMessage()
    assert f"runs code on this machine: the command `{sys.executable} -S " in told
    assert "; beyond its own folder it may reach the network;" in told


@pytest.mark.long
def test_nothing_is_said_of_a_bundle_that_was_made_here(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.WARNING):
        found = made(tmp_path / "desk", base=2, held_out=1)
        found.bundle.world(5.0).close()
    assert not caplog.records
