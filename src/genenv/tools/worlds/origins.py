"""Origins of tools that `genenv env new --from` accepts: Python files, MCP servers, OpenAPI documents.

An origin copies what its tools need into a new bundle. The bundle then holds a source (`sources`), which
opens the tools again in each run.
"""

from __future__ import annotations

import contextlib
import itertools
import random
import re
import shlex
import shutil
import tempfile
import time
from collections.abc import Iterable, Mapping, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path

from genenv.errors import UsageError, first_line
from genenv.texts import json_line
from genenv.tools.discover.nondeterminism import differing
from genenv.tools.worlds.base import NOT_CHOSEN, Call, LoadedWorld, Outcome, Played, chosen, usable
from genenv.tools.worlds.copying import copy_asked, copy_whole, is_whole_folder, not_copied
from genenv.tools.worlds.importing import package_root
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
from genenv.tools.worlds.openapi.loading import is_address, load_text
from genenv.tools.worlds.openapi.mock_world import MockWorld
from genenv.tools.worlds.openapi.service import Service, ServiceOrigin
from genenv.tools.worlds.processes import Thread
from genenv.tools.worlds.python import NotStarted, PythonWorld
from genenv.tools.worlds.recorded import MOST_SENT, Ended, NoAnswer, Recording, Send, may_write, record
from genenv.tools.worlds.source_text import WrittenOut
from genenv.tools.worlds.sources import (
    ROWS_FILE,
    OpenApiSource,
    PythonSource,
    RecordedSource,
    Source,
    ToolOrigin,
)

_MCP = "mcp:"
_CODE = "tools.py"
_PLACE = re.compile(r"([\w.]+:)?[A-Za-z_][\w.]*")
_FILES = 64
"""Maximum number of copied files and folders besides the tools' file."""
_MISSING_MODULE = re.compile(r"\(module ([\w.]+)\)$")


def origin_of(
    text: str,
    only: Sequence[str] = (),
    folder: Path | None = None,
    *,
    writes: bool = False,
    service: Service | None = None,
    most: int | None = None,
) -> ToolOrigin:
    """Parse the argument of `--from`.

    Args:
        text: the argument.
        only: prefixes of the wanted paths of an OpenAPI document, or patterns of the names of other tools.
        folder: the initial content of an MCP server's folder, or the folder of which a Python file reads.
        writes: whether to call tools of a network service that may write.
        service: the real service of an OpenAPI document, if its operations are to be recorded.
        most: maximum number of requests to a network service.

    Raises:
        UsageError: the text names no origin of tools, or an option does not apply to it.
    """
    is_server = text.startswith(_MCP)
    is_remote = is_server and is_address(text.removeprefix(_MCP))
    is_document = not is_server and (is_address(text) or text.endswith((".json", ".yaml", ".yml")))
    if service is not None and not is_document:
        raise UsageError("--server is where an OpenAPI document's service is, and --from names no document")
    for name, given in (("--allow-writes", writes), ("--most-requests", most is not None)):
        if given and not is_remote and service is None:
            raise UsageError(
                f"{name} is for an MCP server with an address, or an OpenAPI document with --server, "
                "and there is neither"
            )
    if is_remote and folder is not None:
        raise UsageError(
            "--files is the folder of an MCP server that is started; one with an address has none"
        )
    if folder is not None and (is_document or service is not None):
        raise UsageError(
            "--files is the folder of an MCP server or of a Python file, and --from names neither"
        )
    if service is not None:
        return ServiceOrigin(text, service, only, writes=writes, most=most or MOST_SENT)
    if is_document:
        return OpenApiOrigin(text, tuple(only))
    origin: ToolOrigin | None = None
    file, _, made_of = text.partition(":")
    if is_remote:
        origin = RemoteOrigin(text.removeprefix(_MCP), writes=writes, most=most or MOST_SENT)
    elif is_server:
        origin = McpOrigin.read(text.removeprefix(_MCP), folder)
    elif file.endswith(".py"):
        origin = PythonOrigin(Path(file), made_of, root=folder)
    if origin is not None:
        origin.only = tuple(only)
        return origin
    raise UsageError(
        f"--from {text!r} is nothing that tools can come from; name a Python file (tools.py, "
        "tools.py:Class), an OpenAPI document (openapi.json, openapi.yaml, https://.../openapi.json), or the "
        "command of an MCP server ('mcp:npx my-server {folder}') or its address (mcp:http://.../mcp)"
    )


