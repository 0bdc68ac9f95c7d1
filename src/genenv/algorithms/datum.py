"""The interface between algorithms and trainers: update batches of token sequences, and who executes them.

An algorithm gives credit and never sees a model; a trainer executes it and never sees a task.

Shapes: T = tokens of a completion.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol

from genenv.algorithms.settings import Moments
from genenv.types import Choices, JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Datum:
    """One token sequence to learn from, with a weight for each token."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]  # [T]
    weights: tuple[float, ...]  # [T] what a token counts in the loss, w >= 0; 0: not at all
    loss: str
    """Name of its loss: one of `genenv.algorithms.losses.LOSSES`, or `module:function`."""
    advantages: tuple[float, ...] | None = None  # [T] A of a policy gradient
    old_logprobs: tuple[float, ...] | None = None  # [T] nats, when it was sampled; of a policy gradient
    """None: as it is when the update begins."""
    temperature: float = 1.0
    """At which likelihoods are taken; that of the sampling when a policy learns from its own samples."""
    schema: JsonObject | None = None
    """Of the grammar under which likelihoods are taken; None: among all tokens."""
    choices: tuple[Choices, ...] = ()
    """Of replies in it that had to be one of some: likelihoods are taken among these."""
    version: int | None = None
    """Of the weights that sampled it; None where no model did."""

    @property
    def tokens(self) -> int:
        """How many tokens count."""
        return len(self.weights) - self.weights.count(0.0)

    @property
    def is_policy_gradient(self) -> bool:
        """Whether it is learned by rewards, from advantages, and not by imitation."""
        return self.loss != "nll"


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """What holds for all data of an update."""

    clip_low: float = 0.2
    """Ratios below 1 minus this are clipped."""
    clip_high: float = 0.2
    """Ratios above 1 plus this are clipped."""
    kl_coefficient: float = 0.0
    """Weight of the KL term to the reference, the weights as they were when co-evolution started."""
    kl: Literal["k3", "exact"] = "exact"
    """`k3`: estimated from the sampled tokens of `ppo` data, weighted like their loss; measured on some of
    them where its coefficient is 0. `exact`: over the vocabulary, or what the grammar allows of it, as a mean
    over all tokens that count."""
    entropy_coefficient: float = 0.0
    """What is taken off the loss for each nat of entropy of what could be sampled in the place of a token of
    `ppo` data, at its temperature and under its grammar; weighted like their loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateBatch:
    """All data of one update of a policy, and how a trainer applies them; nothing of tasks."""

    units: Sequence[Sequence[Datum]]
    """Data that stay together in one step, such as the rollouts of one task."""
    objective: Objective
    steps: int = 1
    """The units are shared out evenly among so many steps, in random order."""
    epochs: int = 1
    """How often all of them are gone through."""
    coefficients: Mapping[str, float] | None = None
    """In each step the weights of each loss are scaled to this sum (`averaged`); None: they stay."""
    loss_tokens: float | None = None
    """With `coefficients`: weights of policy gradients are divided by this times the number of sequences in
    the step, in the place of their sum (Dr. GRPO, arXiv:2503.20783); None: by their sum."""
    cap: float | None = None
    """How far the update may take the weights, mean KL in nats per token (`trust_region`); None: far."""
    importance_cap: float | None = None
    """Advantages of `ppo` are weighted by importance, at most by so much (`importance`); None: not at all."""
    cap_retries: int = 0
    """How often a step that goes too far is halved before it is left out."""

    @property
    def data(self) -> list[Datum]:
        """All of it."""
        return [datum for unit in self.units for datum in unit]


def averaged(
    data: Sequence[Datum], coefficients: Mapping[str, float], loss_tokens: float | None = None
) -> list[Datum]:
    """Scale weights so that those of each loss add up to its coefficient: each becomes a weighted mean.

    Args:
        data: of a step.
        coefficients: by loss.
        loss_tokens: tokens that each policy-gradient sequence counts as, whatever its length; None: its own.
    """
    totals: defaultdict[str, float] = defaultdict(float)
    for datum in data:
        fixed = loss_tokens if datum.is_policy_gradient else None
        totals[datum.loss] += math.fsum(datum.weights) if fixed is None else fixed
    scales = {loss: coefficients[loss] / total for loss, total in totals.items() if total}
    return [
        replace(datum, weights=tuple(weight * scales.get(datum.loss, 0.0) for weight in datum.weights))
        for datum in data
    ]


class Trainer(Protocol):
    """Updates the weights of one policy. A step applies whole, or raises `UpdateSkipped` and changes none."""

    async def forward_backward(self, data: Sequence[Datum], objective: Objective) -> Mapping[str, float]:
        """Accumulate the gradient of the loss over data.

        Returns:
            `loss` (KL term included), `tokens` that count; and where there is such a thing `kl` to the
            reference and `entropy` (nats per token), `clip_rate`, and `old_kl`: KL(pi_old || pi) by k3 over
            the tokens of `ppo` data, summed with their weights.

        Raises:
            UpdateSkipped: the loss is not finite; no gradient is kept.
        """
        ...

    async def step(self, learning_rate: float) -> Mapping[str, float]:
        """One step along the accumulated gradient, which is then forgotten.

        Returns:
            `grad_norm`, before it is clipped.

        Raises:
            UpdateSkipped: the gradient is not finite.
        """
        ...

    async def watch(self, data: Sequence[Datum]) -> None:
        """From here on `moved` measures how far the weights go, by what they would sample in these places."""
        ...

    async def moved(self) -> float:
        """Mean KL(now || when `watch` was called) over the tokens of its data, exact. Nats."""
        ...

    async def shorten(self, fraction: float) -> None:
        """Take part of the last step back: the weights are then where `fraction` of it leads.

        AdamW's step is linear in the learning rate, so that is the step of a smaller one.
        """
        ...

    async def logprobs(self, data: Sequence[Datum], *, reference: bool = False) -> list[tuple[float, ...]]:
        """[T] of each datum: log-probabilities of its completion, now or under the reference. Nats."""
        ...

    async def anchor(self, moments: Moments) -> None:
        """Make the present weights the reference, and go on with these moments: the warm-up is over."""
        ...

    async def publish(self) -> int:
        """Let the sampler see the present weights; returns their version, one more than before."""
        ...

    async def save(self, folder: Path) -> None:
        """Write weights, reference, optimizer and version into a folder."""
        ...

    async def load(self, folder: Path) -> None:
        """Restore exactly what `save` wrote.

        Raises:
            DataError: the folder is damaged, or of another model.
        """
        ...
