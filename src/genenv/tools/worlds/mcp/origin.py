"""Bring an MCP server into a new bundle: a local command and its folder, or a recorded remote server."""

from __future__ import annotations

import itertools
import random
import re
import shlex
import shutil
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from genenv.errors import UsageError, first_line
from genenv.tools.discover.exploring import differing
from genenv.tools.worlds.base import Call, LoadedWorld, Outcome, Played, usable
from genenv.tools.worlds.limits import USUAL, Budget
from genenv.tools.worlds.mcp.client import (
    Connection,
    NotRunning,
    Silent,
    outcome_of,
    over_http,
    tool_of,
)
from genenv.tools.worlds.mcp.world import McpSource, McpWorld
from genenv.tools.worlds.processes import Thread
from genenv.tools.worlds.python_child import MOST_CHARS
from genenv.tools.worlds.recorded import Ended, NoAnswer, may_write, record
from genenv.tools.worlds.sources import RecordedSource, Source, ToolOrigin

_COMPARED, _AT_LEAST, _COMPARED_S = 24, 6, 30.0
"""Maximum and minimum number of programs executed in a used and in a new process, and the time limit."""
_CACHES = ("~/.cache", "~/.npm", "~/.local/share/uv")
"""Cache folders of programs that fetch and start servers, such as npx and uvx."""
_SETTING = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


class McpOrigin(ToolOrigin):
    """A local MCP server, started by a command.

    Args:
        command: the words of the command.
        env: additional environment variables, as `NAME=value`.
        folder: the initial content of its working folder; None: empty.
    """

    warning = "the server is started now, and its tools are called on copies of its folder"

    def __init__(self, command: Sequence[str], env: Sequence[str] = (), folder: Path | None = None) -> None:
        self._command, self._env, self._folder = tuple(command), tuple(env), folder
        self.label = self._command[0].rsplit("/", 1)[-1]
        self.may_write: tuple[str, ...] = ()
        """Further folders in which the server may write."""

    @classmethod
    def read(cls, text: str, folder: Path | None) -> McpOrigin:
        """Parse a command line; names of files in it are made absolute.

        Raises:
            UsageError: it is not a command that can be run, or the folder does not exist.
        """
        try:
            words = shlex.split(text)
        except ValueError as error:
            raise UsageError(f"--from 'mcp:{text}' cannot be read as a command: {error}") from error
        env = list(itertools.takewhile(_SETTING.match, words))
        command = [_absolute(word) for word in words[len(env) :]]
        if not command:
            raise UsageError("--from mcp: names no command, such as 'mcp:npx my-server {folder}'")
        if shutil.which(command[0]) is None:
            raise UsageError(f"there is no command {command[0]}")
        if folder is not None and not folder.is_dir():
            raise UsageError(f"--files {folder} is no folder")
        return cls(command, env, folder)

    def bring(self, files: Path, budget: Budget | None = None) -> Source:
        """See `ToolOrigin`. Copies the initial folder, and grants only rights that the server needs."""
        del budget
        if self._folder is None:
            files.mkdir(parents=True)
        else:
            try:
                shutil.copytree(self._folder, files, symlinks=True)
            except OSError as error:  # includes shutil.Error
                raise UsageError(f"{self._folder} cannot be copied: {first_line(error)}") from error
        source = McpSource(
            command=self._command, env=self._env, fresh=False, may_write=self.may_write, seeded=True
        )
        if _starts(source, files):
            return source
        anything = source.model_copy(update={"network": True, "may_write": ("/",), "seeded": False})
        anything.open(files).close()
        caches = {"may_write": (*self.may_write, *_CACHES)}
        for more in ({}, caches, {"network": True}, {**caches, "network": True}):
            allowed = source.model_copy(update=more)
            if _starts(allowed, files):
                return allowed
        raise UsageError(
            f"{self.label} starts only where it may write outside its folder; name the folders that it may "
            "write in: --may-write FOLDER"
        )

    def complete(self, world: LoadedWorld, source: Source, files: Path) -> Source | None:
        """See `ToolOrigin`. Compares a reused process with new ones; if they differ, uses new ones only."""
        if not isinstance(world, McpWorld) or not isinstance(source, McpSource) or source.fresh:
            return None
        fresh = source.model_copy(update={"fresh": True})
        programs = [program for program in world.programs() if program]
        random.Random(len(programs)).shuffle(programs)
        others = fresh.open(files), fresh.open(files)
        try:
            alike = True
            start = time.monotonic()
            for number, program in enumerate(programs[:_COMPARED]):
                if not alike or (number >= _AT_LEAST and time.monotonic() - start > _COMPARED_S):
                    break
                alike = _alike(world, *others, program)
        finally:
            for other in others:
                other.close()
        return None if alike else fresh


