"""What `genenv env new --from` can name: Python files, MCP servers and OpenAPI documents.

An origin copies what its tools need into a new bundle. The bundle then holds a source (`sources`), which
opens the tools again in each run.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Protocol

from genenv.errors import UsageError
from genenv.tools.worlds.base import LoadedWorld
from genenv.tools.worlds.limits import Budget
from genenv.tools.worlds.mcp.origin import McpOrigin, RemoteOrigin
from genenv.tools.worlds.openapi.document import fetched, is_address
from genenv.tools.worlds.openapi.mock_world import MockWorld
from genenv.tools.worlds.openapi.service import Service, ServiceOrigin
from genenv.tools.worlds.python import NotStarted, PythonWorld
from genenv.tools.worlds.recorded import MOST_SENT
from genenv.tools.worlds.source_text import WrittenOut
from genenv.tools.worlds.sources import OpenApiSource, PythonSource, Source

_MCP = "mcp:"
_CODE = "tools.py"
_FILES = 64
"""At most so many files are copied, besides the tools' own."""
_MISSING_MODULE = re.compile(r"\(module ([\w.]+)\)$")


class ToolOrigin(Protocol):
    """Where the tools of a new bundle come from."""

    @property
    def label(self) -> str:
        """The name shown in progress messages."""
        ...

    @property
    def warning(self) -> str:
        """A warning shown before the tools are called."""
        ...

    def bring(self, files: Path, budget: Budget | None = None) -> Source:
        """Copy what the tools need into a new folder.

        Args:
            files: the folder.
            budget: of the calls that are recorded meanwhile; None: the usual limits.

        Raises:
            UsageError: there is nothing to copy, it gives no tools, or the budget is used up.
        """
        ...

    def complete(self, world: LoadedWorld, source: Source, files: Path) -> Source | None:
        """Complete the bundle after the tools were called; None if nothing changes.

        Otherwise files were added or the source changed, and exploration has to start again.
        """
        ...


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
        text: it.
        only: of an OpenAPI document the paths that are wanted, by how they begin.
        folder: what is in the folder of an MCP server to begin with.
        writes: whether tools of a service on the network are called that may write.
        service: where the operations of an OpenAPI document are asked for real.
        most: so many requests at most are sent to a service on the network.

    Raises:
        UsageError: it is nothing that tools can come from.
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
    if folder is not None and not is_server:
        raise UsageError("--files is the folder of an MCP server, and --from names none")
    if service is not None:
        return ServiceOrigin(text, service, only, writes=writes, most=most or MOST_SENT)
    if is_document:
        return OpenApiOrigin(text, tuple(only))
    if only:
        raise UsageError("--only chooses among the paths of an OpenAPI document, and --from names none")
    if is_remote:
        return RemoteOrigin(text.removeprefix(_MCP), writes=writes, most=most or MOST_SENT)
    if is_server:
        return McpOrigin.read(text.removeprefix(_MCP), folder)
    file, _, made_of = text.partition(":")
    if file.endswith(".py"):
        return PythonOrigin(Path(file), made_of)
    raise UsageError(
        f"--from {text!r} is nothing that tools can come from; name a Python file (tools.py, "
        "tools.py:Class), an OpenAPI document (openapi.json, openapi.yaml, https://.../openapi.json), or the "
        "command of an MCP server ('mcp:npx my-server {folder}') or its address (mcp:http://.../mcp)"
    )


def let_write(origin: ToolOrigin, folders: Sequence[str | Path]) -> None:
    """Let tools write in further folders.

    Args:
        origin: of the tools.
        folders: they are made absolute.

    Raises:
        UsageError: one is not there, or no code of the tools' is run.
    """
    if not folders:
        return
    if not isinstance(origin, PythonOrigin | CodeOrigin | McpOrigin):
        raise UsageError(
            "--may-write is for a Python file and for an MCP server that is started, and --from names neither"
        )
    found = [Path(one).expanduser().absolute() for one in folders]
    if lost := [one for one in found if not one.exists()]:
        raise UsageError(f"--may-write {lost[0]} is not there; make the folder first, or name another one")
    origin.may_write = tuple(map(str, found))


