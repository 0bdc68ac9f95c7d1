"""The gate: decides which generations become tasks. No trained model takes part.

A generation passes if it meets all conditions. It is a complete spec of the environment, and it executes. Its
demonstration passes the checker, while an empty and random solutions fail. The verdict is the same twice. The
environment's audit agrees (literals stated, nothing leaked). It is not a copy of a held-out task and not
close to the archive. Every rejection has a reason and a sentence.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import cast

from pydantic import BaseModel

from genenv.curriculum.settings import CurriculumConfig
from genenv.environments.base import Environment
from genenv.environments.common import parsed_spec, read_base
from genenv.errors import UsageError
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
"""Number of random solutions that must fail."""
_ROUNDING = 1e-9
"""Tolerance of the novelty threshold: a task exactly at it is no copy."""
HELD_OUT_SIMILARITY = 0.6
"""Jaccard similarity from which a task counts as a copy of a held-out task."""
MAX_SPEC_CHARS = 20_000
"""Length above which a spec is rejected unread."""


OwnCheck = Callable[[Environment, Task, random.Random], Rejection | None]
"""(environment, task, random generator) -> the rejection of a task that passed all other checks; None:
accept."""


def own_check(name: str) -> OwnCheck:
    """Return the user-defined function that `curriculum.gate` names.

    Raises:
        UsageError: there is no such function. The returned function raises it for another result than a
            rejection or None.
    """
    own = cast("Callable[..., object]", own_part("curriculum.gate", name, takes=("env", "task", "rng")))

    def checked(env: Environment, task: Task, rng: random.Random) -> Rejection | None:
        gave = own(env, task, rng)
        reason = cast(object, gave.reason) if isinstance(gave, Rejection) else None
        if gave is None or isinstance(reason, RejectReason):
            return cast(Rejection | None, gave)
        raise UsageError(
            f"curriculum.gate is {name!r}, which gave {gave!r}; return Rejection(RejectReason.TRIVIAL, "
            '"a sentence"), say, for a task that is left out, and None for one that is accepted'
        )

    return checked


class Gate:
    """Accepts or rejects generations, and compares them with an archive of all earlier tasks."""

    def __init__(self, env: Environment, config: CurriculumConfig, *, seed: int) -> None:
        self.env, self.config, self.seed = env, config, seed
        self.archive, self.held_out = Archive(), Archive()
        self._candidates = Archive()

    def remember(self, tasks: Iterable[Task]) -> None:
        """Add tasks to the archive, such as the base tasks at the start."""
        for task in tasks:
            self.archive.add(task.id, self.env.surface(task))

    def recall(self, surfaces: Iterable[tuple[str, str]]) -> None:
        """Add the generated tasks of all committed rounds to the archive.

        Args:
            surfaces: id and text (`Environment.surface`) of the tasks that were rolled out.
        """
        for name, surface in surfaces:
            self.archive.add(name, surface)

    def protect(self, tasks: Iterable[Task]) -> None:
        """Add held-out tasks, which no generated task may resemble."""
        self.protect_texts((task.id, self.env.surface(task)) for task in tasks)

    def protect_texts(self, surfaces: Iterable[tuple[str, str]]) -> None:
        """Add held-out tasks of another environment.

        Args:
            surfaces: id and text (`Environment.surface`) of the tasks.
        """
        for name, surface in surfaces:
            self.held_out.add(name, surface)

    def enter(self, base: Iterable[Task], held_out: Iterable[Task]) -> None:
        """Protect the held-out tasks of another environment from now on. The archive is kept.

        Args:
            base: base tasks of the environment, which join the archive.
            held_out: held-out tasks of the environment.
        """
        self.remember(base)
        self.held_out = Archive()
        self.protect(held_out)

    def admit(self, contexts: Sequence[Context], generations: Sequence[Generation]) -> list[Proposal]:
        """Return the task or rejection for each generation, in order. Accepted tasks join the archive.

        If tasks are only candidates (`curriculum.candidates`), they are compared with the archive and each
        other. Then `remember` adds those that are rolled out, and a candidate that was not chosen may come
        again.
        """
        return [self.examine(built) for built in self.build(contexts, generations)]

    def build(self, contexts: Sequence[Context], generations: Sequence[Generation]) -> Iterator[Proposal]:
        """Yield each generation as a task, or as a rejection if it is no spec or does not execute.

        Nothing else is checked: `examine` does that, in any order.
        """
        self._candidates = Archive()
        by_id = {context.id: context for context in contexts}
        for generation in generations:
            outcome = self._build(by_id[generation.context_id], generation)
            yield Proposal(generation=generation, outcome=outcome)
            advance(items=1)

    def examine(self, proposal: Proposal) -> Proposal:
        """Return what `build` yielded after all further checks. An accepted task joins the archive."""
        task, generation = proposal.outcome, proposal.generation
        if isinstance(task, Rejection):
            return proposal
        if (rejection := self._examined(task)) is not None:
            return Proposal(generation=generation, outcome=rejection)
        surface = self.env.surface(task)
        similarity, nearest = self.held_out.nearest(surface)
        # Under all settings: otherwise held-out results would mean nothing.
        if similarity >= HELD_OUT_SIMILARITY:
            sentence = f"It shares {similarity:.0%} of its words with held-out {nearest}."
            return Proposal(generation=generation, outcome=Rejection(RejectReason.HELD_OUT, sentence))
        known = self.archive
        similarity, nearest = known.nearest(surface)
        if self.config.candidates > 1:
            known = self._candidates
            similarity, nearest = max((similarity, nearest), known.nearest(surface), key=lambda one: one[0])
        if 1 - similarity < self.config.novelty_threshold - _ROUNDING:
            sentence = f"It shares {similarity:.0%} of its words with {nearest}."
            duplicate = Rejection(RejectReason.DUPLICATE, sentence)
            return Proposal(generation=generation, outcome=duplicate, novelty=1 - similarity)
        known.add(task.id, surface)
        return Proposal(generation=generation, outcome=task, novelty=1 - similarity)

    def _examined(self, task: Task) -> Rejection | None:
        """Run the checks that the settings request, a user-defined check last."""
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
        rng = generator(self.seed, "build", generation.stream or generation.id)
        return self.env.build(spec, task_id=f"task-{generation.id}", lineage=lineage, rng=rng)


def examined(env: Environment, task: Task, rng: random.Random) -> Rejection | None:
    """Run all checks of the gate except novelty; return the rejection, or None if the task passes.

    A known demonstration must pass, with the same verdict twice. No replies, an empty reply and random
    replies must fail. The environment's audit comes last.
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
    """Return a spec as a context and a generation, as if a simulator had written it, to test a gate."""
    context = Context(id=context_id, round=1, seed=seed, messages=())
    return context, Generation(id=generation_id, context_id=context_id, text=text, finished=True)


