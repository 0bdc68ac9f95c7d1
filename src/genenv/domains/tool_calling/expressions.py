"""The parts that readers of expressions are made of: patterns tried in order, and words for numbers."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import date as Day
from enum import IntEnum


class Manner(IntEnum):
    """How a value stands in an instruction; the smaller, the plainer."""

    LITERAL = 0
    """As it goes into the call: 2025-03-14, 09:30, 12."""
    WRITTEN = 1
    """In words or another notation that needs no context: March 14, half past nine, twelve."""
    RELATIVE = 2
    """Relative to today or to a unit: tomorrow, next Friday, half an hour, a dozen."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mention:
    """An expression in an instruction and the values it can stand for; none when it is ambiguous."""

    values: tuple[str | float, ...]
    manner: Manner
    start: int
    end: int


# --- words for numbers ---

SMALL_NUMBERS = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
"""The words for 0 to 19, in order."""
TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")
_VALUES = {word: number for number, word in enumerate(SMALL_NUMBERS)} | {
    word: 10 * number for number, word in enumerate(TENS, 2)
}
_SMALL = "|".join(sorted(SMALL_NUMBERS, key=len, reverse=True))
BELOW_100 = rf"(?:(?:{'|'.join(TENS)})(?:[- ](?:{'|'.join(SMALL_NUMBERS[1:10])}))?|{_SMALL})"
_WORDS = rf"(?:(?:(?:{BELOW_100}|an?)\s(?:hundred|thousand)(?:\s(?:and\s)?{BELOW_100})?)|{BELOW_100})"
_DIGITS = r"\d{1,3}(?:,\d{3})+(?:\.\d+)?|\d+(?:\.\d+)?"
NUMBER = rf"(?:{_DIGITS}|\b{_WORDS}\b)"


def number_of(text: str) -> float:
    """The value of what `NUMBER` matched."""
    text = text.lower().strip()
    if text[0].isdigit():
        return float(text.replace(",", ""))
    total = current = 0
    for word in re.split(r"[\s-]+", text):
        if word in ("a", "an"):
            current = 1
        elif word == "hundred":
            current *= 100
        elif word == "thousand":
            total, current = total + current * 1000, 0
        else:
            current += _VALUES.get(word, 0)
    return float(total + current)


# --- a small reader: patterns in order, each consumes what it matched ---

Reader = Callable[[re.Match[str], Day], tuple[Manner, tuple[str | float, ...]]]
Rule = tuple[re.Pattern[str], Reader]


def rule(pattern: str, reader: Reader) -> Rule:
    """A pattern, whatever the case, and what makes values of its matches."""
    return re.compile(pattern, re.IGNORECASE), reader


def scan(rules: Sequence[Rule], text: str, today: Day) -> Iterator[Mention]:
    """The mentions that rules find in a text; what one has matched, the next ones do not see."""
    for pattern, reader in rules:
        for match in pattern.finditer(text):
            manner, values = reader(match, today)
            yield Mention(values=values, manner=manner, start=match.start(), end=match.end())
        text = pattern.sub(lambda match: "\0" * len(match[0]), text)
