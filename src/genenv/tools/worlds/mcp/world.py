"""A local MCP server over stdio and its tools; the state is the content of its working folder.

Each session has a server process and a working folder to itself. The server's memory cannot be seen or
copied. If restoring the folder is not equivalent to a new process, each session starts one (`fresh`).
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import re
import shlex
import time
from collections import deque
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar, cast

from pydantic import BaseModel, Field, field_validator

from genenv.environments.stepwise import STEPPED
from genenv.errors import UsageError
from genenv.threads import cores
from genenv.tools.worlds import launch, seeding
from genenv.tools.worlds.base import (
    GONE,
    TOO_LONG,
    Call,
    KnownPrograms,
    LoadedWorld,
    Outcome,
    Played,
    Session,
    Step,
    usable,
)
from genenv.tools.worlds.differences import is_equal
from genenv.tools.worlds.folder import Original, WorkingFolder
from genenv.tools.worlds.jsonable import with_texts
from genenv.tools.worlds.mcp import forking
from genenv.tools.worlds.mcp.client import (
    Connection,
    Flooded,
    NotRunning,
    outcome_of,
    tool_of,
)
from genenv.tools.worlds.mcp.stdio import FORK_S, StdioServer
from genenv.tools.worlds.processes import Scratch, Thread, environment
from genenv.tools.worlds.python import CALL_S
from genenv.types import Json

T = TypeVar("T")
FOLDER = "{folder}"
"""Placeholder in a command for the server's working folder."""
SHOWN = "/files"
"""Name of the working folder in arguments and results, as its real path differs between runs."""
_MOST_IDLE = 32
"""Maximum number of processes that are kept for later sessions."""
_AHEAD = 2
"""Number of processes that are started before a session needs them, where each session needs a new one."""
_MOST_LOADED_S = 600.0
"""Seconds after which a loaded server is not forked again, as what it read when it was loaded may expire."""
_AT_ONCE_S = 1e-3
"""A folder that took less than this time to read, in seconds, is read without another thread next time."""
_MOST_TEMPORARY = 16 << 20
"""Maximum size in bytes of the temporary files of a server that is forked, as they are restored each time."""
_MOST_LOG = 1 << 20
"""Maximum size of a server's log in bytes."""
_ALWAYS = {
    "GIT_AUTHOR_DATE": "1767603600 +0000",
    "GIT_COMMITTER_DATE": "1767603600 +0000",
    "GIT_OPTIONAL_LOCKS": "0",
    "npm_config_prefer_offline": "true",
    "npm_config_update_notifier": "false",
    "PYTHONDONTWRITEBYTECODE": "1",
}
"""Environment variables that make servers more deterministic: commit dates, and no writes on reads."""

_OF_NODE, _OF_PYTHON = "NODE_OPTIONS", "PYTHONPATH"
_FIRST = """import sys
for file, how in {files!r}:
    try:
        first = {{"__name__": "first"}}
        with open(file, encoding="utf-8") as code:
            exec(compile(code.read(), file, "exec"), first)
        first["take_over"](*how)
    except Exception:
        pass
own = sys.modules.pop(__name__)
sys.path[:] = [one for one in sys.path if one != {folder!r}]
try:
    import sitecustomize
finally:
    sys.modules.setdefault(__name__, own)
"""
"""What Python imports first (`sitecustomize`), and then the one of the server's own environment, if there is
one. An old version of Python may not know what the first part needs."""


