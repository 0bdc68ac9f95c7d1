"""The tools of an MCP server, spoken to over stdio; its state is the folder that it works in.

What the server keeps in its memory cannot be seen or copied. Where putting the folder back is not as good as
a new process, every program is played in a new one (`fresh`).
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

from genenv.errors import UsageError
from genenv.tools.worlds.base import GONE, Call, Outcome, Played, Tool, usable
from genenv.tools.worlds.mcp.folders import EpisodeFolder, Snapshot
from genenv.tools.worlds.mcp.server import Flooded, Launch, NotRunning, Server, outcome_of, too_long, tool_of
from genenv.tools.worlds.processes import Scratch, Thread, environment
from genenv.tools.worlds.python import CALL_S
from genenv.tools.worlds.python_child import MOST_CHARS
from genenv.types import Json

FOLDER = "{folder}"
"""Stands in a command for the folder that the server works in."""
SHOWN = "/files"
"""That folder, as arguments and results name it: where it really is differs from one time to the next."""
_REMEMBERED = 4096
"""Programs whose outcome is kept."""
_REMEMBERED_BYTES = 64 << 20
"""Of all that is kept of them."""
_MOST_KEPT = 64 << 10
"""Bytes in which a folder differs from the first one, so that it is kept beside an outcome."""
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
    may_write: tuple[str, ...] | None = ()
    """Folders, beside its own, in which it may write; None: everywhere."""


@dataclass(slots=True)
class _Memory:
    """A program's outcome; once it came out alike a second time it is not played again."""

    played: Played
    sealed: bool = False
    after: Snapshot | None = None
    """The folder at its end, for programs that begin so."""

    @property
    def size(self) -> int:
        """About so many bytes."""
        return len(repr(self.played)) + (self.after.size if self.after is not None else 0)