def parse_spec(model: type[BaseModel], generation: Generation) -> BaseModel | Rejection:
    """Parse a generation's text as a spec of the environment, by JSON and schema, without executing it."""
    if not generation.finished:
        sentence = f"The spec was not finished within {len(generation.token_ids)} tokens."
        return Rejection(RejectReason.UNFINISHED, sentence)
    if (length := len(generation.text)) > MAX_SPEC_CHARS:
        sentence = f"The spec has {length:,} characters, and {MAX_SPEC_CHARS:,} are read at most."
        return Rejection(RejectReason.SYNTAX, sentence)
    try:
        data: object = json.loads(generation.text)
    except (ValueError, RecursionError) as error:
        return Rejection(RejectReason.SYNTAX, f"It is not JSON: {error}.")
    return parsed_spec(model, data)


def base_task(env: Environment, seed_id: str, spec: JsonObject, *, seed: int) -> Task | Rejection:
    """Return a seed as a task, or the reason for which it is not one."""
    lineage = Lineage(origin=Origin.SEED, seed_id=seed_id)
    rng = generator(seed, "base", seed_id)
    return env.build(read_base(env, spec), task_id=f"base-{seed_id}", lineage=lineage, rng=rng)


def base_tasks(env: Environment, seeds: Sequence[Seed], *, seed: int) -> dict[str, Task]:
    """Return the seeds that are valid tasks, by seed id."""
    return dict(each_base_task(env, seeds, seed=seed))


def each_base_task(env: Environment, seeds: Iterable[Seed], *, seed: int) -> Iterator[tuple[str, Task]]:
    """Yield the seeds that are valid tasks, with their ids. Each is built when it is asked for."""
    for item in seeds:
        task = base_task(env, item.id, item.spec, seed=seed)
        advance(items=1)
        if isinstance(task, Task):
            yield item.id, task
