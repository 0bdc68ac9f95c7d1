"""The tools of an MCP server, spoken to over stdio; its state is the folder that it works in.

What the server keeps in its memory cannot be seen or copied. Where putting the folder back is not as good as
a new process, every program is played in a new one (`fresh`).
"""

from __future__ import annotations

import shutil
import tempfile
import weakref
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

from genenv.domains.tools.child import MOST_CHARS
from genenv.domains.tools.mcp.folders import EpisodeFolder
from genenv.domains.tools.mcp.results import outcome_of, tool_of
from genenv.domains.tools.mcp.server import Launch, NotRunning, Server, Thread
from genenv.domains.tools.processes import environment, place_for
from genenv.domains.tools.python_world import CALL_S
from genenv.domains.tools.world import Call, Outcome, Played, Tool
from genenv.errors import UsageError
from genenv.types import Json

FOLDER = "{folder}"
"""Stands in a command for the folder that the server works in."""
SHOWN = "/files"
"""That folder, as arguments and results name it: where it really is differs from one time to the next."""
_REMEMBERED = 4096
"""Programs whose outcome is kept."""
_GONE = "The tool ended its process, or took too long."
_ALWAYS = {
    "GIT_AUTHOR_DATE": "1767603600 +0000",
    "GIT_COMMITTER_DATE": "1767603600 +0000",
    "GIT_OPTIONAL_LOCKS": "0",
    "npm_config_prefer_offline": "true",
    "npm_config_update_notifier": "false",
    "PYTHONDONTWRITEBYTECODE": "1",
}
"""So that what servers do differs as little as may be: the dates of commits, what a mere look writes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """How a server is run."""

    command: tuple[str, ...]
    env: tuple[str, ...] = ()
    """`NAME=value`, as before a command in a shell."""
    fresh: bool = True
    """Whether every program is played by a new process."""
    network: bool = False
    """Whether it is left its network."""


@dataclass(slots=True)
class _Memory:
    """A program's outcome; once it came out alike a second time it is not played again."""

    played: Played
    sealed: bool = False


class McpWorld:
    """The tools of an MCP server.

    Args:
        files: the folder that it works in, as it is when an attempt begins.
        running: how it is run.
        call_s: how long a call may take.

    Raises:
        UsageError: it cannot be started, or has no tools.
    """

    left_out: Mapping[str, str]
    asked: frozenset[str] = frozenset()

    def __init__(self, files: Path, running: Running, *, call_s: float = CALL_S) -> None:
        self.running, self._call_s = running, call_s
        scratch = Path(tempfile.mkdtemp(prefix="genenv-tools-", dir=place_for(files))).resolve()
        self._removed = weakref.finalize(self, shutil.rmtree, scratch, ignore_errors=True)
        self._folder = EpisodeFolder(scratch / "files", files)
        (scratch / "tmp").mkdir()
        self._how = self._launch(scratch)
        self._known: OrderedDict[tuple[str, bool], _Memory] = OrderedDict()
        self._programs: dict[str, Sequence[Call]] = {}
        self._thread = Thread()
        self._server: Server | None = None
        try:
            self._server = Server(self._how, self._thread)
            if not self._server.tools:
                raise UsageError(f"{running.command[0]} gives no tools: it lists none")
        except BaseException:
            self.close()
            raise
        self.tools: dict[str, Tool] = {one.name: tool_of(one) for one in self._server.tools}
        self.left_out = {}
        self.network: bool = self._server.network

    def _launch(self, scratch: Path) -> Launch:
        where = str(self._folder.path)
        own = dict(one.split("=", 1) for one in self.running.env)
        told = {name: value for name, value in environment().items() if name != "PYTHONPATH"}
        return Launch(
            command=[word.replace(FOLDER, where) for word in self.running.command],
            folder=self._folder.path,
            aside=scratch,
            environment={
                **told,
                **_ALWAYS,
                "TMPDIR": str(scratch / "tmp"),
                **{name: value.replace(FOLDER, where) for name, value in own.items()},
            },
            network=self.running.network,
        )

    def play(self, calls: Sequence[Call], *, watch: bool = False) -> Played:
        """See `World`. A call that ends the process fails, and so does what comes after it."""
        key = (repr([(call.tool, sorted(call.args.items())) for call in calls]), watch)
        known = self._known.get(key)
        if known is not None:
            self._known.move_to_end(key)
            if known.sealed or watch:
                return known.played
        played = self._played(calls, watch=watch)
        self._known[key] = _Memory(played, sealed=known is not None and known.played == played)
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)
        self._programs[key[0]] = calls
        return played

    def programs(self) -> list[Sequence[Call]]:
        """All that was played, each once."""
        return list(self._programs.values())

    def again(self, calls: Sequence[Call]) -> Played:
        """Play, whatever is known of it already."""
        return self._played(calls, watch=True)

    def _played(self, calls: Sequence[Call], *, watch: bool) -> Played:
        outcomes: list[Outcome] = []
        server = self._begun()
        before = self._folder.contents() if watch else {}
        for number, call in enumerate(calls):
            try:
                args = {name: self._real(value) for name, value in call.args.items()}
                outcome = outcome_of(server.call(call.tool, args, self._call_s), MOST_CHARS)
            except NotRunning:
                self._end()
                earlier = self.play(calls[:number], watch=watch)
                gone = (Outcome(error=_GONE),) * (len(calls) - number)
                return Played(outcomes=(*earlier.outcomes, *gone), state=earlier.state)
            outcome = self._shown_in(outcome)
            if watch:
                after = self._folder.contents()
                if after != before:
                    outcome = Outcome(result=outcome.result, error=outcome.error, changed=True)
                before = after
            outcomes.append(outcome)
        state = before if watch else self._folder.contents()
        return Played(outcomes=tuple(outcomes), state=self._shown(cast(Json, state)))

    def _begun(self) -> Server:
        """A server in the first state."""
        if self.running.fresh:
            self._end()
        self._folder.restore()
        if self._server is None:
            self._server = Server(self._how, self._thread)
        return self._server

    def _shown_in(self, outcome: Outcome) -> Outcome:
        error = None if outcome.error is None else str(self._shown(outcome.error))
        return Outcome(result=self._shown(outcome.result), error=error)

    def _shown(self, value: Json) -> Json:
        """A value in which the folder has the name that it is known by."""
        if isinstance(value, str):
            return value.replace(str(self._folder.path), SHOWN)
        if isinstance(value, Mapping):
            return {str(self._shown(key)): self._shown(one) for key, one in value.items()}
        return [self._shown(one) for one in value] if isinstance(value, list) else value

    def _real(self, value: Json) -> Json:
        """An argument in which the folder has the name that it really has."""
        if isinstance(value, str) and (value == SHOWN or value.startswith((f"{SHOWN}/", f"file://{SHOWN}/"))):
            return value.replace(SHOWN, str(self._folder.path), 1)
        if isinstance(value, Mapping):
            return {key: self._real(one) for key, one in value.items()}
        return [self._real(one) for one in value] if isinstance(value, list) else value

    def _end(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None

    def close(self) -> None:
        """End the process, and remove its folder."""
        self._end()
        self._thread.close()
        self._removed()
