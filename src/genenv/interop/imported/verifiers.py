"""Verifiers tasksets as environments: `[environment] name = "verifiers:TASKSET"`.

The taskset's rows are the tasks, and its rewards are the verdicts. Rollouts run in another process, whose
Python has the package verifiers; genenv's Python need not. A row cannot be varied; `vary` names settings of
the taskset. The roles of an environment of several agents are seats, if `environment.roles` names them.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import queue
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, ClassVar, cast, get_args

from pydantic import BaseModel

from genenv.environments.base import Ask, Episode, OutOfTurns, SeatedEpisode
from genenv.environments.stepwise import STEPPED, blocking
from genenv.errors import RolloutError, UsageError
from genenv.interop.imported.environment import (
    ImportedEnvironment,
    RemoteRollout,
    Start,
    random_call,
    start_of,
    words_and_calls,
)
from genenv.interop.imported.pool import Places
from genenv.interop.imported.settings import VerifiersConfig
from genenv.interop.imported.space import Space
from genenv.texts import inert
from genenv.types import JsonObject, Message, Role, Task, Verdict

_WITHIN = Path(__file__).with_name("within")
_READY = 0
"""In place of a rollout's id, the message that the process is ready."""
_PING_S = 5.0
"""Seconds in which a process that does not hang answers a ping."""
_START_S = 600.0
"""Seconds that importing verifiers and a taskset may take."""


