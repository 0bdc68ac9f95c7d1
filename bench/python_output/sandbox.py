"""Executes Python sessions with limits, and says what their last line prints."""

from __future__ import annotations

import json
import subprocess
import sys
import threading
import weakref
from collections.abc import Mapping
from pathlib import Path

from genenv.tools.worlds.processes import Scratch, ended_with, environment

WORKER = Path(__file__).with_name("worker.py")
HASH_SEEDS = ("0", "1")
"""Each session runs in two processes, so that what depends on the order of a set, on an address or on the
time is noticed."""


class Sandbox:
    """Processes that run sessions. They start with the first session.

    Args:
        modules: modules to load before any session, as loading takes seconds.
        known: what sessions print that were executed before.
    """

    def __init__(self, modules: tuple[str, ...], known: Mapping[str, str] | None = None) -> None:
        self._modules = modules
        self._workers: list[subprocess.Popen[bytes]] = []
        self._known = {code: {"value": value} for code, value in (known or {}).items()}
        self._lock = threading.Lock()

    def printed(self, code: str) -> dict[str, str]:
        """Return {"value": what the last line prints} or {"error": why there is nothing}."""
        with self._lock:
            if code not in self._known:
                workers = self._started()
                for one in workers:  # all run it at the same time
                    _ask(one, code)
                found = [_answer(one) for one in workers]
                steady = all(one == found[0] for one in found)
                self._known[code] = found[0] if steady else {"error": "it prints another value each time"}
            return self._known[code]

    def _started(self) -> list[subprocess.Popen[bytes]]:
        if not self._workers:
            self._workers = [self._start(seed) for seed in HASH_SEEDS]
        return self._workers

    def _start(self, hash_seed: str) -> subprocess.Popen[bytes]:
        scratch = Scratch(WORKER.parent)
        scratch.files.mkdir(exist_ok=True)
        command = scratch.launched([sys.executable, str(WORKER), *self._modules])
        process = subprocess.Popen(  # noqa: S603 - our own program
            command,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=scratch.files,
            env={**environment(scratch.temporary), "PYTHONHASHSEED": hash_seed},
        )
        ended_with(self, process)
        weakref.finalize(self, scratch.close)
        return process


def _ask(worker: subprocess.Popen[bytes], code: str) -> None:
    assert worker.stdin is not None
    worker.stdin.write(json.dumps({"code": code}).encode() + b"\n")
    worker.stdin.flush()


def _answer(worker: subprocess.Popen[bytes]) -> dict[str, str]:
    assert worker.stdout is not None
    line = worker.stdout.readline()
    if not line:
        raise RuntimeError(f"the process that runs sessions ended with {worker.wait()}")
    return json.loads(line)