class McpWorld:
    """The tools of an MCP server.

    Args:
        files: the folder that it works in, as it is when an attempt begins.
        running: how it is run.
        call_s: how long a call may take.

    Raises:
        UsageError: it cannot be started, or has no tools.
    """

    tools: Mapping[str, Tool]
    left_out: Mapping[str, str]
    asked: frozenset[str] = frozenset()

    def __init__(self, files: Path, running: Running, *, call_s: float = CALL_S) -> None:
        self.running, self._call_s = running, call_s
        self._scratch = Scratch(files)
        self._folder = EpisodeFolder(self._scratch.files, files)
        self._known: OrderedDict[str, _Memory] = OrderedDict()
        self._sizes, self._kept = dict[str, int](), 0
        self._programs: dict[str, Sequence[Call]] = {}
        self._thread = Thread()
        self._server: Server | None = None
        self._received = 0
        try:
            self._server = Server(self._launch(), self._thread)
            self.tools, self.left_out = usable(
                {one.name: partial(tool_of, one) for one in self._server.tools}
            )
            if not self.tools:
                reasons = "; ".join(f"{name}: {why}" for name, why in self.left_out.items())
                raise UsageError(f"{running.command[0]} gives no tools: {reasons[:400] or 'it lists none'}")
        except BaseException:
            self.close()
            raise
        permits = self._scratch.permits
        self.network: bool = permits.network
        self.confined: bool = permits.confined

    def _launch(self) -> Launch:
        where = str(self._folder.path)
        own = dict(one.split("=", 1) for one in self.running.env)
        told = {k: v for k, v in environment(self._scratch.temporary).items() if k != "PYTHONPATH"}
        command = [word.replace(FOLDER, where) for word in self.running.command]
        offline = {} if self.running.network else {"npm_config_fetch_retries": "0"}
        return Launch(
            name=command[0],
            command=self._scratch.launched(
                command, network=self.running.network, may_write=self.running.may_write
            ),
            folder=self._folder.path,
            log=self._scratch.path / "log",
            environment={
                **told,
                **_ALWAYS,
                **offline,
                **{name: value.replace(FOLDER, where) for name, value in own.items()},
            },
        )

    def play(self, calls: Sequence[Call], *, watch: bool = False) -> Played:
        """See `World`. A call that ends the process fails, and so does what comes after it.

        The first time it is played from the longest beginning that is known on, the second time all of it:
        once it came out alike it is not played again.
        """
        key = _key(calls)
        known = self._known.get(key)
        if known is None:
            played, after = self._continued(calls)
            self._remember(key, _Memory(played, after=after))
        elif known.sealed or watch:
            self._known.move_to_end(key)
            return known.played
        else:
            played, after = self._played(calls)
            self._remember(key, _Memory(played, sealed=known.played == played, after=after))
        self._programs[key] = calls
        if len(self._programs) > _REMEMBERED:
            del self._programs[next(iter(self._programs))]
        return played

    def _remember(self, key: str, memory: _Memory) -> None:
        self._known.pop(key, None)
        self._kept -= self._sizes.pop(key, 0)
        self._known[key], self._sizes[key] = memory, memory.size
        self._kept += self._sizes[key]
        while len(self._known) > _REMEMBERED or (self._kept > _REMEMBERED_BYTES and len(self._known) > 1):
            self._kept -= self._sizes.pop(self._known.popitem(last=False)[0])

    def programs(self) -> list[Sequence[Call]]:
        """What was played last, each once."""
        return list(self._programs.values())

    def again(self, calls: Sequence[Call]) -> Played:
        """Play, whatever is known of it already."""
        return self._played(calls)[0]

    def _continued(self, calls: Sequence[Call]) -> tuple[Played, Snapshot | None]:
        """Play what follows on the longest beginning that is known."""
        for number in range(len(calls) - 1, 0, -1) if not self.running.fresh else ():
            known = self._known.get(_key(calls[:number]))
            if known is not None and known.after is not None:
                played, after = self._played(calls[number:], known.after)
                whole = (*known.played.outcomes, *played.outcomes)
                return Played(outcomes=whole, state=played.state), after
        return self._played(calls)

    def _played(self, calls: Sequence[Call], start: Snapshot | None = None) -> tuple[Played, Snapshot | None]:
        """Play from a state on; also how the folder is afterwards."""
        outcomes: list[Outcome] = []
        server = self._begun(start)
        state = self._folder.contents()
        for number, call in enumerate(calls):
            try:
                args = {name: self._real(value) for name, value in call.args.items()}
                outcome = outcome_of(server.call(call.tool, args, self._call_s), MOST_CHARS)
            except NotRunning as error:
                self._end()
                earlier, _ = self._played(calls[:number], start)
                first = Outcome(error=too_long(MOST_CHARS) if isinstance(error, Flooded) else GONE)
                gone = (first, *(Outcome(error=GONE),) * (len(calls) - number - 1))
                return Played(outcomes=(*earlier.outcomes, *gone), state=earlier.state), None
            before, state = state, self._folder.contents()
            changed = state != before
            outcome = self._shown_in(outcome)
            outcomes.append(Outcome(result=outcome.result, error=outcome.error, changed=changed))
        after = self._folder.snapshot()
        whole = Played(outcomes=tuple(outcomes), state=self._shown(cast(Json, state)))
        return whole, after if after.size <= _MOST_KEPT else None

    def _begun(self, state: Snapshot | None = None) -> Server:
        """A server in a state; left out, the first one."""
        if self.running.fresh:
            self._end()
        self._folder.restore(state)
        if self._server is None:
            self._server = Server(self._launch(), self._thread)
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

    @property
    def received(self) -> int:
        """See `LoadedWorld`."""
        return self._received + (self._server.traffic.received if self._server is not None else 0)

    def _end(self) -> None:
        if self._server is not None:
            self._received += self._server.traffic.received
            self._server.close()
            self._server = None

    def close(self) -> None:
        """End the process, and remove its folder."""
        self._end()
        self._thread.close()
        self._scratch.close()


def _key(calls: Sequence[Call]) -> str:
    return repr([(call.tool, sorted(call.args.items())) for call in calls])