def configure(origin: ToolOrigin, may_write: Sequence[str | Path], given: Mapping[str, str]) -> None:
    """Set what applies to the tools of local code only.

    Args:
        origin: the origin of the tools.
        may_write: further folders in which they may write, which are made absolute.
        given: arguments that the agent does not choose: `PythonSource.given`.

    Raises:
        UsageError: a folder does not exist, or an option does not apply to the origin.
    """
    if given:
        if not isinstance(origin, PythonOrigin) or isinstance(origin, CodeOrigin):
            raise UsageError("--given is for a Python file, and --from names none")
        origin.given = dict(given)
    if not may_write:
        return
    if not isinstance(origin, PythonOrigin | McpOrigin):
        raise UsageError(
            "--may-write is for a Python file and for an MCP server that is started, and --from names neither"
        )
    found = [Path(one).expanduser().absolute() for one in may_write]
    if lost := [one for one in found if not one.exists()]:
        raise UsageError(f"--may-write {lost[0]} is not there; make the folder first, or name another one")
    origin.may_write = tuple(map(str, found))


def given_of(texts: Iterable[str]) -> dict[str, str]:
    """Parse `PARAMETER=MODULE:NAME`, the form of `--given`.

    Raises:
        UsageError: a text has another form.
    """
    found: dict[str, str] = {}
    for text in texts:
        name, _, where = text.partition("=")
        if not name.isidentifier() or not _PLACE.fullmatch(where):
            raise UsageError(
                f"--given {text!r} is not PARAMETER=MODULE:NAME, such as --given db=shop.data:load; of a "
                "name in the tools' file the module is left out"
            )
        found[name] = where
    return found


class PythonOrigin(ToolOrigin):
    """A Python file with tools.

    Args:
        file: the file.
        made_of: the class whose methods are the tools; empty: the file's functions, or its only class.
        beside: the folder with the files that it imports and reads; None: the folder of the file.
        root: a folder above the file that is kept as it is above the copy, as the file reads from there; its
            own folder is copied.
    """

    warning = "its tools are called now, in a process of their own and on copies of their files"

    def __init__(
        self, file: Path, made_of: str = "", *, beside: Path | None = None, root: Path | None = None
    ) -> None:
        self._file, self._made_of, self._root, self.label = file, made_of, root, file.name
        self._beside = file.parent if beside is None else beside
        self.may_write: tuple[str, ...] = ()
        """Further folders in which the tools may write."""
        self.given: dict[str, str] = {}
        """Arguments that the agent does not choose: `PythonSource.given`."""

    def bring(self, files: Path, budget: Budget | None = None) -> Source:
        """See `ToolOrigin`. Copies the file, and the files of its folder that it imports or reads."""
        del budget
        file = self._file
        if not file.is_file():
            raise UsageError(f"there is no file {file}")
        top = package_root(file.resolve()) if self._root is None else self._root.resolve()
        if not file.resolve().is_relative_to(top):
            raise UsageError(f"{file} is not in --files {self._root}")
        inside = file.resolve().relative_to(top)
        first = inside.parts[0]
        if first != inside.name:
            self._beside = top
        if first == inside.name and self._root is not None and is_whole_folder(top):
            copy_whole(top, files)  # the user names the file's own folder: all that is in it
        else:
            files.mkdir(parents=True)
            copy_whole(top / first, files / first)
        source = PythonSource(
            file=str(inside), object=self._made_of, may_write=self.may_write, given=self.given, seeded=True
        )
        for _ in range(_FILES):
            try:
                with closing(source.open(files)) as world:
                    if not copy_asked(world.asked, self._beside, files):
                        return source
            except NotStarted as error:
                module = _MISSING_MODULE.search(str(error))
                wanted = [
                    *error.asked,
                    *([f"{module[1].split('.')[0]}.py", module[1].split(".")[0]] if module else []),
                ]
                if copy_asked(wanted, self._beside, files):
                    continue
                if module and (above := _above(file, module[1].partition(".")[0])):
                    raise NotStarted(
                        f"{error}; it is in {above}: name that folder with --files",
                        error.asked,
                    ) from error
                raise
        raise UsageError(
            f"{file.name} reads more than {_FILES} files beside it; put what it needs into one folder"
        )

    def complete(self, world: LoadedWorld, source: Source, files: Path) -> Source | None:
        """See `ToolOrigin`. Copies the files that tools tried to read when they were called."""
        if copy_asked(world.asked, self._beside, files):
            return source
        if isinstance(world, PythonWorld) and (names := not_copied(self._beside, files)):
            world.remarks += (
                f"Not copied from beside {self.label}, as no tool asked for them by name: {names}; put what "
                "the tools need into the folder `files`",
            )
        return None


_MOST_ABOVE = 4


def _above(file: Path, module: str) -> Path | None:
    """Return the nearest folder above a file's own that holds a module, or None."""
    above = file.resolve().parent.parents[:_MOST_ABOVE]
    return next((one for one in above if (one / module).is_dir() or (one / f"{module}.py").is_file()), None)


class CodeOrigin(PythonOrigin):
    """Functions or a class of a notebook or a program.

    Args:
        written: their source code as a file.
    """

    def __init__(self, written: WrittenOut) -> None:
        super().__init__(Path(_CODE), written.made_of, beside=written.beside)
        self._text = written.text

    def bring(self, files: Path, budget: Budget | None = None) -> Source:
        """See `ToolOrigin`. Writes a file with the tools, and copies the files that it imports or reads."""
        with tempfile.TemporaryDirectory() as folder:
            self._file = Path(folder) / _CODE
            self._file.write_text(self._text, encoding="utf-8")
            return super().bring(files)


