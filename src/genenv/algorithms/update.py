"""An update: a lesson in, steps of a trainer out. The same for every algorithm."""

from __future__ import annotations

import itertools
import logging
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from genenv.algorithms.datum import Datum, Lesson, averaged
from genenv.algorithms.importance import Mismatch, corrected
from genenv.algorithms.trainer import Trainer
from genenv.algorithms.trust_region import TrustRegion, probe
from genenv.errors import UpdateSkipped
from genenv.progress import aside

log = logging.getLogger(__name__)

T = TypeVar("T")


@dataclass(slots=True)
class Done:
    """What an update has come to."""

    player: str
    """Whose update it is."""
    steps: int = 0
    skipped: int = 0
    sums: dict[str, float] = field(default_factory=dict[str, float])
    measured: Counter[str] = field(default_factory=Counter[str])
    region: TrustRegion | None = None
    mismatch: Mismatch = field(default_factory=Mismatch)
    """Between what sampled and what learns: over all tokens where that is weighed, else over those of the
    first step."""

    def note(self, metrics: Mapping[str, float]) -> None:
        """One more step, with what was measured in it."""
        self.steps += 1
        for name, value in metrics.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
            self.measured[name] += 1

    def warn(self) -> None:
        """Say it where what sampled and what learns are too far apart."""
        if (problem := self.mismatch.alarm(self.player)) is not None:
            log.warning("%s", problem)

    def metrics(self) -> dict[str, float]:
        """The player's metrics: means over the steps that measured something, and counts."""
        player = self.player
        shown = [name for name in ("loss", "kl", "entropy", "grad_norm", "clip_rate") if name in self.sums]
        found = {f"{player}/{name}": self.sums[name] / self.measured[name] for name in shown}
        if self.region is not None:
            found |= {f"{player}/kl_step": self.region.moved} if self.steps else {}
            found[f"{player}/kl_retries"] = float(self.region.halved)
        return found | {
            **self.mismatch.metrics(player),
            f"{player}/steps": float(self.steps),
            f"{player}/skipped_updates": float(self.skipped),
            f"tokens/{player}_trained": self.sums.get("tokens", 0.0),
            "tokens/trained": self.sums.get("tokens", 0.0),
        }


async def learn(trainer: Trainer, lesson: Lesson, *, player: str, learning_rate: float, seed: int) -> Done:
    """Take a lesson; what came of it is not published. A step that cannot be made is skipped and counted.

    Args:
        trainer: executes.
        lesson: what there is to learn; nothing at all counts as one skipped step.
        player: whose update it is, for metrics and messages.
        learning_rate: of all steps.
        seed: shuffles the units.
    """
    done, order = Done(player, skipped=int(not lesson.units)), random.Random(seed)
    if lesson.cap is not None:
        done.region = TrustRegion(cap=lesson.cap, retries=lesson.cap_retries)
        if lesson.units:
            await trainer.watch(probe(lesson.data))
    units = await _compared(trainer, lesson, done.mismatch)
    done.warn()
    compares = lesson.importance_cap is None and all(d.old_logprobs is not None for d in _sampled(lesson))
    for _ in range(lesson.epochs):
        for part in evenly(order.sample(units, len(units)), lesson.steps):
            data = [datum for unit in part for datum in unit]
            if lesson.coefficients is not None:
                data = averaged(data, lesson.coefficients)
            try:
                measured = await trainer.forward_backward(data, lesson.objective)
                if compares:  # the first pass alone: no weight has changed since the update began
                    compares = False
                    done.mismatch.note_step(data, measured)
                    done.warn()
                region = done.region
                step = trainer.step(learning_rate) if region is None else region.step(trainer, learning_rate)
                done.note({**measured, **await step})
            except UpdateSkipped as reason:
                log.warning("an update of the %s was skipped: %s", player, reason)
                done.skipped += 1
    return done


async def _compared(trainer: Trainer, lesson: Lesson, mismatch: Mismatch) -> Sequence[Sequence[Datum]]:
    """The units with ratios to the log-probabilities of now: where none are known, or all are weighed."""
    cap = lesson.importance_cap
    wanting = [d for d in _sampled(lesson) if cap is not None or d.old_logprobs is None]
    if not wanting:
        return lesson.units
    with aside():  # it is the steps that progress counts
        values = await trainer.logprobs(wanting)
    found = dict(zip(map(id, wanting), values, strict=True))

    def compared(datum: Datum) -> Datum:
        now = found.get(id(datum))
        if now is None:
            return datum
        if cap is None or datum.old_logprobs is None:
            return replace(datum, old_logprobs=now)
        return corrected(datum, now, cap, mismatch)

    return [[compared(datum) for datum in unit] for unit in lesson.units]


def _sampled(lesson: Lesson) -> list[Datum]:
    return [datum for datum in lesson.data if datum.loss == "ppo"]


def evenly(items: Sequence[T], parts: int) -> list[Sequence[T]]:
    """Cut a sequence into that many parts, whose sizes differ by one at most; none of them is empty."""
    parts = min(parts, len(items))
    cuts = [len(items) * i // parts for i in range(parts + 1)] if parts else []
    return [items[start:end] for start, end in itertools.pairwise(cuts)]
