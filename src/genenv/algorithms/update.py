"""Applies an update batch: optimizer steps, KL cap, importance weights, mismatch metrics.

Truncated importance sampling corrects for rollouts that older weights, or another numerical precision,
sampled:

    L_t = -min(rho_t A, clip(rho_t) A) min(pi_0(t) / mu(t), C),    rho_t = pi(t) / pi_0(t)

mu is the sampling policy, given by the log-probabilities that the sampler returned. pi_0 is the trained
policy at the start of the update. The cap C bounds the effect of one token on the gradient (TIS: Yao et al.
2025, "Your efficient RL framework secretly brings you off-policy RL training"; decoupled PPO: Hilton et al.,
arXiv:2110.00641).

The KL is measured from the start of the update, over all its steps. A step that exceeds the cap is halved
repeatedly. After `cap_retries` halvings it is undone and counted as skipped.

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

from genenv.algorithms.datum import Critic, Datum, Objective, Trainer, UpdateBatch, averaged
from genenv.algorithms.losses import held, k3
from genenv.algorithms.settings import Schedule
from genenv.errors import UpdateSkipped, UsageError
from genenv.progress import aside

PROBE_TOKENS = 384
"""Number of completion tokens on which the KL is measured."""


@dataclass(slots=True, kw_only=True)
class TrustRegion:
    """Takes the steps of one update within a KL cap. Call `Trainer.watch` first."""

    cap: float
    """Maximum mean KL(now || at the start of the update), nats per token."""
    retries: int
    """How often each step may be halved."""
    halved: int = 0
    """Number of halvings so far."""
    moved: float = 0.0
    """KL after all steps so far."""

    async def step(self, trainer: Trainer, learning_rate: float) -> Mapping[str, float]:
        """Take one step that stays within the cap; return the metrics of `Trainer.step`.

        Raises:
            UpdateSkipped: the gradient is not finite, or even the smallest step exceeds the cap.
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
    """Select data on which the KL is measured: the heaviest datum of each prompt, then second ones.

    Returns:
        At least one datum, and as many more as fit into `PROBE_TOKENS` completion tokens.
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
"""Nats per token. Rounding causes 1e-13 in float32 and about 1e-3 in bfloat16."""


@dataclass(slots=True)
class Mismatch:
    """The difference between the sampling policy and the trained policy, over the tokens with a weight."""

    tokens: int = 0
    kl: float = 0.0
    weighed: int = 0
    """Tokens whose advantages were weighted by importance."""
    importance: float = 0.0
    capped: int = 0

    def note(self, datum: Datum, now_T: Sequence[float]) -> None:
        """Add a sampled datum: KL(mu || pi_0) by k3.

        Args:
            datum: its `old_logprobs` are those of the sampler.
            now_T: log-probabilities of its tokens at the start of the update. Nats.
        """
        for now, then, counts in zip(now_T, datum.old_logprobs or (), datum.weights, strict=True):
            if counts > 0:
                self.tokens += 1
                self.kl += k3(then, now)

    def note_step(self, data: Sequence[Datum], measured: Mapping[str, float]) -> None:
        """Add the first step of an update, whose forward pass already compares sampler and trainer.

        Args:
            data: data of the step; their `old_logprobs` are those of the sampler.
            measured: result of `Trainer.forward_backward`, before any weight has changed.
        """
        sampled = [datum for datum in data if datum.is_policy_gradient]
        weight = math.fsum(w for datum in sampled for w in datum.weights)
        if weight > 0 and "old_kl" in measured:
            tokens = sum(datum.tokens for datum in sampled)
            self.tokens += tokens
            self.kl += tokens * measured["old_kl"] / weight

    def metrics(self, player: str) -> dict[str, float]:
        """Return means over tokens, by metric name; empty if no token was compared."""
        found = {f"{player}/mismatch_kl": self.kl / self.tokens} if self.tokens else {}
        if self.weighed:
            found[f"{player}/importance_ratio"] = self.importance / self.weighed
            found[f"{player}/importance_capped"] = self.capped / self.weighed
        return found

    def alarm(self, player: str) -> str | None:
        """Return a warning if the mismatch is large enough to spoil the gradient, otherwise None."""
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
    """Return a datum with importance-weighted advantages, whose ratios refer to the present weights.

    Args:
        datum: policy-gradient data, with advantages and with the sampler's `old_logprobs`.
        now_T: log-probabilities of its tokens at the start of the update. Nats.
        cap: C, the largest weight.
        noted: collects the mismatch, the mean weight, and the number of capped weights.
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
    """The result of an update: counts and metrics of its steps."""

    player: str
    """The policy that was updated: `agent` or `simulator`."""
    steps: int = 0
    skipped: int = 0
    sums: dict[str, float] = field(default_factory=dict[str, float])
    measured: Counter[str] = field(default_factory=Counter[str])
    region: TrustRegion | None = None
    mismatch: Mismatch = field(default_factory=Mismatch)
    """Difference between sampler and trainer. It covers all tokens if importance weights are used, otherwise
    only the tokens of the first step."""

    def note(self, metrics: Mapping[str, float]) -> None:
        """Add a step and its metrics."""
        self.steps += 1
        for name, value in metrics.items():
            self.sums[name] = self.sums.get(name, 0.0) + value
            self.measured[name] += 1

    def warn(self) -> None:
        """Log a warning if sampler and trainer differ too much."""
        if (problem := self.mismatch.alarm(self.player)) is not None:
            log.warning("%s", problem)

    def metrics(self) -> dict[str, float]:
        """Return the policy's metrics: counts, and means over the steps that measured a value."""
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
    """Apply an update batch without publishing the weights. A step that fails is skipped and counted.

    Args:
        trainer: executes the steps.
        batch: the data; an empty batch counts as one skipped step.
        player: the policy, `agent` or `simulator`, for metrics and messages.
        learning_rate: the learning rate of all steps.
        seed: seed of the order of the units.

    Returns:
        The counts and metrics of the steps.
    """
    done, order = Done(player, skipped=int(not batch.units)), random.Random(seed)
    if batch.cap is not None:
        done.region = TrustRegion(cap=batch.cap, retries=batch.cap_retries)
        if batch.units:
            await trainer.watch(probe(batch.data))
    scatters = len(batch.units) < batch.steps and any(d.advantages is None for d in _sampled(batch))
    batch = await _judged(trainer, batch)
    units = await _compared(trainer, batch, done.mismatch)
    done.warn()
    compares = batch.importance_cap is None and all(d.old_logprobs is not None for d in _sampled(batch))
    for _ in range(batch.epochs):
        parts = evenly(order.sample(units, len(units)), batch.steps)
        for part in _scattered(units, batch.steps, order) if scatters else parts:
            data = [datum for unit in part for datum in unit]
            if batch.coefficients is not None:
                data = averaged(data, batch.coefficients, batch.loss_tokens)
            try:
                measured = await trainer.forward_backward(data, batch.objective)
                if compares:  # only the first pass: no weight has changed since the update began
                    compares = False
                    done.mismatch.note_step(data, measured)
                    done.warn()
                region = done.region
                step = trainer.step(learning_rate) if region is None else region.step(trainer, learning_rate)
                if batch.loss_tokens is not None:
                    measured = _per_token(measured, data, batch.objective)
                done.note({**measured, **await step})
            except UpdateSkipped as reason:
                log.warning("an update of the %s was skipped: %s", player, reason)
                done.skipped += 1
    return done


