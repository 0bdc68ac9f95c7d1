"""Files that reach the disk, whole; and whether a place takes any, before work begins."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from genenv.errors import UsageError


def check_writable(out: Path, option: str = "--out") -> None:
    """Find out whether files can be written at or below a path, before anything slow begins; leaves nothing.

    A real file is tried: rights alone do not say that a disk takes no more, or is there to be read only.

    Args:
        out: a file or a folder; what is missing above it is going to be made.
        option: by which another place can be named.

    Raises:
        UsageError: they cannot.
    """
    place = next(one for one in (out, *out.absolute().parents) if one.exists())
    try:
        if out.is_file():
            out.open("ab").close()
            place = out.absolute().parent
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        why = f"{place} is a file" if place.is_file() else f"{place}: {error.strerror or error}"
        raise UsageError(f"{out} cannot be written ({why}); choose another {option}") from error


def sync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_whole(path: Path, text: str) -> None:
    """Write a text file so that a reader finds the old or the new one, never a part."""
    hidden = path.with_name(f".writing-{path.name}")
    try:
        hidden.write_text(text, encoding="utf-8")
        sync(hidden)
    except BaseException:
        hidden.unlink(missing_ok=True)
        raise
    hidden.replace(path)
    sync(path.parent)
