"""Programs: their operations, what the simulator writes, and how base data are drawn."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise

from pydantic import BaseModel, Field

from genenv.environments.common import closed_object
from genenv.environments.programs.settings import (
    LEAST_LENGTH,
    MOST_DEPTH,
    MOST_LENGTH,
    ProgramsConfig,
    Range,
    Sizes,
)
from genenv.types import Json, JsonObject

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
    """The operations of one configuration, by the letters that name them in it."""

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
        """Whether all operations of a program are in this language."""
        return set(program) <= self.plain.keys()

    def read(self, program: str) -> str:
        """A program of this language in the letters of `OPERATIONS`."""
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


HELD_OUT_MULTIPLE = 7
"""Texts that are a multiple of this are for measuring only."""

_CHANGES, _PICKS = (
    f"[{''.join([*there, *(OTHER_LETTERS[letter] for letter in there)])}]" for there in (CHANGES, PICKS)
)
"""Letters of any world; which of them are of this one, `build` knows."""


class ProgramSpec(BaseModel, frozen=True, extra="forbid"):
    """A program. Names are short because a simulator that writes characters writes them too."""

    d: int = Field(ge=1, le=MOST_DEPTH)
    """Depth: how many operations it has."""
    n: int = Field(ge=LEAST_LENGTH, le=MOST_LENGTH)
    """Length: how many digits its text has."""
    p: str = Field(
        pattern=rf"^[0-9]{{{LEAST_LENGTH},{MOST_LENGTH}}}>{_CHANGES}{{0,{MOST_DEPTH - 1}}}{_PICKS}$"
    )
    """Text and program: the digits, `>`, and a letter for each operation, in the order of their use."""

    @property
    def text(self) -> str:
        """The digits."""
        return self.p.partition(">")[0]

    @property
    def ops(self) -> str:
        """The letters."""
        return self.p.partition(">")[2]


def of(ops: str, text: str) -> ProgramSpec:
    """The spec of a program, its difficulty counted."""
    return ProgramSpec(d=len(ops), n=len(text), p=f"{text}>{ops}")


def is_held_out(text: str) -> bool:
    """Whether a text is on the side of the held-out tasks: a seventh of the texts of any length is."""
    return int(text) % HELD_OUT_MULTIPLE == 0


def schema(language: Language, sizes: Sizes) -> JsonObject:
    """The grammar of specs: an alternative for each difficulty, which holds what follows to it."""
    (shallow, deep), (short, long) = sizes
    return {
        "anyOf": [
            _alternative(depth, length, language)
            for depth in range(shallow, deep + 1)
            for length in range(short, long + 1)
        ]
    }


def _alternative(depth: int, length: int, language: Language) -> JsonObject:
    changes = f"[{language.changes}]{{{depth - 1}}}" if depth > 1 else ""
    fields: dict[str, Json] = {
        "d": {"const": depth},
        "n": {"const": length},
        "p": {"type": "string", "pattern": f"^[0-9]{{{length}}}>{changes}[{language.picks}]$"},
    }
    return closed_object(fields)


SEEDS, HELD_OUT = 4000, 500
_ENOUGH = 1000
"""So many draws in a row without a new program: there are no more of them, or hardly any."""
_KEPT = 0.5
"""Chance that a variation keeps an operation of its seed."""


def writable(settings: ProgramsConfig) -> Sizes:
    """How long what can be written is."""
    return Sizes(settings.depths, settings.lengths)


def of_base(settings: ProgramsConfig) -> Sizes:
    """How long base tasks and held-out ones are."""
    return Sizes(settings.base_depths or settings.depths, settings.base_lengths or settings.lengths)


def seed_specs(language: Language, sizes: Sizes) -> Iterator[tuple[str, ProgramSpec]]:
    """Ids and specs of the base data, all different, every difficulty alike, as far as there are so many."""
    return _different("seed", SEEDS, language, sizes, held_out=False)


def held_out_specs(language: Language, sizes: Sizes) -> Iterator[tuple[str, ProgramSpec]]:
    """Ids and specs for measuring, in the same way, on texts of their own."""
    return _different("held-out", HELD_OUT, language, sizes, held_out=True)


def _different(
    name: str, number: int, language: Language, sizes: Sizes, *, held_out: bool
) -> Iterator[tuple[str, ProgramSpec]]:
    rng = random.Random(name)
    seen: set[tuple[str, str]] = set()
    vain = 0
    while len(seen) < number and vain < _ENOUGH:
        vain += 1
        depth, length = rng.randint(*sizes.depths), rng.randint(*sizes.lengths)
        ops, text = _ops(rng, depth, language), text_of(rng, length, held_out=held_out)
        if (ops, text) not in seen:
            yield f"{name}-{len(seen):04d}", of(ops, text)
            seen.add((ops, text))
            vain = 0


def varied(seed: ProgramSpec, rng: random.Random, language: Language, sizes: Sizes) -> ProgramSpec:
    """A program a little like another: up to one operation more or less, up to two digits, another text.

    An operation of the seed that the language lacks is never kept.
    """
    depth = _within(sizes.depths, seed.d + rng.randint(-1, 1))
    length = _within(sizes.lengths, seed.n + rng.randint(-2, 2))
    old, fresh = seed.ops[-depth:].rjust(depth, "?"), _ops(rng, depth, language)
    ops = (a if language.knows(a) and rng.random() < _KEPT else b for a, b in zip(old, fresh, strict=True))
    return of("".join(ops), text_of(rng, length, held_out=False))


def _within(bounds: Range, size: int) -> int:
    least, most = bounds
    return min(most, max(least, size))


def _ops(rng: random.Random, depth: int, language: Language) -> str:
    return "".join(rng.choices(language.changes, k=depth - 1)) + rng.choice(language.picks)


def text_of(rng: random.Random, length: int, *, held_out: bool) -> str:
    """A random text of so many digits, on the side of the held-out tasks or not."""
    while is_held_out(text := "".join(rng.choices(DIGITS, k=length))) is not held_out:
        pass
    return text
