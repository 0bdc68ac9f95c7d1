"""Programs: settings, operations, the spec that the simulator writes, and the base data."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, Literal, NamedTuple, get_args

from pydantic import BaseModel, Field, model_validator

from genenv.environments.common import closed_object
from genenv.settings import Settings
from genenv.types import Json, JsonObject

DIGITS = "0123456789"

Change = Literal["reverse", "sort", "up", "down", "turn", "complement"]
Pick = Literal["first", "last", "largest", "whole"]

Range = tuple[int, int]
"""The minimum and the maximum."""
MOST_DEPTH, LEAST_LENGTH, MOST_LENGTH = 16, 2, 32

_Depth = Annotated[int, Field(ge=1, le=MOST_DEPTH)]
_Length = Annotated[int, Field(ge=LEAST_LENGTH, le=MOST_LENGTH)]


class Sizes(NamedTuple):
    """The ranges of program depths and text lengths."""

    depths: Range
    lengths: Range

    def has(self, depth: int, length: int) -> bool:
        """Return whether a depth and a length are within the ranges."""
        (shallow, deep), (short, long) = self
        return shallow <= depth <= deep and short <= length <= long


class ProgramsConfig(Settings, frozen=True):
    """Settings of the environment of short programs."""

    operations: tuple[Change | Pick, ...] = Field(
        default=("reverse", "sort", "up", "first", "last"), strict=False
    )
    """The available operations: some change the text, others end a program. The value of a program that ends
    with `whole` is the entire changed text, which is hardly ever guessed."""
    renamed: bool = False
    """Name the operations by other letters: the same programs in another notation."""
    depths: tuple[_Depth, _Depth] = Field(default=(1, 3), strict=False)
    """The minimum and maximum number of operations in a program."""
    lengths: tuple[_Length, _Length] = Field(default=(2, 5), strict=False)
    """The minimum and maximum number of digits in a text."""
    base_depths: tuple[_Depth, _Depth] | None = Field(default=None, strict=False)
    """`depths` of base tasks and held-out tasks, if narrower than those of the programs that can be
    written."""
    base_lengths: tuple[_Length, _Length] | None = Field(default=None, strict=False)
    """`lengths` of base tasks and held-out tasks, if narrower than those of the texts that can be written."""
    vary_base: bool = True
    """Whether a simulator that writes whole specs is shown a base program to vary. Off: its prompt has only
    the agent's success rates, and its warm-up, as every random program, draws depth and length uniformly. It
    then knows the format of tasks, but not which of them suit the agent."""

    @model_validator(mode="after")
    def _both_kinds(self) -> ProgramsConfig:
        if not all(set(self.operations) & set(get_args(kind)) for kind in (Change, Pick)):
            raise ValueError(
                f"operations must name at least one of {', '.join(get_args(Change))}, and at least one of "
                f"{', '.join(get_args(Pick))}"
            )
        return self

    @model_validator(mode="after")
    def _ranges(self) -> ProgramsConfig:
        for name, inner, outer in (
            ("depths", self.depths, (1, MOST_DEPTH)),
            ("lengths", self.lengths, (LEAST_LENGTH, MOST_LENGTH)),
            ("base_depths", self.base_depths or self.depths, self.depths),
            ("base_lengths", self.base_lengths or self.lengths, self.lengths),
        ):
            if not outer[0] <= inner[0] <= inner[1] <= outer[1]:
                raise ValueError(f"{name} must be a least and a most within {list(outer)}, not {list(inner)}")
        return self


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One step of a program."""

    name: str
    """The name of the skill that it exercises."""
    apply: Callable[[str], str]
    """Returns the result for a string of at least one digit."""
    holds: Callable[[str, str], bool]
    """Returns whether the second string is the result for the first; a check independent of `apply`."""


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
"""Letter -> operation that changes the order of the digits or each digit (modulo 10)."""

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
"""Letter -> last operation of a program; its value is one digit or the whole text."""

OPERATIONS: Mapping[str, Operation] = {**CHANGES, **PICKS}

OTHER_LETTERS: Mapping[str, str] = dict(zip(OPERATIONS, "voaewzbkyn", strict=True))
"""Letter -> the letter that replaces it if operations are renamed."""


@dataclass(frozen=True, slots=True)
class Language:
    """The operations of one configuration and the letters that name them."""

    changes: str
    """Letters of operations that change the text."""
    picks: str
    """Letters of operations that end a program."""
    plain: Mapping[str, str]
    """This language's letter -> the letter in `OPERATIONS`."""

    @classmethod
    def of(cls, operations: Collection[str], *, renamed: bool) -> Language:
        """Return the language of the named operations, with their usual letters or the renamed ones."""
        there = [letter for letter, operation in OPERATIONS.items() if operation.name in operations]
        shown = {OTHER_LETTERS[letter] if renamed else letter: letter for letter in there}
        changes = "".join(one for one, letter in shown.items() if letter in CHANGES)
        return cls(changes, "".join(one for one, letter in shown.items() if letter in PICKS), shown)

    def knows(self, program: str) -> bool:
        """Return whether all operations of a program are in this language."""
        return set(program) <= self.plain.keys()

    def read(self, program: str) -> str:
        """Translate a program of this language to the letters of `OPERATIONS`."""
        return "".join(self.plain[letter] for letter in program)