def _per_token(
    measured: Mapping[str, float], data: Sequence[Datum], objective: Objective
) -> Mapping[str, float]:
    """Return a step's metrics as means over tokens, where the weights of policy gradients do not add up to 1.

    A KL that is only measured, with coefficient 0, is a mean already.
    """
    weight = math.fsum(w for datum in data if datum.is_policy_gradient for w in datum.weights)
    names = ["entropy", "clip_rate", *(["kl"] if objective.kl == "k3" and objective.kl_coefficient else [])]
    return {**measured, **{name: measured[name] / weight for name in names if name in measured and weight}}


async def _judged(trainer: Trainer, batch: UpdateBatch) -> UpdateBatch:
    """Return the batch with advantages of the trainer's value function where the algorithm left them out."""
    wanting = [datum for datum in _sampled(batch) if datum.advantages is None]
    if not wanting:
        return batch
    if not isinstance(trainer, Critic):
        raise UsageError(
            "an algorithm of your own left out advantages, which only the value function of policy.backend "
            "'ppo' computes: give each Datum of a policy gradient its advantages"
        )
    values = await trainer.advantages(wanting)
    found = {id(datum): replace(datum, advantages=own) for datum, own in zip(wanting, values, strict=True)}
    units = [[found.get(id(datum), datum) for datum in unit] for unit in batch.units]
    return replace(batch, units=units)


def _scattered(units: Sequence[Sequence[Datum]], steps: int, order: random.Random) -> list[list[list[Datum]]]:
    """Divide the tokens of all units evenly among steps, in random order: PPO's minibatches of time steps."""
    data = [datum for unit in units for datum in unit]
    places = [(i, t) for i, datum in enumerate(data) for t, weight in enumerate(datum.weights) if weight > 0]
    order.shuffle(places)
    parts = list[list[list[Datum]]]()
    for some in evenly(places, steps):
        weights = {i: [0.0] * len(data[i].weights) for i, _ in some}
        for i, t in some:
            weights[i][t] = data[i].weights[t]
        own = [(data[i], replace(data[i], weights=tuple(row))) for i, row in weights.items()]
        parts.append([[replace(part, share=all_.share * part.tokens / all_.tokens) for all_, part in own]])
    return parts


async def _compared(trainer: Trainer, batch: UpdateBatch, mismatch: Mismatch) -> Sequence[Sequence[Datum]]:
    """Return the units, with `old_logprobs` recomputed if they are missing or importance weights are on."""
    cap = batch.importance_cap
    wanting = [d for d in _sampled(batch) if cap is not None or d.old_logprobs is None]
    if not wanting:
        return batch.units
    with aside():  # progress counts only the steps
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
    """Cut a sequence into that many nonempty parts of nearly equal size; into fewer if it is too short."""
    parts = min(parts, len(items))
    cuts = [len(items) * i // parts for i in range(parts + 1)] if parts else []
    return [items[start:end] for start, end in itertools.pairwise(cuts)]


LOWEST = 0.1
"""The factor of the learning rate at the end of every decreasing schedule."""


def lr_scale(schedule: Schedule, round_: int, rounds: int) -> float:
    """Return the learning-rate factor of a round: always 1, or falling linearly from 1 to 0.1.

    Rounds are numbered from 1; the last round has the factor 0.1.
    """
    if schedule == "constant":
        return 1.0
    return _between(1 - (round_ - 1) / max(1, rounds - 1))


def warmup_lr_scale(decay: float, step: int, steps: int) -> float:
    """Return the learning-rate factor of a warm-up step: 1, then falling linearly to 0.1 at the last step.

    Args:
        decay: share of the steps, at the end, over which the factor falls; 0 for none.
        step: number of the step, from 1.
        steps: total number of steps.
    """
    return _between(min(1.0, (steps - step) / (steps * decay)) if decay else 1.0)


def _between(left: float) -> float:
    """Interpolate linearly from 1, if the whole way is left, to `LOWEST`, if none is."""
    return LOWEST + (1 - LOWEST) * max(0.0, left)
