"""Shared parts of environments: simulator prompts, single-question episodes, seeds, and words of wordings.

`QuestionEnvironment` is the base class of environments whose episodes are one question and one reply.
"""

from __future__ import annotations

import functools
import json
import random
import re
from collections.abc import Callable, Iterable, Mapping, Sequence, Set
from typing import ClassVar, TypeVar, cast

from pydantic import BaseModel, ValidationError

from genenv.environments.base import Ask, Environment, Episode, Options, base_spec
from genenv.errors import first_problem
from genenv.settings import NoSettings
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
)

MOST_SCHEMA_CHARS = 30_000
"""Longest JSON schema of specs that is sent with a request to a server. Every server refuses longer ones."""

SpecT = TypeVar("SpecT", bound=BaseModel)
SelfT = TypeVar("SelfT")
T = TypeVar("T")


def once(method: Callable[[SelfT], T]) -> Callable[[SelfT], T]:
    """Decorate `seeds` or `held_out`, so that an environment computes its base data once."""

    @functools.wraps(method)
    def computed_once(self: SelfT) -> T:
        kept = vars(self).setdefault("_once", {})
        if method.__qualname__ not in kept:
            kept[method.__qualname__] = method(self)
        return kept[method.__qualname__]

    return computed_once


def profile_line(profile: Profile, skills: tuple[str, ...]) -> str:
    """Return the agent's success rates (overall, seed's skills, best, worst) in a line; empty if unknown."""
    if profile.overall is None:
        return ""
    rates = profile.success
    parts = [f"{skill} {rates[skill]:.0%}" for skill in skills if skill in rates]
    ranked = sorted(rates, key=lambda skill: (rates[skill], skill))
    for rank, skill in (("best", ranked[-1:]), ("worst", ranked[:1])):
        parts += [f"{rank} {name} {rates[name]:.0%}" for name in skill if name not in skills]
    return f"It solves {', '.join([f'{profile.overall:.0%} now', *parts])}.\n"


def tenth(rate: float | None) -> str:
    """Return a success rate as one digit of tenths, or `-` for None: prompts of very small simulators."""
    return "-" if rate is None else str(min(9, int(rate * 10)))


def request(
    system: str, example: JsonObject, profile: Profile, skills: tuple[str, ...], *, thing: str
) -> tuple[Message, Message]:
    """Return the prompt for a simulator that writes specs: instruction, success rates and an example.

    Args:
        system: the instruction, with the available choices.
        example: the spec to vary.
        profile: the agent's success rate per skill.
        skills: the skills of the seed.
        thing: the noun for what to write, such as `task`.
    """
    shown = json.dumps(example, ensure_ascii=False, separators=(",", ":"))
    user = f"{profile_line(profile, skills)}Example: {shown}\nWrite one new, different {thing}."
    return Message(role="system", content=system), Message(role="user", content=user)


def asked_for(
    system: str, profile: Profile, skills: tuple[str, ...], *, thing: str
) -> tuple[Message, Message]:
    """Return the prompt for a simulator that writes parameters: instruction and success rates.

    Args:
        system: the instruction, with the available choices.
        profile: the agent's success rate per skill.
        skills: the skills of the seed.
        thing: the noun for what to set up, such as `task`.
    """
    user = f"{profile_line(profile, skills)}Set up one {thing}."
    return Message(role="system", content=system), Message(role="user", content=user)


def closed_object(fields: JsonObject) -> JsonObject:
    """The JSON schema of an object that has all of these fields and no other one."""
    return {
        "type": "object",
        "properties": fields,
        "required": list(fields),
        "additionalProperties": False,
    }


def schema_of(options: Options) -> JsonObject:
    """Return the JSON schema of the parameters that the options allow."""
    return {
        "anyOf": [
            closed_object({name: {"enum": list(values)} for name, values in one.items()}) for one in options
        ]
    }


def options_of(schema: JsonObject) -> Options:
    """Return the options from which `schema_of` made a schema."""
    return [
        {name: part["enum"] for name, part in one["properties"].items()}
        for one in cast(Sequence[Mapping[str, Mapping[str, Mapping[str, Sequence[Json]]]]], schema["anyOf"])
    ]