def steps(program: str, text: str) -> list[str]:
    """Return the text and the result of each operation in order; the last result is the program's value."""
    found = [text]
    for letter in program:
        found.append(OPERATIONS[letter].apply(found[-1]))
    return found


def holds(program: str, text: str, value: str) -> bool:
    """Return whether a value is right, by checking each step from its result."""
    found = [*steps(program, text)[:-1], value]
    return all(
        OPERATIONS[letter].holds(old, new)
        for letter, (old, new) in zip(program, pairwise(found), strict=True)
    )


HELD_OUT_MULTIPLE = 7
"""Texts that are multiples of this number occur in held-out tasks only."""

_CHANGES, _PICKS = (
    f"[{''.join([*there, *(OTHER_LETTERS[letter] for letter in there)])}]" for there in (CHANGES, PICKS)
)
"""The letters of all languages; `build` checks those of the configured one."""


class ProgramSpec(BaseModel, frozen=True, extra="forbid"):
    """A program. Names are short because a character-level simulator writes them too."""

    d: int = Field(ge=1, le=MOST_DEPTH)
    """Depth: the number of operations."""
    n: int = Field(ge=LEAST_LENGTH, le=MOST_LENGTH)
    """Length: the number of digits in the text."""
    p: str = Field(
        pattern=rf"^[0-9]{{{LEAST_LENGTH},{MOST_LENGTH}}}>{_CHANGES}{{0,{MOST_DEPTH - 1}}}{_PICKS}$"
    )
    """Text and program: the digits, `>`, and a letter for each operation in order of execution."""

    @property
    def text(self) -> str:
        """The digits."""
        return self.p.partition(">")[0]

    @property
    def ops(self) -> str:
        """The letters of the operations."""
        return self.p.partition(">")[2]


def of(ops: str, text: str) -> ProgramSpec:
    """Return the spec of a program with its depth and length."""
    return ProgramSpec(d=len(ops), n=len(text), p=f"{text}>{ops}")


def is_held_out(text: str) -> bool:
    """Return whether a text belongs to held-out tasks, as about a seventh of the texts of each length do."""
    return int(text) % HELD_OUT_MULTIPLE == 0


def schema(language: Language, sizes: Sizes) -> JsonObject:
    """Return the grammar of specs: one alternative for each depth and length, with a pattern for programs."""
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
"""The search for new programs stops after this many repeated draws in a row."""
_KEPT = 0.5
"""The probability that a variation keeps an operation of its seed."""


def writable(settings: ProgramsConfig) -> Sizes:
    """Return the sizes of programs that a simulator may write."""
    return Sizes(settings.depths, settings.lengths)


def of_base(settings: ProgramsConfig) -> Sizes:
    """Return the sizes of the seeds and the held-out tasks."""
    return Sizes(settings.base_depths or settings.depths, settings.base_lengths or settings.lengths)


def seed_specs(language: Language, sizes: Sizes) -> Iterator[tuple[str, ProgramSpec]]:
    """Yield ids and specs of the base data: all different, balanced over depths and lengths."""
    return _different("seed", SEEDS, language, sizes, held_out=False)


def held_out_specs(language: Language, sizes: Sizes) -> Iterator[tuple[str, ProgramSpec]]:
    """Yield ids and specs of the held-out tasks, drawn like the base data but on held-out texts."""
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
    """Return a program similar to another: depth differs by up to 1, length by up to 2, and the text is new.

    Operations of the seed that the language lacks are never kept.
    """
    depth = _within(sizes.depths, seed.d + rng.randint(-1, 1))
    length = _within(sizes.lengths, seed.n + rng.randint(-2, 2))
    old, fresh = seed.ops[-depth:].rjust(depth, "?"), _ops(rng, depth, language)
    ops = (a if language.knows(a) and rng.random() < _KEPT else b for a, b in zip(old, fresh, strict=True))
    return of("".join(ops), text_of(rng, length, held_out=False))


def any_program(rng: random.Random, language: Language, sizes: Sizes) -> ProgramSpec:
    """Return a random program. Depth and length are drawn uniformly, then the operations and the text."""
    depth, length = rng.randint(*sizes.depths), rng.randint(*sizes.lengths)
    return of(_ops(rng, depth, language), text_of(rng, length, held_out=False))


def _within(bounds: Range, size: int) -> int:
    least, most = bounds
    return min(most, max(least, size))


def _ops(rng: random.Random, depth: int, language: Language) -> str:
    return "".join(rng.choices(language.changes, k=depth - 1)) + rng.choice(language.picks)


def text_of(rng: random.Random, length: int, *, held_out: bool) -> str:
    """Return a random text of this length from the held-out texts or from the others."""
    while is_held_out(text := "".join(rng.choices(DIGITS, k=length))) is not held_out:
        pass
    return text