class McpSource(BaseModel, frozen=True, extra="forbid"):
    """A local MCP server over stdio; it works in a copy of the folder `files`."""

    kind: Literal["mcp"] = "mcp"
    command: Annotated[tuple[str, ...], Field(min_length=1)]
    """Words of the command; `{folder}` stands for the server's working folder."""
    env: tuple[str, ...] = ()
    """Additional environment variables, as `NAME=value`."""
    fresh: bool = True
    """Start a new process for every rollout, as restoring the folder of a used one is not enough."""
    network: bool = False
    """Let the server reach the network, because it does not start without it."""
    may_write: tuple[str, ...] = ()
    """Folders besides its working folder in which the server may write; `~` is the user's home."""
    seeded: bool = False
    """Let what the server draws at random be the same in each new process, in Node and Python, so that tasks
    can name ids that it draws. Bundles that were made before there was this setting do without."""
    forked: bool = False
    """With `fresh`: load a server in Python once, and fork it for each rollout before it serves. A server
    that cannot be forked is started anew."""

    @field_validator("env")
    @classmethod
    def _named(cls, env: tuple[str, ...]) -> tuple[str, ...]:
        if wrong := [one for one in env if not one.partition("=")[0] or "=" not in one]:
            raise ValueError(f"{wrong[0]!r} is not NAME=value")
        return env

    @property
    def label(self) -> str:
        """The name of the source in messages."""
        return f"mcp:{' '.join((*self.env, *self.command))}"

    @property
    def code(self) -> str:
        """The code that is run on this machine, in a few words."""
        return f"the command `{' '.join((*self.env, shlex.join(self.command)))}`"

    def open(self, files: Path, call_s: float = CALL_S) -> McpWorld:
        """See `PythonSource.open`.

        Raises:
            UsageError: the server does not start, or has no tools.
        """
        return McpWorld(files, self, call_s=call_s)


