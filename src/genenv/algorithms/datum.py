"""The interface between algorithms and trainers: `Datum`, `UpdateBatch` and the `Trainer` protocol.

An algorithm assigns credit and never sees a model. A trainer executes updates and never sees a task.

Shapes: T = tokens of a completion.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Sized
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal, Protocol, cast, runtime_checkable

from genenv.algorithms.settings import Moments
from genenv.types import Choices, JsonObject


@dataclass(frozen=True, slots=True, kw_only=True)
class Datum:
    """One token sequence to train on, with a weight for each token."""

    prompt_ids: tuple[int, ...]
    completion_ids: tuple[int, ...]  # [T]
    weights: tuple[float, ...]  # [T] weight of each token in the loss, >= 0; 0: left out
    loss: str
    """Name of the loss: one of `genenv.algorithms.losses.LOSSES`, or `module:function`."""
    advantages: tuple[float, ...] | None = None  # [T] advantages A, for policy gradients
    """None, for policy gradients: the trainer's value function computes them (`Critic`)."""
    old_logprobs: tuple[float, ...] | None = None  # [T] nats, at sampling time; for policy gradients
    """None: use the log-probabilities under the weights at the start of the update."""
    temperature: float = 1.0
    """Temperature of the likelihoods. A policy that trains on its samples uses their sampling temperature."""
    schema: JsonObject | None = None
    """JSON schema of the grammar that masks the likelihoods. None: no mask."""
    choices: tuple[Choices, ...] = ()
    """Replies in the sequence that were constrained to a list. Their likelihoods are normalized over that
    list."""
    share: float = 1.0
    """Share of a rollout that the tokens with a weight are. A rollout may be cut into several sequences, and
    its tokens may be divided among steps."""

    @property
    def tokens(self) -> int:
        """The number of tokens with a weight above 0."""
        return len(self.weights) - self.weights.count(0.0)

    @property
    def is_policy_gradient(self) -> bool:
        """Whether the loss is a policy gradient, which needs advantages, and not supervised (`nll`)."""
        return self.loss != "nll"


@dataclass(frozen=True, slots=True, kw_only=True)
class Objective:
    """The loss parameters that all data of an update share."""

    clip_low: float = 0.2
    """Probability ratios below 1 minus this are clipped."""
    clip_high: float = 0.2
    """Probability ratios above 1 plus this are clipped."""
    kl_coefficient: float = 0.0
    """Weight of the KL term to the reference model, which is the policy when co-evolution started."""
    kl: Literal["k3", "exact"] = "exact"
    """`k3`: estimated from the sampled tokens of policy-gradient data, with the weights of their loss. With
    coefficient 0, the KL is only measured, on some of these tokens. `exact`: computed over the vocabulary, or
    over the tokens that the grammar allows; averaged over all tokens with a weight."""
    entropy_coefficient: float = 0.0
    """Weight of the entropy bonus. It applies to the tokens of policy-gradient data, with the weights of
    their loss. The entropy is that of the sampling distribution, at its temperature and under its grammar, in
    nats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateBatch:
    """All data of one policy update, and how a trainer applies them. It contains nothing about tasks."""

    units: Sequence[Sequence[Datum]]
    """Groups of data that stay together in one optimizer step, such as the rollouts of one task."""
    objective: Objective
    steps: int = 1
    """Optimizer steps per epoch. The units are divided evenly among them, in random order; if there are fewer
    units, and a `Critic` computes the advantages, the tokens of all units are."""
    epochs: int = 1
    """Number of passes over all units."""
    coefficients: Mapping[str, float] | None = None
    """By loss name: the sum to which each step scales the loss's weights (`averaged`). None: no scaling."""
    loss_tokens: float | None = None
    """With `coefficients`: divide the weights of policy gradients by this times the number of rollouts in the
    step, not by their sum (Dr. GRPO, arXiv:2503.20783). None: by their sum."""
    cap: float | None = None
    """Maximum mean KL between the weights before and after the update, in nats per token (`TrustRegion`).
    None: no limit."""
    importance_cap: float | None = None
    """Largest importance weight on the advantages of policy-gradient data (`corrected`). None: no importance
    weights."""
    cap_retries: int = 0
    """How often a step that exceeds `cap` is halved before it is skipped."""

    @property
    def data(self) -> list[Datum]:
        """All data of all units, as one list."""
        return [datum for unit in self.units for datum in unit]


