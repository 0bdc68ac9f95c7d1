"""A taskset of verifiers as an environment: `[environment] name = "verifiers:TASKSET"`.

Its rows are tasks and its rewards are verdicts. Its own rollouts run in another process, whose Python has the
package: genenv's own need not. A row cannot be varied; what `vary` names are settings of the taskset.
"""

from __future__ import annotations

import contextlib
import json
import math
import os
import queue
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import IO, Any, ClassVar, cast, get_args

from pydantic import BaseModel

from genenv.errors import RolloutError, UsageError
from genenv.interop.imported.environment import (
    ImportedEnvironment,
    RemoteRollout,
    Space,
    Start,
    random_call,
    words_and_calls,
)
from genenv.interop.imported.settings import VerifiersConfig
from genenv.texts import inert
from genenv.types import JsonObject, Message, Role

_WITHIN = Path(__file__).with_name("within")
_START_S = 600.0
"""So long importing verifiers and a taskset may take."""


class Process:
    """The process that runs the rollouts.

    Args:
        start: see `within/genenv_player`.
        python: that runs it.
        limit_s: so long an answer may take.
    """

    def __init__(self, start: JsonObject, *, python: str, limit_s: float) -> None:
        self._order, self._python, self._limit_s = start, python, limit_s
        self.shown = str(start["taskset"])
        self._process: subprocess.Popen[str] | None = None
        self._log: IO[str] | None = None
        self._came: queue.Queue[dict[str, Any] | None] = queue.Queue()
        self._answers: dict[int, list[dict[str, Any]]] = {}
        self._last = 0
        self._lost: set[int] = set()
        self._open: set[int] = set()

    def begin(self, order: JsonObject) -> int:
        """Begin a rollout; returns its name.

        Raises:
            UsageError: the process cannot be started.
        """
        if self._process is None:
            self._start()
        self._last += 1
        self._open.add(self._last)
        self.tell({"op": "begin", "id": self._last, **order})
        return self._last

    def count(self, given: JsonObject, most: int) -> int:
        """How many rows there are, if no more than so many.

        Raises:
            UsageError: they cannot be loaded.
        """
        if self._process is None:
            self._start()
        self._last += 1
        self._open.add(self._last)
        self.tell({"op": "count", "id": self._last, "given": given, "most": most})
        try:
            answer = self.answer(self._last)
        except RolloutError as error:
            raise UsageError(f"the taskset {self.shown} cannot be read: {error}") from error
        finally:
            self._open.discard(self._last)
        if "refused" in answer:
            raise UsageError(f"the taskset {self.shown}: {inert(str(answer['refused']))}")
        return int(answer["count"])

    def tell(self, order: Mapping[str, Any]) -> None:
        """Write an order; if the process has ended, the next answer says so."""
        if self._process is None or self._process.stdin is None:
            return
        with contextlib.suppress(OSError):
            self._process.stdin.write(json.dumps(order) + "\n")
            self._process.stdin.flush()

    def answer(self, name: int) -> dict[str, Any]:
        """The next message about a rollout.

        Raises:
            RolloutError: nothing comes, or the process has ended.
        """
        until = time.monotonic() + self._limit_s
        while True:
            if waiting := self._answers.pop(name, None):
                first, *others = waiting
                if others:
                    self._answers[name] = others
                return first
            if name in self._lost:
                raise RolloutError(f"The environment's process has ended{self._last_words()}.")
            try:
                came = self._came.get(timeout=max(0.0, until - time.monotonic()))
            except queue.Empty:
                raise RolloutError(
                    f"The environment took longer than {self._limit_s:g} s (environment.step_s)."
                ) from None
            if came is None:
                self._lost |= self._open
                self.close()
            else:
                self._answers.setdefault(int(came["id"]), []).append(came)

    def end(self, name: int) -> None:
        """Break a rollout off."""
        self._open.discard(name)
        self._answers.pop(name, None)
        self.tell({"op": "end", "id": name})

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            _ended(process)

    def _start(self) -> None:
        """Start it, and wait until it is ready.

        Raises:
            UsageError: it cannot.
        """
        python = shutil.which(self._python)
        if python is None:
            raise UsageError(f"environment.python: {self._python!r} is no program that can be started")
        log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - it stays open
        self._log = log
        path = str(self._order["path"])
        paths = [str(_WITHIN), *([path] if path else []), *filter(None, [os.environ.get("PYTHONPATH")])]
        process = self._process = subprocess.Popen(  # noqa: S603 - the Python that the user named
            [python, "-m", "genenv_player"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._log,
            env={**os.environ, "PYTHONHASHSEED": "0", "PYTHONPATH": os.pathsep.join(paths)},
            start_new_session=True,
            text=True,
            encoding="utf-8",
        )
        weakref.finalize(self, _ended, process)
        weakref.finalize(self, log.close)
        self._came = queue.Queue()
        threading.Thread(target=_listen, args=(process.stdout, self._came), daemon=True).start()
        self.tell(self._order)
        try:
            first = self._came.get(timeout=_START_S)
        except queue.Empty:
            first = {"refused": f"verifiers and the taskset take longer than {_START_S:g} s to load"}
        if first is None or "ready" not in first:
            self.close()
            said = (
                f"the process has ended{self._last_words()}" if first is None else str(first.get("refused"))
            )
            raise UsageError(f"verifiers:{self.shown} cannot be played: {inert(said)}")

    def _last_words(self) -> str:
        """The last line that it wrote, after a colon."""
        if self._log is None:
            return ""
        self._log.seek(0)
        lines = [line for line in self._log.read()[-20_000:].splitlines() if line.strip()]
        return f": {inert(lines[-1].strip()[:300])}" if lines else ""


def _listen(output: IO[str], came: queue.Queue[dict[str, Any] | None]) -> None:
    """Hand on what the process says, and that it has ended."""
    with contextlib.suppress(ValueError, OSError):
        for line in output:
            came.put(json.loads(line))
    came.put(None)


def _ended(process: subprocess.Popen[str]) -> None:
    """End a process that may have ended: its input first, so that it can let go of what it has started."""
    with contextlib.suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    try:
        process.wait(6)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout is not None:
        process.stdout.close()


class Verifiers(ImportedEnvironment):
    """A taskset of verifiers.

    Args:
        settings: see `VerifiersConfig`.
        taskset: its id, or the folder of its package.
    """

    name: ClassVar[str] = "verifiers"
    config: ClassVar[type[BaseModel]] = VerifiersConfig

    def __init__(self, settings: VerifiersConfig | None, taskset: str) -> None:
        chosen = settings or VerifiersConfig()
        self.chosen = chosen
        name, path = _found(taskset, chosen.path)
        self.world = Process(
            {
                "taskset": name,
                "path": path,
                "harness": chosen.harness,
                "env": chosen.env,
                "max_turns": chosen.max_turns,
            },
            python=chosen.python or sys.executable,
            limit_s=chosen.step_s,
        )
        super().__init__(chosen, Space(chosen.vary, "row", chosen.rows), 0)

    def seeds(self) -> Sequence[Any]:
        """See `ImportedEnvironment`; how many rows there are is known by then."""
        self._counted()
        return super().seeds()

    def spec_schema(self, seed: Any) -> JsonObject:  # noqa: ANN401 - a seed
        """See `ImportedEnvironment`."""
        self._counted()
        return super().spec_schema(seed)

    def _counted(self) -> None:
        """Know how many rows there are: that decides which of them are held out."""
        self.space.numbers, self._first_held_out = self._split

    @cached_property
    def _split(self) -> tuple[int, int]:
        """How many rows are for training, and the first that is held out."""
        chosen = self.chosen
        first = self.space.spread(1, 0)[0]
        given = self.space.given(first, cast(JsonObject, chosen.given))
        apart = 0 if chosen.given_held_out else chosen.held_out
        count = self.world.count(given, chosen.rows + apart)
        if count <= apart:
            raise UsageError(
                f"the taskset {self.world.shown} has {count} rows, and environment.held_out is {apart}; "
                "set it lower"
            )
        rows = min(chosen.rows, count - apart)
        return rows, 0 if chosen.given_held_out else rows

    def held_out(self) -> Sequence[Any]:
        """See `ImportedEnvironment`."""
        self._counted()
        return super().held_out()

    def begin(self, start: Start) -> RemoteRollout:
        """See `ImportedEnvironment`."""
        return VerifiersRollout(self.world, start)


class VerifiersRollout(RemoteRollout):
    """One rollout, in a rollout of verifiers."""

    def __init__(self, world: Process, start: Start) -> None:
        self._world = world
        self._name = world.begin({"given": start.given, "row": start.number or 0})
        self._reward = 0.0
        try:
            self._receive(world.answer(self._name))
        except BaseException:
            self.close()
            raise

    def reply(self, text: str) -> None:
        """See `RemoteRollout`."""
        words, calls = words_and_calls(text) if self.tools else (text, ())
        listed = [{"name": call.name, "arguments": call.arguments} for call in calls]
        self._world.tell({"op": "reply", "id": self._name, "content": words, "calls": listed})
        self._receive(self._world.answer(self._name))

    @property
    def total(self) -> float:
        """What its rewards come to, with their weights."""
        return self._reward

    def random_reply(self, rng: random.Random) -> str:
        """See `RemoteRollout`."""
        return random_call(self.tools, rng)

    def close(self) -> None:
        """See `RemoteRollout`: what has not ended is broken off."""
        if not self.done:
            self._world.end(self._name)

    def _receive(self, answer: Mapping[str, Any]) -> None:
        """Take in what the rollout asks, or how it ended."""
        ended = answer.get("ended")
        if ended is None:
            asked = answer["asks"]
            self.messages = tuple(_message(one) for one in asked["messages"])
            self.tools = self.tools or list(asked["tools"])
            return
        self.messages, self.done = (), True
        if "error" in ended:
            raise RolloutError(f"The environment failed: {inert(str(ended['error']))}")
        self._reward = float(ended["reward"])
        parts = ", ".join(f"{name} {value:g}" for name, value in ended["parts"].items())
        self.explanation = f"The environment gives {self._reward:g}{f' ({parts})' if parts else ''}."
        if not math.isfinite(self._reward):
            raise RolloutError(f"The environment gave the reward {self._reward}.")


def _found(taskset: str, path: str) -> tuple[str, str]:
    """The id of a taskset, and the folder where it is found.

    Raises:
        UsageError: a folder holds no package.
    """
    if "/" not in taskset and taskset not in (".", ".."):
        return taskset, str(Path(path).resolve()) if path else ""
    folder = Path(taskset).expanduser().resolve()
    if (folder / "__init__.py").is_file():
        return folder.name, str(folder.parent)
    inside = folder.name.replace("-", "_").lower()
    if (folder / inside / "__init__.py").is_file():
        return inside, str(folder)
    raise UsageError(
        f"environment 'verifiers:{taskset}': {folder} is no Python package and holds none called {inside!r}"
    )


def _message(said: Mapping[str, Any]) -> Message:
    role = said.get("role")
    return Message(role=cast(Role, role if role in get_args(Role) else "user"), content=str(said["content"]))
