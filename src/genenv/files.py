"""Files and folders that are written whole or not at all, privately, and by one process at a time."""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import tempfile
from collections.abc import Generator
from pathlib import Path
from typing import IO

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


@contextlib.contextmanager
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
