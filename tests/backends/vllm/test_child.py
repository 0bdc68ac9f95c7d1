"""Programs on a leash: they end when whoever started them does, however that ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from genenv.backends.vllm.child import Child

TALKS = "import sys; print('one'); print('two', file=sys.stderr); sys.exit(3)"
WAITS = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"
HOLDS = """
import subprocess, sys, time
from genenv.backends.vllm.child import Child
child = Child([sys.executable, "-c", {program!r}])
print(child.said(0, 30.0).lines[0], flush=True)
time.sleep(600)
"""
PARENT = f"""
import subprocess, sys, time
child = subprocess.Popen([sys.executable, "-c", {WAITS!r}], stdout=subprocess.PIPE, text=True)
print(child.stdout.readline(), flush=True)
time.sleep(600)
"""


def alive(process: int) -> bool:
    try:
        os.kill(process, 0)
        return Path(f"/proc/{process}/stat").read_text().split()[2] != "Z" if Path("/proc").is_dir() else True
    except (ProcessLookupError, FileNotFoundError):  # it may end between the two, or while it is read
        return False


def ends(process: int, limit_s: float = 20.0) -> bool:
    until = time.monotonic() + limit_s
    while alive(process) and time.monotonic() < until:
        time.sleep(0.05)
    return not alive(process)


def test_a_program_is_heard_and_its_status_known(tmp_path: Path) -> None:
    child = Child([sys.executable, "-c", TALKS], log=tmp_path / "log")
    assert child.wait(60) == 3
    assert sorted(child.said(0).lines) == ["one", "two"]
    assert child.said(1).lines == child.said(0).lines[1:]
    assert child.said(2) == ((), 2)
    assert child.last_line in ("one", "two")
    assert sorted((tmp_path / "log").read_text().split()) == ["one", "two"]
    child.interrupt()  # of one that has ended: nothing
    child.end()


def test_an_interrupt_is_what_ctrl_c_is() -> None:
    told = (
        "import time\ntry:\n print('up', flush=True)\n time.sleep(600)\nexcept KeyboardInterrupt:\n exit(7)"
    )
    child = Child([sys.executable, "-c", told])
    assert child.said(0, 60.0).lines == ("up",)
    assert child.status is None
    child.interrupt()
    assert child.wait(60) == 7


def test_one_that_is_ended_takes_along_what_it_has_started() -> None:
    child = Child([sys.executable, "-c", PARENT])
    grandchild = int(child.said(0, 60.0).lines[0])
    child.end()
    assert child.status == 128 + signal.SIGKILL
    assert ends(grandchild)


@pytest.mark.skipif(sys.platform != "linux", reason="no other system ends a program with its parent")
def test_a_program_ends_with_its_leash() -> None:
    child = Child([sys.executable, "-c", WAITS])
    program = int(child.said(0, 60.0).lines[0])
    child._process.kill()
    assert ends(program)
    assert child.wait(20) == -signal.SIGKILL


@pytest.mark.long
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_program_ends_with_a_parent_that_is_killed(number: signal.Signals) -> None:
    words = [sys.executable, "-c", HOLDS.format(program=WAITS)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True, start_new_session=True) as holder:
        assert holder.stdout is not None
        program = int(holder.stdout.readline())
        assert alive(program)
        os.killpg(holder.pid, number)
    assert ends(program)
