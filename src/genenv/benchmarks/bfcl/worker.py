"""Client of the process that runs the official code (`official.py`); restarts the process if it ends."""

from __future__ import annotations

import atexit
import contextlib
import json
import os
import select
import signal
import subprocess
import sys
import threading
from functools import cache
from typing import IO, Any, cast

from genenv.benchmarks.bfcl.data import INSTALL, data_folder
from genenv.errors import RolloutError, UsageError

_MODULE = "genenv.benchmarks.bfcl.official"
_MEMORY_GIB = 1
_ONE_THREAD = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
"""Settings for numpy: each thread of its library takes address space, which is limited."""
_WALL_S = 60
"""Wall-clock limit of a reply in seconds, for busy machines."""


class Stopped(RolloutError):
    """Raised if a request exceeds its time or memory, or ends the process in another way.

    A rollout that needs its result ends; the evaluation goes on.
    """


class Worker:
    """A process that runs `official.py` and serves one request at a time. Thread-safe."""

    def __init__(self, cpu_s: float = 5) -> None:
        """Set the limit; the process starts with the first request.

        Args:
            cpu_s: the limit of processor time per request in seconds. Right answers take milliseconds.
        """
        self._cpu_s = cpu_s
        self._process: subprocess.Popen[str] | None = None
        self._lock = threading.Lock()

    def ask(self, what: str, **arguments: Any) -> Any:  # noqa: ANN401
        """Call the function `what` of `official.py` and return its result.

        Raises:
            Stopped: the request exceeded its limits or ended the process.
            UsageError: the package bfcl-eval or one of its requirements is missing.
        """
        too_much = f"it takes more than {self._cpu_s} s of processor time or {_MEMORY_GIB} GiB of memory"
        stopped = Stopped(f"{too_much}, or is nested too deeply")
        try:
            request = json.dumps([what, arguments])
        except RecursionError:
            raise stopped from None
        with self._lock:
            process = self._process = self._process or _started(self._cpu_s)
            reply = _told(process, request)
            if not reply.endswith("\n"):  # missing or truncated
                self._end()
                raise stopped
        return json.loads(reply)

    def check(self) -> None:
        """Start the process if it is not running.

        Raises:
            UsageError: a package is missing.
        """
        with self._lock:
            self._process = self._process or _started(self._cpu_s)

    def end(self) -> None:
        """End the process; the next request starts another."""
        with self._lock:
            self._end()

    def _end(self) -> None:
        process, self._process = self._process, None
        if process is not None:
            _ended(process)


@cache
def worker() -> Worker:
    """Return the worker shared by this Python process, which ends it at exit."""
    made = Worker()
    atexit.register(made.end)
    return made


def _started(cpu_s: float) -> subprocess.Popen[str]:
    data_folder()
    process = subprocess.Popen(  # noqa: S603 - our own module
        [sys.executable, "-P", "-m", _MODULE, str(cpu_s), str(_MEMORY_GIB << 30)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
        start_new_session=True,
        env={**os.environ, **_ONE_THREAD, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    greeting = _told(process)
    problem = json.loads(greeting) if greeting else "its process ends at once"
    if problem:
        _ended(process)
        raise UsageError(f"the package bfcl-eval cannot be used ({problem}): {INSTALL}")
    return process


def _told(process: subprocess.Popen[str], request: str = "") -> str:
    """Send a request; return the process's next line, or "" if it ended or was too slow."""
    to, of = cast("IO[str]", process.stdin), cast("IO[str]", process.stdout)
    try:
        if request:
            to.write(request + "\n")
            to.flush()
    except BrokenPipeError:
        return ""
    return of.readline() if select.select([of], [], [], _WALL_S)[0] else ""


def _ended(process: subprocess.Popen[str]) -> None:
    with contextlib.suppress(ProcessLookupError):  # it has ended
        os.killpg(process.pid, signal.SIGKILL)
    process.communicate()
