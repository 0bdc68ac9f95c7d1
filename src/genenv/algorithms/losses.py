"""Losses by name: what one sampled token adds to the loss of an update. Every trainer executes these.

A loss is a function of `LossTerms` that returns one number per token; a trainer multiplies it by the token's
weight and sums. To add one, write the function and its line in `LOSSES`; `agent.loss` may then name it. A
loss of your own needs no line: `agent.loss = "my_module:my_loss"`.

    rho_t = pi(t) / pi_old(t)                    ratio of a token, its logarithm held to [-20, 20]
    s     = exp(mean_t log rho_t)                ratio of a sequence (`ratio="sequence"`)
    stop  = without gradient

Only methods that torch tensors and `Values` share are used, so nothing here imports torch.

Shapes: M = tokens that count, one sequence after the other.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Literal, Self, TypeAlias, cast

import numpy as np
import numpy.typing as npt

from genenv.plugins import own_part

Numbers: TypeAlias = Any
"""[M] a torch tensor, or `Values`: arithmetic, and `exp`, `clamp`, `detach`, `minimum`, `square`."""

LOG_RATIO_MAX = 20.0
"""Nats. Log-ratios are held to it: the exponential of a larger one would overflow."""
K3_MAX = 10.0
"""Nats. The most that one token can add to a KL term."""


@dataclass(frozen=True, kw_only=True)
class LossTerms:
    """What a loss may read of the tokens of a micro-batch."""

    logprob: Numbers
    """[M] log pi(t) under the weights that are trained. Nats."""
    old: Numbers
    """[M] log pi_old(t), when the token was sampled. Nats."""
    advantage: Numbers
    """[M] A."""
    low: Numbers
    """[M] or a number: ratios below it are clipped, 1 - `clip_low`."""
    high: Numbers
    """[M] or a number: ratios above it are clipped, 1 + `clip_high`."""
    sequence_mean: Callable[[Numbers], Numbers]
    """[M] -> [M] each token's value replaced by the mean over its sequence."""
    beta: float = 0.0
    """Weight of the penalty of `dro`."""
    bounded: bool = True
    """Whether log-ratios are held to `LOG_RATIO_MAX`."""

    @cached_property
    def log_ratio(self) -> Numbers:
        """[M] log rho_t. Nats."""
        difference = self.logprob - self.old
        return difference.clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX) if self.bounded else difference

    @cached_property
    def ratio(self) -> Numbers:
        """[M] rho_t."""
        return self.log_ratio.exp()

    @cached_property
    def sequence_ratio(self) -> Numbers:
        """[M] s of each token's sequence."""
        return self.sequence_mean(self.log_ratio).exp()

    def clip(self, ratio: Numbers) -> Numbers:
        """[M] a ratio held between `low` and `high`."""
        return ratio.clamp(self.low, self.high)

    def outside(self, ratio: Numbers) -> Numbers:
        """[M] where clipping takes the gradient away: the ratio has gone as far as its advantage wants."""
        below, above = (ratio < self.low) & (self.advantage < 0), (ratio > self.high) & (self.advantage > 0)
        return below | above


LossFunction: TypeAlias = Callable[[LossTerms], Numbers]
"""From the terms of tokens to [M] what each adds to the loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A loss, and what trainers need to know of it."""

    function: LossFunction
    ratio: Literal["token", "sequence"] = "token"
    """Which ratio it clips, for the metric `clip_rate`."""
    wire: str | None = None
    """Its name in the Tinker protocol; None: the protocol has none like it."""
    settings: Mapping[str, float] = field(default_factory=dict[str, float])
    """Of the wire's loss: numbers that a client may set, and their defaults; NaN: it has none."""


def nll(terms: LossTerms) -> Numbers:
    """-log pi(t): supervised learning, and regression weighted by rewards."""
    return -terms.logprob


def ppo(terms: LossTerms) -> Numbers:
    """-min(rho A, clip(rho) A): the clipped policy gradient (PPO, arXiv:1707.06347)."""
    ratio, advantage = terms.ratio, terms.advantage
    return -(ratio * advantage).minimum(terms.clip(ratio) * advantage)