class _Process:
    """A server process with a working folder to itself. Its methods run in the loop of its world's thread.

    Args:
        running: the command, and what it may do.
        files: the folder with the initial content, which tells whether it fits into memory.
        original: its content.
        forks: whether the server is forked, if it can be.
    """

    def __init__(self, running: McpSource, files: Path, original: Original, *, forks: bool) -> None:
        self._is_reused, self._begun = not running.fresh, time.monotonic()
        self._scratch = Scratch(files)
        self._folder = WorkingFolder(self._scratch.files, original)
        self._temporary = WorkingFolder(self._scratch.temporary, Original(self._scratch.temporary))
        self._log = self._scratch.path / "log"
        self._log.touch()
        command = [word.replace(FOLDER, str(self._folder.path)) for word in running.command]
        self._server = StdioServer(
            self._scratch.launched(command, network=running.network, may_write=running.may_write),
            folder=self._folder.path,
            log=self._log,
            environment=self._environment(running, forks=forks),
            loaded=self._loaded if forks else None,
        )
        self.connection, self._received = Connection(self._server.streams), 0
        self.name, self._reading_s = running.command[0], 1.0

    def _environment(self, running: McpSource, *, forks: bool) -> dict[str, str]:
        where = str(self._folder.path)
        own = (one.split("=", 1) for one in running.env)
        given = {name: value.replace(FOLDER, where) for name, value in own}
        told = {k: v for k, v in environment(self._scratch.temporary).items() if k != _OF_PYTHON}
        offline = {} if running.network else {"npm_config_fetch_retries": "0"}
        first = self._first(given, seeded=running.seeded, forks=forks)
        return {**told, **_ALWAYS, **offline, **given, **first}

    def _first(self, given: Mapping[str, str], *, seeded: bool, forks: bool) -> dict[str, str]:
        """Return variables by which Node and Python load code before all other.

        Args:
            given: the variables that the user sets.
            seeded: whether the code seeds random numbers.
            forks: whether it forks the server.
        """
        files: list[tuple[str, tuple[str, ...]]] = []
        files += [(seeding.__file__, ())] * seeded + [(forking.__file__, (launch.__file__,))] * forks
        if not files:
            return {}
        folder = self._scratch.path / "first"
        folder.mkdir()
        code = _FIRST.format(files=files, folder=str(folder))
        (folder / "sitecustomize.py").write_text(code, encoding="utf-8")
        node = f'{given.get(_OF_NODE, "")} --require "{Path(__file__).with_name("seed.cjs")}"'.strip()
        python = os.pathsep.join([str(folder), *filter(None, [given.get(_OF_PYTHON)])])
        return {_OF_PYTHON: python, **({_OF_NODE: node} if seeded else {})}

    @property
    def is_forked(self) -> bool:
        """Whether the server is loaded, and serves in a fork that can be replaced by another one."""
        return self._server.is_forked

    @property
    def is_old(self) -> bool:
        """Whether the server was loaded too long ago for another session."""
        return self.is_forked and time.monotonic() - self._begun > _MOST_LOADED_S

    def _loaded(self) -> bool:
        """Note the content of the folders; return whether they can be restored for the next fork."""
        left = [path.lstat().st_size for path in self._scratch.temporary.rglob("*")]
        return sum(left) < _MOST_TEMPORARY and self._folder.begin() and self._temporary.begin()

    @property
    def received(self) -> int:
        """Bytes of all messages of the server."""
        return self._received + self.connection.received

    async def start(self) -> None:
        """Start the server.

        Raises:
            UsageError: it does not start, or does not speak MCP.
        """
        try:
            await self.connection.open()
        except NotRunning as error:
            raise UsageError(f"{self.name} gives no tools: {error}{self._last_words()}") from error
        self._server.settle()
        if self._is_reused:
            await asyncio.to_thread(self._folder.begin)

    async def renew(self) -> None:
        """Replace the fork that was used by a new one, with its folders as they were when it was loaded.

        Raises:
            NotRunning: the server cannot be forked again.
        """
        await self.connection.close()
        self._received += self.connection.received
        self.connection = Connection(self._server.streams, self.connection)
        if self.is_forked:
            await asyncio.to_thread(lambda: (self.restore(), self._temporary.restore()))
            await self.connection.open(FORK_S)
        if not self.is_forked:
            raise NotRunning("it ended")

    def _last_words(self) -> str:
        """Return the last line of the server's log, and whether it printed lines that are not MCP."""
        lines = self._log.read_text(encoding="utf-8", errors="replace").split("\n")
        told = next((line.strip() for line in reversed(lines) if line.strip()), "")
        nonsense = "; it prints lines that are no MCP" if self.connection.nonsense else ""
        return nonsense + (f" ({told[:300]})" if told else "")

    @property
    def permits(self) -> tuple[bool, bool]:
        """See `Scratch.permits`."""
        return self._scratch.permits

    def restore(self) -> None:
        """Restore the content that the working folder had once the server was started."""
        self._folder.restore()

    async def call(self, call: Call, limit_s: float) -> Outcome:
        """Make a call.

        Raises:
            NotRunning: the process has ended, or takes too long.
        """
        if self._log.stat().st_size > _MOST_LOG:
            os.truncate(self._log, 0)
        args = {name: self._real(value) for name, value in call.args.items()}
        outcome = outcome_of(await self.connection.call(call.tool, args, limit_s))
        error = None if outcome.error is None else str(self._shown(outcome.error))
        return Outcome(result=self._shown(outcome.result), error=error)

    async def state(self) -> Json:
        """Return the content of the working folder. A small one is read without another thread."""
        start = time.monotonic()
        is_small = self._reading_s < _AT_ONCE_S
        found = self._folder.contents() if is_small else await asyncio.to_thread(self._folder.contents)
        self._reading_s = time.monotonic() - start
        return self._shown(cast(Json, found))

    def _shown(self, value: Json) -> Json:
        """Return a value with the folder's real path replaced by `SHOWN`."""
        return with_texts(value, lambda text: text.replace(str(self._folder.path), SHOWN), keys=True)

    def _real(self, value: Json) -> Json:
        """Return an argument with `SHOWN` replaced by the folder's real path."""
        is_inside = re.compile(rf"(file://)?{SHOWN}/|{SHOWN}\Z").match
        where = str(self._folder.path)
        return with_texts(value, lambda text: text.replace(SHOWN, where, 1) if is_inside(text) else text)

    async def close(self) -> None:
        """End the process, and remove its folder."""
        try:
            await self.connection.close()
            await self._server.end()
        finally:
            self._scratch.close()


