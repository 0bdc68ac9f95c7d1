"""Sandboxes for tool processes: a private folder, resource limits, and no secrets in the environment."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

from genenv.files import private_folder, remove_abandoned
from genenv.tools.worlds import launch

_IN_MEMORY = Path("/dev/shm")  # noqa: S108 - a private folder is made there
_SMALL = 1 << 20
"""The largest folder, in bytes, that is put there: each session has a copy of it."""
_PREFIX = "genenv-world-"
_ENDING_S = 5.0
"""How long a process may take to end all that it has started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Permits:
    """The rights that a tool process was found to have."""

    network: bool
    """It can reach the network."""
    confined: bool
    """It can write in its own folder only."""


class Scratch:
    """A private folder of this process, with a folder `files` to work in and one for temporary files.

    It is made once, for its owner alone, and keeps its place until it is closed. A lock on it says that it is
    in use: what a killed process has left is removed when the next one is made.

    Args:
        original: the folder whose copy it is to hold; where that is small it is in memory.
    """

    def __init__(self, original: Path) -> None:
        usual = Path(tempfile.gettempdir())
        for place in (_IN_MEMORY, usual):
            remove_abandoned(_PREFIX, place)
        self.path, lock = private_folder(_PREFIX, _IN_MEMORY if _fits_into_memory(original) else usual)
        self._removed = weakref.finalize(self, _remove, self.path, lock, os.getpid())
        self.files, self.temporary = self.path / "files", self.path / "tmp"
        self.temporary.mkdir()
        self._report = self.path / "report"

    def launched(
        self, command: Sequence[str], *, network: bool = False, may_write: Sequence[str] | None = ()
    ) -> list[str]:
        """The command that starts another one with limits; all that it starts ends with this process.

        Args:
            command: its words.
            network: whether it is left its network.
            may_write: folders, beside this one, in which it may write; None: everywhere.
        """
        own = (str(self.files), str(self.temporary))
        others = None if may_write is None else [str(Path(one).expanduser()) for one in may_write]
        settings = {
            "parent": os.getpid(),
            "scratch": str(self.path),
            "report": str(self._report),
            "network": network,
            "writable": None if others is None else [*own, *others],
        }
        self._report.unlink(missing_ok=True)
        return [sys.executable, "-I", "-S", launch.__file__, json.dumps(settings), *command]

    def fill(self, original: Path) -> None:
        """Have `files` hold a copy of what is in a folder, and nothing else."""
        if self.files.is_symlink():  # a tool without limits may have put one there
            self.files.unlink()
        shutil.rmtree(self.files, ignore_errors=True)
        shutil.copytree(original, self.files, dirs_exist_ok=True, symlinks=True)

    @property
    def permits(self) -> Permits:
        """What the process that was started last may do; before it says so, it may do all."""
        try:
            told = json.loads(self._report.read_text(encoding="ascii"))
            return Permits(network=bool(told["network"]), confined=bool(told["confined"]))
        except (OSError, ValueError):
            return Permits(network=True, confined=False)

    def close(self) -> None:
        """Remove it."""
        self._removed()


def _remove(path: Path, lock: int, owner: int) -> None:
    if os.getpid() == owner:  # not in a copy of the process
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def ended_with(owner: object, process: subprocess.Popen[bytes]) -> Callable[[], object]:
    """Have a process that was launched end with an object at the latest.

    Returns:
        Ends it at once, with all that it has started.
    """
    return weakref.finalize(owner, _end, process, os.getpid())


def _end(process: subprocess.Popen[bytes], owner: int) -> None:
    if os.getpid() != owner:
        return
    process.terminate()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
    try:
        process.wait(_ENDING_S)
    except subprocess.TimeoutExpired:  # it was stopped, or cannot be ended
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def _fits_into_memory(folder: Path) -> bool:
    """Whether a folder is put there: tools that write files would wait for a disk."""
    size = sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())
    return size < _SMALL and os.access(_IN_MEMORY, os.W_OK)


def environment(temporary: Path) -> dict[str, str]:
    """What the tools' process is told: where Python finds modules, and no secrets.

    Args:
        temporary: a folder for temporary files.
    """
    kept = ("PATH", "LANG", "LC_ALL", "HOME", "VIRTUAL_ENV", "SYSTEMROOT", "TZ")
    own = str(Path(__file__).parents[3])
    paths = [own, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        **{name: os.environ[name] for name in kept if name in os.environ},
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONHASHSEED": "0",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(temporary),
    }


T = TypeVar("T")


class Thread:
    """An event loop in its own thread, for coroutines called from synchronous code."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=_run, args=(self._loop,), name="genenv-tools", daemon=True)
        thread.start()
        self._ended = weakref.finalize(self, _end_loop, self._loop, thread)

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin something."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """End all of it."""
        self._ended()


def _run(loop: asyncio.AbstractEventLoop) -> None:
    asyncio.set_event_loop(loop)
    try:
        loop.run_forever()
    finally:
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        loop.run_until_complete(asyncio.gather(*left, return_exceptions=True))
        loop.run_until_complete(loop.shutdown_asyncgens())
        loop.close()


def _end_loop(loop: asyncio.AbstractEventLoop, thread: threading.Thread) -> None:
    with contextlib.suppress(RuntimeError):  # it is closed already
        loop.call_soon_threadsafe(loop.stop)
    if thread is not threading.current_thread():
        thread.join(timeout=10)
