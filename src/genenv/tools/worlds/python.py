"""A tool environment from a Python file. Each session is a forked process in a copy of the file's folder.

Where the system allows it, the processes have no network and write in their own folder only. Memory and time
are limited. A call that hangs ends its session, not the run.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import selectors
import signal
import socket
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any, cast

from genenv.environments.stepwise import STEPPED, blocking
from genenv.errors import EnvironmentCodeError, UsageError
from genenv.tools.worlds.base import (
    GONE,
    Call,
    KnownPrograms,
    LoadedWorld,
    Outcome,
    Played,
    Session,
    Step,
    Tool,
    usable,
)
from genenv.tools.worlds.differences import difference, patched
from genenv.tools.worlds.importing import SessionSettings
from genenv.tools.worlds.processes import Scratch, ended_with, environment
from genenv.types import Json

START_S = 60.0
"""How long importing the file may take."""
CALL_S = 5.0
"""How long one call may take."""
_STATE_S = 30.0
"""How long reading the state may take."""
_MOST_BYTES = 64 << 20
"""Of an answer: results and the state."""


_USUAL = SessionSettings()


class NotStarted(UsageError):
    """The file gives no tools.

    Args:
        message: a sentence.
        asked: files of the folder that it wanted to read, and that are not there.
    """

    def __init__(self, message: str, asked: Sequence[str]) -> None:
        super().__init__(message)
        self.asked = tuple(asked)


class _Ended(Exception):
    """The session's process has ended, or does not answer in time."""