class Process:
    """The process that runs verifiers' rollouts, driven by JSON lines over its standard input and output.

    Args:
        start: the first line sent to the process; see `within/genenv_player.py`.
        python: the Python interpreter to run.
        limit_s: seconds that an answer may take.
    """

    def __init__(self, start: JsonObject, *, python: str, limit_s: float) -> None:
        self._order, self._python, self._limit_s = start, python, limit_s
        self.shown = str(start["taskset"])
        self._process: subprocess.Popen[str] | None = None
        self._log: IO[str] | None = None
        self._lock, self._writing = threading.Lock(), threading.Lock()
        self._answers = _Answers()
        self._last = 0

    def begin(self, what: str, order: JsonObject) -> int:
        """Give an order that is answered, such as `begin` for a rollout, and return its id.

        Raises:
            UsageError: the process cannot be started.
        """
        with self._lock:
            if self._process is None:
                self._start()
            self._last += 1
            name = self._last
            self._answers.expect(name)
        self.tell({"op": what, "id": name, **order})
        return name

    def count(self, given: JsonObject, most: int) -> int:
        """Return the number of rows of the taskset, at most `most`.

        Raises:
            UsageError: the rows cannot be loaded.
        """
        name = self.begin("count", {"given": given, "most": most})
        try:
            answer = self.answer(name)
        except RolloutError as error:
            raise UsageError(f"the taskset {self.shown} cannot be read: {error}") from error
        finally:
            self._answers.of.pop(name, None)
        if "refused" in answer:
            raise UsageError(f"the taskset {self.shown}: {inert(str(answer['refused']))}")
        return int(answer["count"])

    def tell(self, order: Mapping[str, Any]) -> None:
        """Send an order; if the process has ended, the next `answer` raises."""
        process = self._process
        if process is not None:
            self._write(process, order)

    def _write(self, process: subprocess.Popen[str], order: Mapping[str, Any]) -> None:
        assert process.stdin is not None  # noqa: S101 - it is a pipe
        with self._writing, contextlib.suppress(OSError, ValueError):  # its input may be closed
            process.stdin.write(json.dumps(order) + "\n")
            process.stdin.flush()

    def answer(self, name: int) -> dict[str, Any]:
        """Return the next message about a rollout.

        Raises:
            RolloutError: no message comes in time, or the process has ended.
        """
        process, waiting = self._process, self._answers.of.get(name)
        try:
            found = None if waiting is None else waiting.get(timeout=self._limit_s)
        except queue.Empty:
            hung = " Its process hung, and was ended." if self._ended_if_hung(process) else ""
            raise RolloutError(
                f"The environment took longer than {self._limit_s:g} s (environment.step_s).{hung}"
            ) from None
        if found is not None:
            return found
        with self._lock:
            if name in self._answers.of:  # no other process was started since
                self.close()
            raise RolloutError(f"The environment's process has ended{self._last_words()}.")

    def _ended_if_hung(self, process: subprocess.Popen[str] | None) -> bool:
        """End the process if it answers no ping, as it would answer no other rollout; return whether it did.

        The next rollout starts another process.
        """
        with self._lock:
            if process is None or self._process is not process:
                return False
            self._last += 1
            name, answers = self._last, self._answers
            pong = answers.expect(name)
        self._write(process, {"op": "ping", "id": name})
        try:
            pong.get(timeout=_PING_S)
        except queue.Empty:
            with self._lock:
                if self._process is process:
                    self._process = None
                    _ended(process, patience_s=0.0)
            return True
        finally:
            answers.of.pop(name, None)
        return False

    def end(self, name: int) -> None:
        """Abort a rollout."""
        self._answers.of.pop(name, None)
        self.tell({"op": "end", "id": name})

    def close(self) -> None:
        """End the process."""
        process, self._process = self._process, None
        if process is not None:
            _ended(process)

    def _start(self) -> None:
        """Start the process and wait until it is ready.

        Raises:
            UsageError: the process cannot be started, or cannot load the taskset.
        """
        python = shutil.which(self._python)
        if python is None:
            raise UsageError(f"environment.python: {self._python!r} is no program that can be started")
        log = tempfile.TemporaryFile("w+", encoding="utf-8", errors="replace")  # noqa: SIM115 - it stays open
        self._log = log
        path = str(self._order["path"])
        paths = [str(_WITHIN), *([path] if path else []), *filter(None, [os.environ.get("PYTHONPATH")])]
        process = subprocess.Popen(  # noqa: S603 - the Python that the user named
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
        answers = self._answers = _Answers()
        ready = answers.expect(_READY)
        threading.Thread(target=_listen, args=(process.stdout, answers), daemon=True).start()
        self._write(process, self._order)
        try:
            first = ready.get(timeout=_START_S)
        except queue.Empty:
            first = {"refused": f"verifiers and the taskset take longer than {_START_S:g} s to load"}
        if first is None or "ready" not in first:
            _ended(process)
            said = (
                f"the process has ended{self._last_words()}" if first is None else str(first.get("refused"))
            )
            raise UsageError(f"verifiers:{self.shown} cannot be played: {inert(said)}")
        self._process = process

    def _last_words(self) -> str:
        """Return the last line of the process's log after ": ", or ""."""
        if self._log is None:
            return ""
        self._log.seek(0)
        lines = [line for line in self._log.read()[-20_000:].splitlines() if line.strip()]
        return f": {inert(lines[-1].strip()[:300])}" if lines else ""


class _Answers:
    """The messages of one process by rollout; None after the last one, when the process has ended."""

    def __init__(self) -> None:
        self.of: dict[int, queue.Queue[dict[str, Any] | None]] = {}
        self._over = False

    def expect(self, name: int) -> queue.Queue[dict[str, Any] | None]:
        """Return the queue of messages about a rollout, which is new."""
        waiting = self.of[name] = queue.Queue()
        if self._over:
            waiting.put(None)
        return waiting

    def end(self) -> None:
        """Tell all who wait that no message comes any more."""
        self._over = True
        for waiting in list(self.of.values()):
            waiting.put(None)


def _listen(output: IO[str], answers: _Answers) -> None:
    """Pass each message of the process on to whoever waits for it, until its output ends."""
    with contextlib.suppress(ValueError, OSError):
        for line in output:
            message = json.loads(line)
            if (waiting := answers.of.get(int(message.get("id", _READY)))) is not None:
                waiting.put(message)
    answers.end()


def _ended(process: subprocess.Popen[str], patience_s: float = 6.0) -> None:
    """End a process that may have ended; close its input first, so that it can stop its children.

    After that all processes of its session are killed: one that held its output open would be waited for.
    """
    if process.returncode is not None:
        return
    with contextlib.suppress(OSError):
        if process.stdin is not None:
            process.stdin.close()
    with contextlib.suppress(subprocess.TimeoutExpired):
        process.wait(patience_s)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    if process.stdout is not None:
        process.stdout.close()


class Verifiers(ImportedEnvironment):
    """A verifiers taskset as an environment.

    Args:
        settings: see `VerifiersConfig`.
        taskset: the taskset's id, or the folder of its package.
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
                "roles": list(chosen.roles),
                "max_turns": chosen.max_turns,
            },
            python=chosen.python or sys.executable,
            limit_s=chosen.step_s,
        )
        super().__init__(chosen, Space(chosen.vary, "row", chosen.rows))
        self.seats, self._places = chosen.roles, Places(chosen.sessions)

    plays_seats = False
    """No code of verifiers plays a role."""

    @staticmethod
    def seats_by(settings: VerifiersConfig) -> tuple[str, ...]:
        """Return the seats of an environment with these settings; none if it has one agent."""
        return settings.roles

    @property
    def space(self) -> Space:
        """The space of its tasks, with as many rows as are for training."""
        self._space.numbers = self._rows
        return self._space

    @property
    def first_held_out(self) -> int:  # pyright: ignore[reportIncompatibleVariableOverride] - it is never set
        """The first held-out row: the first one, or that after the rows for training."""
        return 0 if self.chosen.given_held_out else self._rows

    @functools.cached_property
    def _rows(self) -> int:
        """The number of rows for training, after counting the taskset's rows."""
        chosen = self.chosen
        first = self._space.spread(1, 0)[0]
        given = self._space.given(first, cast(JsonObject, chosen.given))
        apart = 0 if chosen.given_held_out else chosen.held_out
        count = self.world.count(given, chosen.rows + apart)
        if count <= apart:
            raise UsageError(
                f"the taskset {self.world.shown} has {count} rows, and environment.held_out is {apart}; "
                "set it lower"
            )
        return min(chosen.rows, count - apart)

    def begin(self, start: Start) -> VerifiersRollout:
        """See `ImportedEnvironment`. With seats, the replies are those of whichever seat is asked.

        Raises:
            RolloutError: the rollout cannot start, or another seat than the first one is asked first.
        """
        rollout = VerifiersRollout(self.world, start)
        if self.seats and rollout.seat not in ("", self.seats[0]):
            rollout.close()
            raise RolloutError(
                f"environment.roles begins with {self.seats[0]!r}, but {rollout.seat!r} is asked first in "
                f"{self.world.shown}: name it first"
            )
        return rollout

    async def begin_when_free(self, start: Start) -> VerifiersRollout:
        """See `ImportedEnvironment`. A rollout that is run step by step does not wait, and takes no place."""
        if STEPPED.get():
            return self.begin(start)
        await self._places.wait()
        try:
            rollout = await blocking(lambda: self.begin(start), VerifiersRollout.close)
        except BaseException:
            self._places.leave()
            raise
        rollout.leave = self._places.leave
        return rollout

    def episode(self, task: Task) -> Episode:
        """Return a fresh episode, with a seat for each of the roles in the settings."""
        return _Roles(self, task) if self.seats else super().episode(task)


def _no_place() -> None:
    """Do nothing: the rollout has no place that others wait for."""


class VerifiersRollout(RemoteRollout):
    """One rollout that runs in the process of verifiers."""

    seat: str = ""
    """The role that is asked."""

    def __init__(self, world: Process, start: Start) -> None:
        self._world = world
        self._name = world.begin("begin", {"given": start.given, "row": start.number or 0})
        self._tools: dict[str, Sequence[JsonObject]] = {}
        self.ended: Mapping[str, tuple[float, str]] = {}
        """Reward and explanation of each role, once the rollout has ended."""
        self.leave: Callable[[], None] = _no_place
        """Gives the rollout's place in the process back."""
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
        """Return the weighted sum of verifiers' rewards; 0 until the rollout ends.

        With several roles, that of the role with the least: what succeeds must succeed at all of them.
        """
        return min((reward for reward, _ in self.ended.values()), default=0.0)

    def random_reply(self, rng: random.Random) -> str:
        """See `RemoteRollout`."""
        return random_call(self.tools, rng)

    def close(self) -> None:
        """See `RemoteRollout`: aborts the rollout if it has not ended."""
        if not self.done:
            self._world.end(self._name)
        leave, self.leave = self.leave, _no_place
        leave()

    def _receive(self, answer: Mapping[str, Any]) -> None:
        """Update messages and tools from a request for a reply, or rewards from the end of the rollout."""
        ended = answer.get("ended")
        if ended is None:
            asked = answer["asks"]
            self.seat = str(asked["seat"])
            self.messages = tuple(_message(one) for one in asked["messages"])
            self.tools = self._tools[self.seat] = self._tools.get(self.seat) or list(asked["tools"])
            return
        self.messages, self.done = (), True
        if "error" in ended:
            raise RolloutError(f"The environment failed: {inert(str(ended['error']))}")
        self.ended = {
            str(role): (float(one["reward"]), _explained(one)) for role, one in ended["seats"].items()
        }
        self.explanation = " ".join(said for _, said in self.ended.values())
        if odd := [reward for reward, _ in self.ended.values() if not math.isfinite(reward)]:
            raise RolloutError(f"The environment gave the reward {odd[0]}.")


def _explained(ended: Mapping[str, Any]) -> str:
    parts = ", ".join(f"{name} {value:g}" for name, value in ended["parts"].items())
    return f"The environment gives {float(ended['reward']):g}{f' ({parts})' if parts else ''}."


class _Roles(SeatedEpisode):
    """An episode of several roles, each with a conversation of its own."""

    def __init__(self, env: Verifiers, task: Task) -> None:
        self.seats = env.seats  # pyright: ignore[reportIncompatibleVariableOverride, reportAttributeAccessIssue] - its own
        self.max_turns = env.settings.max_turns
        self.tools = cast("Sequence[JsonObject]", task.payload["tools"])
        self._env, self._task = env, task
        self._rollout: VerifiersRollout | None = None

    async def take_turns(self, asks: Mapping[str, Ask]) -> None:
        """See `SeatedEpisode`. The episode ends with verifiers'.

        Raises:
            OutOfTurns: a seat has no replies left.
            RolloutError: the environment failed, or began otherwise than when the task was built.
            UsageError: a seat but the first one has tools that its chat template would have to offer.
        """
        rollout = self._rollout = await self._env.begin_when_free(start_of(self._task))
        counts = dict.fromkeys(self.seats, 0)
        try:
            self._env.check_opening(self._task, rollout)
            while not rollout.done:
                seat, first = rollout.seat, counts[rollout.seat] == 0
                if counts[seat] >= self.max_turns:
                    raise OutOfTurns
                if rollout.tools and seat != self.seats[0] and self._env.settings.tools == "native":
                    raise UsageError(
                        f"{seat} of {self._env.world.shown} has tools, but chat templates offer them to the "
                        'first seat alone: set environment.tools to "prompt"'
                    )
                messages = self._env.opening(rollout) if first else rollout.messages
                counts[seat] += 1
                await blocking(functools.partial(rollout.reply, await asks[seat](messages)))
        finally:
            rollout.close()

    def coded(self, seat: str, messages: Sequence[Message]) -> str:
        """Refuse: verifiers has no code that plays a role.

        Raises:
            UsageError: always.
        """
        raise UsageError(
            f"no code plays {seat} of {self._env.world.shown}: give this seat an agent in environment.seats, "
            "or leave it out of environment.roles and give it a model and a client in environment.env"
        )

    def verdicts(self) -> Mapping[str, Verdict]:
        """See `SeatedEpisode`; an episode that has not ended earns nothing."""
        ended: Mapping[str, tuple[float, str]] = {} if self._rollout is None else self._rollout.ended
        unfinished = (self._env.settings.reward_low, "The episode has not ended.")
        found = {seat: ended.get(seat, unfinished) for seat in self.seats}
        return {
            seat: self._env.graded(reward, said, ended=seat in ended)
            for seat, (reward, said) in found.items()
        }


def _found(taskset: str, path: str) -> tuple[str, str]:
    """Return the id of a taskset and the folder to import it from, "" if it is installed.

    Raises:
        UsageError: the folder holds no Python package.
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
