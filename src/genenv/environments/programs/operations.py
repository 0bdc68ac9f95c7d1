"""What programs are made of: operations on strings of digits, and how each is told from its result.

An operation is carried out by one function (`apply`) and checked by another that shares nothing with it
(`holds`): that is the environment's second way of checking. A `Language` says which of them a world has, and
by which letters they go there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Mapping
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


CHANGES: Mapping[str, Operation] = {
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
    "u": Operation(
        name="up",
        apply=lambda text: text.translate(str.maketrans(DIGITS, DIGITS[1:] + DIGITS[0])),
        holds=lambda old, new: (
            len(old) == len(new) and all((int(b) - int(a)) % 10 == 1 for a, b in zip(old, new, strict=True))
        ),
    ),
    "d": Operation(
        name="down",
        apply=lambda text: text.translate(str.maketrans(DIGITS, DIGITS[-1] + DIGITS[:-1])),
        holds=lambda old, new: (
            len(old) == len(new) and all((int(a) - int(b)) % 10 == 1 for a, b in zip(old, new, strict=True))
        ),
    ),
    "t": Operation(
        name="turn",
        apply=lambda text: text[1:] + text[0],
        holds=lambda old, new: len(old) == len(new) and old == new[-1] + new[:-1],
    ),
    "c": Operation(
        name="complement",
        apply=lambda text: text.translate(str.maketrans(DIGITS, DIGITS[::-1])),
        holds=lambda old, new: (
            len(old) == len(new) and all(int(a) + int(b) == 9 for a, b in zip(old, new, strict=True))
        ),
    ),
}
"""What changes the text, by its letter in a program: its order, or each digit (modulo 10)."""

PICKS: Mapping[str, Operation] = {
    "f": Operation(
        name="first",
        apply=lambda text: text[0],
        holds=lambda old, new: len(new) == 1 and old.startswith(new),
    ),
    "l": Operation(
        name="last",
        apply=lambda text: text[-1],
        holds=lambda old, new: len(new) == 1 and old.endswith(new),
    ),
    "m": Operation(
        name="largest",
        apply=max,
        holds=lambda old, new: len(new) == 1 and new in old and all(a <= new for a in old),
    ),
    "i": Operation(name="whole", apply=str, holds=lambda old, new: old == new),
}
"""What a program ends with: its value, a digit or the whole text."""

OPERATIONS: Mapping[str, Operation] = {**CHANGES, **PICKS}

OTHER_LETTERS: Mapping[str, str] = dict(zip(OPERATIONS, "voaewzbkyn", strict=True))
"""What an operation goes by where operations have been renamed: a letter that no other has."""


@dataclass(frozen=True, slots=True)
class Language:
    """The operations of a world, under the letters by which they go in it."""

    changes: str
    """Letters of what changes the text."""
    picks: str
    """Letters of what ends a program."""
    plain: Mapping[str, str]
    """From those letters to those of `OPERATIONS`."""

    @classmethod
    def of(cls, operations: Collection[str], *, renamed: bool) -> Language:
        """The language with operations of these names, under their own letters or the other ones."""
        there = [letter for letter, operation in OPERATIONS.items() if operation.name in operations]
        shown = {OTHER_LETTERS[letter] if renamed else letter: letter for letter in there}
        changes = "".join(one for one, letter in shown.items() if letter in CHANGES)
        return cls(changes, "".join(one for one, letter in shown.items() if letter in PICKS), shown)

    def knows(self, program: str) -> bool:
        """Whether all operations of a program are of this world."""
        return set(program) <= self.plain.keys()

    def read(self, program: str) -> str:
        """A program of this world under the letters of `OPERATIONS`."""
        return "".join(self.plain[letter] for letter in program)


def steps(program: str, text: str) -> list[str]:
    """The text, and what each operation makes of it in turn; the last is the program's value."""
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