def _starts(source: McpSource, files: Path) -> bool:
    try:
        source.open(files).close()
    except UsageError:
        return False
    return True


def _alike(used: McpWorld, fresh: McpWorld, fresher: McpWorld, program: Sequence[Call]) -> bool:
    """Whether a used process executes a program like a new one, except where new ones differ as well."""
    first, mine = fresh.play_uncached(program), used.play_uncached(program)
    if (first.outcomes, first.state) == (mine.outcomes, mine.state):
        return True
    time.sleep(1.1)
    second = fresher.play_uncached(program)
    return _places(first, mine) <= _places(first, second)


def _places(one: Played, other: Played) -> set[str]:
    pairs = enumerate(zip(one.outcomes, other.outcomes, strict=True))
    said = {
        f"{number} {kind}"
        for number, (a, b) in pairs
        for kind in differing(
            {"result": a.result, "error": a.error, "changed": a.changed},
            {"result": b.result, "error": b.error, "changed": b.changed},
        )
    }
    return said | set(differing(one.state, other.state))


def _absolute(word: str) -> str:
    """Return a word of a command with the name of an existing file made absolute."""
    path = Path(word)
    is_file = path.is_file() or ("/" in word and path.exists())
    return str(path.absolute()) if is_file and not word.startswith("-") else word


_CALL_S = 30.0
_REFUSED = "it may write (it has no readOnlyHint), and --allow-writes was not given"


class RemoteOrigin(ToolOrigin):
    """A remote MCP server over streamable HTTP, whose answers are recorded.

    Args:
        address: the address of the server.
        writes: whether to call tools that may write.
        most: maximum number of calls that are sent.
    """

    def __init__(self, address: str, *, writes: bool, most: int) -> None:
        self._address, self._writes, self._most, self.label = address, writes, most, address
        written = (
            "write are called for real, each different call once" if writes else "may write are left out"
        )
        self.warning = f"the server is asked now, and its answers are kept; tools that {written}"

    def bring(self, files: Path, budget: Budget | None = None) -> Source:
        """See `ToolOrigin`. Records the server's answers."""
        server, budget = RemoteServer(self._address), budget or Budget(USUAL)
        budget.received += server.received  # bytes of its list of tools

        def send(call: Call) -> Outcome:
            with budget.spending(lambda: server.received):
                return server.send(call)

        try:
            tools, left_out = usable({one.name: partial(tool_of, one) for one in server.tools})
            left_out = {**left_out, **server.left_out}
            refused = {name: _REFUSED for name, one in tools.items() if may_write(one) and not self._writes}
            kept = {name: one for name, one in tools.items() if name not in refused}
            if not kept:
                reasons = "; ".join(f"{name}: {why}" for name, why in left_out.items())[:400]
                raise UsageError(
                    f"all tools of {self._address} may write: none has a readOnlyHint; --allow-writes has "
                    "them called for real"
                    if tools
                    else f"{self._address} gives no tools: {reasons or 'it lists none'}"
                )
            record(kept, send, {**left_out, **refused}, random.Random("recording"), self._most).save(files)
        finally:
            server.close()
        return RecordedSource(address=self._address)


class RemoteServer:
    """A connection to a remote MCP server that has listed its tools.

    Args:
        address: the address of the server.

    Raises:
        UsageError: nothing answers there, or it does not speak MCP.
    """

    def __init__(self, address: str) -> None:
        self._thread, self._connection = Thread(), Connection(partial(over_http, address))
        try:
            self._thread.start(self._connection.open()).result()
        except BaseException as error:
            self.close()
            if not isinstance(error, NotRunning):
                raise
            raise UsageError(f"{address} gives no tools: {error}") from error
        self.tools, self.left_out = self._connection.tools, self._connection.left_out

    @property
    def received(self) -> int:
        """Bytes that the server has sent so far."""
        return self._connection.traffic.received

    def send(self, call: Call) -> Outcome:
        """Call a tool and return the outcome.

        Raises:
            NoAnswer: it takes too long, or the connection is gone.
        """
        try:
            answer = self._thread.start(self._connection.call(call.tool, call.args, _CALL_S)).result()
        except Silent as error:
            raise NoAnswer(str(error)) from error
        except NotRunning as error:
            raise Ended(f"it does not answer any more: {error}") from error
        return outcome_of(answer, MOST_CHARS)

    def close(self) -> None:
        """End the connection."""
        self._thread.start(self._connection.close()).result()
        self._thread.close()
