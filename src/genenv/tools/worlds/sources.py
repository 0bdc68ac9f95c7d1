"""The `[source]` table of `bundle.toml`: which tools a bundle has, and how they are opened.

Each kind of source is a class here and part of `Source`. Its counterpart in `origins` copies what it needs
into a new bundle.
"""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field, field_validator

from genenv.tools.worlds.base import LoadedWorld
from genenv.tools.worlds.in_process import InProcessWorld
from genenv.tools.worlds.mcp.world import McpWorld, Running
from genenv.tools.worlds.openapi.document import fetched
from genenv.tools.worlds.openapi.mock_world import MockWorld
from genenv.tools.worlds.python import CALL_S, PythonWorld
from genenv.tools.worlds.recorded import RecordedWorld, Recording


class PythonSource(BaseModel, frozen=True, extra="forbid"):
    """Functions, or the methods of a class, of a Python file."""

    kind: Literal["python"] = "python"
    file: str
    """Of the folder `files`."""
    object: str = ""
    """The class whose methods are the tools; empty: its functions, or its only class."""
    may_write: tuple[str, ...] = ()
    """Folders, beside the copy of `files`, in which it may write; `~` is the user's."""

    @property
    def label(self) -> str:
        """How people know it."""
        return self.file

    @property
    def code(self) -> str:
        """What of it is run as code on this machine."""
        return f"the Python file files/{self.file}"

    def open(self, files: Path, call_s: float = CALL_S) -> LoadedWorld:
        """The tools, ready to be called.

        Args:
            files: the bundle's folder `files`.
            call_s: how long a call may take, in seconds.

        Raises:
            UsageError: they cannot be loaded.
        """
        name = self.object or None
        return PythonWorld(files, self.file, name, call_s=call_s, may_write=self.may_write)


class PackageSource(BaseModel, frozen=True, extra="forbid"):
    """The methods of a class of genenv itself, called in this process."""

    kind: Literal["package"] = "package"
    object: str = Field(pattern=r"^genenv\.[\w.]+:\w+$")

    @property
    def label(self) -> str:
        """How people know it."""
        return self.object

    def open(self, files: Path, call_s: float = CALL_S) -> LoadedWorld:
        """See `PythonSource`: no call takes long here."""
        del files, call_s
        return InProcessWorld(self.object)


class OpenApiSource(BaseModel, frozen=True, extra="forbid"):
    """Operations of an OpenAPI document, on mock tables of its resources."""

    kind: Literal["openapi"] = "openapi"
    file: str
    """Of the folder `files`."""
    only: tuple[str, ...] = ()
    """Operations whose path begins with one of these; none: all."""

    @property
    def label(self) -> str:
        """How people know it."""
        return self.file

    def open(self, files: Path, call_s: float = CALL_S) -> LoadedWorld:
        """See `PythonSource`: no call takes long here."""
        del call_s
        return MockWorld(fetched(str(files / self.file)), self.file, self.only)


class McpSource(BaseModel, frozen=True, extra="forbid"):
    """An MCP server that is spoken to over stdio; it works in a copy of the folder `files`."""

    kind: Literal["mcp"] = "mcp"
    command: Annotated[tuple[str, ...], Field(min_length=1)]
    """Its words; `{folder}` stands for the folder that it works in."""
    env: tuple[str, ...] = ()
    """What it is told beside: `NAME=value`."""
    fresh: bool = True
    """A new process for every attempt: putting the folder back was measured not to be enough."""
    network: bool = False
    """It is left its network, without which it does not start."""
    may_write: tuple[str, ...] = ()
    """Folders, beside its own, in which it may write; `~` is the user's."""

    @field_validator("env")
    @classmethod
    def _named(cls, env: tuple[str, ...]) -> tuple[str, ...]:
        if wrong := [one for one in env if not one.partition("=")[0] or "=" not in one]:
            raise ValueError(f"{wrong[0]!r} is not NAME=value")
        return env

    @property
    def label(self) -> str:
        """How people know it."""
        return f"mcp:{' '.join((*self.env, *self.command))}"

    @property
    def code(self) -> str:
        """What of it is run as code on this machine."""
        return f"the command `{' '.join((*self.env, shlex.join(self.command)))}`"

    def open(self, files: Path, call_s: float = CALL_S) -> McpWorld:
        """See `PythonSource`.

        Raises:
            UsageError: the server does not start, or has no tools.
        """
        running = Running(
            command=self.command,
            env=self.env,
            fresh=self.fresh,
            network=self.network,
            may_write=self.may_write,
        )
        return McpWorld(files, running, call_s=call_s)


class RecordedSource(BaseModel, frozen=True, extra="forbid"):
    """A service that was asked when the bundle was made; its answers are in the folder `files`."""

    kind: Literal["recorded"] = "recorded"
    address: str
    """Where it was asked."""
    headers: tuple[str, ...] = ()
    """What went along, as it was typed: `Authorization: Bearer $TOKEN`, never what the variable holds."""

    @property
    def label(self) -> str:
        """How people know it."""
        return self.address

    def open(self, files: Path, call_s: float = CALL_S) -> LoadedWorld:
        """See `PythonSource`: nothing is asked any more.

        Raises:
            DataError: what was recorded is not there, or not as it should be.
        """
        del call_s
        return RecordedWorld(Recording.load(files))


Source = Annotated[
    PythonSource | PackageSource | OpenApiSource | McpSource | RecordedSource, Field(discriminator="kind")
]
