"""The errors that genenv raises on purpose, who raises each of them, and how it is handled.

| error | raised by | result |
|---|---|---|
| `UsageError` | config, CLI, model loading: a mistake that the user can fix | one sentence, exit status 2 |
| `EnvironmentCodeError` | a user-defined environment that raised, hung, or broke its contract | as above |
| `DataError` | store, checkpoints, data files: damaged or missing on disk | one sentence, exit status 2 |
| `RolloutError` | policies and episodes: one rollout failed | a trace with a stop reason; the run goes on |
| `NoAnswer` | a model behind an endpoint | as above; an evaluation stops after several in a row |
| `ContextOverflow` | policies: the context window is too small | as above; in evaluation, a wrong answer |
| `UpdateSkipped` | updates: NaN or too large a step | a counted, logged event; the run goes on |

Any other exception is a bug and propagates.
"""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pydantic import ValidationError

_OWN = Path(__file__).parent
"""The folder of genenv's code. A user's clone of genenv may have the same name, so paths are compared."""
_SHOWN = 200
"""The maximum number of characters of foreign text that an error message shows or compares."""


class GenenvError(Exception):
    """Base of all errors that genenv raises on purpose. The message says what is wrong and what to do."""


class UsageError(GenenvError):
    """The user asked for something impossible."""


class EnvironmentCodeError(UsageError):
    """A user-defined environment breaks its contract."""


class DataError(GenenvError):
    """A file of a run, a model or a data set is missing or damaged."""


class RolloutError(GenenvError):
    """One rollout failed. The failure is recorded in its trace."""


class NoAnswer(RolloutError):
    """A model does not answer, whatever it is asked: it is down, or its cost limit is reached."""


class ContextOverflow(RolloutError):
    """A conversation does not fit into the model's context window."""


class UpdateSkipped(GenenvError):
    """An update was not applied. The parameters are as they were before it."""


def first_line(error: BaseException) -> str:
    """Return the first line of another library's error that has words, short enough for one sentence."""
    lines = (line.strip() for line in str(error).splitlines())
    return next((line[:_SHOWN] for line in lines if any(map(str.isalnum, line))), type(error).__name__)


def first_problem(error: ValidationError, whole: str = "") -> str:
    """Return the first error that pydantic found, after its place: `state.volatile: Input should be ...`.

    Args:
        error: of a model.
        whole: what to call the place if it is the whole value; empty: only the message is returned.
    """
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"])) or whole
    return f"{place}: {first['msg']}" if place else first["msg"]


def disk_is_full(error: Exception) -> bool:
    """Return whether an error means that the disk is full.

    Libraries that write weights and tokenizers raise other error classes, whose messages quote the system's
    error number.
    """
    full = (errno.ENOSPC, errno.EDQUOT)
    if isinstance(error, OSError):
        return error.errno in full
    return any(f"(os error {number})" in str(error) for number in full)


def out_of_memory(error: Exception) -> bool:
    """Return whether an error means that a GPU or the CPU ran out of memory."""
    return isinstance(error, MemoryError) or any(
        words in str(error) for words in ("out of memory", "can't allocate memory")
    )


def spelled(name: str, known: Iterable[str]) -> str:
    """Return the known name that equals a name up to case, spaces, `-` and `_`; else the name unchanged.

    `api_bank`, `API-Bank` and `apibank` all become `api-bank`. All registries with names that people type use
    this function.
    """
    names = list(known)
    alike = [one for one in names if _plain_name(one) == _plain_name(name)]
    return alike[0] if name not in names and len(alike) == 1 else name


def _plain_name(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name).casefold()


def registered(kind: str, name: str, known: Iterable[str]) -> str:
    """Return the registered name that matches a name as a user typed it.

    Args:
        kind: the kind of thing that is named, for the error message.
        name: the name as typed.
        known: all registered names.

    Raises:
        UsageError: no registered name matches. The message suggests the nearest name and lists all names.
    """
    names = list(known)
    found = spelled(name, names)
    if found not in names:
        raise unknown_name(kind, name, names)
    return found


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """Return the error for an unregistered name. It suggests one that begins so or is near; lists all."""
    names, name = sorted(known), name[:_SHOWN]
    begun = [one for one in names if name and one.startswith(name)]
    close = begun or difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return UsageError(f"unknown {kind} {name!r}; {hint}known: {', '.join(names)}")


def line_of(error: BaseException) -> str:
    """Return the file and line of the user's code that raised an error: the innermost outside libraries."""
    trace, found = error.__traceback__, ""
    while trace is not None:
        file = trace.tb_frame.f_code.co_filename
        ours = "site-packages" in file or Path(file).is_relative_to(_OWN)
        if not ours and not file.startswith("<"):
            found = f" ({Path(file).name}, line {trace.tb_lineno})"
        trace = trace.tb_next
    return found