_COMPARED, _AT_LEAST, _COMPARED_S = 24, 6, 30.0
"""Maximum and minimum number of programs executed in a used, or forked, and in a new process, and the time
limit."""
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
        """See `ToolOrigin`. Compares a used process with new ones; if they differ, forks or starts new ones.

        A fork of a loaded server is compared with new processes as well.
        """
        if not isinstance(world, McpWorld) or not isinstance(source, McpSource) or source.fresh:
            return None
        fresh = source.model_copy(update={"fresh": True})
        forked = fresh.model_copy(update={"forked": True})
        programs = world.known.programs()
        random.Random(len(programs)).shuffle(programs)
        with closing(fresh.open(files)) as one, closing(fresh.open(files)) as other:
            if _all_alike(world, one, other, programs):
                return None
            with contextlib.suppress(UsageError), closing(forked.open(files)) as forks:
                if forks.is_forked and _all_alike(forks, one, other, programs) and forks.is_forked:
                    return forked
        return fresh


def _all_alike(
    world: McpWorld, fresh: McpWorld, fresher: McpWorld, programs: Sequence[Sequence[Call]]
) -> bool:
    """Whether the processes of a world execute programs like new ones, as far as there is time to compare."""
    start = time.monotonic()
    for number, program in enumerate(programs[:_COMPARED]):
        if number >= _AT_LEAST and time.monotonic() - start > _COMPARED_S:
            break
        if not _alike(world, fresh, fresher, program):
            return False
    return True


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
        told = "write are called for real, each different call once" if writes else "may write are left out"
        self.warning = f"the server is asked now, and its answers are kept; tools that {told}"

    def bring(self, files: Path, budget: Budget | None = None) -> Source:
        """See `ToolOrigin`. Records the server's answers."""
        budget = budget or Budget(USUAL)
        with closing(Thread()) as thread:
            connection = Connection(partial(over_http, self._address))

            def send(call: Call) -> Outcome:
                try:
                    with budget.spending(lambda: connection.received):
                        answer = thread.start(connection.call(call.tool, call.args, _CALL_S)).result()
                except Silent as error:
                    raise NoAnswer(str(error)) from error
                except NotRunning as error:
                    raise Ended(f"it does not answer any more: {error}") from error
                return outcome_of(answer)

            try:
                thread.start(connection.open()).result()
                budget.received += connection.received  # bytes of its list of tools
                self._recorded(connection, send).save(files)
            except NotRunning as error:
                raise UsageError(f"{self._address} gives no tools: {error}") from error
            finally:
                thread.start(connection.close()).result()
        return RecordedSource(address=self._address)

    def _recorded(self, connection: Connection, send: Send) -> Recording:
        tools, left_out = usable({one.name: partial(tool_of, one) for one in connection.tools})
        left_out |= connection.left_out
        refused = {name: _REFUSED for name, one in tools.items() if may_write(one) and not self._writes}
        wanted = chosen(tools, self.only, self._address)
        kept = {name: one for name, one in tools.items() if name in wanted and name not in refused}
        if not kept:
            reasons = "; ".join(f"{name}: {why}" for name, why in left_out.items())[:400]
            which = f"{self._address} that --only chooses" if self.only else self._address
            raise UsageError(
                f"all tools of {which} may write: none has a readOnlyHint; --allow-writes has them called "
                "for real"
                if tools
                else f"{self._address} gives no tools: {reasons or 'it lists none'}"
            )
        unwanted = {name: NOT_CHOSEN for name in tools if name not in wanted}
        return record(kept, send, {**left_out, **refused, **unwanted}, random.Random("recording"), self._most)


class OpenApiOrigin(ToolOrigin):
    """An OpenAPI document, on disk or on the web.

    Args:
        source: its path or address.
        only: prefixes of the paths whose operations are tools; empty: all.
    """

    warning = "its operations are called now on mock tables; nothing is sent to the service"

    def __init__(self, source: str, only: tuple[str, ...]) -> None:
        self._source, self._only = source, only
        self.label = source.rstrip("/").rsplit("/", 1)[-1]

    def bring(self, files: Path, budget: Budget | None = None) -> Source:
        """See `ToolOrigin`. Copies the document, and draws the rows of its tables."""
        del budget
        text = load_text(self._source)
        world = MockWorld(text, self.label, self._only)
        files.mkdir(parents=True)
        file = "openapi.json" if text.lstrip().startswith("{") else "openapi.yaml"
        (files / file).write_text(text, encoding="utf-8")
        (files / ROWS_FILE).write_text(json_line(world.first, indent=1) + "\n", encoding="utf-8")
        return OpenApiSource(file=file, only=self._only)
