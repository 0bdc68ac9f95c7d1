"""Where the tools of a bundle come from: what its first file says of them, and how they are opened.

One class a kind. Another kind is another class here, in `Source`, and one in `origins`, which brings what it
needs into a bundle.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

from pydantic import BaseModel, Field

from genenv.domains.tools.openapi.mock_world import MockWorld
from genenv.domains.tools.openapi.reading import fetched
from genenv.domains.tools.python_world import CALL_S, PythonWorld
from genenv.domains.tools.world import LoadedWorld


class PythonSource(BaseModel, frozen=True, extra="forbid"):
    """Functions, or the methods of a class, of a Python file."""

    kind: Literal["python"] = "python"
    file: str
    """Of the folder `files`."""
    object: str = ""
    """The class whose methods are the tools; empty: its functions, or its only class."""

    @property
    def label(self) -> str:
        """How people know it."""
        return self.file

    def open(self, files: Path, call_s: float = CALL_S) -> LoadedWorld:
        """The tools, ready to be called.

        Args:
            files: the bundle's folder `files`.
            call_s: how long a call may take, in seconds.

        Raises:
            UsageError: they cannot be loaded.
        """
        return PythonWorld(files, self.file, self.object or None, call_s=call_s)


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


Source = Annotated[PythonSource | OpenApiSource, Field(discriminator="kind")]
