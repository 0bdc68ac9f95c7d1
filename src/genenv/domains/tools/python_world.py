"""Tools of a Python file, in a process of their own.

Without network where the system allows it, in a scratch folder, with limits of memory and time. A call that
hangs ends the process, not the run.
"""

from __future__ import annotations

import contextlib
import json
import os
import selectors
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from genenv.domains.tools.processes import environment, place_for
from genenv.domains.tools.world import Call, Outcome, Played, Tool, usable
from genenv.errors import DomainError, UsageError
from genenv.types import JsonObject

START_S = 60.0
"""How long importing the file may take."""
CALL_S = 5.0
"""How long one call may take."""


class NotStarted(UsageError):
    """The file gives no tools.

    Args:
        message: a sentence.
        asked: files of the folder that it wanted to read, and that are not there.
    """

    def __init__(self, message: str, asked: Sequence[str]) -> None:
        super().__init__(message)
        self.asked = tuple(asked)


class PythonWorld:
    """The tools of a Python file.

    Args:
        folder: what is in it is copied; tools run in the copy, which is put back for every attempt.
        file: of that folder; it is imported, by another process.
        name: of its class whose methods are the tools; left out, its functions, or its only class.
        call_s: how long a call may take.

    Raises:
        UsageError: it cannot be imported, or holds no tools.
    """

    def __init__(self, folder: Path, file: str, name: str | None = None, *, call_s: float = CALL_S) -> None:
        self._folder, self._file, self._name, self._call_s = folder.resolve(), file, name, call_s
        self._process: subprocess.Popen[bytes] | None = None
        self._lock = threading.RLock()  # one question at a time, whoever asks
        self._scratch = tempfile.mkdtemp(prefix="genenv-tools-", dir=place_for(self._folder))
        self._removed = weakref.finalize(self, shutil.rmtree, self._scratch, ignore_errors=True)
        try:
            first = self._started()
        except BaseException:
            self.close()
            raise
        self.tools, left_out = usable({one["name"]: partial(Tool, **one) for one in first["tools"]})
        if not self.tools:
            self.close()
            reasons = "; ".join(f"{name}: {why}" for name, why in left_out.items())
            raise UsageError(f"nothing in {file} can be a tool ({reasons[:400]})")
        self.asked: set[str] = set()
        """Files of the folder that tools wanted to read, and that were not there."""
        self.left_out: dict[str, str] = {**first["left_out"], **left_out}
        """Functions that are no tools, and why."""
        self.network: bool = first["network"]
        """Whether the tools can reach the network: the system did not let us take it away."""

    def play(self, calls: Sequence[Call], *, watch: bool = False) -> Played:
        """See `World`. A call that ends the process fails, and so does what comes after it.

        Raises:
            DomainError: the state cannot be copied or read.
        """
        with self._lock:
            return self._played(calls, watch=watch)

    def _played(self, calls: Sequence[Call], *, watch: bool) -> Played:
        request = {"calls": [call.json for call in calls], "states": watch, "call_s": self._call_s}
        answer = self._asked(request, 2 + 2 * self._call_s * max(1, len(calls)))
        if answer is None:
            return self._shortened(calls, watch=watch)
        self.asked.update(answer["asked"])
        if "refused" in answer:
            raise DomainError(f"{self._file}: {answer['refused']}")
        return Played(outcomes=tuple(Outcome(**one) for one in answer["outcomes"]), state=answer["state"])

    def _shortened(self, calls: Sequence[Call], *, watch: bool) -> Played:
        """The program up to the call that ends the process; it and what comes after it fail."""
        if not calls:
            raise DomainError(f"{self._file}: copying the state ends the process, or hangs")
        before = self._played(calls[:-1], watch=watch)
        gone = Outcome(error="The tool ended its process, or took too long.")
        return Played(outcomes=(*before.outcomes, gone), state=before.state)

    def close(self) -> None:
        """End the process, and remove its folder."""
        with self._lock:
            self._end()
            self._removed()

    # the process

    def _started(self) -> dict[str, Any]:
        shutil.rmtree(self._scratch, ignore_errors=True)
        shutil.copytree(self._folder, self._scratch, dirs_exist_ok=True, symlinks=True)
        command = [sys.executable, "-m", "genenv.domains.tools.child", str(self._folder), self._file]
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            [*command, *([self._name] if self._name else [])],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=self._scratch,
            env=environment(),
            start_new_session=True,
        )
        weakref.finalize(self, _kill, self._process)
        answer = self._read(START_S)
        if answer is None:
            self._end()
            raise UsageError(
                f"{self._file} cannot be imported: it ends the process, or takes over {START_S:g} s"
            )
        if "refused" in answer:
            self._end()
            raise NotStarted(str(answer["refused"]), answer["asked"])
        return answer

    def _asked(self, request: JsonObject | Mapping[str, object], limit_s: float) -> dict[str, Any] | None:
        """The answer; None if the process has ended or takes too long, and is ended."""
        if self._process is None:
            self._started()
        process = cast("subprocess.Popen[bytes]", self._process)
        try:
            stdin = cast(Any, process.stdin)
            stdin.write(json.dumps(request).encode() + b"\n")
            stdin.flush()
            answer = self._read(limit_s)
        except OSError:
            answer = None
        if answer is None:
            self._end()
        return answer

    def _read(self, limit_s: float) -> dict[str, Any] | None:
        out = cast(Any, cast("subprocess.Popen[bytes]", self._process).stdout)
        pieces: list[bytes] = []
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            while selector.select(limit_s):
                piece = os.read(out.fileno(), 1 << 20)
                pieces.append(piece)
                if not piece:
                    return None
                if piece.endswith(b"\n"):
                    return cast("dict[str, Any]", json.loads(b"".join(pieces)))
        return None

    def _end(self) -> None:
        if self._process is not None:
            _kill(self._process)
            self._process = None


def _kill(process: subprocess.Popen[bytes]) -> None:
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.kill()
    process.wait()
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            with contextlib.suppress(OSError):
                pipe.close()
