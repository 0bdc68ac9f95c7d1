"""Programs on strings of digits, an environment for very small models.

A task has about ten characters, such as `4306>ruf=`: reverse 4306, increase every digit by one, take the
first. The right reply is the value, `7`. Difficulty depends on the operations, their number, and the length
of the text. A random digit is right in a tenth of all rollouts, so RL works without demonstrations: a
transformer of two layers learns much in half a minute.

This module has the settings, the operations, the spec with its grammar, the base data, and the environment.
"""

from __future__ import annotations

import functools
import random
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Annotated, ClassVar, Literal, NamedTuple, cast, get_args

from pydantic import BaseModel, Field, model_validator

from genenv.environments.base import Options
from genenv.environments.common import (
    QuestionEnvironment,
    closed_object,
    held_out_tasks,
    once,
    seeds_of,
    tenth,
)
from genenv.settings import Settings
from genenv.types import (
    Json,
    JsonObject,
    Lineage,
    Message,
    Origin,
    Profile,
    Rejection,
    RejectReason,
    Seed,
    Task,
    Verdict,
)

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

    def has_ends(self, ends: str) -> bool:
        """Return whether a program may begin and end so: any operation but the last changes its text."""
        return set(ends[:-1]) <= set(self.changes) and set(ends[-1:]) <= set(self.picks)

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


def _different(
    name: str, number: int, language: Language, sizes: Sizes, *, held_out: bool
) -> Iterator[tuple[str, ProgramSpec]]:
    """Yield ids and specs that all differ, balanced over depths and lengths, on texts of one split."""
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


class ProgramParameters(BaseModel, frozen=True, extra="forbid"):
    """The parameters of a program. Names are short, as in `ProgramSpec`."""

    d: int = Field(ge=1, le=MOST_DEPTH)
    """Depth: the number of operations."""
    n: int = Field(ge=LEAST_LENGTH, le=MOST_LENGTH)
    """Length: the number of digits."""
    o: str = Field(min_length=1, max_length=2)
    """The letters of the first and the last operation, or of the only one."""


