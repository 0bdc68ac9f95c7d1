"""The `[source]` table of `bundle.toml`: which tools a bundle has, and how they are opened.

Each kind of source is part of `Source`. Its counterpart, a `ToolOrigin`, copies the files that it needs into
a new bundle.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, cast

from pydantic import BaseModel, Field, JsonValue

from genenv.errors import UsageError
from genenv.files import read_model
from genenv.tools.worlds.base import LoadedWorld
from genenv.tools.worlds.importing import SessionSettings
from genenv.tools.worlds.in_process import InProcessWorld
from genenv.tools.worlds.limits import Budget
from genenv.tools.worlds.mcp.world import McpSource
from genenv.tools.worlds.openapi.loading import file_text
from genenv.tools.worlds.openapi.mock_world import MockWorld
from genenv.tools.worlds.openapi.rows import State
from genenv.tools.worlds.python import CALL_S, PythonWorld
from genenv.tools.worlds.recorded import RecordedWorld, Recording

ROWS_FILE = "rows.json"
"""File name of the first rows of mock tables in a bundle's folder `files`."""


class PythonSource(BaseModel, frozen=True, extra="forbid"):
    """Functions of a Python file, or the methods of a class in it."""

    kind: Literal["python"] = "python"
    file: str
    """Path of the file in the folder `files`."""
    object: str = ""
    """The class whose methods are the tools; empty: the file's functions, or its only class."""
    may_write: tuple[str, ...] = ()
    """Folders besides the copy of `files` in which the tools may write; `~` is the user's home."""
    given: dict[str, str] = {}
    """Arguments that the agent does not choose, of functions and of the class's constructor, such as a
    framework's context: the parameter's name, and `MODULE:NAME` (or `NAME` in the file) of the value, or of
    what makes it."""
    seeded: bool = False
    """Seed random numbers before each call, from the call itself, so that tasks can name ids that tools draw.
    Bundles that were made before there was this setting do without."""

    @property
    def label(self) -> str:
        """The name of the source in messages."""
        return self.file

    @property
    def code(self) -> str:
        """The code that is run on this machine, in a few words."""
        return f"the Python file files/{self.file}"

    def open(self, files: Path, call_s: float = CALL_S) -> LoadedWorld:
        """Return the tools, ready to be called.

        Args:
            files: the bundle's folder `files`.
            call_s: time limit of a call in seconds.

        Raises:
            UsageError: they cannot be loaded.
        """
        settings = SessionSettings(may_write=self.may_write, given=self.given, seeded=self.seeded)
        return PythonWorld(files, self.file, self.object or None, call_s=call_s, settings=settings)


class PackageSource(BaseModel, frozen=True, extra="forbid"):
    """The methods of a class of the simulated apps that come with genenv, called in this process."""

    kind: Literal["package"] = "package"
    object: str = Field(pattern=r"^genenv\.tools\.tool_calling\.apps\.[\w.]+:[A-Z]\w*$")

    @property
    def label(self) -> str:
        """The name of the source in messages."""
        return self.object

    def open(self, files: Path, call_s: float = CALL_S) -> LoadedWorld:
        """See `PythonSource.open`. `call_s` is ignored: calls to this source never block."""
        del files, call_s
        return InProcessWorld(self.object)


class OpenApiSource(BaseModel, frozen=True, extra="forbid"):
    """Operations of an OpenAPI document, on mock tables of its resources, whose rows are in `ROWS_FILE`."""

    kind: Literal["openapi"] = "openapi"
    file: str
    """Path of the document in the folder `files`."""
    only: tuple[str, ...] = ()
    """Prefixes of the paths whose operations are tools; empty: all."""
    version: int | None = Field(default=None, exclude=True)
    """Of earlier bundles, which `open` refuses."""

    @property
    def label(self) -> str:
        """The name of the source in messages."""
        return self.file

    def open(self, files: Path, call_s: float = CALL_S) -> LoadedWorld:
        """See `PythonSource.open`. `call_s` is ignored: calls to this source never block.

        Raises:
            DataError: the rows are damaged.
            UsageError: the bundle was made by an earlier version of genenv.
        """
        del call_s
        if not (files / ROWS_FILE).is_file():
            raise UsageError(
                f"{files.parent} lacks files/{ROWS_FILE}, as it was made by an earlier version of genenv; "
                "make it anew with `genenv env new`"
            )
        rows = read_model(files / ROWS_FILE, dict[str, dict[str, dict[str, JsonValue]]])
        return MockWorld(file_text(files / self.file), self.file, self.only, cast(State, rows))


class RecordedSource(BaseModel, frozen=True, extra="forbid"):
    """A service whose answers were recorded in the folder `files` when the bundle was made."""

    kind: Literal["recorded"] = "recorded"
    address: str
    """Address of the service when it was recorded."""
    headers: tuple[str, ...] = ()
    """Headers as the user typed them: `Authorization: Bearer $TOKEN`, never the variable's value."""

    @property
    def label(self) -> str:
        """The name of the source in messages."""
        return self.address

    def open(self, files: Path, call_s: float = CALL_S) -> LoadedWorld:
        """See `PythonSource.open`. `call_s` is ignored: nothing is sent to the service.

        Raises:
            DataError: the recording is missing or damaged.
        """
        del call_s
        return RecordedWorld(Recording.load(files))


Source = Annotated[
    PythonSource | PackageSource | OpenApiSource | McpSource | RecordedSource, Field(discriminator="kind")
]


class ToolOrigin:
    """The origin of a new bundle's tools."""

    label: str
    """The name shown in progress messages."""
    warning: str
    """A warning shown before the tools are called."""
    only: tuple[str, ...] = ()
    """Patterns of the names of the wanted tools, such as `git_*`; empty: all."""

    def bring(self, files: Path, budget: Budget | None = None) -> Source:
        """Copy what the tools need into a new folder, and return the source that opens them from there.

        Args:
            files: the folder.
            budget: limits the calls that are recorded; None: the usual limits.

        Raises:
            UsageError: there is nothing to copy, it gives no tools, or the budget is used up.
        """
        raise NotImplementedError

    def complete(self, world: LoadedWorld, source: Source, files: Path) -> Source | None:
        """Complete the bundle after the tools were called; None if nothing changes.

        Otherwise files were added or the source changed, and exploration has to start again.
        """
        del world, source, files
        return None
