"""Atomic writes, private temporary folders, and locks that admit one process at a time."""

from __future__ import annotations

import contextlib
import csv
import fcntl
import io
import os
import secrets
import shutil
import tempfile
import time
from collections.abc import Generator, Iterable, Sequence
from pathlib import Path
from typing import IO, TypeVar

from pydantic import TypeAdapter, ValidationError

from genenv.errors import DataError, UsageError, first_problem

T = TypeVar("T")

_LOOKS, _LOOK_S = 40, 0.025
"""How often a lock is tried, and the seconds between: `is_held` of another process takes it for a moment, or
for longer where the system interrupts that process."""


def check_writable(out: Path, option: str = "--out") -> None:
    """Check that files can be written at or below a path, before slow work begins. Leaves no file behind.

    The check writes a real temporary file: access rights do not tell whether a disk is full or read-only.

    Args:
        out: a file or a folder. Missing parent folders count as writable if their nearest existing parent is.
        option: the command-line option that sets the path, for the error message.

    Raises:
        UsageError: no file can be written there.
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
    """Wait until the contents of a file, or the names in a folder, are on the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def read_model(path: Path, kind: type[T]) -> T:
    """Return the JSON of a file as a pydantic model or another type.

    Raises:
        DataError: it cannot be read, or is not of this type.
    """
    try:
        return TypeAdapter(kind).validate_json(path.read_bytes())
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise DataError(f"{path}: {first_problem(error)}") from error


def write_csv(path: Path, lines: Iterable[Sequence[object]]) -> None:
    """Write rows as a CSV file, atomically."""
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerows(lines)
    write_whole(path, text.getvalue())


def write_whole(path: Path, text: str) -> None:
    """Write a text file atomically: a reader finds the old or the new content, never a part.

    Each writer has a temporary file of its own, so several processes may write the same file.
    """
    with _hidden(path, text) as hidden:
        hidden.replace(path)
    sync(path.parent)


def write_new(path: Path, text: str) -> Path:
    """Write a text file under a name that no file has, and return its path.

    If one has it by now, the name gets a number: `tasks-2.jsonl` instead of `tasks.jsonl`.
    """
    free, number = path, 1
    with _hidden(path, text) as hidden:
        while not _takes(free, hidden):
            number += 1
            free = path.with_stem(f"{path.stem}-{number}")
    sync(path.parent)
    return free


@contextlib.contextmanager
def _hidden(path: Path, text: str) -> Generator[Path]:
    """Write a text into a temporary file in the folder of `path`; it is removed unless it was renamed."""
    hidden = path.with_name(f".writing-{secrets.token_hex(8)}")
    try:
        hidden.write_text(text, encoding="utf-8")
        sync(hidden)
        yield hidden
    finally:
        hidden.unlink(missing_ok=True)


def _takes(free: Path, hidden: Path) -> bool:
    """Give a file a second name; return False if another file has it."""
    try:
        os.link(hidden, free)
    except FileExistsError:
        return False
    except OSError:  # a file system without such links
        if free.exists():
            return False
        hidden.replace(free)
    return True


def private_folder(prefix: str, place: Path) -> tuple[Path, int]:
    """Make a new folder that no other user may enter, and return it with a lock that marks it as in use.

    Args:
        prefix: start of the folder's name; the rest is random. Folders with this prefix that killed processes
            left in `place` are removed.
        place: the parent folder.
    """
    remove_abandoned(prefix, place)
    while True:
        path = Path(tempfile.mkdtemp(prefix=prefix, dir=place)).resolve()
        with contextlib.suppress(FileNotFoundError):  # another process removed it before it was locked
            lock = os.open(path, os.O_RDONLY | os.O_DIRECTORY)
            fcntl.flock(lock, fcntl.LOCK_EX)
            if path.is_dir():
                return path, lock
            os.close(lock)


def remove_abandoned(prefix: str, place: Path) -> None:
    """Remove this user's folders with a prefix that no running process has locked."""
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
    """Yield an empty folder to fill. On success it gets its final name; a failure leaves nothing.

    Args:
        folder: the final path.
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
    """Hold a lock file during the block so that no other process writes; it is freed if the process dies.

    If nothing has been written when the block ends, the lock file is removed.

    Args:
        written: the path to be written, for the error message.
        lock: the lock file. It names the writing process, and is created if missing.

    Raises:
        UsageError: another process holds the lock.
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


def is_held(lock: Path) -> bool:
    """Return whether a process holds a lock file of `locked`. A file that cannot be opened is not held."""
    try:
        descriptor = os.open(lock, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return False
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)  # for an instant, which `_taken` waits for
    except BlockingIOError:
        return True
    except OSError:
        return False  # a file system without locks
    finally:
        os.close(descriptor)
    return False


def _take(descriptor: int) -> None:
    """Lock a file, unless another process holds it for longer than a look of `is_held`."""
    for _ in range(_LOOKS):
        with contextlib.suppress(BlockingIOError):
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        time.sleep(_LOOK_S)
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _taken(written: Path, lock: Path) -> IO[str]:
    """Return the locked lock file. Opens it again if the previous holder removed it in between.

    Raises:
        UsageError: another process holds the lock.
    """
    while True:
        file = lock.open("a+", encoding="ascii")
        try:
            _take(file.fileno())
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


def cache_folder() -> Path:
    """Return the folder for converted models: `GENENV_CACHE`, or `genenv` in the user's cache folder."""
    explicit = os.environ.get("GENENV_CACHE")
    if explicit:
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "genenv"