def by_field(options: Options, pick: Callable[[str, Sequence[Json]], Json]) -> JsonObject:
    """Set parameters field by field.

    Args:
        options: the parameters that are allowed.
        pick: returns a field's value; called with its name and the values that the earlier choices allow.
    """
    chosen: dict[str, Json] = {}
    while (name := next((name for name in options[0] if name not in chosen), None)) is not None:
        having = [one for one in options if name in one]  # alternatives may have fields of their own
        value = pick(name, list({_key(value): value for one in having for value in one[name]}.values()))
        chosen[name] = value
        options = [one for one in having if value in one[name]]
    return chosen


def _key(value: Json) -> object:
    """Return what is equal for equal values; lists and tables cannot be keys themselves."""
    return json.dumps(value, sort_keys=True) if isinstance(value, list | dict) else value


def at_random(options: Options, rng: random.Random) -> JsonObject:
    """Draw parameters field by field, each uniformly from the values that the earlier choices still allow.

    Difficulty fields come first, so all difficulties are equally likely, however many combinations each has.
    """
    return by_field(options, lambda _, values: rng.choice(values))


def parsed_spec(model: type[BaseModel], data: object) -> BaseModel | Rejection:
    """Parse JSON as a spec; what does not fit its schema is a rejection that says where."""
    try:
        return model.model_validate(data)
    except ValidationError as error:
        return Rejection(RejectReason.SCHEMA, f"{first_problem(error, 'the spec')}.")


def read_base(env: Environment, spec: JsonObject) -> BaseModel:
    """Parse a spec of the base data. Seeds hold whole specs even if the simulator writes parameters."""
    return base_spec(env).model_validate(spec)


class Refused(Exception):
    """Raised inside `build` or `audit` to reject a spec; carries the `Rejection`."""

    def __init__(self, reason: RejectReason, explanation: str) -> None:
        super().__init__(explanation)
        self.rejection = Rejection(reason, explanation)


class OneQuestion:
    """An episode of one question and one reply."""

    max_turns = 1

    def __init__(self, task: Task, choices: Sequence[str] = ()) -> None:
        """Take a task and the allowed replies (empty: any text)."""
        self._task, self.choices = task, choices

    async def run(self, ask: Ask) -> None:
        """Ask the question once."""
        await ask(self._task.messages)


def caseless(text: str) -> str:
    """Return the text in lower case with single spaces, for comparisons that ignore both."""
    return " ".join(text.casefold().split())


def seeds_of(
    env: Environment, specs: Iterable[tuple[str, SpecT]], skills_of: Callable[[SpecT], tuple[str, ...]]
) -> list[Seed]:
    """Turn training specs into seeds.

    Args:
        env: the environment of the specs.
        specs: pairs of id and spec.
        skills_of: returns the skills that a spec exercises.
    """
    return [
        Seed(id=name, environment=env.name, spec=spec.model_dump(mode="json"), skills=skills_of(spec))
        for name, spec in specs
    ]


def held_out_tasks(env: Environment, specs: Iterable[tuple[str, BaseModel]]) -> list[Task]:
    """Build the held-out tasks from pairs of id and spec.

    Raises:
        ValueError: a spec cannot be built, so the base data is broken.
    """
    tasks: list[Task] = []
    for name, spec in specs:
        lineage = Lineage(origin=Origin.HELD_OUT)
        task = env.build(spec, task_id=name, lineage=lineage, rng=random.Random(name))
        if isinstance(task, Rejection):
            raise ValueError(f"held-out spec {name} is not a task: {task.explanation}")
        tasks.append(task)
    return tasks