class McpWorld(LoadedWorld):
    """The tools of a local MCP server.

    Args:
        files: the initial content of its working folder.
        running: the command, and what it may do.
        call_s: time limit of a call in seconds.

    Raises:
        UsageError: the server cannot be started, or has no tools.
    """

    def __init__(self, files: Path, running: McpSource, *, call_s: float = CALL_S) -> None:
        self.running, self.call_s, self._files = running, call_s, files
        self._original = Original(files)
        self.known = KnownPrograms()
        """The programs that were executed."""
        self._thread = Thread()
        self._starts = asyncio.Semaphore(2 * cores())
        self._processes = set[_Process]()
        self._idle: list[_Process] = []
        self._coming = deque[asyncio.Task[_Process]]()
        self._received, self._closed = 0, False
        self._waiting = 0
        """Number of sessions that wait for a process."""
        self.is_forked = running.fresh and running.forked
        """Whether the server is loaded once for several sessions, and forked for each; not after a fork has
        failed."""
        try:
            first = self._thread.start(self._first()).result()
            self._idle.append(first)
            self.tools, left_out = usable({one.name: partial(tool_of, one) for one in first.connection.tools})
            self.left_out = {**left_out, **first.connection.left_out}
            if not self.tools:
                reasons = "; ".join(f"{name}: {why}" for name, why in self.left_out.items())
                raise UsageError(f"{running.command[0]} gives no tools: {reasons[:400] or 'it lists none'}")
        except BaseException:
            self.close()
            raise
        self.network, self.confined = first.permits

    def play(self, calls: Sequence[Call], *, watch: bool = False) -> Played:
        """See `World`. Programs are cached. A call that ends the process fails, and so do all after it."""
        del watch  # the state is always read after each call
        return self.known.play(
            calls,
            watch=True,
            execute=lambda: [*map(Step.alone, self._thread.start(self.played(calls)).result())],
        )

    def play_uncached(self, calls: Sequence[Call]) -> Played:
        """Execute a program without the cache."""
        return self._thread.start(self.played(calls)).result()[-1]

    async def played(self, calls: Sequence[Call]) -> list[Played]:
        """Execute a program in the thread's loop; return what it led to after each of its calls."""
        session = _Open(self)
        try:
            state, outcomes = await session.state(), list[Outcome]()
            steps = [Played(outcomes=(), state=state)]
            for call in calls:
                outcome = await session.call(call)
                before, state = state, state if session.is_over else await session.state()
                changed = not is_equal(state, before)
                outcomes.append(Outcome(result=outcome.result, error=outcome.error, changed=changed))
                steps.append(Played(outcomes=tuple(outcomes), state=state))
            return steps
        finally:
            await session.close()

    @contextlib.asynccontextmanager
    async def session(self) -> AsyncGenerator[Session]:
        """See `World`. Each call is sent once. A process is started or restored while the caller goes on."""
        blocks = STEPPED.get()

        async def done(work: Coroutine[Any, Any, T]) -> T:
            future = self._thread.start(work)
            return future.result() if blocks else await asyncio.shield(asyncio.wrap_future(future))

        opened = await done(self._opened())
        try:
            yield _McpSession(opened, done)
        finally:
            await done(opened.close())

    async def _opened(self) -> _Open:
        return _Open(self)

    def received(self) -> int:
        """See `LoadedWorld`."""
        return self._received + sum(one.received for one in tuple(self._processes))

    # processes; these methods run in the thread's loop

    async def taken(self) -> _Process:
        """Return a process for a session: a used one with its folder restored, or a new one."""
        while True:
            if self._idle:
                process = self._idle.pop()
            elif self.running.fresh:
                process = await self._next()
            else:
                process = await self._started()
            if process.connection.is_open and not process.is_old:
                if not self.running.fresh:
                    await asyncio.to_thread(process.restore)
                return process
            await self._ended(process)

    async def _next(self) -> _Process:
        """Return the process that is ready first, a new one or a new fork; start more ahead of use."""
        self._waiting += 1
        try:
            while True:
                new = range(self._waiting + _AHEAD - len(self._coming))
                self._coming += [asyncio.create_task(self._started()) for _ in new]
                if ready := next((one for one in self._coming if one.done()), None):
                    self._coming.remove(ready)
                    return ready.result()
                await asyncio.wait(self._coming, return_when=asyncio.FIRST_COMPLETED)
        finally:
            self._waiting -= 1

    async def give_back(self, process: _Process, *, intact: bool) -> None:
        """Take a process back from a session that has ended. A loaded server is forked again at once.

        One whose fork has ended is not: the fork may have removed what the loaded server needs.

        Args:
            process: the process.
            intact: whether it has answered all calls.
        """
        if intact and not self.running.fresh and len(self._idle) < _MOST_IDLE:
            self._idle.append(process)
        elif intact and self._is_renewable(process) and len(self._coming) < _MOST_IDLE and not self._closed:
            self._coming.append(asyncio.create_task(self._renewed(process)))
        else:
            await self._ended(process)

    def _is_renewable(self, process: _Process) -> bool:
        return self.is_forked and process.is_forked and process.connection.is_open and not process.is_old

    async def _first(self) -> _Process:
        """Return the first process. If a second fork of it does not answer, no server is forked."""
        first = await self._started()
        if first.is_forked:
            first = await self._renewed(first)
        self.is_forked = first.is_forked
        return first

    async def _renewed(self, process: _Process) -> _Process:
        """Return a used process with a new fork; if it cannot be forked again, a new one without forks."""
        try:
            async with self._starts:
                await process.renew()
            return process
        except (NotRunning, OSError):
            self.is_forked = False
            await self._ended(process)
        except BaseException:
            await self._ended(process)
            raise
        return await self._started()

    async def _started(self) -> _Process:
        """Return a new process, which is not forked if that fails."""
        async with self._starts:
            if self.is_forked:
                try:
                    return await self._start(forks=True)
                except (UsageError, OSError):
                    self.is_forked = False
            return await self._start(forks=False)

    async def _start(self, *, forks: bool) -> _Process:
        process = await asyncio.to_thread(_Process, self.running, self._files, self._original, forks=forks)
        self._processes.add(process)
        try:
            await process.start()
        except BaseException:
            await self._ended(process)
            raise
        return process

    async def _ended(self, process: _Process) -> None:
        if process in self._processes:
            self._processes.remove(process)
            self._received += process.received
            await process.close()

    async def _end_all(self) -> None:
        for one in self._coming:
            one.cancel()
        await asyncio.gather(*self._coming, return_exceptions=True)
        await asyncio.gather(*(self._ended(one) for one in tuple(self._processes)))

    def close(self) -> None:
        """End the processes, and remove their folders."""
        if not self._closed:
            self._closed = True
            self._thread.start(self._end_all()).result()
            self._thread.close()


