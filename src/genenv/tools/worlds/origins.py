"""Origins of tools that `genenv env new --from` accepts: Python files, MCP servers, OpenAPI documents.

An origin copies what its tools need into a new bundle. The bundle then holds a source (`sources`), which
opens the tools again in each run.
"""

from __future__ import annotations

import re
import shutil
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from genenv.errors import UsageError
from genenv.tools.worlds.base import LoadedWorld
from genenv.tools.worlds.limits import Budget
from genenv.tools.worlds.mcp.origin import McpOrigin, RemoteOrigin
from genenv.tools.worlds.openapi.document import NEWEST
from genenv.tools.worlds.openapi.loading import is_address, load_text
from genenv.tools.worlds.openapi.mock_world import MockWorld
from genenv.tools.worlds.openapi.service import Service, ServiceOrigin
from genenv.tools.worlds.python import NotStarted
from genenv.tools.worlds.recorded import MOST_SENT
from genenv.tools.worlds.source_text import WrittenOut
from genenv.tools.worlds.sources import OpenApiSource, PythonSource, Source, ToolOrigin

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
        only: prefixes of the wanted paths of an OpenAPI document.
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
    if only:
        raise UsageError("--only chooses among the paths of an OpenAPI document, and --from names none")
    if is_remote:
        return RemoteOrigin(text.removeprefix(_MCP), writes=writes, most=most or MOST_SENT)
    if is_server:
        return McpOrigin.read(text.removeprefix(_MCP), folder)
    file, _, made_of = text.partition(":")
    if file.endswith(".py"):
        return PythonOrigin(Path(file), made_of, root=folder)
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
        root: a folder above the file that is kept as it is above the copy, as the file reads from there.
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
        inside, top = _place_in_package(file)
        if self._root is not None:
            if not file.resolve().is_relative_to(self._root.resolve()):
                raise UsageError(f"{file} is not in --files {self._root}")
            top = self._root.resolve()
            inside = str(file.resolve().relative_to(top))
        files.mkdir(parents=True)
        first = Path(inside).parts[0]
        if len(Path(inside).parts) > 1:
            self._beside = top
        _copy(top / first, files / first)
        source = PythonSource(
            file=inside, object=self._made_of, may_write=self.may_write, given=self.given, seeded=True
        )
        for _ in range(_FILES):
            try:
                source.open(files).close()
            except NotStarted as error:
                module = _MISSING_MODULE.search(str(error))
                wanted = [
                    *error.asked,
                    *([f"{module[1].split('.')[0]}.py", module[1].split(".")[0]] if module else []),
                ]
                if not _brought(wanted, self._beside, files):
                    raise
            else:
                return source
        raise UsageError(
            f"{file.name} reads more than {_FILES} files beside it; put what it needs into one folder"
        )

    def complete(self, world: LoadedWorld, source: Source, files: Path) -> Source | None:
        """See `ToolOrigin`. Copies the files that tools tried to read when they were called."""
        return source if _brought(world.asked, self._beside, files) else None


def _place_in_package(file: Path) -> tuple[str, Path]:
    """Return the path of a file from the folder of its outermost package on, and that folder.

    A file that is not in a package is its own name, in its own folder.
    """
    root = file.resolve().parent
    while (root / "__init__.py").is_file():
        root = root.parent
    return str(file.resolve().relative_to(root)), root


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
        """See `ToolOrigin`. Copies the document in its current version."""
        del budget
        text = load_text(self._source)
        MockWorld(text, self.label, self._only)
        files.mkdir(parents=True)
        file = "openapi.json" if text.lstrip().startswith("{") else "openapi.yaml"
        (files / file).write_text(text, encoding="utf-8")
        return OpenApiSource(file=file, only=self._only, version=NEWEST)


def _brought(wanted: Iterable[str], origin: Path, files: Path) -> bool:
    """Copy wanted files that exist and were not copied yet; return whether there were any.

    The names come from the tools' process, so names that lead out of the folder are ignored.
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
