"""Wrappers of environments: `ByParameters` and `ShiftingEnvironment`.

In unsupervised environment design (PAIRED, Dennis et al., arXiv:2012.02096) an adversary sets the free
parameters of an environment. In `ByParameters` the simulator does so in a few words, and the environment
draws values, wording and solution by rules. So every task states what it requires, and the simulator is
trained on its decisions only. The setting `simulator.writes = "parameters"` selects it.

`ShiftingEnvironment` measures adaptation: it switches from one environment to another of the same class
during a run. Ids of the second environment get a suffix, so that one store can hold both. The suffix is
removed before a call, because an environment may derive a task from an id.
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
    """An environment whose simulator writes parameters; seeds and held-out tasks are those of the inner one.

    Raises:
        UsageError: the environment has no parameters.
    """

    def __init__(self, env: Environment) -> None:
        if not isinstance(env, HasParameters):
            members: Sequence[str] = getattr(env, "without_parameters", ())
            named = f"member {members[0]!r} of the mixture" if members else f"the environment {env.name}"
            leave = ", or leave the member out" if members else ""
            raise UsageError(
                f'simulator.writes is "parameters", but {named} has none; set it to "spec"{leave}'
            )
        super().__init__(env)
        self._drawing: HasParameters = env

    @property
    def spec(self) -> type[BaseModel]:
        """The model of parameters."""
        return self._drawing.parameters

    @cached_property
    def _seeds(self) -> dict[str, Seed]:
        return {seed.id: seed for seed in self.inner.seeds()}

    def seeds(self) -> Sequence[Seed]:
        """See `Environment`."""
        return list(self._seeds.values())

    def spec_schema(self, seed: Seed) -> JsonObject:
        """Return the schema of the parameters; see `Environment`."""
        return schema_of(self._drawing.parameter_options(seed))

    def simulator_messages(self, seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
        """See `Environment`."""
        return self._drawing.parameter_messages(seed, profile, target)

    def variation(self, seed: Seed, rng: random.Random) -> JsonObject:
        """Return random parameters; see `Environment`."""
        return at_random(self._drawing.parameter_options(seed), rng)

    def build(
        self, spec: BaseModel, *, task_id: str, lineage: Lineage, rng: random.Random
    ) -> Task | Rejection:
        """Build a task from parameters or from a whole spec. Equal random states give equal tasks."""
        if isinstance(spec, self.spec):
            drawn = self._drawing.drawn(spec, self._seeds[lineage.seed_id or ""], rng)
            if isinstance(drawn, Rejection):
                return drawn
            spec = drawn
        return self.inner.build(spec, task_id=task_id, lineage=lineage, rng=rng)


class _Suffixed:
    """One of the two environments with the suffix of its ids."""

    def __init__(self, env: Environment, suffix: str) -> None:
        self.env, self.suffix = env, suffix

    @cached_property
    def seeds(self) -> list[Seed]:
        """The seeds, with suffixed ids."""
        return [replace(seed, id=seed.id + self.suffix) for seed in self.env.seeds()]

    @cached_property
    def held_out(self) -> list[Task]:
        """The held-out tasks, with suffixed ids."""
        return [replace(task, id=task.id + self.suffix) for task in self.env.held_out()]

    def bare(self, value: Any) -> Any:  # noqa: ANN401 - of the same type as it was given
        """Return an argument of a call with the suffix removed from its ids."""
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
    """An environment that behaves as `before` until `shift` is called, and as `after` from then on.

    All parts of a run share one instance, so the shift takes effect everywhere at once.

    Args:
        before: the first environment.
        after: the second environment; the same class with other settings.
    """

    def __init__(self, before: Environment, after: Environment) -> None:
        super().__init__(before)
        self.wrapped = (before, after)
        self._now, self._next = _Suffixed(before, ""), _Suffixed(after, SUFFIX)

    def shift(self) -> None:
        """Switch to the second environment."""
        self._now, self.inner = self._next, self._next.env

    @property
    def shifted(self) -> bool:
        """Whether the shift has happened."""
        return self._now is self._next

    @property
    def to_come(self) -> tuple[Sequence[Seed], Sequence[Task]]:
        """The seeds and the held-out tasks of the second environment."""
        return self._next.seeds, self._next.held_out

    def surfaces_to_come(self) -> list[tuple[str, str]]:
        """Return id and text (`Environment.surface`) of the held-out tasks of the second environment."""
        own = self._next
        return [(task.id, own.env.surface(own.bare(task))) for task in own.held_out]

    def call(self, method: str, *args: Any, **kwargs: Any) -> Any:  # noqa: ANN401 - as of the base class
        """Call a method of the current environment; ids in arguments lose their suffix."""
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