class _Open:
    """A session in the loop of its world's thread. It takes a process at once, and waits for it when called.

    Args:
        world: provides the process.
    """

    def __init__(self, world: McpWorld) -> None:
        self._world, self._taking = world, asyncio.create_task(world.taken())
        self._turn, self._made = asyncio.Lock(), list[Call]()
        self.is_over = False
        """Whether a call got no answer; further calls fail."""

    async def call(self, call: Call) -> Outcome:
        """Make a call. One that ends the process fails, and so do those after it."""
        async with self._turn:
            if self.is_over:
                return Outcome(error=GONE)
            process = await asyncio.shield(self._taking)
            self.is_over = True  # until it has answered: this may be cancelled
            try:
                outcome = await process.call(call, self._world.call_s)
            except NotRunning as error:
                return Outcome(error=TOO_LONG if isinstance(error, Flooded) else GONE)
            self.is_over = False
            self._made.append(call)
            return outcome

    async def state(self) -> Json:
        """Return the content of the folder, or before the call that ended the process, from another one."""
        async with self._turn:
            if not self.is_over:
                return await (await asyncio.shield(self._taking)).state()
        return (await self._world.played(self._made))[-1].state

    async def close(self) -> None:
        """Give the process back."""
        await self._world.give_back(await self._taking, intact=not self.is_over)


class _McpSession:
    """A session for callers in other event loops, or in none.

    Args:
        opened: the session in the loop of its world's thread.
        done: does its work there.
    """

    def __init__(
        self, opened: _Open, done: Callable[[Coroutine[Any, Any, Any]], Coroutine[Any, Any, Any]]
    ) -> None:
        self._opened, self._done = opened, done

    async def call(self, call: Call) -> Outcome:
        """See `Session`. A call that ends the process fails, and so do those after it."""
        return await self._done(self._opened.call(call))

    async def state(self) -> Json:
        """See `Session`. If a call has ended the process: the state before that call."""
        return await self._done(self._opened.state())
