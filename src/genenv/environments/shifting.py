"""An environment whose world changes while an agent learns in it: once, for everybody who holds it.

Its tasks before and after are those of two environments of one kind. What the second one gives has ids of its
own, so that one store can hold both; the second one itself never sees them, as worlds may be drawn from an
id.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from pydantic import BaseModel

from genenv.environments.base import Environment, Episode
from genenv.types import JsonObject, Lineage, Message, Profile, Rejection, Seed, Task, Verdict

SUFFIX = "-shifted"
"""Ends the ids of seeds and held-out tasks of the world that comes."""


class _World:
    """One of the two worlds, and what its ids end in."""

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

    def seed(self, seed: Seed) -> Seed:
        """A seed under the id that the environment gave it."""
        return replace(seed, id=seed.id.removesuffix(self.suffix)) if self.suffix else seed

    def lineage(self, lineage: Lineage) -> Lineage:
        """A lineage that names the seed as the environment does."""
        if not self.suffix or lineage.seed_id is None:
            return lineage
        return replace(lineage, seed_id=lineage.seed_id.removesuffix(self.suffix))

    def task(self, task: Task) -> Task:
        """A task under the ids that the environment gave."""
        if not self.suffix:
            return task
        return replace(task, id=task.id.removesuffix(self.suffix), lineage=self.lineage(task.lineage))


class ShiftingEnvironment:
    """An environment that is one world until `shift` is called, and another one from then on.

    Args:
        before: the environment of the first world.
        after: that of the second; of the same class, with other settings.
    """

    def __init__(self, before: Environment, after: Environment) -> None:
        self.name, self.spec, self.config = before.name, before.spec, before.config
        self.base_spec: type[BaseModel] = getattr(before, "base_spec", before.spec)
        self._world, self._next = _World(before, ""), _World(after, SUFFIX)

    def shift(self) -> None:
        """Be the second world from now on."""
        self._world = self._next

    @property
    def shifted(self) -> bool:
        """Whether it is the second world."""
        return self._world is self._next

    @property
    def to_come(self) -> tuple[Sequence[Seed], Sequence[Task]]:
        """Seeds and held-out tasks of the second world."""
        return self._next.seeds, self._next.held_out

    def seeds(self) -> Sequence[Seed]:
        """See `Environment`."""
        return self._world.seeds

    def held_out(self) -> Sequence[Task]:
        """See `Environment`."""
        return self._world.held_out

    def spec_schema(self, seed: Seed) -> JsonObject:
        """See `Environment`."""
        return self._world.env.spec_schema(self._world.seed(seed))

    def simulator_messages(self, seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
        """See `Environment`."""
        return self._world.env.simulator_messages(self._world.seed(seed), profile, target)

    def variation(self, seed: Seed, rng: random.Random) -> JsonObject:
        """See `Environment`."""
        return self._world.env.variation(self._world.seed(seed), rng)

    def build(
        self, spec: BaseModel, *, task_id: str, lineage: Lineage, rng: random.Random
    ) -> Task | Rejection:
        """See `Environment`."""
        world = self._world
        name = task_id.removesuffix(world.suffix) if world.suffix else task_id
        built = world.env.build(spec, task_id=name, lineage=world.lineage(lineage), rng=rng)
        return replace(built, id=task_id, lineage=lineage) if isinstance(built, Task) else built

    def audit(self, task: Task, rng: random.Random) -> Rejection | None:
        """See `Environment`."""
        return self._world.env.audit(self._world.task(task), rng)

    def episode(self, task: Task) -> Episode:
        """See `Environment`."""
        return self._world.env.episode(self._world.task(task))

    def check(self, task: Task, replies: Sequence[str]) -> Verdict:
        """See `Environment`."""
        return self._world.env.check(self._world.task(task), replies)

    def random_replies(self, task: Task, rng: random.Random) -> tuple[str, ...]:
        """See `Environment`."""
        return self._world.env.random_replies(self._world.task(task), rng)

    def steps(self, task: Task) -> int:
        """See `Environment`."""
        return self._world.env.steps(self._world.task(task))

    def surface(self, task: Task) -> str:
        """See `Environment`."""
        return self._world.env.surface(self._world.task(task))
