"""One process at a time may write a run, or the results of an evaluation."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from genenv.errors import UsageError


@contextmanager
def locked(written: Path, lock: Path) -> Generator[None]:
    """Nobody else may write inside this block; a process that dies gives the lock back.

    Args:
        written: what is written, for the sentence of those who have to wait.
        lock: a file that says who writes; made, if it is not there.

    Raises:
        UsageError: another process has it.
    """
    with lock.open("a+", encoding="ascii") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as err:
            file.seek(0)
            raise UsageError(
                f"{written} is being written by another process ({file.read().strip() or 'unknown'}); "
                "wait for it to end, or choose another --out"
            ) from err
        file.truncate(0)
        file.write(f"process {os.getpid()}")
        file.flush()
        yield
