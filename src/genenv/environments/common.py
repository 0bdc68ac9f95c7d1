"""Shared parts of environments: single-question episodes, random parameters, seeds and held-out tasks.

`QuestionEnvironment` is the base class of environments whose episodes are one question and one reply.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import ClassVar, TypeVar

from pydantic import BaseModel

from genenv.environments.base import Ask, Environment, Episode, Options
from genenv.environments.simulator_prompts import request
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

SpecT = TypeVar("SpecT", bound=BaseModel)


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


def at_random(options: Options, rng: random.Random) -> JsonObject:
    """Draw parameters field by field, each uniformly from the values that the earlier choices still allow.

    Difficulty fields come first, so all difficulties are equally likely, however many combinations each has.
    """
    chosen: dict[str, Json] = {}
    for name in options[0]:
        value = rng.choice(list(dict.fromkeys(value for one in options for value in one[name])))
        chosen[name] = value
        options = [one for one in options if value in one[name]]
    return chosen


def read_base(env: Environment, spec: JsonObject) -> BaseModel:
    """Parse a spec of the base data. Seeds hold whole specs even if the simulator writes parameters."""
    model: type[BaseModel] = getattr(env, "base_spec", env.spec)
    return model.model_validate(spec)


class Refused(Exception):
    """Raised inside `build` or `audit` to reject a spec; carries the `Rejection`."""

    def __init__(self, reason: RejectReason, explanation: str) -> None:
        super().__init__(explanation)
        self.rejection = Rejection(reason, explanation)


class OneQuestion:
    """An episode of one question and one reply."""

    max_turns = 1

    def __init__(self, task: Task, tools: Sequence[JsonObject] = (), choices: Sequence[str] = ()) -> None:
        """Take a task, the tools for the model's chat template, and the allowed replies (empty: any text)."""
        self._task, self.tools, self.choices = task, tools, choices

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
