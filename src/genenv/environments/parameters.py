"""Tasks by their parameters: the simulator sets how hard a task is and what it is of, code writes the rest.

In unsupervised environment design (PAIRED, Dennis et al., arXiv:2012.02096) an adversary sets the free
parameters of an environment. Here these are a few words in place of a whole spec: values, wording and
solution are drawn by the environment's own rules, so that every task says what it asks for, and all that the
simulator samples, and learns, is a decision.

`simulator.writes = "parameters"` puts an environment behind `ByParameters`.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from functools import cached_property
from typing import ClassVar, Protocol, runtime_checkable

from pydantic import BaseModel

from genenv.environments.base import Environment, Episode
from genenv.environments.common import profile_line
from genenv.errors import UsageError
from genenv.types import Json, JsonObject, Lineage, Message, Profile, Rejection, Seed, Task, Verdict

Options = Sequence[Mapping[str, Sequence[Json]]]
"""Alternatives: in each of them every value of a field goes with every value of the other fields."""


@runtime_checkable
class HasParameters(Protocol):
    """What an environment has beside `Environment`, where its tasks can be drawn from parameters."""

    parameters: ClassVar[type[BaseModel]]
    """What the simulator writes in place of `spec`: some of its fields, difficulty first."""

    def parameter_options(self, seed: Seed) -> Options:
        """All parameters that go with a seed: the seed is the subject, no more. There is a task for each."""
        ...

    def parameter_messages(self, seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
        """What the simulator is told; no example, as that would be copied. Arguments as of `Environment`."""
        ...

    def drawn(self, parameters: BaseModel, seed: Seed, rng: random.Random) -> BaseModel | Rejection:
        """A spec that has them: the rest is drawn."""
        ...


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


def asked_for(
    system: str, profile: Profile, skills: tuple[str, ...], *, thing: str
) -> tuple[Message, Message]:
    """What a simulator is told that sets parameters: its job, and how the agent does.

    Args:
        system: the job, and what may be chosen.
        profile: the agent's success per skill.
        skills: those of the seed.
        thing: what is wanted, e.g. `task`.
    """
    user = f"{profile_line(profile, skills)}Set up one {thing}."
    return Message(role="system", content=system), Message(role="user", content=user)


def read_base(env: Environment, spec: JsonObject) -> BaseModel:
    """A spec of the base data, which is a whole one whatever the simulator writes."""
    model: type[BaseModel] = getattr(env, "base_spec", env.spec)
    return model.model_validate(spec)


class ByParameters:
    """An environment whose simulator writes parameters. Seeds and held-out tasks are the environment's."""

    def __init__(self, env: Environment) -> None:
        """Take an environment.

        Raises:
            UsageError: it has no parameters.
        """
        if not isinstance(env, HasParameters):
            raise UsageError(
                f'simulator.writes is "parameters", but the environment {env.name} has none; set it to "spec"'
            )
        self._inner, self._drawing = env, env
        self.name, self.config, self.spec = env.name, env.config, env.parameters
        self.base_spec = env.spec

    @cached_property
    def _seeds(self) -> dict[str, Seed]:
        return {seed.id: seed for seed in self._inner.seeds()}

    def seeds(self) -> Sequence[Seed]:
        """See `Environment`."""
        return list(self._seeds.values())

    def held_out(self) -> Sequence[Task]:
        """See `Environment`."""
        return self._inner.held_out()

    def spec_schema(self, seed: Seed) -> JsonObject:
        """See `Environment`: of the parameters."""
        return schema_of(self._drawing.parameter_options(seed))

    def simulator_messages(self, seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
        """See `Environment`."""
        return self._drawing.parameter_messages(seed, profile, target)

    def variation(self, seed: Seed, rng: random.Random) -> JsonObject:
        """See `Environment`: parameters at random."""
        return at_random(self._drawing.parameter_options(seed), rng)

    def build(
        self, spec: BaseModel, *, task_id: str, lineage: Lineage, rng: random.Random
    ) -> Task | Rejection:
        """A task with these parameters, or of a whole spec; the same random state draws the same one."""
        if isinstance(spec, self.spec):
            drawn = self._drawing.drawn(spec, self._seeds[lineage.seed_id or ""], rng)
            if isinstance(drawn, Rejection):
                return drawn
            spec = drawn
        return self._inner.build(spec, task_id=task_id, lineage=lineage, rng=rng)

    def audit(self, task: Task, rng: random.Random) -> Rejection | None:
        """See `Environment`."""
        return self._inner.audit(task, rng)

    def episode(self, task: Task) -> Episode:
        """See `Environment`."""
        return self._inner.episode(task)

    def check(self, task: Task, replies: Sequence[str]) -> Verdict:
        """See `Environment`."""
        return self._inner.check(task, replies)

    def random_replies(self, task: Task, rng: random.Random) -> tuple[str, ...]:
        """See `Environment`."""
        return self._inner.random_replies(task, rng)

    def steps(self, task: Task) -> int:
        """See `Environment`."""
        return self._inner.steps(task)

    def surface(self, task: Task) -> str:
        """See `Environment`."""
        return self._inner.surface(task)
