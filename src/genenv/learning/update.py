"""An update: credit in, steps of a trainer out. The same for every algorithm."""

from __future__ import annotations

import itertools
import logging
import random
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

from genenv.errors import UpdateSkipped
from genenv.learning.datum import Datum, Objective
from genenv.learning.trainer import Trainer

log = logging.getLogger(__name__)

T = TypeVar("T")
Unit = Sequence[Datum]
"""Data that stay together in one step, such as the attempts at one task."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Steps:
    """How often data are gone through, and in how many steps."""

    learning_rate: float
    epochs: int = 1
    per_epoch: int = 1
    """The units are shared out evenly among so many steps, in random order."""


@dataclass(slots=True)
class Done:
    """What an update has come to."""

    steps: int = 0
    skipped: int = 0
    sums: dict[str, float] = field(default_factory=dict)
    measured: Counter[str] = field(default_factory=Counter)

    def note(self, metrics: Mapping[str, float]) -> None:
        """One more step, with what was measured in it."""
        self.steps += 1
        for name, value in metrics.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
            self.measured[name] += 1

    def means(self, *names: str) -> dict[str, float]:
        """Of what was measured, over the steps that measured it."""
        return {name: self.sums[name] / self.measured[name] for name in names if name in self.sums}


Arrange = Callable[[Sequence[Datum]], Sequence[Datum]]
"""Gives the data of one step the weights that they have there."""
Step = Callable[[Trainer, float], Awaitable[Mapping[str, float]]]
"""Makes the step of a trainer, at a learning rate."""


async def plain_step(trainer: Trainer, learning_rate: float) -> Mapping[str, float]:
    """The step as it comes."""
    return await trainer.step(learning_rate)


async def update(  # noqa: PLR0913 - an update is what these six say
    trainer: Trainer,
    units: Sequence[Unit],
    objective: Objective,
    steps: Steps,
    *,
    seed: int,
    arrange: Arrange = lambda data: data,
    step: Step = plain_step,
) -> Done:
    """Learn from data; a step that cannot be made is skipped and counted.

    Args:
        trainer: executes.
        units: what is shuffled as one.
        objective: what holds for all of it.
        steps: how many, and how long.
        seed: shuffles the units.
        arrange: weighs the data of a step.
        step: makes it.
    """
    done, order = Done(), random.Random(seed)
    for _ in range(steps.epochs):
        for part in evenly(order.sample(units, len(units)), steps.per_epoch):
            data = arrange([datum for unit in part for datum in unit])
            try:
                measured = await trainer.forward_backward(data, objective)
                done.note({**measured, **await step(trainer, steps.learning_rate)})
            except UpdateSkipped as reason:
                log.warning("an update was skipped: %s", reason)
                done.skipped += 1
    return done


def evenly(items: Sequence[T], parts: int) -> list[Sequence[T]]:
    """Cut a sequence into that many parts, whose sizes differ by one at most; none of them is empty."""
    parts = min(parts, len(items))
    cuts = [len(items) * i // parts for i in range(parts + 1)] if parts else []
    return [items[start:end] for start, end in itertools.pairwise(cuts)]
