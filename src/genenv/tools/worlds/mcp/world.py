"""The tools of a local MCP server over stdio; the state is the content of its working folder.

The server's memory cannot be seen or copied. If restoring the folder is not equivalent to a new process,
every program is executed in a new process (`fresh`).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import cast

from genenv.errors import UsageError
from genenv.tools.discover.state_values import FILES, FOLDERS, HIDDEN, TABLES
from genenv.tools.worlds.base import GONE, Call, Outcome, Played, Session, Tool, replaying_session, usable
from genenv.tools.worlds.folder import JOURNALS, content_of, is_table_file
from genenv.tools.worlds.jsonable import MARK, staged
from genenv.tools.worlds.mcp.client import Flooded, Launch, NotRunning, Server, outcome_of, too_long, tool_of
from genenv.tools.worlds.processes import Scratch, Thread, environment
from genenv.tools.worlds.python import CALL_S
from genenv.tools.worlds.python_child import MOST_CHARS
from genenv.types import Json

_MOST_BYTES = 1 << 20
_SPECIAL = b"\0 neither a file nor a link \0"
"""Used in place of the bytes of pipes, sockets and devices."""
_NAMES = (FILES, FOLDERS, HIDDEN, TABLES)


@dataclass(frozen=True, slots=True)
class _File:
    raw: bytes
    """The bytes of a file, or the target of a link."""
    link: bool
    mode: int
    times: tuple[int, int]
    """Times of the last access and the last change."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The content of a folder, stored as differences from the original."""

    changed: Mapping[str, _File]
    removed: frozenset[str]
    folders: frozenset[str]

    @property
    def size(self) -> int:
        """Bytes of the changed files."""
        return sum(len(one.raw) for one in self.changed.values())


class EpisodeFolder:
    """A working folder that is restored file by file between rollouts; unchanged files stay in place.

    Args:
        path: the working folder, which is created as a copy.
        original: the folder with the initial content.
    """

    def __init__(self, path: Path, original: Path) -> None:
        self.path = path
        path.mkdir(parents=True, exist_ok=True)
        if original.is_dir():  # git does not store an empty folder of a bundle
            shutil.copytree(original, path, dirs_exist_ok=True, symlinks=True)
        files, folders = _walk(path)
        self._first = {name: _file(path / name) for name in files}
        self._folders = tuple(folders)
        self._known: dict[str, tuple[bytes, Json]] = {}
        """By file name: a digest of the bytes, and the parsed content."""

    def snapshot(self) -> Snapshot:
        """Return the current content."""
        files, folders = _walk(self.path)
        changed: dict[str, _File] = {}
        for name in files:
            place, first = self.path / name, self._first.get(name)
            if _kind(place) not in (stat.S_IFREG, stat.S_IFLNK):
                continue  # it is removed when the folder is restored
            if first is None or first.link != place.is_symlink() or first.raw != _raw(place):
                changed[name] = _file(place)
        return Snapshot(changed, frozenset(self._first).difference(files), frozenset(folders))

    def restore(self, wanted: Snapshot | None = None) -> None:
        """Restore the folder. Existing files are overwritten in place, so that open handles see the change.

        Args:
            wanted: the content to restore; None: the initial content.
        """
        kept = dict(self._first)
        if wanted is not None:
            kept = {name: one for name, one in kept.items() if name not in wanted.removed}
            kept |= wanted.changed
        keep_folders = wanted.folders if wanted is not None else self._folders
        files, folders = _walk(self.path)
        for name in files:
            if name not in kept:
                (self.path / name).unlink(missing_ok=True)
        for name in reversed(folders):
            if name not in keep_folders:
                shutil.rmtree(self.path / name, ignore_errors=True)
        for name in sorted(keep_folders):
            (self.path / name).mkdir(parents=True, exist_ok=True)
        for name, one in kept.items():
            place = self.path / name
            if place.is_symlink() != one.link or _raw(place) != one.raw:
                _put(place, one)

    def contents(self) -> dict[str, Json]:
        """Return the content: texts of files by name, and the parsed content of data files."""
        names, folders = _walk(self.path)
        for gone in self._known.keys() - names - self._first.keys():
            del self._known[gone]
        files: dict[str, Json] = {}
        hidden: dict[str, Json] = {}
        tables: dict[str, Json] = {}
        data: dict[str, Json] = {}
        for name in sorted(names):
            if name.endswith(JOURNALS):
                continue
            content = self._content(name)
            if name.startswith(".") or "/." in name:
                hidden[name] = content
            elif isinstance(content, str):
                files[name] = content
            else:
                files[name] = None  # its content is stored under its own key
                short = str(Path(name).with_suffix(""))
                data[name if short in data or short in _NAMES else short] = content
                if isinstance(content, dict) and is_table_file(self.path / name):
                    tables |= dict.fromkeys(content)
        shown = dict.fromkeys((".", *(one for one in sorted(folders) if not _is_hidden(one))))
        found: dict[str, Json] = {FILES: files, HIDDEN: hidden, TABLES: tables, FOLDERS: dict(shown)}
        return {**{key: value for key, value in found.items() if value}, **data}

    def _content(self, name: str) -> Json:
        place = self.path / name
        raw = _raw(place)
        digest = hashlib.blake2b(raw, person=b"link" if place.is_symlink() else b"").digest()
        known = self._known.get(name)
        if known is not None and known[0] == digest and not _journalled(place):
            return known[1]
        content = self._read(place, raw)
        self._known[name] = (digest, content)
        return content

    def _read(self, place: Path, raw: bytes) -> Json:
        if raw is _SPECIAL:
            return "a pipe, a socket or a device"
        if place.is_symlink():
            return f"a link to {raw.decode('utf-8', 'replace')}"
        if len(raw) <= _MOST_BYTES and (is_table_file(place) or _is_text(raw)):
            return content_of(place)
        if raw.startswith(MARK) and (told := staged(raw)) is not None:
            return told
        return f"{len(raw)} bytes, {hashlib.sha256(raw).hexdigest()[:16]}"


