"""Programs on strings of digits, an environment for very small models.

A task has about ten characters, such as `4306>ruf=`: reverse 4306, increase every digit by one, take the
first. The right reply is the value, `7`. Difficulty depends on the operations, their number, and the length
of the text. A random digit is right in a tenth of all rollouts, so RL works without demonstrations: a
transformer of two layers learns much in half a minute.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from typing import ClassVar, cast

from pydantic import BaseModel, Field

from genenv.environments.base import Options
from genenv.environments.common import QuestionEnvironment, held_out_tasks, seeds_of
from genenv.environments.programs.spec import (
    DIGITS,
    LEAST_LENGTH,
    MOST_DEPTH,
    MOST_LENGTH,
    OPERATIONS,
    Language,
    ProgramsConfig,
    ProgramSpec,
    any_program,
    held_out_specs,
    holds,
    is_held_out,
    of,
    of_base,
    schema,
    seed_specs,
    steps,
    text_of,
    varied,
    writable,
)
from genenv.types import (
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

    @functools.cached_property
    def _seeds(self) -> list[Seed]:
        return seeds_of(self, seed_specs(self._language, of_base(self.settings)), self._skills)

    @functools.cached_property
    def _held_out(self) -> list[Task]:
        return held_out_tasks(self, held_out_specs(self._language, of_base(self.settings)))

    @functools.cached_property
    def _schema(self) -> JsonObject:
        return schema(self._language, writable(self.settings))

    def seeds(self) -> Sequence[Seed]:
        """Return the base data: up to 4,000 different programs, balanced over depths and lengths."""
        return self._seeds

    def held_out(self) -> Sequence[Task]:
        """Return up to 500 programs for evaluation only, balanced over depths and lengths.

        Their texts are multiples of 7, which `build` rejects for all other tasks.
        """
        return self._held_out

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
            return any_program(rng, self._language, writable(self.settings)).model_dump()
        spec = ProgramSpec.model_validate(seed.spec)
        return varied(spec, rng, self._language, writable(self.settings)).model_dump()

    def parameter_options(self, seed: Seed) -> Options:
        """Return all parameters, the same for every seed; see `HasParameters`."""
        (shallow, deep), (short, long) = writable(self.settings)
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
        fits = len(ends) == min(depth, 2) and writable(self.settings).has(depth, length)
        if not fits or not language.knows(ends):
            sentence = f"There is no program of depth {depth} and length {length} with the ends {ends}."
            return Rejection(RejectReason.INCONSISTENT, sentence)
        between = "".join(rng.choices(language.changes, k=max(0, depth - 2)))
        ops = ends if depth == 1 else ends[0] + between + ends[1]
        return of(ops, text_of(rng, length, held_out=False))

    def _code(self, profile: Profile, target: float) -> str:
        """Return the target and the success rates: overall, by depth and by operation, one digit each."""
        rates = profile.success
        shallow, deep = self.settings.depths
        depths = "".join(_tenth(rates.get(f"depth:{n}")) for n in range(shallow, deep + 1))
        of_ops = "".join(
            f"{key}{_tenth(rates.get(OPERATIONS[plain].name))}" for key, plain in self._language.plain.items()
        )
        return f"{target * 100:.0f} {_tenth(profile.overall)} {depths} {of_ops}"

    def build(
        self, spec: BaseModel, *, task_id: str, lineage: Lineage, rng: random.Random
    ) -> Task | Rejection:
        """Run the program; the task asks for its value."""
        spec = cast(ProgramSpec, spec)
        if (spec.d, spec.n) != (len(spec.ops), len(spec.text)):
            sentence = f"{spec.p} is not of depth {spec.d} and length {spec.n}."
            return Rejection(RejectReason.INCONSISTENT, sentence)
        if not writable(self.settings).has(spec.d, spec.n):
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


def _tenth(rate: float | None) -> str:
    """Return a rate as one digit of tenths, or `-` for None."""
    return "-" if rate is None else str(min(9, int(rate * 10)))
