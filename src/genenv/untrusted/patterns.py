r"""Untrusted regular expressions: matching, and drawing random texts, in bounded time.

Python's `re` takes exponential time for some patterns: for `^(a+)+$`, each letter doubles the time. So the
Rust engine of pydantic matches a pattern in time linear in the text. Patterns that this engine lacks, such as
lookahead, are matched by `regex` with a timeout, after which the result is unknown (`TookTooLong`).

Patterns mean what they mean in JSON schema, whose patterns are those of ECMAScript. So both engines get a
translation: `\d` and `\w` are ASCII, classes have no operators, and `$` is the end of the text alone.
"""

from __future__ import annotations

import contextlib
import functools
import itertools
import random
import re
import string
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, cast

import rstr
from pydantic_core import SchemaError, SchemaValidator, core_schema

from genenv.texts import clean

LONGEST = 20_000
"""Maximum characters of a pattern."""
MATCH_S = 0.1
"""Timeout for matching one text with the engine `regex`."""
MOST_STEPS = 20_000
"""Maximum parts of a pattern that are visited to draw one text."""
_REPEATS = (100, 8, 2)
"""Maximum repetitions in drawn texts; later values are tried if texts become too long."""
_USUAL = 8
"""Maximum repetitions beyond the minimum of `*`, `+` and `{n,}`. With a hundred, `^[a-z]+(-[a-z]+)*$` would
give thousands of characters, which no id has."""
_ENDLESS = 1 << 31
"""From here on an upper bound is the parser's word for none."""
_TRIES = 8
_RANGE = 4000
"""Only this many characters of a range are drawn from."""
_AS_PYTHON = (
    (re.compile(r"\(\?<(?![=!])"), "(?P<"),
    (re.compile(r"\\p\{L[a-z]?\}|\\p\{Letter\}"), r"\\w"),
    (re.compile(r"\\p\{N[a-z]?\}"), r"\\d"),
)
"""Replaces syntax of other languages by Python's for drawing; the original pattern must match the drawn
text."""
_SPECIAL = re.compile(r"\(\?(?!:)|\\[^dDwWsS\W_]|[*+?}]\+|\[\[|&&")
_ASCII = {
    "\\d": "0-9",
    "\\D": r"\x00-\x2f\x3a-\U0010ffff",
    "\\w": "0-9A-Z_a-z",
    "\\W": r"\x00-\x2f\x3a-\x40\x5b-\x5e\x60\x7b-\U0010ffff",
}
"""What these classes of ECMAScript hold, as the inside of a class."""
_OPERATORS = ("--", "&&", "~~")
"""Operators of the Rust engine inside a class; elsewhere they are characters."""
_MULTILINE = re.compile(r"\(\?[a-z]*m")
_PART = re.compile(r"\\.|\[\^?\]?(?:\\.|[^\]\\])*\]|\{\s*(\d*)\s*(?:,\s*(\d*)\s*)?\}|.", flags=re.DOTALL)
"""A part of a pattern: an escape, a class, a repetition count, or a character."""
_MOST_COPIES = 200_000
"""Maximum parts of a pattern for `regex`, after its repetitions are written out."""
_MOST_WORK = 5_000_000
"""Maximum parts times characters that the Rust engine is given, which cannot be stopped: about 0.1 s."""


class BadPattern(ValueError):
    """Raised if no engine accepts a pattern or no text can be drawn. The message is the end of a sentence."""


class TookTooLong(Exception):
    """Raised if a check takes too long. The message is the end of a sentence."""


Engine = Callable[[str], bool]
"""Returns whether a compiled pattern occurs in a text; raises `TookTooLong` if the search takes too long."""


@functools.lru_cache(maxsize=128)
def engine(pattern: str) -> Engine:
    """Compile a pattern for search anywhere in a text, as in JSON schema.

    Raises:
        BadPattern: the pattern is too long, or no engine accepts it.
    """
    if len(pattern) > LONGEST:
        raise BadPattern(f"it is longer than {LONGEST} characters")
    if not _has_operators(pattern):
        with contextlib.suppress(SchemaError):
            translated = _translated(pattern)
            schema = core_schema.str_schema(pattern=translated, strict=True, regex_engine="rust-regex")
            return _limited(pattern, SchemaValidator(schema).isinstance_python)
    return _stoppable(pattern)


def _limited(pattern: str, finds: Engine) -> Engine:
    """Return an engine that matches with `finds` if that is quick, else with one that has a timeout."""
    longest = _MOST_WORK // max(1, _copies(pattern))

    def found(text: str) -> bool:
        if len(text) <= longest:
            return finds(text)
        try:
            return _stoppable(pattern)(text)
        except BadPattern as error:
            raise TookTooLong(f"it takes too long to match {pattern[:200]!r}") from error

    return found


def is_pattern(text: str) -> bool:
    """Return whether some engine accepts a regular expression."""
    try:
        engine(text)
    except BadPattern:
        return False
    return True


