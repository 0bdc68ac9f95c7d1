"""What programs are made of: eight operations on strings of digits, and how each is told from its result.

An operation is carried out by one function (`apply`) and checked by another that shares nothing with it
(`holds`): that is the domain's second way of checking.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

DIGITS = "0123456789"


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One step of a program."""

    name: str
    """Its skill."""
    apply: Callable[[str], str]
    """What becomes of a string of at least one digit."""
    holds: Callable[[str, str], bool]
    """Whether a string (the second) is what becomes of another (the first)."""


def _each(before: str, after: str, step: int) -> bool:
    """Whether every digit has moved by so many, modulo 10."""
    moves = [(int(new) - int(old)) % 10 for old, new in zip(before, after, strict=False)]
    return len(before) == len(after) and set(moves) <= {step % 10}


OPERATIONS: Mapping[str, Operation] = {
    "r": Operation(
        name="reverse",
        apply=lambda text: text[::-1],
        holds=lambda old, new: len(old) == len(new) and all(a == new[-1 - i] for i, a in enumerate(old)),
    ),
    "s": Operation(
        name="sort",
        apply=lambda text: "".join(sorted(text)),
        holds=lambda old, new: Counter(old) == Counter(new) and all(a <= b for a, b in pairwise(new)),
    ),
    "t": Operation(
        name="turn",
        apply=lambda text: text[1:] + text[0],
        holds=lambda old, new: len(old) == len(new) and all(new[i - 1] == a for i, a in enumerate(old)),
    ),
    "d": Operation(
        name="double",
        apply=lambda text: text + text[0],
        holds=lambda old, new: new[:-1] == old and new[-1:] == old[:1],
    ),
    "u": Operation(
        name="up",
        apply=lambda text: text.translate(str.maketrans(DIGITS, DIGITS[1:] + DIGITS[0])),
        holds=lambda old, new: _each(old, new, 1),
    ),
    "n": Operation(
        name="nines",
        apply=lambda text: text.translate(str.maketrans(DIGITS, DIGITS[::-1])),
        holds=lambda old, new: len(old) == len(new) and int(old) + int(new) == int("9" * len(old)),
    ),
    "m": Operation(
        name="max",
        apply=max,
        holds=lambda old, new: len(new) == 1 and new in old and not any(digit > new for digit in old),
    ),
    "a": Operation(
        name="add",
        apply=lambda text: str(sum(map(int, text)) % 10),
        holds=lambda old, new: len(new) == 1 and (int(new) - sum(map(int, old))) % 10 == 0,
    ),
}
"""By the letter that stands for it in a program: string operations first, then arithmetic modulo 10."""


def run(program: str, text: str) -> str:
    """The value of a program: its operations, applied from left to right."""
    return steps(program, text)[-1]


def steps(program: str, text: str) -> list[str]:
    """The text, and what each operation makes of it in turn."""
    found = [text]
    for letter in program:
        found.append(OPERATIONS[letter].apply(found[-1]))
    return found


def holds(program: str, text: str, value: str) -> bool:
    """Whether a value is right: each step is told from its result, and the last result is the value."""
    found = [*steps(program, text)[:-1], value]
    return all(
        OPERATIONS[letter].holds(old, new)
        for letter, (old, new) in zip(program, pairwise(found), strict=True)
    )
