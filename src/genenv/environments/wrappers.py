"""Environments around environments: tasks by their parameters, and an environment that changes once.

In unsupervised environment design (PAIRED, Dennis et al., arXiv:2012.02096) an adversary sets the free
parameters of an environment. `ByParameters` does this with a few words in place of a whole spec: values,
wording and solution are drawn by the environment's own rules. So every task states what it asks for, and all
that the simulator samples, and is trained on, is a decision. `simulator.writes = "parameters"` turns it on.

`ShiftingEnvironment` measures adaptation: its tasks before and after a shift are those of two environments of
one kind. What the second one gives has ids of its own, so that one store can hold both. The second one itself
never sees them, as its tasks may be drawn from an id.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from pydantic import BaseModel

from genenv.environments.base import Environment, EnvironmentWrapper, HasParameters
from genenv.environments.common import at_random, schema_of
from genenv.errors import UsageError
from genenv.types import JsonObject, Lineage, Message, Profile, Rejection, Seed, Task

SUFFIX = "-shifted"
"""Ends the ids of the second environment's seeds and held-out tasks."""


class ByParameters(EnvironmentWrapper):
    """An environment whose simulator writes parameters. Seeds and held-out tasks are the environment's.

    Raises:
        UsageError: the environment has no parameters.
    """

    def __init__(self, env: Environment) -> None:
        if not isinstance(env, HasParameters):
            raise UsageError(
                f'simulator.writes is "parameters", but the environment {env.name} has none; set it to "spec"'
            )
        super().__init__(env)
        self._drawing: HasParameters = env
        self.spec, self.base_spec = env.parameters, env.spec

    @cached_property
    def _seeds(self) -> dict[str, Seed]:
        return {seed.id: seed for seed in self.inner.seeds()}

    def seeds(self) -> Sequence[Seed]:
        """See `Environment`."""
        return list(self._seeds.values())

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
        return self.inner.build(spec, task_id=task_id, lineage=lineage, rng=rng)


class _Suffixed:
    """One of the two environments, and what its ids end in."""

    def __init__(self, env: Environment, suffix: str) -> None:
        self.env, self.suffix = env, suffix

    @cached_property
    def seeds(self) -> list[Seed]:
        """The base data."""
        return [replace(seed, id=seed.id + self.suffix) for seed in self.env.seeds()]

    @cached_property
    def held_out(self) -> list[Task]:
        """Tasks for measuring."""
        return [replace(task, id=task.id + self.suffix) for task in self.env.held_out()]

    def bare(self, value: Any) -> Any:  # noqa: ANN401 - of the same type as it was given
        """An argument of a call, under the ids that the environment itself gave."""
        if not self.suffix:
            return value
        if isinstance(value, Seed):
            return replace(value, id=value.id.removesuffix(self.suffix))
        if isinstance(value, Lineage) and value.seed_id is not None:
            return replace(value, seed_id=value.seed_id.removesuffix(self.suffix))
        if isinstance(value, Task):
            name = value.id.removesuffix(self.suffix)
            return replace(value, id=name, lineage=self.bare(value.lineage))
        return value


class ShiftingEnvironment(EnvironmentWrapper):
    """An environment that is one until `shift` is called, and another one from then on, for all who hold it.

    Args:
        before: the first environment.
        after: the second; of the same class, with other settings.
    """

    def __init__(self, before: Environment, after: Environment) -> None:
        super().__init__(before)
        self.base_spec: type[BaseModel] = getattr(before, "base_spec", before.spec)
        self._now, self._next = _Suffixed(before, ""), _Suffixed(after, SUFFIX)

    def shift(self) -> None:
        """Be the second environment from now on."""
        self._now, self.inner = self._next, self._next.env

    @property
    def shifted(self) -> bool:
        """Whether it is the second environment."""
        return self._now is self._next

    @property
    def to_come(self) -> tuple[Sequence[Seed], Sequence[Task]]:
        """Seeds and held-out tasks of the second environment."""
        return self._next.seeds, self._next.held_out

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as of the base class
        """Call a method of the present environment, under its own ids."""
        bare = self._now.bare
        given = {name: bare(value) for name, value in kwargs.items()}
        return super().call(method, *map(bare, args), **given)

    def seeds(self) -> Sequence[Seed]:
        """See `Environment`."""
        return self._now.seeds

    def held_out(self) -> Sequence[Task]:
        """See `Environment`."""
        return self._now.held_out

    def build(
        self, spec: BaseModel, *, task_id: str, lineage: Lineage, rng: random.Random
    ) -> Task | Rejection:
        """See `Environment`."""
        name = task_id.removesuffix(self._now.suffix)
        built = super().build(spec, task_id=name, lineage=lineage, rng=rng)
        return replace(built, id=task_id, lineage=lineage) if isinstance(built, Task) else built
