"""One process at a time may write a run, or the results of an evaluation."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from genenv.errors import UsageError


@contextmanager
def locked(written: Path, lock: Path) -> Generator[None]:
    """Nobody else may write inside this block; a process that dies gives the lock back.

    Where nothing has been written at its end, the lock's file goes too.

    Args:
        written: what is written, for the sentence of those who have to wait.
        lock: a file that says who writes; made, if it is not there.

    Raises:
        UsageError: another process has it.
    """
    with _taken(written, lock) as file:
        file.truncate(0)
        file.write(f"process {os.getpid()}")
        file.flush()
        try:
            yield
        finally:
            if not written.exists():
                lock.unlink(missing_ok=True)


def _taken(written: Path, lock: Path) -> IO[str]:
    """The lock's file, locked; opened again where whoever had it removed it in between.

    Raises:
        UsageError: another process has it.
    """
    while True:
        file = lock.open("a+", encoding="ascii")
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as err:
            with file:
                file.seek(0)
                holder = file.read().strip() or "unknown"
            raise UsageError(
                f"{written} is being written by another process ({holder}); wait for it to end, or choose "
                "another --out"
            ) from err
        with contextlib.suppress(FileNotFoundError):
            if os.path.samestat(os.fstat(file.fileno()), lock.stat()):
                return file
        file.close()
