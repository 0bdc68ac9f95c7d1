"""One optimizer update from an update batch: steps, KL cap, importance weights, learning rates.

Truncated importance sampling corrects for rollouts of other weights, or of a sampler with other arithmetic:

    L_t = -min(rho_t A, clip(rho_t) A) min(pi_0(t) / mu(t), C),    rho_t = pi(t) / pi_0(t)

mu is the policy that sampled, by its own log-probabilities; pi_0 is the trained policy when the update
begins. The cap C bounds what one token can do to the gradient (TIS: Yao et al. 2025, "Your efficient RL
framework secretly brings you off-policy RL training"; decoupled PPO: Hilton et al., arXiv:2110.00641).

The KL cap is measured from where the update began, over all its steps. A step that exceeds it is halved,
again and again; after `cap_retries` halvings it is undone and counted as skipped.

Shapes: T = tokens of a completion.
"""

from __future__ import annotations

import itertools
import logging
import math
import random
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeVar

from genenv.algorithms.datum import Datum, Trainer, UpdateBatch, averaged
from genenv.algorithms.losses import held, k3
from genenv.errors import UpdateSkipped
from genenv.progress import aside

PROBE_TOKENS = 384
"""On how many completion tokens the distance is measured."""


@dataclass(slots=True, kw_only=True)
class TrustRegion:
    """Makes the steps of one update, after `Trainer.watch`."""

    cap: float
    """Mean KL(now || at the start of the update), nats per token."""
    retries: int
    """How often a step may be halved."""
    halved: int = 0
    """How often one was, so far."""
    moved: float = 0.0
    """How far the steps have gone, all together."""

    async def step(self, trainer: Trainer, learning_rate: float) -> Mapping[str, float]:
        """One step that stays within the cap.

        Raises:
            UpdateSkipped: the gradient is not finite, or even the smallest step goes too far.
        """
        measured = await trainer.step(learning_rate)
        for halvings in range(self.retries + 1):
            if halvings:
                self.halved += 1
                await trainer.shorten(0.5**halvings)
            moved = await trainer.moved()
            if moved <= self.cap:
                self.moved = moved
                return measured
        await trainer.shorten(0.0)
        raise UpdateSkipped(
            f"even the smallest step takes it further than {self.cap:g} nats per token in an update"
        )


def probe(data: Sequence[Datum]) -> list[Datum]:
    """Some of the data to measure the distance on: one of each prompt, the heaviest first, then a second one.

    Returns:
        At least one, and then as many as have `PROBE_TOKENS` tokens together.
    """
    seen: Counter[tuple[int, ...]] = Counter()
    turns: list[tuple[int, float, Datum]] = []
    for datum in sorted(data, key=lambda datum: -max(datum.weights)):
        turns.append((seen[datum.prompt_ids], -max(datum.weights), datum))
        seen[datum.prompt_ids] += 1
    some: list[Datum] = []
    for _, _, datum in sorted(turns, key=lambda turn: turn[:2]):
        if some and sum(len(s.completion_ids) for s in [*some, datum]) > PROBE_TOKENS:
            break
        some.append(datum)
    return some


ALARM = 0.05
"""Nats a token. Rounding makes 1e-13 in float32 and about 1e-3 in bfloat16."""


@dataclass(slots=True)
class Mismatch:
    """How far apart those who sampled and those who learn are, over the tokens that count."""

    tokens: int = 0
    kl: float = 0.0
    weighed: int = 0
    """Tokens whose advantages were weighted by importance."""
    importance: float = 0.0
    capped: int = 0

    def note(self, datum: Datum, now_T: Sequence[float]) -> None:
        """Take in a datum that was sampled: KL(mu || pi_0) by k3.

        Args:
            datum: with what its sampler said.
            now_T: log-probabilities of its tokens when the update begins. Nats.
        """
        for now, then, counts in zip(now_T, datum.old_logprobs or (), datum.weights, strict=True):
            if counts > 0:
                self.tokens += 1
                self.kl += k3(then, now)

    def note_step(self, data: Sequence[Datum], measured: Mapping[str, float]) -> None:
        """Take in the first step of an update: its pass compares what sampled and what learns as well.

        Args:
            data: of the step, with what their sampler said.
            measured: what `Trainer.forward_backward` returned, before any weight has changed.
        """
        sampled = [datum for datum in data if datum.is_policy_gradient]
        weight = math.fsum(w for datum in sampled for w in datum.weights)
        if weight > 0 and "old_kl" in measured:
            tokens = sum(datum.tokens for datum in sampled)
            self.tokens += tokens
            self.kl += tokens * measured["old_kl"] / weight

    def metrics(self, player: str) -> dict[str, float]:
        """Means over tokens; nothing where none was compared."""
        found = {f"{player}/mismatch_kl": self.kl / self.tokens} if self.tokens else {}
        if self.weighed:
            found[f"{player}/importance_ratio"] = self.importance / self.weighed
            found[f"{player}/importance_capped"] = self.capped / self.weighed
        return found

    def alarm(self, player: str) -> str | None:
        """What to do about a mismatch that spoils the gradient; None where it is small."""
        nats = self.kl / max(1, self.tokens)
        if nats <= ALARM:
            return None
        weigh = "" if self.weighed else f"{player}.importance_cap = 2 weighs tokens by importance, "
        return (
            f"what samples for the {player} and what trains it disagree by {nats:.2g} nats a token "
            f"({player}/mismatch_kl; above {ALARM:g} the gradient is of another policy): {weigh}"
            "policy.dtype = 'float32' makes both more exact, and run.staleness = 0 keeps both at one version"
        )


