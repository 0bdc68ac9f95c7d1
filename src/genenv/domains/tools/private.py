"""Folders that nobody else can enter, nor take the name of, while they are filled."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path


def private_folder(prefix: str, place: Path) -> tuple[Path, int]:
    """A new folder that nobody else may enter, and a lock that says it is in use.

    Args:
        prefix: of its name; the rest cannot be foreseen. What a killed process has left there is removed.
        place: the folder that it is made in.
    """
    remove_abandoned(prefix, place)
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=place)).resolve()
        lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
        fcntl.flock(lock, fcntl.LOCK_EX)
        if path.is_dir():  # nobody took it for abandoned before it was locked
            return path, lock
        os.close(lock)


def remove_abandoned(prefix: str, place: Path) -> None:
    """Remove folders of ours whose process was killed: nobody holds their locks any more."""
    for path in (one for one in place.iterdir() if one.name.startswith(prefix)) if place.is_dir() else ():
        with contextlib.suppress(OSError):
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
            try:
                if os.fstat(lock).st_uid == os.geteuid():
                    fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    shutil.rmtree(path, ignore_errors=True)
            finally:
                os.close(lock)


@contextlib.contextmanager
def filled(folder: Path) -> Generator[Path]:
    """An empty folder to fill, which has its name once it is whole; what fails leaves nothing.

    Args:
        folder: its name.
    """
    folder = folder.absolute()
    folder.parent.mkdir(parents=True, exist_ok=True)
    outer, lock = private_folder(f".{folder.name}.new-", folder.parent)
    try:
        inner = outer / folder.name
        inner.mkdir()
        yield inner
        inner.rename(folder)
    finally:
        shutil.rmtree(outer, ignore_errors=True)
        os.close(lock)