def gspo(terms: LossTerms) -> Numbers:
    """-min(s A, clip(s) A): GSPO (arXiv:2507.18071, eq. 5), ratio and clipping of whole sequences.

    With `agent.loss_average = "sequence"` a sequence's tokens add up to its one term, as in the paper.
    """
    ratio, advantage = terms.sequence_ratio, terms.advantage
    return -(ratio * advantage).minimum(terms.clip(ratio) * advantage)


def cispo(terms: LossTerms) -> Numbers:
    """-stop(clip(rho)) A log pi(t): CISPO (arXiv:2506.13585, eq. 4); clipped tokens keep a gradient."""
    return -terms.clip(terms.ratio).detach() * terms.logprob * terms.advantage


def importance_sampling(terms: LossTerms) -> Numbers:
    """-rho A: the policy gradient without clipping."""
    return -terms.ratio * terms.advantage


def dro(terms: LossTerms) -> Numbers:
    """-(A log pi(t) - beta / 2 (log rho)^2): a squared penalty, no clipping (arXiv:2405.19107)."""
    penalty = 0.5 * terms.beta * terms.log_ratio.square()
    return -(terms.logprob * terms.advantage - penalty)


CLIP = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
"""Bounds of a ratio in the Tinker protocol, where a client does not set them."""

LOSSES: Mapping[str, Loss] = {
    "nll": Loss(function=nll, wire="cross_entropy"),
    "ppo": Loss(function=ppo, wire="ppo", settings=CLIP),
    "gspo": Loss(function=gspo, ratio="sequence"),
    "cispo": Loss(function=cispo, wire="cispo", settings=CLIP),
    "importance_sampling": Loss(function=importance_sampling, wire="importance_sampling"),
    "dro": Loss(function=dro, wire="dro", settings={"beta": math.nan}),
}
"""All losses. Those but `nll` are policy gradients, which read advantages and old log-probabilities."""

WIRE_LOSSES: Mapping[str, Loss] = {
    LOSSES[name].wire or "": LOSSES[name] for name in ("nll", "importance_sampling", "ppo", "cispo", "dro")
}
"""Losses by their names in the Tinker protocol."""


def find_loss(name: str) -> Loss:
    """The loss of a name: of `LOSSES`, or a function of the user's own, `module:function`.

    Raises:
        UsageError: there is no such function, or it does not take one argument.
    """
    known = LOSSES.get(name)
    return known or Loss(function=cast(LossFunction, own_part("agent.loss", name, takes=("terms",))))


class Values(npt.NDArray[np.float64]):
    """[M] plain numbers with the methods of a tensor that losses use; for trainers without torch."""

    @classmethod
    def of(cls, numbers: Sequence[float]) -> Self:
        """Numbers as they are."""
        return np.asarray(numbers, dtype=np.float64).view(cls)

    def exp(self) -> Self:
        """The exponential of each, as `math.exp` rounds it."""
        return self.of([math.exp(one) for one in self.tolist()])

    def clamp(self, low: float, high: float) -> Self:
        """Each held between two bounds."""
        return np.minimum(np.maximum(self, low), high).view(type(self))

    def minimum(self, other: Self) -> Self:
        """The smaller of each pair."""
        return np.minimum(self, other).view(type(self))

    def square(self) -> Self:
        """The square of each."""
        return (self * self).view(type(self))

    def detach(self) -> Self:
        """The numbers themselves: they have no gradient."""
        return self


def held(log_ratio: float) -> float:
    """A log-ratio within its bounds. Nats."""
    return min(max(log_ratio, -LOG_RATIO_MAX), LOG_RATIO_MAX)


def k3(own: float, other: float) -> float:
    """Estimate of KL(own || other) from a token that `own` sampled, d = other - own: e^d - 1 - d, in [0, 10].

    Args:
        own: log-probability under what sampled it. Nats.
        other: under the other. Nats.
    """
    difference = held(other - own)
    return min(K3_MAX, math.expm1(difference) - difference)