class PythonWorld(LoadedWorld):
    """The tools of a Python file.

    Args:
        folder: each session runs in a copy of it.
        file: of that folder; it is imported in each session.
        name: of its class whose methods are the tools; left out, its functions, or its only class.
        call_s: how long a call may take, in seconds.
        settings: what sessions may do and are given.

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
        settings: SessionSettings = _USUAL,
    ) -> None:
        self._folder, self.file, self._name, self.call_s = folder.resolve(), file, name, call_s
        folders = tuple(str(Path(one).expanduser()) for one in settings.may_write)
        self._settings = replace(settings, may_write=folders)
        self._process: subprocess.Popen[bytes] | None = None
        self._ended: Callable[[], object] | None = None
        self._started_times = 0
        self._known = KnownPrograms()
        self._first: Json = None
        """The last session's state before its first program."""
        self._player: _Connection | None = None
        """The session that executes programs."""
        self._received = 0
        self._lock = threading.RLock()  # one start, and one program, at a time
        self._scratch = Scratch(self._folder)
        try:
            first = self._described()
            self.checked(first)
        except BaseException:
            self.close()
            raise
        self.tools, left_out = usable({one["name"]: partial(Tool, **one) for one in first["tools"]})
        self.left_out = {**first["left_out"], **left_out}
        if not self.tools:
            self.close()
            reasons = "; ".join(f"{name}: {why}" for name, why in self.left_out.items())
            raise UsageError(f"nothing in {file} can be a tool ({reasons[:400]})")
        self.unseen = first["unseen"]
        kept, large = (", ".join(first[key])[:200] for key in ("kept_open", "too_large"))
        told = {
            f"Importing {file} leaves something open ({kept}), so that each program imports it anew: "
            "slow": kept,
            f"{large}: damaged, or with too many rows, and compared by the bytes, in which equal rows may "
            "differ; make it smaller": large,
        }
        self.remarks = tuple(said for said, named in told.items() if named)
        """What a user should know about the file."""
        self.network, self.confined = self._scratch.permits

    def _described(self) -> dict[str, Any]:
        with contextlib.closing(self._connected(START_S)) as connection:
            try:
                answer = connection.ask({"do": "describe"}, START_S)
            except _Ended:
                raise self._not_imported() from None
        if "refused" in answer:
            raise NotStarted(str(answer["refused"]), answer["asked"])
        return answer

    def play(self, calls: Sequence[Call], *, watch: bool = False) -> Played:
        """See `World`; programs are cached, each with all that it begins with, and always watched.

        Raises:
            EnvironmentCodeError: the state cannot be read.
        """
        return self._known.play(calls, watch=True, execute=lambda: self._steps(calls))

    def play_uncached(self, calls: Sequence[Call]) -> Played:
        """See `World`. A call that ends the process fails, and so does what comes after it.

        Raises:
            EnvironmentCodeError: the state cannot be read.
        """
        return self._steps(calls)[-1].played

    def _steps(self, calls: Sequence[Call]) -> list[Step]:
        """Execute a program: what its beginnings led to, where that is known, and what all of it led to."""
        request = {"do": "play", "calls": [call.json for call in calls], "call_s": self.call_s}
        try:
            answer, first = self._executed(request, _STATE_S + 2 * self.call_s * len(calls))
        except _Ended:
            return self._shortened(calls)
        self.checked(answer)
        outcomes = [Outcome(**one) for one in answer["outcomes"]]
        size = len(json.dumps(answer["outcomes"]))
        self._received += size
        states = iter(answer["states"])
        change = next(states)
        state = patched(first, change)
        steps = [Step(Played(outcomes=(), state=state), 0)]
        for number, outcome in enumerate(outcomes, 1):
            if outcome.changed:
                change = next(states)
                state = patched(first, change)
                size += len(json.dumps(change))
            steps.append(Step(Played(outcomes=tuple(outcomes[:number]), state=state), size))
        return steps

    def _executed(self, request: Mapping[str, object], limit_s: float) -> tuple[dict[str, Any], Json]:
        """Execute a program in a session that executes programs, or in a fresh one if that one is spent.

        Returns:
            The answer, and the session's state before its first program, from which its states differ.

        Raises:
            _Ended: the program ended its process, or took too long.
        """
        with self._lock:
            for _ in range(2):
                if self._player is None:
                    self._player = self._connected()
                wanted = self._player.first is None
                try:
                    answer = self._player.ask({**request, "first": wanted}, limit_s)
                except _Ended:
                    self._player = None
                    raise
                if "ended" in answer:
                    raise _Ended
                if "spent" not in answer:
                    if "first" in answer:
                        self._first = self._player.first = patched(
                            self._first, difference(self._first, answer["first"])
                        )
                    return answer, self._player.first
                self._player.close()
                self._player = None
        raise EnvironmentCodeError(f"{self.file}: a fresh session of the tools is spent already")

    def checked(self, answer: Mapping[str, Any]) -> None:
        """Note the files that a session's answer misses.

        Raises:
            EnvironmentCodeError: the answer is that the state cannot be read.
        """
        if new := set[str](answer["asked"]).difference(self.asked):
            self.asked = {*self.asked, *new}  # not in place: other threads read it
        if "refused" in answer:
            raise EnvironmentCodeError(f"{self.file}: {answer['refused']}")

    def _shortened(self, calls: Sequence[Call]) -> list[Step]:
        """The program up to the call that ends the process; it and what comes after it fail."""
        if not calls:
            raise EnvironmentCodeError(f"{self.file}: reading the state ends the process, or hangs")
        before = self.play(calls[:-1])
        gone = Outcome(error=GONE)
        return [
            Step(Played(outcomes=(*before.outcomes, gone), state=before.state), len(str(before.outcomes)))
        ]

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncGenerator[Session]:
        """See `World`."""
        if STEPPED.get():
            with contextlib.closing(self._connected()) as connection:
                yield _PythonSession(self, connection)
            return
        connection = await blocking(self._connected, lambda begun: begun.close())
        worker = ThreadPoolExecutor(1)
        try:
            yield _PythonSession(self, connection, worker)
        finally:
            connection.interrupt()
            worker.submit(connection.close)
            worker.shutdown(wait=False)

    def received(self) -> int:
        """See `LoadedWorld`. It is about what tools have answered, without their state."""
        return self._received

    def close(self) -> None:
        """End the processes, and remove their folder."""
        with self._lock:
            self._end()
            self._scratch.close()

    # processes

    def _connected(self, limit_s: float = START_S) -> _Connection:
        """A fresh session; the process that forks it is started if it is not there."""
        for _ in range(2):
            with self._lock:
                if self._process is None or self._process.poll() is not None:
                    self._start(limit_s)
            with contextlib.suppress(OSError, _Ended):
                return _Connection(self, self._address, limit_s)
            with self._lock:
                self._end()
        raise EnvironmentCodeError(f"{self.file}: the tools' process cannot be reached")

    @property
    def _address(self) -> str:
        return str(self._scratch.path / f"s{self._started_times}")

    def _start(self, limit_s: float) -> None:
        self._end()
        self._started_times += 1
        self._scratch.fill(self._folder)
        sessions = self._scratch.files.parent / "tmp"
        command = [sys.executable, "-m", "genenv.tools.worlds.python_child"]
        command += [str(self._folder), self.file, self._name or "", self._address, str(sessions)]
        command.append(json.dumps(asdict(self._settings)))
        self._process = subprocess.Popen(  # noqa: S603 - our own module
            self._scratch.launched(
                command, may_write=(str(self._scratch.path), *self._settings.may_write), listens=True
            ),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            cwd=self._scratch.files,
            env=environment(self._scratch.temporary),
            start_new_session=True,
        )
        self._ended = ended_with(self, self._process)
        if not _line_within(cast(Any, self._process.stdout), limit_s):
            self._end()
            raise self._not_imported()

    def _not_imported(self) -> UsageError:
        return UsageError(f"{self.file} cannot be imported: it ends the process, or takes over {START_S:g} s")

    def _end(self) -> None:
        if self._player is not None:
            self._player.close()
            self._player = None
        if self._ended is not None:
            self._ended()
        self._process = self._ended = None