def _file(place: Path) -> _File:
    told = place.lstat()
    return _File(_raw(place), place.is_symlink(), told.st_mode & 0o7777, (told.st_atime_ns, told.st_mtime_ns))


def _put(place: Path, one: _File) -> None:
    place.parent.mkdir(parents=True, exist_ok=True)
    if one.link or _kind(place) != stat.S_IFREG:
        place.unlink(missing_ok=True)
    if one.link:
        place.symlink_to(os.fsdecode(one.raw))
        return
    if place.exists():
        place.chmod(0o600)
    # a running server may replace the file by a link or a pipe: do not follow or wait for these
    flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW | os.O_NONBLOCK
    with open(os.open(place, flags, 0o600), "wb") as file:
        file.write(one.raw)
        os.fchmod(file.fileno(), one.mode)
        os.utime(file.fileno(), ns=one.times)


def _is_hidden(name: str) -> bool:
    return name.startswith(".") or "/." in name


def _is_text(raw: bytes) -> bool:
    try:
        return "\0" not in raw.decode("utf-8")
    except UnicodeDecodeError:
        return False


def _journalled(place: Path) -> bool:
    """Whether a database has rows in a journal file next to it."""
    return any(os.path.exists(f"{place}{ending}") for ending in JOURNALS)


def _kind(place: Path) -> int:
    """Return the file type as `stat.S_IFMT` does; 0 if the file is gone."""
    try:
        return stat.S_IFMT(place.lstat().st_mode)
    except OSError:
        return 0