class QuestionEnvironment:
    """Base class of environments whose episodes are one question and one reply.

    A subclass defines `name`, `spec`, `job`, `seeds`, `held_out`, `variation`, `build`, `check` and
    `random_replies`, and may override every other method.
    """

    spec: ClassVar[type[BaseModel]]
    config: ClassVar[type[BaseModel]] = NoSettings
    job: ClassVar[str]
    """The simulator's instruction, in one sentence."""

    def __init__(self, settings: BaseModel | None = None) -> None:
        self.settings = settings or self.config()

    def spec_schema(self, seed: Seed) -> JsonObject:
        """Return the schema of `spec`, the same for every seed."""
        return self.spec.model_json_schema()

    def simulator_messages(self, seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
        """Return a prompt of the job, the target, the agent's success rates, and the seed as an example."""
        system = f"{self.job} The agent should solve {target:.0%}."
        return request(system, seed.spec, profile, seed.skills, thing="task")

    def audit(self, task: Task, rng: random.Random) -> Rejection | None:
        """Return None: there are no checks in addition to those that the gate always makes."""
        return None

    def episode(self, task: Task) -> Episode:
        """Return an episode of one question."""
        return OneQuestion(task)

    def steps(self, task: Task) -> int:
        """Return the number of replies in the demonstration, which is one."""
        return len(task.oracle)

    def surface(self, task: Task) -> str:
        """Return the text of the question."""
        return task.messages[-1].content


_WORDS = """
a about afternoon again all also am an and any are ask asked asking asks at aunt be bed before breakfast
brother by came can child children class come could curious daughter day dear did dinner do does easy
evening exam family father favorite for friend friends from fun game give going good got great guess had
hard has have he hear heard hello help her here hi hint his homework how i if in into is it job just know
learn learned let like long lot lunch made make many may maybe me met might mind minute moment month more
morning mother much must my name need new next nice now of off office old on once our out over own parents
people perhaps play played please pub puzzle question questions quick quickly quiz quizzed read reading
remember right said saw say says school see seem seen she should show simple sister so some son soon sure
talk talked tell test thank thanks that the their them then there these they think this those thought time
to today together told tomorrow tonight travel tricky trip try trying uncle us very want wanted was we
week weekend well were what when where which while who why will with wonder wondered wondering work would
write year yes yesterday yet you young your
"""
WORDS = frozenset(_WORDS.split())
"""Everyday words in lower case; no numbers, negations or names."""
_STRANGE = re.compile(r"[^\w\s.,:;!?'’-]|[\d_]")


def first_strange(text: str, known: Set[str]) -> str | None:
    """Return the first word or sign in a text that is not allowed, or None.

    Args:
        text: a wording.
        known: allowed words, in lower case; their genitives are allowed too.
    """
    if (sign := _STRANGE.search(text)) is not None:
        return sign[0]
    plain = re.findall(r"\w+", re.sub(r"['’]s\b", "", text))
    return next((word for word in plain if word.lower() not in known), None)


_IRREGULAR: Mapping[str, str] = {
    form: verb
    for verb, forms in {
        "buy": "bought", "find": "found", "get": "got gotten", "give": "gave given", "hear": "heard",
        "leave": "left", "make": "made", "pay": "paid", "put": "putting", "read": "read", "run": "ran",
        "say": "said", "see": "saw seen", "send": "sent", "set": "setting", "take": "took taken",
        "tell": "told", "throw": "threw thrown", "write": "wrote written",
    }.items()
    for form in forms.split()
}  # fmt: skip


def stem(word: str) -> str:
    """Return a word without its ending: cancelled, cancels and cancelling become `cancel`."""
    word = re.sub(r"['’]\w*$", "", word.lower())
    word = _IRREGULAR.get(word, word)
    for ending, instead in (("ies", "y"), ("ied", "y"), ("ing", ""), ("ed", ""), ("es", ""), ("s", "")):
        if word.endswith(ending) and len(word) - len(ending) >= 3 and not word.endswith("ss"):
            word = word[: -len(ending)] + instead
            break
    if len(word) > 3 and word[-1] == word[-2] and word[-1] not in "aeious" and word[-2:] != "ll":
        word = word[:-1]
    if len(word) > 4 and word.endswith("ll"):
        word = word[:-1]
    return word[:-1] if len(word) > 3 and word.endswith("e") else word
