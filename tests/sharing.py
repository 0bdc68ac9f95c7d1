"""Folders that tests of all workers read, and that take long to make."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

from filelock import FileLock


class Shared:
    """Folders that are made once in a test session, by the worker that is the first to ask for one.

    All tests of all workers read the same folder: a test that changes what it gets copies it first.
    """

    def __init__(self, root: Path) -> None:
        self.root = root

    def __call__(self, name: str, make: Callable[[Path], object]) -> Path:
        """Return the folder of a name. `make` gets its path, where nothing is yet, and makes it."""
        folder, made = self.root / name, self.root / f"{name}.made"
        with FileLock(self.root / f"{name}.lock"):
            if not made.exists():
                shutil.rmtree(folder, ignore_errors=True)  # of a worker that failed
                make(folder)
                made.touch()
        return folder