def _raw(place: Path) -> bytes:
    """Return a file's bytes or a link's target; empty if unreadable; `_SPECIAL` for other types."""
    kind = _kind(place)
    try:
        if kind == stat.S_IFLNK:
            return os.fsencode(os.readlink(place))
        if kind != stat.S_IFREG:
            return _SPECIAL if kind else b""
        with open(os.open(place, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
            return file.read() if stat.S_ISREG(os.fstat(file.fileno()).st_mode) else _SPECIAL
    except OSError:
        return b""


def _walk(folder: Path) -> tuple[list[str], list[str]]:
    """Return the names of files (including links, pipes and sockets) and folders, outer ones first."""
    files: list[str] = []
    folders: list[str] = []
    for where, inner, names in os.walk(folder):
        base = where[len(str(folder)) + 1 :]
        for one in (*inner, *names):
            place = os.path.join(where, one)
            path = f"{base}/{one}" if base else one
            if os.path.isdir(place) and not os.path.islink(place):
                folders.append(path)
            else:  # includes pipes and sockets
                files.append(path)
    return files, folders


FOLDER = "{folder}"
"""Placeholder in a command for the server's working folder."""
SHOWN = "/files"
"""Name of the working folder in arguments and results, as its real path differs between runs."""
_REMEMBERED = 4096
"""Maximum number of cached programs."""
_REMEMBERED_BYTES = 64 << 20
"""Maximum size of the cache in bytes."""
_MOST_KEPT = 64 << 10
"""Maximum size in bytes of a folder's changes for these to be cached with an outcome."""
_ALWAYS = {
    "GIT_AUTHOR_DATE": "1767603600 +0000",
    "GIT_COMMITTER_DATE": "1767603600 +0000",
    "GIT_OPTIONAL_LOCKS": "0",
    "npm_config_prefer_offline": "true",
    "npm_config_update_notifier": "false",
    "PYTHONDONTWRITEBYTECODE": "1",
}
"""Environment variables that make servers more deterministic: commit dates, and no writes on reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Running:
    """How a server is run."""

    command: tuple[str, ...]
    env: tuple[str, ...] = ()
    """Additional environment variables, as `NAME=value`."""
    fresh: bool = True
    """Whether every program is executed by a new process."""
    network: bool = False
    """Whether the server may reach the network."""
    may_write: tuple[str, ...] | None = ()
    """Folders besides its working folder in which the server may write; None: everywhere."""


@dataclass(slots=True)
class _CachedProgram:
    """The cached outcome of a program; it is trusted after two equal executions."""

    played: Played
    sealed: bool = False
    after: Snapshot | None = None
    """The folder after the program, used to execute programs that begin with it."""

    @property
    def size(self) -> int:
        """Approximate size in bytes."""
        return len(repr(self.played)) + (self.after.size if self.after is not None else 0)


class McpWorld:
    """The tools of a local MCP server.

    Args:
        files: the initial content of its working folder.
        running: the command, and what it may do.
        call_s: time limit of a call in seconds.

    Raises:
        UsageError: the server cannot be started, or has no tools.
    """

    tools: Mapping[str, Tool]
    left_out: Mapping[str, str]
    asked: frozenset[str] = frozenset()

    def __init__(self, files: Path, running: Running, *, call_s: float = CALL_S) -> None:
        self.running, self._call_s = running, call_s
        self._scratch = Scratch(files)
        self._folder = EpisodeFolder(self._scratch.files, files)
        self._known: OrderedDict[str, _CachedProgram] = OrderedDict()
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
        """See `World`. A call that ends the process fails, and so do all calls after it.

        The first execution continues from the longest cached prefix of the program; the second executes all
        of it. If both have equal outcomes, the cached outcome is used from then on.
        """
        key = _key(calls)
        known = self._known.get(key)
        if known is None:
            played, after = self._continued(calls)
            self._remember(key, _CachedProgram(played, after=after))
        elif known.sealed or watch:
            self._known.move_to_end(key)
            return known.played
        else:
            played, after = self._played(calls)
            self._remember(key, _CachedProgram(played, sealed=known.played == played, after=after))
        self._programs[key] = calls
        if len(self._programs) > _REMEMBERED:
            del self._programs[next(iter(self._programs))]
        return played

    def _remember(self, key: str, memory: _CachedProgram) -> None:
        self._known.pop(key, None)
        self._kept -= self._sizes.pop(key, 0)
        self._known[key], self._sizes[key] = memory, memory.size
        self._kept += self._sizes[key]
        while len(self._known) > _REMEMBERED or (self._kept > _REMEMBERED_BYTES and len(self._known) > 1):
            self._kept -= self._sizes.pop(self._known.popitem(last=False)[0])

    def programs(self) -> list[Sequence[Call]]:
        """Return the programs that were executed last, without duplicates."""
        return list(self._programs.values())

    def play_uncached(self, calls: Sequence[Call]) -> Played:
        """Execute a program without the cache."""
        return self._played(calls)[0]

    def _continued(self, calls: Sequence[Call]) -> tuple[Played, Snapshot | None]:
        """Execute the calls that follow the longest cached prefix."""
        for number in range(len(calls) - 1, 0, -1) if not self.running.fresh else ():
            known = self._known.get(_key(calls[:number]))
            if known is not None and known.after is not None:
                played, after = self._played(calls[number:], known.after)
                whole = (*known.played.outcomes, *played.outcomes)
                return Played(outcomes=whole, state=played.state), after
        return self._played(calls)

    def _played(self, calls: Sequence[Call], start: Snapshot | None = None) -> tuple[Played, Snapshot | None]:
        """Execute calls from a state; also return the folder afterwards, unless it has changed too much."""
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
        """Return a server whose folder has a given content; None: the initial content."""
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
        """Return a value with the folder's real path replaced by `SHOWN`."""
        if isinstance(value, str):
            return value.replace(str(self._folder.path), SHOWN)
        if isinstance(value, Mapping):
            return {str(self._shown(key)): self._shown(one) for key, one in value.items()}
        return [self._shown(one) for one in value] if isinstance(value, list) else value

    def _real(self, value: Json) -> Json:
        """Return an argument with `SHOWN` replaced by the folder's real path."""
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

    def session(self) -> AbstractAsyncContextManager[Session]:
        """See `World`."""
        return replaying_session(self)

    def close(self) -> None:
        """End the process, and remove its folder."""
        self._end()
        self._thread.close()
        self._scratch.close()


def _key(calls: Sequence[Call]) -> str:
    return repr([(call.tool, sorted(call.args.items())) for call in calls])
