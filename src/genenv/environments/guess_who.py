"""Guess who: a game of two seats that is checked by code. It is small enough for very small models.

Each of several persons has or lacks some features. The `answerer` alone knows which person was chosen. The
`asker` sees all persons, asks for features one by one, and names a person with its last reply at the latest:

    asker: hat        answerer: no
    asker: glasses    answerer: yes
    asker: Ben

    asker      1 - questions / (2 turns) if it names the right person, else 0; success: the right person
    answerer   (share of true answers + 1 if the asker names the right person) / 2; success: all are true

So both seats earn more if the asker finds the person, and the asker more if it needs few questions.
Difficulty depends on the numbers of persons, features and turns. With `brief` a prompt has about twenty
characters.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, ClassVar, Self, cast

from pydantic import BaseModel, Field, model_validator

from genenv.environments.base import Ask, Episode, Options, SeatedEpisode, SeatView
from genenv.environments.common import (
    QuestionEnvironment,
    asked_for,
    caseless,
    closed_object,
    held_out_tasks,
    once,
    seeds_of,
    tenth,
)
from genenv.errors import UsageError
from genenv.settings import Settings
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

ASKER, ANSWERER = SEATS = ("asker", "answerer")

NAMES = tuple(
    "Anna Ben Clara David Emma Felix Grace Hugo Ida Jonas Kate Leo Mara Nick Olga Paul Quinn Rosa Sam Tina "  # noqa: SIM905
    "Uma Victor Wendy Xavier Yara Zoe".split()
)
FEATURES = ("glasses", "hat", "beard", "scarf", "earrings", "mustache", "freckles", "necklace", "tie")
LETTERS, DIGITS = tuple("abcdefghijklmnopqrstuvwxyz"), tuple("123456789")
_ENOUGH = 300
"""A search for another game stops after this many draws in vain."""
MOST_PERSONS, MOST_FEATURES, MOST_TURNS = len(NAMES), len(FEATURES), 10

_Persons = Annotated[int, Field(ge=2, le=MOST_PERSONS)]
_Features = Annotated[int, Field(ge=1, le=MOST_FEATURES)]
_Turns = Annotated[int, Field(ge=2, le=MOST_TURNS)]


class GuessWhoConfig(Settings, frozen=True):
    """Settings of the game of guessing a person."""

    persons: tuple[_Persons, _Persons] = Field(default=(4, 8), strict=False)
    """The minimum and maximum number of persons."""
    features: tuple[_Features, _Features] = Field(default=(3, 6), strict=False)
    """The minimum and maximum number of features."""
    turns: tuple[_Turns, _Turns] = Field(default=(3, 5), strict=False)
    """The minimum and maximum number of the asker's replies: questions, and a name at the end."""
    brief: bool = False
    """Prompts of about twenty characters, for models that read single characters: persons are letters,
    features digits, answers `y` and `n`."""
    choices: bool = False
    """Whether only replies that mean something can be given: features and names, yes and no."""

    @model_validator(mode="after")
    def _ranges(self) -> Self:
        for name in ("persons", "features", "turns"):
            least, most = getattr(self, name)
            if least > most:
                raise ValueError(f"{name} must be a least and a most, not {[least, most]}")
        if not self.sizes():
            raise ValueError("no game fits: n persons need features and turns - 1 of at least log2(n)")
        return self

    def sizes(self) -> Sequence[tuple[int, int, int]]:
        """Return all numbers of persons, features and turns with which questions can find the person."""
        persons, features, turns = (
            range(least, most + 1) for least, most in (self.persons, self.features, self.turns)
        )
        return [(n, k, t) for n in persons for k in features for t in turns if n <= 2 ** min(k, t - 1)]


class GuessWhoParameters(BaseModel, frozen=True, extra="forbid"):
    """The parameters of a game. Names are short, as in `GuessWhoSpec`."""

    n: _Persons
    """The number of persons."""
    k: _Features
    """The number of features."""
    t: _Turns
    """The number of the asker's replies."""


