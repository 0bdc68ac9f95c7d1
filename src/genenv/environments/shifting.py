"""A domain whose world changes while an agent learns in it: once, for everybody who holds it.

Its tasks before and after are those of two domains of one kind. What the second one gives has ids of its own,
so that one store can hold both; the second one itself never sees them, as worlds may be drawn from an id.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property

from pydantic import BaseModel

from genenv.environments.base import Domain, Episode
from genenv.types import JsonObject, Lineage, Message, Profile, Rejection, Seed, Task, Verdict

SUFFIX = "-shifted"
"""Ends the ids of seeds and held-out tasks of the world that comes."""


class _World:
    """One of the two worlds, and what its ids end in."""

    def __init__(self, domain: Domain, suffix: str) -> None:
        self.domain, self.suffix = domain, suffix

    @cached_property
    def seeds(self) -> list[Seed]:
        """The base data."""
        return [replace(seed, id=seed.id + self.suffix) for seed in self.domain.seeds()]

    @cached_property
    def held_out(self) -> list[Task]:
        """Tasks for measuring."""
        return [replace(task, id=task.id + self.suffix) for task in self.domain.held_out()]

    def seed(self, seed: Seed) -> Seed:
        """A seed under the id that the domain gave it."""
        return replace(seed, id=seed.id.removesuffix(self.suffix)) if self.suffix else seed

    def lineage(self, lineage: Lineage) -> Lineage:
        """A lineage that names the seed as the domain does."""
        if not self.suffix or lineage.seed_id is None:
            return lineage
        return replace(lineage, seed_id=lineage.seed_id.removesuffix(self.suffix))

    def task(self, task: Task) -> Task:
        """A task under the ids that the domain gave."""
        if not self.suffix:
            return task
        return replace(task, id=task.id.removesuffix(self.suffix), lineage=self.lineage(task.lineage))


class ShiftingDomain:
    """A domain that is one world until `shift` is called, and another one from then on.

    Args:
        before: the domain of the first world.
        after: that of the second; of the same class, with other settings.
    """

    def __init__(self, before: Domain, after: Domain) -> None:
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
        """See `Domain`."""
        return self._world.seeds

    def held_out(self) -> Sequence[Task]:
        """See `Domain`."""
        return self._world.held_out

    def spec_schema(self, seed: Seed) -> JsonObject:
        """See `Domain`."""
        return self._world.domain.spec_schema(self._world.seed(seed))

    def simulator_messages(self, seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
        """See `Domain`."""
        return self._world.domain.simulator_messages(self._world.seed(seed), profile, target)

    def variation(self, seed: Seed, rng: random.Random) -> JsonObject:
        """See `Domain`."""
        return self._world.domain.variation(self._world.seed(seed), rng)

    def build(
        self, spec: BaseModel, *, task_id: str, lineage: Lineage, rng: random.Random
    ) -> Task | Rejection:
        """See `Domain`."""
        world = self._world
        name = task_id.removesuffix(world.suffix) if world.suffix else task_id
        built = world.domain.build(spec, task_id=name, lineage=world.lineage(lineage), rng=rng)
        return replace(built, id=task_id, lineage=lineage) if isinstance(built, Task) else built

    def audit(self, task: Task, rng: random.Random) -> Rejection | None:
        """See `Domain`."""
        return self._world.domain.audit(self._world.task(task), rng)

    def episode(self, task: Task) -> Episode:
        """See `Domain`."""
        return self._world.domain.episode(self._world.task(task))

    def check(self, task: Task, replies: Sequence[str]) -> Verdict:
        """See `Domain`."""
        return self._world.domain.check(self._world.task(task), replies)

    def random_replies(self, task: Task, rng: random.Random) -> tuple[str, ...]:
        """See `Domain`."""
        return self._world.domain.random_replies(self._world.task(task), rng)

    def steps(self, task: Task) -> int:
        """See `Domain`."""
        return self._world.domain.steps(self._world.task(task))

    def surface(self, task: Task) -> str:
        """See `Domain`."""
        return self._world.domain.surface(self._world.task(task))