class Programs(QuestionEnvironment):
    """The environment of short programs."""

    name: ClassVar[str] = "programs"
    spec: ClassVar[type[BaseModel]] = ProgramSpec
    config: ClassVar[type[BaseModel]] = ProgramsConfig
    parameters: ClassVar[type[BaseModel]] = ProgramParameters

    def __init__(self, settings: ProgramsConfig | None = None) -> None:
        self.settings = settings or ProgramsConfig()
        self._language = Language.of(self.settings.operations, renamed=self.settings.renamed)
        self._writable = Sizes(self.settings.depths, self.settings.lengths)
        """The sizes of programs that a simulator may write."""

    def _base(self, name: str, number: int, *, held_out: bool) -> Iterator[tuple[str, ProgramSpec]]:
        settings = self.settings
        sizes = Sizes(settings.base_depths or settings.depths, settings.base_lengths or settings.lengths)
        return _different(name, number, self._language, sizes, held_out=held_out)

    @functools.cached_property
    def _schema(self) -> JsonObject:
        return schema(self._language, self._writable)

    @once
    def seeds(self) -> Sequence[Seed]:
        """Return the base data: up to 4,000 different programs, balanced over depths and lengths."""
        return seeds_of(self, self._base("seed", SEEDS, held_out=False), self._skills)

    @once
    def held_out(self) -> Sequence[Task]:
        """Return up to 500 programs for evaluation only, balanced over depths and lengths.

        Their texts are multiples of 7, which `build` rejects for all other tasks.
        """
        return held_out_tasks(self, self._base("held-out", HELD_OUT, held_out=True))

    def spec_schema(self, seed: Seed) -> JsonObject:
        """Return the schema of all programs, the same for every seed. Depth and length come first."""
        return self._schema

    def simulator_messages(self, seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
        """Return the agent's success rates and the seed, in a code of about forty characters.

        For a target of 50%: `50 6 965 r8s2u-f7l7 4306>ruf` means that the agent solves 6 tenths of all tasks;
        9, 6 and 5 tenths of those with one, two and three operations; 8 tenths of those that reverse. `-`
        means unknown. Without `vary_base` the seed is left out.
        """
        if not self.settings.vary_base:
            return self.parameter_messages(seed, profile, target)
        spec = ProgramSpec.model_validate(seed.spec)
        return (Message(role="user", content=f"{self._code(profile, target)} {spec.p}"),)

    def variation(self, seed: Seed, rng: random.Random) -> JsonObject:
        """Return a program similar to the seed's, on another text; any program without `vary_base`."""
        if not self.settings.vary_base:
            return any_program(rng, self._language, self._writable).model_dump()
        spec = ProgramSpec.model_validate(seed.spec)
        return varied(spec, rng, self._language, self._writable).model_dump()

    def parameter_options(self, seed: Seed) -> Options:
        """Return all parameters, the same for every seed; see `HasParameters`."""
        (shallow, deep), (short, long) = self._writable
        language = self._language
        lengths, single = list(range(short, long + 1)), list(language.picks)
        several = [first + last for first in language.changes for last in language.picks]
        return [
            {"d": [depth], "n": lengths, "o": single if depth == 1 else several}
            for depth in range(shallow, deep + 1)
        ]

    def parameter_messages(self, seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
        """Return the code of the success rates, without a seed; see `HasParameters`."""
        return (Message(role="user", content=self._code(profile, target)),)

    def drawn(self, parameters: BaseModel, seed: Seed, rng: random.Random) -> BaseModel | Rejection:
        """Return a program with this first and last operation, on a random text."""
        wanted, language = cast(ProgramParameters, parameters), self._language
        depth, length, ends = wanted.d, wanted.n, wanted.o
        fits = len(ends) == min(depth, 2) and self._writable.has(depth, length)
        if not fits or not language.has_ends(ends):
            sentence = f"There is no program of depth {depth} and length {length} with the ends {ends}."
            return Rejection(RejectReason.INCONSISTENT, sentence)
        between = "".join(rng.choices(language.changes, k=max(0, depth - 2)))
        ops = ends if depth == 1 else ends[0] + between + ends[1]
        return of(ops, text_of(rng, length, held_out=False))

    def _code(self, profile: Profile, target: float) -> str:
        """Return the target and the success rates: overall, by depth and by operation, one digit each."""
        rates = profile.success
        shallow, deep = self.settings.depths
        depths = "".join(tenth(rates.get(f"depth:{n}")) for n in range(shallow, deep + 1))
        of_ops = "".join(
            f"{key}{tenth(rates.get(OPERATIONS[plain].name))}" for key, plain in self._language.plain.items()
        )
        return f"{target * 100:.0f} {tenth(profile.overall)} {depths} {of_ops}"

    def build(
        self, spec: BaseModel, *, task_id: str, lineage: Lineage, rng: random.Random
    ) -> Task | Rejection:
        """Run the program; the task asks for its value."""
        spec = cast(ProgramSpec, spec)
        if (spec.d, spec.n) != (len(spec.ops), len(spec.text)):
            sentence = f"{spec.p} is not of depth {spec.d} and length {spec.n}."
            return Rejection(RejectReason.INCONSISTENT, sentence)
        if not self._writable.has(spec.d, spec.n):
            sentence = f"{spec.p} is longer or shorter than the programs of this world."
            return Rejection(RejectReason.SCHEMA, sentence)
        if not self._language.knows(spec.ops):
            return Rejection(RejectReason.SCHEMA, f"{spec.p} has an operation that this world lacks.")
        if is_held_out(spec.text) and lineage.origin is not Origin.HELD_OUT:
            return Rejection(
                RejectReason.HELD_OUT, f"{spec.text} is a multiple of 7, which is for measuring."
            )
        value = steps(self._language.read(spec.ops), spec.text)[-1]
        return Task(
            id=task_id,
            environment=self.name,
            skills=self._skills(spec),
            lineage=lineage,
            messages=(Message(role="user", content=f"{spec.p}="),),
            spec=spec.model_dump(),
            payload={"value": value},
            oracle=(value,),
        )

    def audit(self, task: Task, rng: random.Random) -> Rejection | None:
        """Check that both checkers agree on the value and on a wrong value."""
        spec, value = ProgramSpec.model_validate(task.spec), str(task.payload["value"])
        (wrong,) = self.random_replies(task, rng)
        for said in (value, wrong):
            if holds(self._language.read(spec.ops), spec.text, said) is not self.check(task, (said,)).success:
                sentence = f"Two ways to check {spec.p} differ about {said}."
                return Rejection(RejectReason.CHECKS_DISAGREE, sentence)
        return None

    def check(self, task: Task, replies: Sequence[str]) -> Verdict:
        """Grade a reply: it must be the value and nothing else, except for surrounding spaces."""
        value = str(task.payload["value"])
        said = replies[0].strip() if replies else ""
        right = said == value
        explanation = f"It is {value}." if right else f"It is {value}, not {said[:40]!r}."
        readable = bool(said) and set(said) <= set(DIGITS)
        return Verdict(reward=float(right), success=right, explanation=explanation, readable=readable)

    def random_replies(self, task: Task, rng: random.Random) -> tuple[str, ...]:
        """Return a wrong number with the same number of digits as the value."""
        value = str(task.payload["value"])
        while (said := "".join(rng.choices(DIGITS, k=len(value)))) == value:
            pass
        return (said,)

    def steps(self, task: Task) -> int:
        """Return the number of operations."""
        return int(str(task.spec["d"]))

    def surface(self, task: Task) -> str:
        """Return text and program as two words, for comparisons of novelty."""
        return str(task.spec["p"])

    def _skills(self, spec: ProgramSpec) -> tuple[str, ...]:
        names = dict.fromkeys(OPERATIONS[letter].name for letter in self._language.read(spec.ops))
        return (*names, f"depth:{spec.d}", f"length:{spec.n}")