class GuessWhoSpec(BaseModel, frozen=True, extra="forbid"):
    """A game. Names are short because a character-level simulator writes them too."""

    n: _Persons
    """The number of persons."""
    k: _Features
    """The number of features."""
    t: _Turns
    """The number of the asker's replies."""
    s: int = Field(ge=0, lt=MOST_PERSONS)
    """Index of the person that was chosen, from 0."""
    p: str = Field(pattern=r"^[01]+(,[01]+)*$", max_length=MOST_PERSONS * (MOST_FEATURES + 1))
    """The features of each person, 1 if it has them, with a comma between persons."""

    @property
    def rows(self) -> list[str]:
        """The features of each person."""
        return self.p.split(",")


def split_best(rows: Mapping[int, str], asked: Sequence[int]) -> int:
    """Return the feature, not asked yet, after which the fewest persons are left in the worse case."""
    features = [one for one in range(len(next(iter(rows.values())))) if one not in asked]
    halves = {one: sum(row[one] == "1" for row in rows.values()) for one in features}
    return min(features, key=lambda one: max(halves[one], len(rows) - halves[one]))


def questions(rows: Sequence[str], secret: int) -> list[int]:
    """Return the questions that find a person if all answers are true."""
    left, asked = dict(enumerate(rows)), list[int]()
    while len(left) > 1:
        asked.append(split_best(left, asked))
        left = {i: row for i, row in left.items() if row[asked[-1]] == rows[secret][asked[-1]]}
    return asked


def is_held_out(rows: Sequence[str]) -> bool:
    """Return whether a table is one of held-out games: as a binary number it is a multiple of 11."""
    return int("".join(rows), 2) % 11 == 0


class _Game(SeatedEpisode):
    """An episode of a game."""

    seats: ClassVar[tuple[str, ...]] = SEATS

    def __init__(self, task: Task, settings: GuessWhoConfig) -> None:
        self._task, self._brief, self._limited = task, settings.brief, settings.choices
        spec = GuessWhoSpec.model_validate(task.spec)
        self._rows, self._secret, self.max_turns = spec.rows, spec.s, spec.t
        self._persons, self._features = (
            cast(Sequence[str], task.payload["persons"]),
            _features(spec.k, settings),
        )
        self._turn = ASKER
        self._heard: list[tuple[int, bool | None]] = []
        """Each question with the answer; None where the answer was neither yes nor no."""
        self._replies = self._strange = 0
        """Replies of the asker, and those that name nothing."""
        self._named: int | None = None

    @property
    def choices(self) -> Sequence[str]:
        """The replies that mean something to the seat whose turn it is, if only these can be given."""
        if not self._limited:
            return ()
        return self._yes_no if self._turn == ANSWERER else (*self._features, *self._persons)

    @property
    def _yes_no(self) -> tuple[str, str]:
        return ("y", "n") if self._brief else ("yes", "no")

    async def take_turns(self, asks: Mapping[str, Ask]) -> None:
        """See `SeatedEpisode`."""
        persons, features = list(map(caseless, self._persons)), list(map(caseless, self._features))
        messages = self._task.messages
        for left in reversed(range(self.max_turns)):
            self._turn = ASKER
            said = _plain(await asks[ASKER](messages))
            self._replies += 1
            if said in persons:
                self._named = persons.index(said)
                return
            if said not in features:
                self._strange += 1
                messages = (
                    Message(role="user", content="?" if self._brief else "That is no feature and no name."),
                )
            elif left:
                messages = (await self._answered(features.index(said), asks[ANSWERER]),)

    async def _answered(self, feature: int, ask: Ask) -> Message:
        """Ask the answerer, and return what the asker is told."""
        self._turn = ANSWERER
        question = self._features[feature] if self._brief else f"{self._features[feature]}?"
        told = "" if self._heard else self._told_the_answerer()
        said = _plain(await ask((Message(role="user", content=told + question),)))
        yes, no = self._yes_no
        answer = {"yes": True, "y": True, "no": False, "n": False}.get(said)
        self._heard.append((feature, answer))
        unclear = "?" if self._brief else "There is no clear answer."
        told = unclear if answer is None else yes if answer else no
        return Message(role="user", content=f"{question}{told}" if self._brief else told)

    def _told_the_answerer(self) -> str:
        row = self._rows[self._secret]
        if self._brief:
            return f"{_yes_no(row)} "
        has = list(itertools.compress(self._features, map(int, row)))
        return (
            f"You are {self._persons[self._secret]}. Of {', '.join(self._features)} you have: "
            f"{', '.join(has) or 'nothing'}. Somebody asks for single features, to find out who you are. "
            "Reply yes or no, and nothing else.\n\n"
        )

    def coded(self, seat: str, messages: Sequence[Message]) -> str:
        """See `SeatedEpisode`: the answerer tells the truth, and the asker halves those who are left."""
        if seat == ANSWERER:
            feature = self._features.index(messages[-1].content.split()[-1].rstrip("?"))
            return self._yes_no[self._rows[self._secret][feature] == "0"]
        left = {
            i: row
            for i, row in enumerate(self._rows)
            if all(answer is None or (row[one] == "1") is answer for one, answer in self._heard)
        }
        asked = [one for one, _ in self._heard]
        if len(left) > 1 and self._replies + 1 < self.max_turns and len(asked) < len(self._features):
            return self._features[split_best(left, asked)]
        return self._persons[next(iter(left), 0)]

    def verdicts(self) -> Mapping[str, Verdict]:
        """See `SeatedEpisode`."""
        right, name = self._named == self._secret, self._persons[self._secret]
        named = "nobody" if self._named is None else self._persons[self._named]
        asked = self._replies - (self._named is not None)
        true = [answer is (self._rows[self._secret][one] == "1") for one, answer in self._heard]
        share = sum(true) / len(true) if true else 0.0
        return {
            ASKER: Verdict(
                reward=1 - asked / (2 * self.max_turns) if right else 0.0,
                success=right,
                explanation=f"It is {name}, found with {asked} questions."
                if right
                else f"It is {name}, not {named}.",
                readable=self._replies > self._strange,
            ),
            ANSWERER: Verdict(
                reward=(share + right) / 2,
                success=bool(true) and all(true),
                explanation=f"{sum(true)} of {len(true)} answers are true, and the asker named {named}.",
                readable=bool(true) and all(answer is not None for _, answer in self._heard),
            ),
        }


