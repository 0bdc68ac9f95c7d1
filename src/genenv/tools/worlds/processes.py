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
from pathlib import Path
from typing import Any, TypeVar

from genenv.files import private_folder, remove_abandoned
from genenv.tools.worlds import launch

_IN_MEMORY = Path("/dev/shm")  # noqa: S108 - a private folder is made there
_SMALL = 1 << 20
"""Maximum size in bytes of a folder that is copied to memory for each session."""
_PREFIX = "genenv-world-"
_ENDING_S = 5.0
"""Seconds that a process has to end all that it has started."""


class Scratch:
    """A private folder with a working folder `files` and one for temporary files.

    Only its owner can access it, and its path stays the same until it is closed. A lock shows that it is in
    use; folders that killed processes left are removed when the next `Scratch` is made.

    Args:
        original: the folder that will be copied to `files`; if it is small, the copy is in memory.
    """

    def __init__(self, original: Path) -> None:
        usual = Path(tempfile.gettempdir())
        for place in (_IN_MEMORY, usual):
            remove_abandoned(_PREFIX, place)
        size = sum(path.stat().st_size for path in original.rglob("*") if path.is_file())
        is_small = size < _SMALL and os.access(_IN_MEMORY, os.W_OK)  # then files do not wait for a disk
        self.path, lock = private_folder(_PREFIX, _IN_MEMORY if is_small else usual)
        self._removed = weakref.finalize(self, _remove, self.path, lock, os.getpid())
        self.files, self.temporary = self.path / "files", self.path / "tmp"
        self.temporary.mkdir()
        self._report = self.path / "report"

    def launched(
        self,
        command: Sequence[str],
        *,
        network: bool = False,
        may_write: Sequence[str] = (),
        listens: bool = False,
    ) -> list[str]:
        """Return the command that starts another one with limits; its processes end with this process.

        Args:
            command: the words of the command.
            network: whether it may reach the network.
            may_write: folders besides this one in which it may write.
            listens: whether it makes a local socket first, and refuses others itself
                (`without_local_sockets`).
        """
        others = [str(Path(one).expanduser()) for one in may_write]
        settings = {
            "parent": os.getpid(),
            "scratch": str(self.path),
            "report": str(self._report),
            "network": network,
            "listens": listens,
            "writable": [str(self.files), str(self.temporary), *others],
        }
        self._report.unlink(missing_ok=True)
        return [sys.executable, "-I", "-S", launch.__file__, json.dumps(settings), *command]

    def fill(self, original: Path) -> None:
        """Replace the content of `files` by a copy of a folder."""
        if self.files.is_symlink():  # a tool without limits may have put one there
            self.files.unlink()
        shutil.rmtree(self.files, ignore_errors=True)
        shutil.copytree(original, self.files, dirs_exist_ok=True, symlinks=True)

    @property
    def permits(self) -> tuple[bool, bool]:
        """Whether the process that was started last can reach the network, and writes in its own folder only.

        It has all rights until it has reported them.
        """
        try:
            told = json.loads(self._report.read_text(encoding="ascii"))
            return bool(told["network"]), bool(told["confined"])
        except (OSError, ValueError):
            return True, False

    def close(self) -> None:
        """Remove the folder."""
        self._removed()


def _remove(path: Path, lock: int, owner: int) -> None:
    if os.getpid() == owner:  # not in a copy of the process
        shutil.rmtree(path, ignore_errors=True)
        os.close(lock)


def ended_with(owner: object, process: subprocess.Popen[bytes]) -> Callable[[], object]:
    """Let a launched process end at the latest when an object is deleted.

    Returns:
        A function that ends the process at once, with all that it has started.
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
    except subprocess.TimeoutExpired:  # it is suspended, or does not end
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def environment(temporary: Path) -> dict[str, str]:
    """Return the environment variables of a tools' process: module paths, and no secrets.

    Args:
        temporary: a folder for temporary files.
    """
    kept = ("PATH", "LANG", "LC_ALL", "HOME", "VIRTUAL_ENV", "SYSTEMROOT", "TZ")
    own = str(Path(__file__).parents[3])
    paths = [own, *filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))]
    return {
        **{name: os.environ[name] for name in kept if name in os.environ},
        "OMP_NUM_THREADS": "1",  # a library without threads is imported once, before sessions are forked
        "PYTHONPATH": os.pathsep.join(paths),
        "PYTHONHASHSEED": "0",
        "PYTHONUNBUFFERED": "1",
        "TMPDIR": str(temporary),
    }


T = TypeVar("T")


class Thread:
    """An event loop in a separate thread, for coroutines called from synchronous code."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        thread = threading.Thread(target=_run, args=(self._loop,), name="genenv-tools", daemon=True)
        thread.start()
        self._ended = weakref.finalize(self, _end_loop, self._loop, thread)

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Start a coroutine in the loop and return its future."""
        return asyncio.run_coroutine_threadsafe(work, self._loop)

    def close(self) -> None:
        """Cancel all coroutines and end the thread."""
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
    with contextlib.suppress(RuntimeError):  # the loop is closed already
        loop.call_soon_threadsafe(loop.stop)
    if thread is not threading.current_thread():
        thread.join(timeout=10)