def fault_of(gave: object) -> str:
    """Return what is wrong with the update batch of a user-defined algorithm; empty if nothing is."""
    if not isinstance(gave, UpdateBatch):
        return f"a {type(gave).__name__}"
    units = _listed(gave.units)
    if units is None or not all(map(_is_unit, units)):
        return "units that are no lists of Datum"
    for datum in gave.data:
        rows = (datum.weights, datum.advantages, datum.old_logprobs)
        if any(row is not None and len(row) != len(datum.completion_ids) for row in rows):
            return "a Datum with another number of weights, advantages or old_logprobs than of tokens"
        if gave.coefficients is not None and any(datum.weights) and not _has(gave.coefficients, datum.loss):
            return f"a Datum with the loss {datum.loss!r}, for which `coefficients` has no number"
    return ""


def _is_unit(given: object) -> bool:
    data = _listed(given)
    return data is not None and all(isinstance(datum, Datum) for datum in data)


def _listed(given: object) -> Sequence[object] | None:
    return cast(Sequence[object], given) if isinstance(given, Iterable) and isinstance(given, Sized) else None


def _has(coefficients: Mapping[str, float], loss: str) -> bool:
    try:
        _ = coefficients[loss]  # it may be a mapping with defaults
    except KeyError:
        return False
    return True


def averaged(
    data: Sequence[Datum], coefficients: Mapping[str, float], loss_tokens: float | None = None
) -> list[Datum]:
    """Scale the weights so that they sum to the coefficient of each loss: each loss becomes a weighted mean.

    Args:
        data: the data of one step.
        coefficients: the coefficient of each loss, by name.
        loss_tokens: token count to assume for each rollout; None: the sum of its weights.
    """
    totals: defaultdict[str, float] = defaultdict(float)
    for datum in data:
        fixed = loss_tokens if datum.is_policy_gradient else None
        totals[datum.loss] += math.fsum(datum.weights) if fixed is None else fixed * datum.share
    scales = {loss: coefficients[loss] / total for loss, total in totals.items() if total}
    return [
        replace(datum, weights=tuple(weight * scales.get(datum.loss, 0.0) for weight in datum.weights))
        for datum in data
    ]


class Trainer(Protocol):
    """Updates the weights of one policy. The training backends implement this protocol.

    A step applies as a whole, or raises `UpdateSkipped` and changes nothing.
    """

    async def forward_backward(self, data: Sequence[Datum], objective: Objective) -> Mapping[str, float]:
        """Accumulate the gradient of the loss over data.

        Returns:
            `loss` (KL term included), `tokens` with a weight, and if they apply: `kl` to the reference,
            `entropy` (nats per token), `clip_rate`, and `old_kl`, which is KL(pi_old || pi) by k3 over the
            tokens of policy-gradient data, summed with their weights.

        Raises:
            UpdateSkipped: the loss is not finite; no gradient is kept.
        """
        ...

    async def step(self, learning_rate: float) -> Mapping[str, float]:
        """Take one step along the accumulated gradient and clear the gradient.

        Returns:
            `grad_norm`, before clipping.

        Raises:
            UpdateSkipped: the gradient is not finite.
        """
        ...

    async def watch(self, data: Sequence[Datum]) -> None:
        """Record the present predictions on data, from which `moved` later measures the KL."""
        ...

    async def moved(self) -> float:
        """Return the exact mean KL(now || when `watch` was called) over the tokens of its data. Nats."""
        ...

    async def shorten(self, fraction: float) -> None:
        """Reduce the last step to a fraction of its length, counted from its starting point; 0 undoes it.

        AdamW's step is linear in the learning rate, so the result equals a step with a smaller learning rate.
        """
        ...

    async def logprobs(
        self, data: Sequence[Datum], *, reference: bool = False, written: Path | None = None
    ) -> list[tuple[float, ...]]:
        """Return [T] log-probabilities of each datum's completion, now or under other weights. Nats.

        Args:
            data: prompts and completions.
            reference: under the reference model.
            written: under the weights in a folder of `save`. Only where `Backend.scores_written` holds.
        """
        ...

    async def anchor(self, moments: Moments) -> None:
        """End the warm-up: make the present weights the reference model and keep these optimizer moments."""
        ...

    async def publish(self) -> int:
        """Give the present weights to the sampler; return their version, one more than before."""
        ...

    async def save(self, folder: Path) -> None:
        """Write weights, reference model, optimizer and version into a folder."""
        ...

    async def load(self, folder: Path) -> None:
        """Restore exactly what `save` wrote.

        Raises:
            DataError: the folder is damaged or belongs to another model.
        """
        ...


@runtime_checkable
class Critic(Protocol):
    """Extends `Trainer` for trainers with a value function, which `agent.algorithm = "ppo"` needs."""

    async def advantages(self, data: Sequence[Datum]) -> list[tuple[float, ...]]:
        """Return [T] the advantage of each token of each completion; called once, before the first step.

        The trainer knows the rewards of the steps, and keeps the targets of its value function for the steps
        of this update.
        """
        ...