class PythonOrigin:
    """A Python file.

    Args:
        file: it.
        made_of: its class whose methods are the tools; empty: its functions, or its only class.
        beside: where the files are that it imports and reads; left out, its own folder.
    """

    def __init__(self, file: Path, made_of: str = "", *, beside: Path | None = None) -> None:
        self._file, self._made_of = file, made_of
        self._beside = file.parent if beside is None else beside
        self.may_write: tuple[str, ...] = ()
        """Further folders in which the tools may write."""

    @property
    def label(self) -> str:
        """See `ToolOrigin`."""
        return self._file.name

    @property
    def warning(self) -> str:
        """See `ToolOrigin`."""
        return "its tools are called now, in a process of their own and on copies of their files"

    def bring(self, files: Path, budget: Budget | None = None) -> Source:
        """See `ToolOrigin`: the file, and what it imports and reads in its folder."""
        del budget
        file = self._file
        if not file.is_file():
            raise UsageError(f"there is no file {file}")
        files.mkdir(parents=True)
        shutil.copy(file, files / file.name)
        for _ in range(_FILES):
            try:
                PythonWorld(files, file.name, self._made_of or None, may_write=self.may_write).close()
            except NotStarted as error:
                module = _MISSING_MODULE.search(str(error))
                wanted = [
                    *error.asked,
                    *([f"{module[1].split('.')[0]}.py", module[1].split(".")[0]] if module else []),
                ]
                if not _brought(wanted, self._beside, files):
                    raise
            else:
                return PythonSource(file=file.name, object=self._made_of, may_write=self.may_write)
        raise UsageError(
            f"{file.name} reads more than {_FILES} files beside it; put what it needs into one folder"
        )

    def complete(self, world: LoadedWorld, source: Source, files: Path) -> Source | None:
        """See `ToolOrigin`: what tools wanted to read when they were called is copied."""
        return source if _brought(world.asked, self._beside, files) else None


class CodeOrigin:
    """Functions, or a class, of a notebook or a program.

    Args:
        written: what they are as a file.
    """

    def __init__(self, written: WrittenOut) -> None:
        self._written = written
        self.may_write: tuple[str, ...] = ()
        """Further folders in which the tools may write."""

    @property
    def label(self) -> str:
        """See `ToolOrigin`."""
        return _CODE

    @property
    def warning(self) -> str:
        """See `ToolOrigin`."""
        return PythonOrigin(Path(_CODE)).warning

    def bring(self, files: Path, budget: Budget | None = None) -> Source:
        """See `ToolOrigin`: a file that holds them, and what that imports and reads."""
        del budget
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / _CODE
            file.write_text(self._written.text, encoding="utf-8")
            return self._as_file(file).bring(files)

    def complete(self, world: LoadedWorld, source: Source, files: Path) -> Source | None:
        """See `ToolOrigin`: what tools wanted to read when they were called is copied."""
        return self._as_file(files / _CODE).complete(world, source, files)

    def _as_file(self, file: Path) -> PythonOrigin:
        made = PythonOrigin(file, self._written.made_of, beside=self._written.beside)
        made.may_write = self.may_write
        return made


class OpenApiOrigin:
    """An OpenAPI document, on disk or on the web.

    Args:
        source: its path or address.
        only: operations whose path begins with one of these; none: all.
    """

    def __init__(self, source: str, only: tuple[str, ...] = ()) -> None:
        self._source, self._only = source, only

    @property
    def label(self) -> str:
        """See `ToolOrigin`."""
        return self._source.rstrip("/").rsplit("/", 1)[-1]

    @property
    def warning(self) -> str:
        """See `ToolOrigin`."""
        return "its operations are called now on mock tables; nothing is sent to the service"

    def bring(self, files: Path, budget: Budget | None = None) -> Source:
        """See `ToolOrigin`: the document as it is today."""
        del budget
        text = fetched(self._source)
        MockWorld(text, self.label, self._only)
        files.mkdir(parents=True)
        file = "openapi.json" if text.lstrip().startswith("{") else "openapi.yaml"
        (files / file).write_text(text, encoding="utf-8")
        return OpenApiSource(file=file, only=self._only)

    def complete(self, world: LoadedWorld, source: Source, files: Path) -> Source | None:
        """See `ToolOrigin`: a document is whole."""
        del world, source, files
        return None


def _brought(wanted: Iterable[str], origin: Path, files: Path) -> bool:
    """Copy what is wanted, is there, and was not copied yet; whether anything was.

    The names come from the tools' process: those that lead out of the folder are left aside.
    """
    inside = [one for one in wanted if not Path(one).is_absolute() and ".." not in Path(one).parts]
    beside = [one for one in inside if (origin / one).exists() and not (files / one).exists()]
    for one in beside:
        _copy(origin / one, files / one)
    return bool(beside)


def _copy(origin: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    if origin.is_dir():
        shutil.copytree(origin, to, ignore=shutil.ignore_patterns("__pycache__", ".*"))
    else:
        shutil.copy(origin, to)
