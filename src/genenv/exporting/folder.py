"""A folder that is there whole or not at all."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

from genenv.errors import DataError, UsageError, disk_is_full, first_line
from genenv.files import check_writable, filled


def check_vacant(out: Path) -> None:
    """See whether a new folder may have this name.

    Raises:
        UsageError: there is a file, or a folder that holds something.
    """
    if out.is_dir() and any(out.iterdir()):
        raise UsageError(f"{out} is not empty; choose another --out")
    if out.exists() and not out.is_dir():
        raise UsageError(f"{out} is a file; choose another --out")
    check_writable(out)


@contextmanager
def new_folder(out: Path) -> Generator[Path]:
    """An empty folder to fill, which afterwards has the name; what fails leaves nothing.

    Raises:
        DataError: the disk is full, or cannot be written.
    """
    try:
        with filled(out) as hidden:
            yield hidden
            for path in hidden.rglob("*"):
                if path.is_file():  # what writes weights lets nobody else read them
                    path.chmod(hidden.stat().st_mode & 0o666)
    except Exception as error:
        if (why := _about_the_disk(error)) is None:
            raise
        raise DataError(f"{out} was not written: {why}") from error


def _about_the_disk(error: Exception) -> str | None:
    """What an error says about the disk, in words; None where it is about something else.

    What writes weights raises errors of its own, which quote the system's number; numpy says how many numbers
    were written.
    """
    if disk_is_full(error):
        return "the disk is full; free some space, or choose another --out"
    if isinstance(error, OSError):
        less = f"the disk took less than it was given ({first_line(error)}); free some space, or"
        return f"{f'{error.strerror};' if error.strerror else less} choose another --out"
    return f"{first_line(error)}; choose another --out" if "(os error " in str(error) else None