def is_simple(pattern: str) -> bool:
    """Return whether all engines agree on a pattern: it has no lookaround and no backreference."""
    return is_pattern(pattern) and not (_SPECIAL.search(pattern) or _has_operators(pattern))


def _parts(pattern: str) -> Iterator[tuple[str, bool]]:
    """Yield the characters and escapes of a pattern, each with whether it is inside a class."""
    inside, first, at = False, 0, 0
    while at < len(pattern):
        part = pattern[at : at + 2] if pattern[at] == "\\" else pattern[at]
        yield part, inside
        if not inside and part == "[":
            inside, first = True, at + 1 + pattern.startswith("^", at + 1)
        elif inside and part == "]" and at != first:
            inside = False
        at += len(part)


def _has_operators(pattern: str) -> bool:
    """Return whether a class holds what the Rust engine takes for an operator or a class of its own."""
    before = ""
    for part, inside in _parts(pattern):
        if inside and (part == "[" or before + part in _OPERATORS):
            return True
        before = part if inside else ""
    return False


def _translated(pattern: str, end: str = "$") -> str:
    """Return a pattern with the classes of ECMAScript written out, and `end` in place of `$`."""
    found, before = list[str](), ""
    for part, inside in _parts(pattern):
        own = _ASCII.get(part, part)
        if not inside:
            own = end if part == "$" else f"[{own}]" if part in _ASCII else part
        elif part in _ASCII and before == "-":
            found[-1] = r"\-"  # a class is no end of a range
        elif part == "-" and before in _ASCII:
            own = r"\-"
        before = part if inside else ""
        found.append(own)
    return "".join(found)


@functools.lru_cache(maxsize=128)
def _stoppable(pattern: str) -> Engine:
    if _copies(pattern) > _MOST_COPIES:
        raise BadPattern("it repeats its parts too often")  # the engine writes repetitions out
    import regex  # takes a while to load, and few patterns need it

    translated = _translated(pattern, "$" if _MULTILINE.search(pattern) else r"\Z")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            compiled = cast(Any, regex).compile(translated)
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
    """Return about how many parts a pattern has after its repetitions are written out."""
    groups, last = [0], 0
    for part in _PART.finditer(pattern):
        counts = [int(one[:9]) for one in part.groups() if one]
        if part[0] == "(":
            groups.append(0)
        elif part[0] == ")" and len(groups) > 1:
            last = groups.pop()
            groups[-1] += last
        elif counts:
            groups[-1] += last * (max(counts) - 1)
            last *= max(counts)
        elif part[0] not in ("*", "+", "?"):
            last = 1
            groups[-1] += 1
    return sum(groups)


def draw(pattern: str, rng: random.Random) -> str:
    """Draw a text that a pattern matches.

    Args:
        pattern: a regular expression.
        rng: the only source of randomness.

    Raises:
        BadPattern: no text was found: the pattern is invalid, too long, or has lookaround.
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
    """Raised if a drawn text becomes too long."""


class _Drawing(rstr.Rstr):
    """Draws one text in a bounded number of steps.

    Where a pattern only excludes characters, as `.` and `[^/]` do, letters and digits are drawn if it allows
    some. The library would draw any printable character, in an order that differs from process to process.
    """

    def __init__(self, rng: random.Random, most: int) -> None:
        super().__init__(rng)
        self._rng, self._most, self._left = rng, most, MOST_STEPS
        cases = cast("dict[str, Callable[[Any], Any]]", self._cases)
        cases |= {"range": self._range, "in": self._in, "any": lambda _: self._open(string.printable)}
        cases["not_literal"] = lambda literal: self._open(string.printable.replace(chr(literal), ""))

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
        usual = start_range + _USUAL if end_range >= _ENDLESS else end_range
        times = self._rng.randint(start_range, max(start_range, min(usual, self._most)))
        return "".join("".join(self._handle_state(one) for one in value) for _ in range(self._spend(times)))

    def _in(self, parts: Sequence[Any]) -> str:
        """Draw a character of a class, `parts` being what it consists of."""
        found = list(itertools.chain.from_iterable(self._handle_state(part) for part in parts))
        if found[0] is False:  # ^
            return self._open(set(string.printable).difference(found[1:]))
        if any(str(value).startswith("CATEGORY_NOT") for _, value in parts):
            return self._open(found)
        return self._rng.choice(found)

    def _open(self, allowed: Iterable[str]) -> str:
        """Draw one of many characters, an ordinary one if there is one."""
        found = sorted(set(allowed))
        printed = [one for one in found if not one.isspace()]
        return self._rng.choice([one for one in printed if one.isalnum()] or printed or found)

    def _range(self, ends: Sequence[int]) -> list[str]:
        last = min(ends[1], ends[0] + _RANGE)
        self._spend((last - ends[0]) // 64)
        return [chr(one) for one in range(ends[0], last + 1)]

    def _spend(self, steps: int) -> int:
        self._left -= steps
        if self._left < 0:
            raise _TooMuch
        return steps
