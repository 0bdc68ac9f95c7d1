"""Processes that hold tools, and their folders: nothing is left of them, however genenv ends."""

from __future__ import annotations

import os
import signal
import stat
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from bundles import EXAMPLES, call
from genenv.tools.worlds.processes import Scratch
from genenv.tools.worlds.python import PythonWorld
from running import comes_true, descendants, running, running_in, scratches

PYTHON = """
from genenv.tools.worlds.python import PythonWorld
from genenv.tools.worlds.base import Call
world = PythonWorld(Path(sys.argv[1]), "leaver.py", call_s=600)
world.play([Call(tool="leave", args={})])
"""
MCP = """
from genenv.tools.worlds.mcp.world import McpSource, McpWorld
from genenv.tools.worlds.base import Call
server = (sys.executable, "-S", sys.argv[2])
world = McpWorld(Path(sys.argv[1]), McpSource(command=server, fresh=False), call_s=600)
"""
SESSIONS = """
import asyncio

async def waiting():
    async with world.session() as one, world.session() as other:
        await one.call(Call(tool="leave", args={}))
        await other.state()
        print(flush=True)
        await other.call(Call(tool="wait", args={}))

asyncio.run(waiting())
"""
FOLDER = """
from genenv.tools.worlds.processes import Scratch
scratch = Scratch(Path(sys.argv[1]))
print(scratch.path, flush=True)
time.sleep(600)
"""
LEAVES = """
import subprocess

def leave() -> int:
    program = ["sleep", "600"]
    return subprocess.Popen(program, start_new_session=True).pid

def wait() -> None:
    subprocess.run(["sleep", "600"])
"""


def another(code: str, folder: Path) -> tuple[subprocess.Popen[str], str]:
    """Another genenv that runs some code, and the line that it prints when it is ready."""
    whole = f"import sys, time\nfrom pathlib import Path\n{code}"
    words = [sys.executable, "-c", whole, str(folder), str(EXAMPLES / "leaver_server.py")]
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    assert process.stdout is not None
    return process, process.stdout.readline().strip()


def end(process: subprocess.Popen[str], number: signal.Signals = signal.SIGKILL) -> None:
    process.send_signal(number)
    process.communicate()


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "leaver.py").write_text(textwrap.dedent(LEAVES))
    return tmp_path / "files"


@pytest.mark.long
def test_the_folder_of_tools_is_made_once_for_its_owner_alone_and_never_given_up() -> None:
    world = PythonWorld(EXAMPLES, "hostile.py", call_s=0.5)
    try:
        before = world._scratch.path.stat()
        first = running_in(world._scratch.path)
        assert world.play([call("dies")]).outcomes[0].error
        after = world._scratch.path.stat()
        assert first != running_in(world._scratch.path)
        assert (before.st_dev, before.st_ino) == (after.st_dev, after.st_ino)
        assert stat.S_IMODE(after.st_mode) == 0o700
    finally:
        world.close()
    assert not world._scratch.path.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="only Linux finds processes that left their group")
@pytest.mark.parametrize(
    "number", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL, signal.SIGABRT], ids=lambda one: one.name
)
@pytest.mark.parametrize("code", [PYTHON, MCP], ids=["python", "mcp"])
@pytest.mark.long
def test_however_genenv_ends_all_that_its_sessions_have_started_ends_and_their_folders_go(
    code: str, number: signal.Signals, files: Path
) -> None:
    process, _ = another(code + SESSIONS, files)
    started = {one: programs[one] for one in descendants(process.pid) if one in (programs := running())}
    folders = scratches(started)
    assert "sleep" in started.values()
    assert folders
    end(process, number)
    assert comes_true(lambda: not (running().items() & started.items()))
    assert comes_true(lambda: not any(one.exists() for one in folders))


@pytest.mark.long
def test_what_tools_have_started_ends_when_they_are_closed(files: Path) -> None:
    world = PythonWorld(files, "leaver.py")
    number = world.play([call("leave")]).outcomes[0].result
    os.kill(number, 0)
    world.close()
    with pytest.raises(ProcessLookupError):
        os.kill(number, 0)


@pytest.mark.long
def test_a_folder_that_a_killed_process_has_left_goes_with_the_next_start_and_no_other_does(
    tmp_path: Path,
) -> None:
    (killed, left), (living, used) = (
        (process, Path(path)) for process, path in (another(FOLDER, tmp_path) for _ in range(2))
    )
    end(killed)
    try:
        assert left.is_dir()
        mine = Scratch(tmp_path)
        assert not left.exists()
        assert used.is_dir()
        Scratch(tmp_path).close()
        assert mine.path.is_dir()
        mine.close()
        assert not mine.path.exists()
    finally:
        end(living)
    Scratch(tmp_path).close()
    assert not used.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder to another user")
def test_a_folder_of_another_user_is_left_alone(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    other = scratch.path.with_name("genenv-world-of-another-user")
    other.mkdir(mode=0o700)
    try:
        os.chown(other, 65534, 65534)
        Scratch(tmp_path).close()
        assert other.is_dir()
    finally:
        other.rmdir()
        scratch.close()


def test_a_copy_of_the_process_that_ends_takes_nothing_with_it(tmp_path: Path) -> None:
    scratch = Scratch(tmp_path)
    copied = os.fork()
    if copied == 0:
        scratch.close()
        os._exit(0)
    os.waitpid(copied, 0)
    assert scratch.files.parent.is_dir()
    scratch.close()