class GuessWho(QuestionEnvironment):
    """The environment of games of guessing a person."""

    name: ClassVar[str] = "guess_who"
    spec: ClassVar[type[BaseModel]] = GuessWhoSpec
    config: ClassVar[type[BaseModel]] = GuessWhoConfig
    parameters: ClassVar[type[BaseModel]] = GuessWhoParameters
    seats: ClassVar[tuple[str, ...]] = SEATS
    job: ClassVar[str] = (
        "You write games of guessing a person. n is the number of persons, k of features, t of turns; s is "
        "the index of the chosen person, from 0. p has the features of each person: 1 if it has one, 0 if "
        "not, and a comma between persons. All persons differ."
    )

    def __init__(self, settings: GuessWhoConfig | None = None) -> None:
        self.settings: GuessWhoConfig = settings or GuessWhoConfig()

    @once
    def seeds(self) -> Sequence[Seed]:
        """Return the base data: up to 2,000 different games, balanced over the possible sizes."""
        return seeds_of(self, self._different("seed", 2000, held_out=False), _skills)

    @once
    def held_out(self) -> Sequence[Task]:
        """Return up to 300 games for evaluation only, on tables that occur nowhere else (`is_held_out`)."""
        found = held_out_tasks(self, self._different("held-out", 300, held_out=True))
        if not found:
            raise UsageError(
                "there are so few games of these sizes that none is held out; set environment.persons or "
                "environment.features to more"
            )
        return found

    def _different(self, name: str, number: int, *, held_out: bool) -> Iterator[tuple[str, GuessWhoSpec]]:
        rng, sizes, seen, vain = random.Random(name), self.settings.sizes(), set[tuple[str, int]](), 0
        while len(seen) < number and vain < _ENOUGH:
            found, vain = self._drawn(*rng.choice(sizes), rng, held_out=held_out), vain + 1
            if found is not None and (found.p, found.s) not in seen:
                yield f"{name}-{len(seen):04d}", found
                seen.add((found.p, found.s))
                vain = 0

    def _drawn(self, n: int, k: int, t: int, rng: random.Random, *, held_out: bool) -> GuessWhoSpec | None:
        """Return a random game of these sizes that questions can solve; None if many draws give none."""
        for _ in range(_ENOUGH):
            telling = rng.sample(range(k), min(k, t - 1))  # these features tell all persons apart
            rows: list[str] = []
            for code in rng.sample(range(2 ** len(telling)), n):
                row = rng.choices("01", k=k)
                for place, one in enumerate(telling):
                    row[one] = str(code >> place & 1)
                rows.append("".join(row))
            secret = rng.randrange(n)
            if is_held_out(rows) is held_out and len(questions(rows, secret)) < t:
                return GuessWhoSpec(n=n, k=k, t=t, s=secret, p=",".join(rows))
        return None

    def spec_schema(self, seed: Seed) -> JsonObject:
        """Return the schema of all games: one alternative for each size, which comes first."""
        return {
            "anyOf": [
                closed_object(
                    {
                        "n": {"const": n},
                        "k": {"const": k},
                        "t": {"const": t},
                        "s": {"enum": list(range(n))},
                        "p": {"type": "string", "pattern": f"^{','.join([f'[01]{{{k}}}'] * n)}$"},
                    }
                )
                for n, k, t in self.settings.sizes()
            ]
        }

    def simulator_messages(self, seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
        """Return the target, the asker's success rates, and the seed as an example; in a code if `brief`."""
        if self.settings.brief:
            content = f"{self._code(profile, target)} {seed.spec['s']} {seed.spec['p']}"
            return (Message(role="user", content=content),)
        return super().simulator_messages(seed, profile, target)

    def _code(self, profile: Profile, target: float) -> str:
        """Return the target and the success rates overall and by number of persons, one digit each."""
        least, most = self.settings.persons
        rates = [profile.overall, *(profile.success.get(f"persons:{n}") for n in range(least, most + 1))]
        return f"{target * 100:.0f} {''.join(map(tenth, rates))}"

    def variation(self, seed: Seed, rng: random.Random) -> JsonObject:
        """Return a random game of the seed's size or of a size beside it."""
        spec = GuessWhoSpec.model_validate(seed.spec)
        near = [
            size
            for size in self.settings.sizes()
            if all(abs(a - b) <= 1 for a, b in zip(size, (spec.n, spec.k, spec.t), strict=True))
        ]
        found = self._drawn(*rng.choice(near or self.settings.sizes()), rng, held_out=False) or spec
        return found.model_dump()

    def parameter_options(self, seed: Seed) -> Options:
        """Return all possible sizes, the same for every seed."""
        return [{"n": [n], "k": [k], "t": [t]} for n, k, t in self.settings.sizes()]

    def parameter_messages(self, seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
        """Return the target and the asker's success rates; in a code if `brief`."""
        if self.settings.brief:
            return (Message(role="user", content=self._code(profile, target)),)
        job = "You set up games of guessing a person: n persons, k features, t turns."
        return asked_for(f"{job} The agent should solve {target:.0%}.", profile, seed.skills, thing="game")

    def drawn(self, parameters: BaseModel, seed: Seed, rng: random.Random) -> BaseModel | Rejection:
        """Return a random game of these sizes."""
        sizes = cast(GuessWhoParameters, parameters)
        if (sizes.n, sizes.k, sizes.t) not in self.settings.sizes():
            sentence = (
                f"No game of {sizes.n} persons, {sizes.k} features and {sizes.t} turns is allowed here."
            )
            return Rejection(RejectReason.INCONSISTENT, sentence)
        found = self._drawn(sizes.n, sizes.k, sizes.t, rng, held_out=False)
        return found or Rejection(
            RejectReason.EXECUTION, "No game of this size was found that can be solved."
        )

    def build(
        self, spec: BaseModel, *, task_id: str, lineage: Lineage, rng: random.Random
    ) -> Task | Rejection:
        """Check that the questions of code find the person; the task asks for the person."""
        spec = cast(GuessWhoSpec, spec)
        rows, settings = spec.rows, self.settings
        if (wrong := self._inconsistent(spec)) is not None:
            return wrong
        if is_held_out(rows) and lineage.origin is not Origin.HELD_OUT:
            return Rejection(RejectReason.HELD_OUT, f"{spec.p} is a table that is for measuring.")
        asked = questions(rows, spec.s)
        if len(asked) >= spec.t:
            sentence = f"Code needs {len(asked)} questions and a name, but there are {spec.t} turns."
            return Rejection(RejectReason.EXECUTION, sentence)
        persons = LETTERS[: spec.n] if settings.brief else tuple(rng.sample(NAMES, spec.n))
        features = _features(spec.k, settings)
        return Task(
            id=task_id,
            environment=self.name,
            skills=_skills(spec),
            lineage=lineage,
            messages=(Message(role="user", content=_told_the_asker(spec, persons, features, settings)),),
            spec=spec.model_dump(),
            payload={"persons": list(persons)},
            oracle=(*(features[one] for one in asked), persons[spec.s]),
        )

    def _inconsistent(self, spec: GuessWhoSpec) -> Rejection | None:
        rows = spec.rows
        if len(rows) != spec.n or {*map(len, rows)} != {spec.k} or spec.s >= spec.n:
            sentence = f"{spec.p} with the person {spec.s} is not of {spec.n} persons and {spec.k} features."
            return Rejection(RejectReason.INCONSISTENT, sentence)
        if len(set(rows)) < len(rows):
            return Rejection(RejectReason.INCONSISTENT, f"Two persons of {spec.p} are alike.")
        if (spec.n, spec.k, spec.t) not in self.settings.sizes():
            return Rejection(RejectReason.SCHEMA, f"{spec.p} is larger or smaller than games may be.")
        return None

    def episode(self, task: Task) -> Episode:
        """Return a game; without a policy for the answerer, its answers are true."""
        return _Game(task, self.settings)

    def check(self, task: Task, replies: Sequence[str]) -> Verdict:
        """Grade the asker's replies to true answers."""
        return SeatView(self, ASKER).check(task, replies)

    def random_replies(self, task: Task, rng: random.Random) -> tuple[str, ...]:
        """Return the name of a person that was not chosen, without any question."""
        persons = list(cast(Sequence[str], task.payload["persons"]))
        del persons[cast(int, task.spec["s"])]
        return (rng.choice(persons),)

    def surface(self, task: Task) -> str:
        """Return the table and the chosen person as one word: games differ, or they are the same."""
        return f"{str(task.spec['p']).replace(',', 'x')}x{task.spec['s']}"


def _features(number: int, settings: GuessWhoConfig) -> Sequence[str]:
    return (DIGITS if settings.brief else FEATURES)[:number]


def _skills(spec: GuessWhoSpec) -> tuple[str, ...]:
    return f"persons:{spec.n}", f"features:{spec.k}", f"turns:{spec.t}"


def _yes_no(row: str) -> str:
    """Return the features of a person in brief: `1y2n` has the first one, and not the second."""
    return "".join(f"{digit}{'ny'[int(flag)]}" for digit, flag in zip(DIGITS, row, strict=False))


def _plain(reply: str) -> str:
    return caseless(reply).strip(" .?!")


def _told_the_asker(
    spec: GuessWhoSpec, persons: Sequence[str], features: Sequence[str], settings: GuessWhoConfig
) -> str:
    if settings.brief:
        told = (f" {name}{_yes_no(row)}" for name, row in zip(persons, spec.rows, strict=True))
        return f"{spec.t}{''.join(told)}"
    lines = [
        f"- {name}: {', '.join(itertools.compress(features, map(int, row))) or 'nothing'}"
        for name, row in zip(persons, spec.rows, strict=True)
    ]
    return (
        f"One of these persons was chosen:\n{chr(10).join(lines)}\nFind out who. Reply with a feature "
        f"({', '.join(features)}) to ask whether the person has it, or with a name to end the game, and "
        f"nothing else. You have {spec.t} replies, the last one for a name. Fewer questions earn more."
    )
