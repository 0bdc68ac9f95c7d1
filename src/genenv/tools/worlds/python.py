"""Tools of a Python file, in a process of their own.

Without network and able to write in its scratch folder only where the system allows that, with limits of
memory and time. A call that hangs ends the process, not the run.
"""

from __future__ import annotations

import json
import os
import selectors
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

from genenv.errors import EnvironmentCodeError, UsageError
from genenv.tools.worlds.base import GONE, Call, Outcome, Played, Tool, usable
from genenv.tools.worlds.processes import Scratch, ended_with, environment
from genenv.types import JsonObject

START_S = 60.0
"""How long importing the file may take."""
CALL_S = 5.0
"""How long one call may take."""
_MOST_BYTES = 64 << 20
"""Of an answer: results and the state."""


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
        may_write: folders, beside the copy, in which the tools may write.

    Raises:
        UsageError: it cannot be imported, or holds no tools.
    """

    def __init__(
        self,
        folder: Path,
        file: str,
        name: str | None = None,
        *,
        call_s: float = CALL_S,
        may_write: Sequence[str] = (),
    ) -> None:
        self._folder, self._file, self._name, self._call_s = folder.resolve(), file, name, call_s
        self._may_write = tuple(may_write)
        self._process: subprocess.Popen[bytes] | None = None
        self._ended: Callable[[], object] | None = None
        self.received = 0
        """Bytes that the tools' process has sent so far."""
        self._lock = threading.RLock()  # one question at a time, whoever asks
        self._scratch = Scratch(self._folder)
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
        permits = self._scratch.permits
        self.network: bool = permits.network
        """Whether the tools can reach the network: the system did not let us take it away."""
        self.confined: bool = permits.confined
        """Whether the tools can write in their own folder only: the system lets us see to that."""

    def play(self, calls: Sequence[Call], *, watch: bool = False) -> Played:
        """See `World`. A call that ends the process fails, and so does what comes after it.

        Raises:
            EnvironmentCodeError: the state cannot be copied or read.
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
            raise EnvironmentCodeError(f"{self._file}: {answer['refused']}")
        return Played(outcomes=tuple(Outcome(**one) for one in answer["outcomes"]), state=answer["state"])

    def _shortened(self, calls: Sequence[Call], *, watch: bool) -> Played:
        """The program up to the call that ends the process; it and what comes after it fail."""
        if not calls:
            raise EnvironmentCodeError(f"{self._file}: copying the state ends the process, or hangs")
        before = self._played(calls[:-1], watch=watch)
        gone = Outcome(error=GONE)
        return Played(outcomes=(*before.outcomes, gone), state=before.state)

    def close(self) -> None:
        """End the process, and remove its folder."""
        with self._lock:
            self._end()
            self._scratch.close()

    # the process

    def _started(self) -> dict[str, Any]:
        self._scratch.fill(self._folder)
        command = [sys.executable, "-m", "genenv.tools.worlds.python_child", str(self._folder), self._file]
        command += [self._name] if self._name else []
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            self._scratch.launched(command, may_write=self._may_write),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=self._scratch.files,
            env=environment(self._scratch.temporary),
            start_new_session=True,
        )
        self._ended = ended_with(self, self._process)
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
        """A line that is an object; None if the process ends, takes too long, or writes something else.

        Raises:
            EnvironmentCodeError: it is longer than anything that could be of use.
        """
        out = cast(Any, cast("subprocess.Popen[bytes]", self._process).stdout)
        line, until = bytearray(), time.monotonic() + limit_s
        with selectors.DefaultSelector() as selector:
            selector.register(out, selectors.EVENT_READ)
            while selector.select(max(0.0, until - time.monotonic())):
                piece = os.read(out.fileno(), 1 << 20)
                line += piece
                self.received += len(piece)
                if len(line) > _MOST_BYTES:
                    self._end()
                    raise EnvironmentCodeError(
                        f"{self._file}: the tools' state and results take more than {_MOST_BYTES >> 20} MiB; "
                        "make what they hold smaller"
                    )
                if not piece:
                    return None
                if piece.endswith(b"\n"):
                    try:
                        told: object = json.loads(line)
                    except (ValueError, RecursionError):
                        return None
                    return cast("dict[str, Any]", told) if isinstance(told, dict) else None
        return None

    def _end(self) -> None:
        if self._ended is not None:
            self._ended()
        self._process = self._ended = None