def _line_within(stream: Any, limit_s: float) -> bool:  # noqa: ANN401 - a pipe
    """Whether a process says a line in time."""
    with selectors.DefaultSelector() as selector:
        selector.register(stream, selectors.EVENT_READ)
        return bool(selector.select(limit_s)) and bool(os.read(stream.fileno(), 64))


class _Connection:
    """A session's process, spoken to by blocking calls.

    Args:
        world: stays as long as its session.
        address: of the process that forks sessions.
        limit_s: how long it may take to answer, in seconds.
    """

    def __init__(self, world: PythonWorld, address: str, limit_s: float) -> None:
        self._world, self._file = world, world.file
        self._socket = socket.socket(socket.AF_UNIX)
        self.pid, self._is_killed = 0, False
        self.first: Json = None
        """The session's state before its first program, once it was sent."""
        try:
            self._socket.settimeout(limit_s)
            self._socket.connect(address)
            hello = self._read(limit_s)
            self.pid = int(hello["pid"])
            weakref.finalize(self, self._socket.close)
        except BaseException:
            self._socket.close()
            raise

    def ask(self, request: Mapping[str, object], limit_s: float) -> dict[str, Any]:
        """The answer.

        Raises:
            _Ended: the process has ended or takes too long, and is ended; also by an earlier request.
            EnvironmentCodeError: the answer is larger than anything that could be of use.
        """
        if self._is_killed:
            raise _Ended
        try:
            self._socket.sendall(json.dumps(request).encode() + b"\n")
            return self._read(limit_s)
        except (OSError, _Ended) as error:
            self.kill()
            raise _Ended from error

    def _read(self, limit_s: float) -> dict[str, Any]:
        line, until = bytearray(), time.monotonic() + limit_s
        while not line.endswith(b"\n"):
            self._socket.settimeout(max(0.001, until - time.monotonic()))
            piece = self._socket.recv(1 << 20)
            line += piece
            if not piece:
                raise _Ended
            if len(line) > _MOST_BYTES:
                self.kill()
                raise EnvironmentCodeError(
                    f"{self._file}: the tools' state and results take more than {_MOST_BYTES >> 20} MiB; "
                    "make what they hold smaller"
                )
        try:
            told: object = json.loads(line)
        except (ValueError, RecursionError):
            raise _Ended from None
        if not isinstance(told, dict):
            raise _Ended
        return cast("dict[str, Any]", told)

    def interrupt(self) -> None:
        """Let a request that waits in another thread end at once."""
        with contextlib.suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)

    def kill(self) -> None:
        """End the process, and what it has started."""
        self._is_killed = True
        if self.pid:
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)

    def close(self) -> None:
        """End the session: its process ends, and its folder is removed."""
        self._socket.close()


class _PythonSession:
    """A session of a `PythonWorld` for one episode.

    Args:
        world: its tools.
        connection: to the session's process.
        worker: a thread in which calls wait, so that others go on; None: calls block.
    """

    def __init__(
        self, world: PythonWorld, connection: _Connection, worker: ThreadPoolExecutor | None = None
    ) -> None:
        self._world, self._connection, self._worker = world, connection, worker
        self._made: list[Call] = []

    async def call(self, call: Call) -> Outcome:
        """See `Session`. A call that ends the process fails, and so do those after it."""
        limit_s = self._world.call_s
        try:
            answer = await self._ask({"do": "call", **call.json, "call_s": limit_s}, 2 + 2 * limit_s)
        except _Ended:
            return Outcome(error=GONE)
        self._made.append(call)
        self._world.checked(answer)
        return Outcome(result=answer.get("result"), error=answer.get("error"))

    async def state(self) -> Json:
        """See `Session`. If a call has ended the process: the state before that call."""
        try:
            answer = await self._ask({"do": "state"}, _STATE_S)
        except _Ended:
            return (await blocking(lambda: self._world.play(self._made))).state
        self._world.checked(answer)
        return answer["state"]

    async def _ask(self, request: Mapping[str, object], limit_s: float) -> dict[str, Any]:
        if self._worker is None:
            return self._connection.ask(request, limit_s)
        ask = partial(self._connection.ask, request, limit_s)
        return await asyncio.get_running_loop().run_in_executor(self._worker, ask)
