"""Regular expressions that others wrote, matched and drawn from within limits.

`re` takes exponential time for some of them: `^(a+)+$` doubles its time with each letter. So a pattern is
matched by the Rust engine of pydantic, whose time is linear in the text. What that one does not know, such as
looking ahead, is matched by `regex`, which can be stopped; where it takes too long, nothing is known.
"""

from __future__ import annotations

import functools
import math
import random
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any, Protocol, cast

import rstr
from pydantic_core import SchemaError, SchemaValidator, core_schema

from genenv.texts import clean

LONGEST = 20_000
"""Characters of a pattern. A longer one is not read."""
MATCH_S = 0.1
"""How long matching one text may take, where it cannot be bounded beforehand."""
MOST_STEPS = 20_000
"""Parts of a pattern that are visited to draw one text."""
_REPEATS = (100, 8, 2)
"""The most repetitions that `*` and `+` are drawn with, and fewer where texts become too long."""
_TRIES = 8
_RANGE = 4000
"""Of a range of characters so many are drawn from."""
_AS_PYTHON = (
    (re.compile(r"\(\?<(?![=!])"), "(?P<"),
    (re.compile(r"\\p\{L[a-z]?\}|\\p\{Letter\}"), r"\\w"),
    (re.compile(r"\\p\{N[a-z]?\}"), r"\\d"),
)
"""What drawing does not know of other languages, as Python has it; what is drawn is matched afterwards."""
_SPECIAL = re.compile(r"\(\?(?!:)|\\[^dDwWsS\W_]|[*+?}]\+|\[\[|&&")
_COUNTS = re.compile(r"\{\s*(\d*)\s*(?:,\s*(\d*)\s*)?\}")
_MOST_COPIES = 200_000
"""Product of all counts of repetitions in a pattern."""


class BadPattern(ValueError):
    """No engine reads a pattern, or no text can be drawn from it. The message is the end of a sentence."""


class TookTooLong(Exception):
    """A text could not be checked in time. The message is the end of a sentence."""


class Engine(Protocol):
    """Finds a pattern in a text."""

    def __call__(self, text: str, /) -> bool:
        """Whether it is there.

        Raises:
            TookTooLong: that takes too long to find out.
        """
        ...


@functools.lru_cache(maxsize=128)
def engine(pattern: str) -> Engine:
    """What finds a pattern anywhere in a text, as JSON schema has it.

    Raises:
        BadPattern: it is too long, or no engine reads it.
    """
    if len(pattern) > LONGEST:
        raise BadPattern(f"it is longer than {LONGEST} characters")
    try:
        schema = core_schema.str_schema(pattern=pattern, strict=True, regex_engine="rust-regex")
        return SchemaValidator(schema).isinstance_python
    except SchemaError:
        return _stoppable(pattern)


def is_pattern(text: str) -> bool:
    """Whether some engine reads a regular expression."""
    try:
        engine(text)
    except BadPattern:
        return False
    return True


def is_simple(pattern: str) -> bool:
    """Whether a pattern has only parts that every engine reads alike: nothing looks ahead, behind or back."""
    return is_pattern(pattern) and not _SPECIAL.search(pattern)


def _stoppable(pattern: str) -> Engine:
    if _copies(pattern) > _MOST_COPIES:
        raise BadPattern("it repeats its parts too often")  # the engine writes repetitions out
    import regex  # takes a while to load, and few patterns need it

    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled = cast(Any, regex).compile(pattern)
    except (
        regex.error,
        ValueError,
        OverflowError,
        RecursionError,
        MemoryError,
        KeyError,
        IndexError,
    ) as error:
        raise BadPattern(f"no engine reads it: {error}") from error

    def found(text: str) -> bool:
        try:
            return compiled.search(text, timeout=MATCH_S) is not None
        except TimeoutError as error:
            raise TookTooLong(f"it takes over {MATCH_S:g} s to match {pattern!r}") from error
        except (MemoryError, RecursionError) as error:
            raise TookTooLong(f"it takes too much memory to match {pattern!r}") from error

    return found


def _copies(pattern: str) -> int:
    """How many parts a pattern has once repetitions are written out, at most."""
    counts = [one for pair in _COUNTS.findall(pattern) for one in pair if one]
    return math.prod(min(int(one[:9]), _MOST_COPIES) + 1 for one in counts)


def draw(pattern: str, rng: random.Random) -> str:
    """Draw a text that a pattern matches.

    Args:
        pattern: it.
        rng: the only source of chance.

    Raises:
        BadPattern: none was found: it cannot be read, is too long, or looks ahead or behind.
    """
    finds = engine(pattern)
    for most in _REPEATS:
        try:
            for _ in range(_TRIES):
                text = _Drawing(rng, most).drawn(pattern)
                if finds(text):
                    return text
        except _TooMuch:
            continue
        except TookTooLong as error:
            raise BadPattern(str(error)) from error
    raise BadPattern("no text that it matches was found")


class _TooMuch(Exception):
    """A text is getting too long."""


class _Drawing(rstr.Rstr):
    """Draws one text, in a bounded number of steps."""

    def __init__(self, rng: random.Random, most: int) -> None:
        super().__init__(rng)
        self._rng, self._most, self._left = rng, most, MOST_STEPS
        cases = cast("dict[str, Callable[[Any], Any]]", self._cases)
        cases["range"] = self._range

    def drawn(self, pattern: str) -> str:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                for others, ours in _AS_PYTHON:
                    pattern = others.sub(ours, pattern)
                return clean(cast(Any, super()).xeger(pattern))
        except (re.error, ValueError, LookupError, OverflowError, RecursionError, AttributeError) as error:
            raise BadPattern("no text can be drawn from it") from error

    def _handle_state(self, state: Any) -> Any:  # noqa: ANN401 - a part of a parsed pattern
        self._spend(1)
        return cast(Any, super())._handle_state(state)

    def _handle_repeat(self, start_range: int, end_range: int, value: Any) -> str:  # noqa: ANN401
        times = self._rng.randint(start_range, max(start_range, min(end_range, self._most)))
        return "".join("".join(self._handle_state(one) for one in value) for _ in range(self._spend(times)))

    def _range(self, ends: Sequence[int]) -> list[str]:
        last = min(ends[1], ends[0] + _RANGE)
        self._spend((last - ends[0]) // 64)
        return [chr(one) for one in range(ends[0], last + 1)]

    def _spend(self, steps: int) -> int:
        self._left -= steps
        if self._left < 0:
            raise _TooMuch
        return steps
