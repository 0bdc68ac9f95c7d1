"""The gate: which generations are tasks. No trained model takes part.

A generation passes when it is a finished spec of the environment, executes, its own solution passes the
checker while an empty and random ones fail, the verdict is the same twice, the environment's own checks agree
(literals stated, nothing leaked), and it is neither a held-out task nor close to one of the archive. Every
rejection has a reason and a sentence.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Sequence
from typing import cast

from pydantic import BaseModel, ValidationError

from genenv.curriculum.settings import CurriculumConfig
from genenv.environments.base import Environment
from genenv.environments.common import read_base
from genenv.gate.novelty import Archive
from genenv.plugins import own_part
from genenv.progress import advance
from genenv.seeding import generator
from genenv.types import (
    Context,
    Generation,
    JsonObject,
    Lineage,
    Origin,
    Proposal,
    Rejection,
    RejectReason,
    Seed,
    Task,
)

RANDOM_ATTEMPTS = 4
"""How many random solutions must fail."""
HELD_OUT_SIMILARITY = 0.6
"""From this Jaccard similarity on, a task counts as a copy of a held-out one."""
MAX_SPEC_CHARS = 20_000


OwnCheck = Callable[[Environment, Task, random.Random], Rejection | None]
"""(environment, task, randomness) -> why a task that passed every other check is rejected; None: admitted."""


def own_check(name: str) -> OwnCheck:
    """The function of the user's own that `curriculum.gate` names.

    Raises:
        UsageError: there is no such function.
    """
    return cast(OwnCheck, own_part("curriculum.gate", name, takes=("env", "task", "rng")))


class Gate:
    """Admits generations as tasks, against an archive that grows with the run."""

    def __init__(self, env: Environment, config: CurriculumConfig, *, seed: int) -> None:
        self.env, self.config, self.seed = env, config, seed
        self.archive, self.held_out = Archive(), Archive()
        self._candidates = Archive()

    def remember(self, tasks: Iterable[Task]) -> None:
        """Put tasks into the archive, such as the base tasks at the start."""
        for task in tasks:
            self.archive.add(task.id, self.env.surface(task))

    def recall(self, surfaces: Iterable[tuple[str, str]], others: Iterable[Task]) -> None:
        """Put the generated tasks of all committed rounds into the archive.

        Args:
            surfaces: id and surface of those that were stored with one.
            others: those that were not.
        """
        for name, surface in surfaces:
            self.archive.add(name, surface)
        self.remember(others)

    def protect(self, tasks: Iterable[Task]) -> None:
        """Put held-out tasks where no generated task may come near."""
        for task in tasks:
            self.held_out.add(task.id, self.env.surface(task))

    def enter(self, base: Iterable[Task], held_out: Iterable[Task]) -> None:
        """Guard the held-out tasks of another environment from now on; what was new before is not new again.

        Args:
            base: its base tasks.
            held_out: its held-out tasks.
        """
        self.remember(base)
        self.held_out = Archive()
        self.protect(held_out)

    def admit(self, contexts: Sequence[Context], generations: Sequence[Generation]) -> list[Proposal]:
        """What becomes of each generation, in order; tasks join the archive at once.

        Where they are mere candidates, they are held against each other, and those that are rolled out join
        it by `remember`: what was passed over may come again.
        """
        self._candidates = Archive()
        by_id = {context.id: context for context in contexts}
        return [self._admit(by_id[generation.context_id], generation) for generation in generations]

    def _admit(self, context: Context, generation: Generation) -> Proposal:
        task = self._build(context, generation)
        if isinstance(task, Rejection):
            return Proposal(generation=generation, outcome=task)
        if (rejection := self._examined(task)) is not None:
            return Proposal(generation=generation, outcome=rejection)
        surface = self.env.surface(task)
        similarity, nearest = self.held_out.nearest(surface)
        # Under any setting: otherwise held-out results would mean nothing.
        if similarity >= HELD_OUT_SIMILARITY:
            sentence = f"It shares {similarity:.0%} of its words with held-out {nearest}."
            return Proposal(generation=generation, outcome=Rejection(RejectReason.HELD_OUT, sentence))
        known = self.archive
        similarity, nearest = known.nearest(surface)
        if self.config.candidates > 1:
            known = self._candidates
            similarity, nearest = max((similarity, nearest), known.nearest(surface), key=lambda one: one[0])
        if 1 - similarity < self.config.novelty_threshold:
            sentence = f"It shares {similarity:.0%} of its words with {nearest}."
            duplicate = Rejection(RejectReason.DUPLICATE, sentence)
            return Proposal(generation=generation, outcome=duplicate, novelty=1 - similarity)
        known.add(task.id, surface)
        return Proposal(generation=generation, outcome=task, novelty=1 - similarity)

    def _examined(self, task: Task) -> Rejection | None:
        """What the checks say that the settings ask for, a check of the user's own last."""
        if self.config.gate == "executes":
            return None
        rejection = examined(self.env, task, generator(self.seed, "gate", task.id))
        if rejection is not None or self.config.gate == "full":
            return rejection
        return own_check(self.config.gate)(self.env, task, generator(self.seed, "own-gate", task.id))

    def _build(self, context: Context, generation: Generation) -> Task | Rejection:
        spec = parse_spec(self.env.spec, generation)
        if isinstance(spec, Rejection):
            return spec
        lineage = Lineage(
            origin=Origin.GENERATED,
            seed_id=context.seed.id,
            context_id=context.id,
            generation_id=generation.id,
        )
        rng = generator(self.seed, "build", generation.id)
        return self.env.build(spec, task_id=f"task-{generation.id}", lineage=lineage, rng=rng)


