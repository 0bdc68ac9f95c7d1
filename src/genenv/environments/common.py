"""What environments share: one-question episodes, parameters at random, held-out tasks from specs.

`QuestionEnvironment` puts them together: an environment of single questions has to say what is its own, and
no more.
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


def schema_of(options: Options) -> JsonObject:
    """The JSON schema of parameters."""
    return {
        "anyOf": [
            {
                "type": "object",
                "properties": {name: {"enum": list(values)} for name, values in one.items()},
                "required": list(one),
                "additionalProperties": False,
            }
            for one in options
        ]
    }


def at_random(options: Options, rng: random.Random) -> JsonObject:
    """Parameters, field by field: each value that what is chosen already leaves open is as likely as another.

    So all difficulties come alike, as they are the first fields, however few or many ways there are to each.
    """
    chosen: dict[str, Json] = {}
    for name in options[0]:
        value = rng.choice(list(dict.fromkeys(value for one in options for value in one[name])))
        chosen[name] = value
        options = [one for one in options if value in one[name]]
    return chosen


def read_base(env: Environment, spec: JsonObject) -> BaseModel:
    """A spec of the base data, which is a whole one whatever the simulator writes."""
    model: type[BaseModel] = getattr(env, "base_spec", env.spec)
    return model.model_validate(spec)


class Refused(Exception):
    """Carries a rejection out of the depths of a `build` or an `audit`: what is written is no task."""

    def __init__(self, reason: RejectReason, explanation: str) -> None:
        super().__init__(explanation)
        self.rejection = Rejection(reason, explanation)


class OneQuestion:
    """An episode of one question and one reply."""

    max_turns = 1

    def __init__(self, task: Task, tools: Sequence[JsonObject] = (), choices: Sequence[str] = ()) -> None:
        """Take a task, tools that the model's chat template is to offer, and the possible replies if few."""
        self._task, self.tools, self.choices = task, tools, choices

    async def run(self, ask: Ask) -> None:
        """Ask, once."""
        await ask(self._task.messages)


def caseless(text: str) -> str:
    """A text by which two are compared whose capitals and spaces do not matter."""
    return " ".join(text.casefold().split())


def seeds_of(
    env: Environment, specs: Iterable[tuple[str, SpecT]], skills_of: Callable[[SpecT], tuple[str, ...]]
) -> list[Seed]:
    """Training specs, by id, as seeds.

    Args:
        env: whose specs they are.
        specs: ids and specs.
        skills_of: what a spec exercises.
    """
    return [
        Seed(id=name, environment=env.name, spec=spec.model_dump(mode="json"), skills=skills_of(spec))
        for name, spec in specs
    ]


def held_out_tasks(env: Environment, specs: Iterable[tuple[str, BaseModel]]) -> list[Task]:
    """Held-out specs, by id, as tasks.

    Raises:
        ValueError: a spec is not a task; the base data is broken.
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
    """An environment of one question and one reply, with what such environments have in common.

    A subclass gives `name`, `spec`, `job`, `seeds`, `held_out`, `variation`, `build`, `check` and
    `random_replies`, and may replace whatever is here.
    """

    spec: ClassVar[type[BaseModel]]
    config: ClassVar[type[BaseModel]] = NoSettings
    job: ClassVar[str]
    """What the simulator is asked for, in a sentence."""

    def __init__(self, settings: BaseModel | None = None) -> None:
        self.settings = settings or self.config()

    def spec_schema(self, seed: Seed) -> JsonObject:
        """The schema of the spec, whatever the seed."""
        return self.spec.model_json_schema()

    def simulator_messages(self, seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
        """The job, the rate to aim at, how the agent has been doing, and the seed as the example."""
        system = f"{self.job} The agent should solve {target:.0%}."
        return request(system, seed.spec, profile, seed.skills, thing="task")

    def audit(self, task: Task, rng: random.Random) -> Rejection | None:
        """No checks in addition to those of every gate."""
        return None

    def episode(self, task: Task) -> Episode:
        """One question."""
        return OneQuestion(task)

    def steps(self, task: Task) -> int:
        """A question takes one answer."""
        return len(task.oracle)

    def surface(self, task: Task) -> str:
        """The question itself."""
        return task.messages[-1].content
