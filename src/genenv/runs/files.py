"""Files that reach the disk, whole."""

from __future__ import annotations

import os
from pathlib import Path


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
