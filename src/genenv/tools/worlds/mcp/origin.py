"""An MCP server that a bundle is made of: how it is named, brought, and found to be best played."""

from __future__ import annotations

import itertools
import random
import re
import shlex
import shutil
import time
from collections.abc import Sequence
from pathlib import Path

from genenv.errors import UsageError, first_line
from genenv.tools.discover.nondeterminism import differing
from genenv.tools.worlds.base import Call, LoadedWorld, Played
from genenv.tools.worlds.limits import Budget
from genenv.tools.worlds.mcp.world import McpWorld, Running
from genenv.tools.worlds.sources import McpSource, Source

_COMPARED, _AT_LEAST, _COMPARED_S = 24, 6, 30.0
"""Programs that are played in a process that was used and in a new one; fewer where new ones take long."""
_CACHES = ("~/.cache", "~/.npm", "~/.local/share/uv")
"""Where programs that start servers, such as npx and uvx, keep what they have fetched."""
_SETTING = re.compile(r"[A-Za-z_][A-Za-z0-9_]*=")


class McpOrigin:
    """An MCP server.

    Args:
        command: its words.
        env: `NAME=value`, added to its environment.
        folder: what is in the folder that it works in when an episode begins; None: nothing.
    """

    def __init__(self, command: Sequence[str], env: Sequence[str] = (), folder: Path | None = None) -> None:
        self._command, self._env, self._folder = tuple(command), tuple(env), folder
        self.may_write: tuple[str, ...] = ()
        """Further folders in which it may write."""

    @classmethod
    def read(cls, text: str, folder: Path | None) -> McpOrigin:
        """A command as one types it; names of files in it are made absolute.

        Raises:
            UsageError: it is none.
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

    @property
    def label(self) -> str:
        """See `Origin`."""
        return self._command[0].rsplit("/", 1)[-1]

    @property
    def warning(self) -> str:
        """See `Origin`."""
        return "the server is started now, and its tools are called on copies of its folder"

    def bring(self, files: Path, budget: Budget | None = None) -> Source:
        """See `Origin`: the initial content. What has to fetch something first is let do so once."""
        del budget
        if self._folder is None:
            files.mkdir(parents=True)
        else:
            try:
                shutil.copytree(self._folder, files, symlinks=True)
            except OSError as error:  # shutil.Error is one
                raise UsageError(f"{self._folder} cannot be copied: {first_line(error)}") from error
        source = McpSource(command=self._command, env=self._env, fresh=False, may_write=self.may_write)
        if _starts(source, files):
            return source
        anything = Running(command=self._command, env=self._env, fresh=False, network=True, may_write=None)
        McpWorld(files, anything).close()
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
        """See `Origin`: whether a process that was used plays like a new one; if not, all is played anew."""
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
    """Whether a used process plays a program like a new one, but for what differs between new ones."""
    first, mine = fresh.again(program), used.again(program)
    if (first.outcomes, first.state) == (mine.outcomes, mine.state):
        return True
    time.sleep(1.1)
    second = fresher.again(program)
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
    """A word of a command that names a file, so that it still does where the server runs."""
    path = Path(word)
    is_file = path.is_file() or ("/" in word and path.exists())
    return str(path.absolute()) if is_file and not word.startswith("-") else word
