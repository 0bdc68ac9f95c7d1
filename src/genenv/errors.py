"""Every error genenv raises on purpose, and which boundary raises it.

| error | raised by | ends in |
|---|---|---|
| `UsageError` | config, CLI, model loading: something the user can mend | one sentence, exit status 2 |
| `EnvironmentCodeError` | the guard of a user's own environment: it raised, hung, or broke a promise | the
same |
| `DataError` | store, checkpoints, data files: damaged or missing on disk | one sentence, exit status 2 |
| `RolloutError` | policies and episodes: this rollout failed | a trace with a stop reason; the run goes on |
| `ContextOverflow` | policies: the context window is too small | the same; in evaluation, a wrong answer |
| `UpdateSkipped` | updates: NaN or too large a step | a counted, logged event; the run goes on |

Anything else is a bug and propagates.
"""

from __future__ import annotations

import difflib
import errno
import re
from collections.abc import Iterable

_SHOWN = 200
"""So many characters of what others say are shown, and compared."""


class GenenvError(Exception):
    """Base of all errors that genenv raises on purpose. Its message: what is wrong, what to do."""


class UsageError(GenenvError):
    """The user asked for something that cannot be done as asked."""


class EnvironmentCodeError(UsageError):
    """A user's own environment does not do what it promises."""


class DataError(GenenvError):
    """A file of a run, a model or a data set is missing or damaged."""


class RolloutError(GenenvError):
    """One rollout failed: recorded as data."""


class ContextOverflow(RolloutError):
    """A conversation does not fit into the model's context window."""


class UpdateSkipped(GenenvError):
    """An update was not applied; the parameters are as they were before."""


def first_line(error: BaseException) -> str:
    """What another library's error says, short enough for one sentence."""
    text = str(error).strip().splitlines()
    return text[0][:_SHOWN] if text else type(error).__name__


def disk_is_full(error: Exception) -> bool:
    """Whether an error says that the disk is full.

    What writes weights and tokenizers raises errors of its own, which quote the system's number.
    """
    full = (errno.ENOSPC, errno.EDQUOT)
    if isinstance(error, OSError):
        return error.errno in full
    return any(f"(os error {number})" in str(error) for number in full)


def out_of_memory(error: Exception) -> bool:
    """Whether an error says that memory ran out, on a GPU or on the CPU."""
    return isinstance(error, MemoryError) or any(
        words in str(error) for words in ("out of memory", "can't allocate memory")
    )


def spelled(name: str, known: Iterable[str]) -> str:
    """The known name that a name is but for case and for what is between its words; else the name as it is.

    `api_bank`, `API-Bank` and `apibank` all are `api-bank`. Every registry of names that people type uses it.
    """
    names = list(known)
    alike = [one for one in names if _plain_name(one) == _plain_name(name)]
    return alike[0] if name not in names and len(alike) == 1 else name


def _plain_name(name: str) -> str:
    return re.sub(r"[\s_-]+", "", name).casefold()


def registered(kind: str, name: str, known: Iterable[str]) -> str:
    """The name under which something is registered.

    Args:
        kind: what it is a name of, for the sentence.
        name: as somebody typed it.
        known: the names that there are.

    Raises:
        UsageError: there is none; names the nearest one and lists the rest.
    """
    names = list(known)
    found = spelled(name, names)
    if found not in names:
        raise unknown_name(kind, name, names)
    return found


def unknown_name(kind: str, name: str, known: Iterable[str]) -> UsageError:
    """The error for a name that is not in a registry: names the nearest one and lists the rest."""
    names, name = sorted(known), name[:_SHOWN]
    close = difflib.get_close_matches(name, names, n=1, cutoff=0.5)
    hint = f"did you mean {close[0]!r}? " if close else ""
    return UsageError(f"unknown {kind} {name!r}; {hint}known: {', '.join(names)}")