def corrected(datum: Datum, now_T: Sequence[float], cap: float, noted: Mismatch) -> Datum:
    """A datum of `ppo` whose advantages are weighted by importance, and whose ratios are to now.

    Args:
        datum: with advantages, and with what its sampler said.
        now_T: log-probabilities of its tokens when the update begins. Nats.
        cap: C, the largest weight.
        noted: takes in how far apart they are, the mean weight, and how many are at the cap.
    """
    assert datum.advantages is not None and datum.old_logprobs is not None  # noqa: PT018, S101
    noted.note(datum, now_T)
    weights_T: list[float] = []
    for now, then, counts in zip(now_T, datum.old_logprobs, datum.weights, strict=True):
        ratio = math.exp(held(now - then))
        weights_T.append(min(ratio, cap))
        if counts > 0:
            noted.weighed += 1
            noted.importance += weights_T[-1]
            noted.capped += ratio > cap
    advantages = tuple(a * w for a, w in zip(datum.advantages, weights_T, strict=True))
    return replace(datum, advantages=advantages, old_logprobs=tuple(now_T))


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
        """The policy's metrics: means over the steps that measured something, and counts."""
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


async def learn(
    trainer: Trainer, batch: UpdateBatch, *, player: str, learning_rate: float, seed: int
) -> Done:
    """Apply an update batch, without publishing. A step that cannot be made is skipped and counted.

    Args:
        trainer: executes.
        batch: what there is to learn; nothing at all counts as one skipped step.
        player: whose update it is, for metrics and messages.
        learning_rate: of all steps.
        seed: shuffles the units.
    """
    done, order = Done(player, skipped=int(not batch.units)), random.Random(seed)
    if batch.cap is not None:
        done.region = TrustRegion(cap=batch.cap, retries=batch.cap_retries)
        if batch.units:
            await trainer.watch(probe(batch.data))
    units = await _compared(trainer, batch, done.mismatch)
    done.warn()
    compares = batch.importance_cap is None and all(d.old_logprobs is not None for d in _sampled(batch))
    for _ in range(batch.epochs):
        for part in evenly(order.sample(units, len(units)), batch.steps):
            data = [datum for unit in part for datum in unit]
            if batch.coefficients is not None:
                data = averaged(data, batch.coefficients, batch.loss_tokens)
            try:
                measured = await trainer.forward_backward(data, batch.objective)
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


async def _compared(trainer: Trainer, batch: UpdateBatch, mismatch: Mismatch) -> Sequence[Sequence[Datum]]:
    """The units with ratios to the log-probabilities of now: where none are known, or all are weighed."""
    cap = batch.importance_cap
    wanting = [d for d in _sampled(batch) if cap is not None or d.old_logprobs is None]
    if not wanting:
        return batch.units
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

    return [[compared(datum) for datum in unit] for unit in batch.units]


def _sampled(batch: UpdateBatch) -> list[Datum]:
    return [datum for datum in batch.data if datum.is_policy_gradient]


def evenly(items: Sequence[T], parts: int) -> list[Sequence[T]]:
    """Cut a sequence into that many parts, whose sizes differ by one at most; none of them is empty."""
    parts = min(parts, len(items))
    cuts = [len(items) * i // parts for i in range(parts + 1)] if parts else []
    return [items[start:end] for start, end in itertools.pairwise(cuts)]