def examined(env: Environment, task: Task, rng: random.Random) -> Rejection | None:
    """The full gate, but for what is too near: what is wrong with a task by itself; None if all is well.

    Its own solution must pass, with the same verdict twice, where one is known; nothing, silence and random
    rollouts must fail; then the environment's own audit has its say.
    """
    if task.oracle:
        first, again = (env.check(task, task.oracle) for _ in range(2))
        if not first.success:
            return Rejection(RejectReason.ORACLE_FAILS, f"Its own solution fails: {first.explanation}")
        if first != again:
            sentence = "The checker does not give the same verdict twice."
            return Rejection(RejectReason.CHECKS_DISAGREE, sentence)
    blanks = [(), ("",), *(env.random_replies(task, rng) for _ in range(RANDOM_ATTEMPTS))]
    if any(env.check(task, replies).success for replies in blanks):
        return Rejection(RejectReason.TRIVIAL, "An empty or a random attempt passes.")
    return env.audit(task, rng)


def written(seed: Seed, text: str, *, context_id: str, generation_id: str) -> tuple[Context, Generation]:
    """A spec as if a simulator had written it for a seed, to show it to a gate; no model takes part."""
    context = Context(id=context_id, round=1, seed=seed, messages=())
    return context, Generation(id=generation_id, context_id=context_id, text=text, finished=True)


def parse_spec(model: type[BaseModel], generation: Generation) -> BaseModel | Rejection:
    """A generation's text as the environment's spec: JSON and schema, nothing is executed."""
    if not generation.finished:
        sentence = f"The spec was not finished within {len(generation.token_ids)} tokens."
        return Rejection(RejectReason.UNFINISHED, sentence)
    try:
        data: object = json.loads(generation.text[:MAX_SPEC_CHARS])
    except (ValueError, RecursionError) as error:
        return Rejection(RejectReason.SYNTAX, f"It is not JSON: {error}.")
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the spec"
        return Rejection(RejectReason.SCHEMA, f"{where}: {first['msg']}.")


def base_task(env: Environment, seed_id: str, spec: JsonObject, *, seed: int) -> Task | Rejection:
    """A seed as a task of its own."""
    lineage = Lineage(origin=Origin.SEED, seed_id=seed_id)
    rng = generator(seed, "base", seed_id)
    return env.build(read_base(env, spec), task_id=f"base-{seed_id}", lineage=lineage, rng=rng)


def base_tasks(env: Environment, seeds: Sequence[Seed], *, seed: int) -> dict[str, Task]:
    """The seeds that are tasks of their own, by seed id."""
    found: dict[str, Task] = {}
    for item in seeds:
        task = base_task(env, item.id, item.spec, seed=seed)
        if isinstance(task, Task):
            found[item.id] = task
        advance(items=1)
    return found
