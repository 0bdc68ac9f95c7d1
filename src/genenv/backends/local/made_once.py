"""Model folders that genenv makes itself, once, in a cache: complete or absent, never half-written."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from pathlib import Path

from genenv.backends.local.hardware import cache_folder
from genenv.errors import UsageError, disk_is_full, first_line

_LAST = "config.json"
"""A folder with this is a model."""


def made_once(name: str, write: Callable[[Path], None], *, failed: str) -> Path:
    """A folder of the cache, written where it is not there yet.

    Args:
        name: of the folder; what is written into it for good depends on nothing else.
        write: makes a model in a folder that is not there yet.
        failed: begins the sentence where that cannot be, such as `the model could not be unpacked`.

    Raises:
        UsageError: the cache cannot be written.
    """
    folder = cache_folder() / name
    if (folder / _LAST).is_file():
        return folder
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder.parent) as scratch:
            partial = Path(scratch, name)
            write(partial)
            _move(partial, folder)
    except Exception as error:
        if not (isinstance(error, OSError) or disk_is_full(error)):
            raise
        raise UsageError(
            f"{failed} into {folder.parent}: {first_line(error)}; "
            "free some space or set GENENV_CACHE to another folder"
        ) from error
    return folder


def _move(partial: Path, folder: Path) -> None:
    """Put a finished folder in its place, unless another process was faster."""
    try:
        partial.rename(folder)
    except OSError:
        if not (folder / _LAST).is_file():
            raise
