"""Losses by name: the contribution of each sampled token to the loss. Every trainer uses these functions.

A loss takes `LossTerms` and returns one number per token. A trainer multiplies the number by the token's
weight and sums. To add a loss, write the function and its line in `LOSSES`; `agent.loss` may then name it. A
user-defined loss needs no line: `agent.loss = "my_module:my_loss"`.

    rho_t = pi(t) / pi_old(t)                    ratio of a token, its logarithm clamped to [-20, 20]
    s     = exp(mean_t log rho_t)                ratio of a sequence (`ratio="sequence"`)
    stop  = without gradient

Losses use only methods of torch tensors, so this module imports no torch.

Shapes: M = tokens with a weight, one sequence after another.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cached_property, partial
from typing import Any, Literal, TypeAlias, cast

from genenv.errors import UsageError
from genenv.plugins import own_part

Numbers: TypeAlias = Any
"""[M] a torch tensor."""

LOG_RATIO_MAX = 20.0
"""Nats. Log-ratios are clamped to [-20, 20], because the exponential of a larger one would overflow."""
K3_MAX = 10.0
"""Nats. The largest KL estimate of one token."""


@dataclass(frozen=True, kw_only=True)
class LossTerms:
    """The per-token inputs of a loss function, for the tokens of a micro-batch."""

    logprob: Numbers
    """[M] log pi(t) under the weights being trained. Nats."""
    old: Numbers
    """[M] log pi_old(t), at the time the token was sampled. Nats."""
    advantage: Numbers
    """[M] advantage A."""
    low: Numbers
    """[M] or a number: the lower bound of clipped ratios, 1 - `clip_low`."""
    high: Numbers
    """[M] or a number: the upper bound of clipped ratios, 1 + `clip_high`."""
    sequence_mean: Callable[[Numbers], Numbers]
    """[M] -> [M] replaces each token's value with the mean over its sequence."""
    beta: float = 0.0
    """Weight of the penalty in `dro`."""
    bounded: bool = True
    """Whether log-ratios are clamped to `LOG_RATIO_MAX`."""

    @cached_property
    def log_ratio(self) -> Numbers:
        """[M] log rho_t. Nats."""
        difference = self.logprob - self.old
        return difference.clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX) if self.bounded else difference

    @cached_property
    def ratio(self) -> Numbers:
        """[M] the ratio rho_t of each token."""
        return self.log_ratio.exp()

    @cached_property
    def sequence_ratio(self) -> Numbers:
        """[M] the ratio s of each token's sequence."""
        return self.sequence_mean(self.log_ratio).exp()

    def clip(self, ratio: Numbers) -> Numbers:
        """Clamp [M] ratios to [`low`, `high`]."""
        return ratio.clamp(self.low, self.high)


LossFunction: TypeAlias = Callable[[LossTerms], Numbers]
"""Maps the terms of tokens to [M] contributions to the loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A loss function with the properties that trainers need."""

    function: LossFunction
    ratio: Literal["token", "sequence"] = "token"
    """The ratio that the loss clips, for the metric `clip_rate`."""
    clips: Literal["gradient", "weight", "nothing"] = "gradient"
    """What clipping does: it removes a token's gradient, or bounds its weight on both sides."""
    wire: str | None = None
    """Name in the Tinker protocol; None if the protocol has no equivalent."""
    settings: Mapping[str, float] = field(default_factory=dict[str, float])
    """Parameters that a client of the Tinker protocol may set, with defaults. NaN: no default."""

    def clipped(self, terms: LossTerms) -> Numbers:
        """Return [M] flags: True where clipping changes the token's gradient."""
        ratio = terms.sequence_ratio if self.ratio == "sequence" else terms.ratio
        below, above = ratio < terms.low, ratio > terms.high
        if self.clips == "gradient":  # past the bound in the direction that the advantage favors
            below, above = below & (terms.advantage < 0), above & (terms.advantage > 0)
        return below & above if self.clips == "nothing" else below | above


def nll(terms: LossTerms) -> Numbers:
    """-log pi(t): supervised learning and reward-weighted regression."""
    return -terms.logprob


def ppo(terms: LossTerms) -> Numbers:
    """-min(rho A, clip(rho) A): the clipped policy gradient (PPO, arXiv:1707.06347)."""
    ratio, advantage = terms.ratio, terms.advantage
    return -(ratio * advantage).minimum(terms.clip(ratio) * advantage)


def gspo(terms: LossTerms) -> Numbers:
    """-min(s A, clip(s) A): GSPO (arXiv:2507.18071, eq. 5), with the ratio and clipping of whole sequences.

    With `agent.loss_average = "sequence"` the tokens of a sequence add up to one term, as in the paper.
    """
    ratio, advantage = terms.sequence_ratio, terms.advantage
    return -(ratio * advantage).minimum(terms.clip(ratio) * advantage)


def cispo(terms: LossTerms) -> Numbers:
    """-stop(clip(rho)) A log pi(t): CISPO (arXiv:2506.13585, eq. 4). Clipped tokens keep a gradient."""
    return -terms.clip(terms.ratio).detach() * terms.logprob * terms.advantage


def importance_sampling(terms: LossTerms) -> Numbers:
    """-rho A: the policy gradient without clipping."""
    return -terms.ratio * terms.advantage


def dro(terms: LossTerms) -> Numbers:
    """-(A log pi(t) - beta / 2 (log rho)^2): a squared penalty instead of clipping (arXiv:2405.19107)."""
    penalty = 0.5 * terms.beta * terms.log_ratio.square()
    return -(terms.logprob * terms.advantage - penalty)


CLIP = {"clip_low_threshold": 0.8, "clip_high_threshold": 1.2}
"""Bounds of the ratio in the Tinker protocol if a client does not set them."""

LOSSES: Mapping[str, Loss] = {
    "nll": Loss(function=nll, wire="cross_entropy"),
    "ppo": Loss(function=ppo, wire="ppo", settings=CLIP),
    "gspo": Loss(function=gspo, ratio="sequence"),
    "cispo": Loss(function=cispo, wire="cispo", clips="weight", settings=CLIP),
    "importance_sampling": Loss(function=importance_sampling, wire="importance_sampling", clips="nothing"),
    "dro": Loss(function=dro, wire="dro", clips="nothing", settings={"beta": math.nan}),
}
"""All losses. All except `nll` are policy gradients, which read advantages and old log-probabilities."""

WIRE_LOSSES: Mapping[str, Loss] = {
    LOSSES[name].wire or "": LOSSES[name] for name in ("nll", "importance_sampling", "ppo", "cispo", "dro")
}
"""The losses of the Tinker protocol, by their names in it."""


def find_loss(name: str) -> Loss:
    """Return a loss by name: one of `LOSSES`, or a user-defined function, `module:function`.

    Raises:
        UsageError: there is no such function, or it does not take one argument.
    """
    known = LOSSES.get(name)
    if known is not None:
        return known
    own = cast(LossFunction, own_part("agent.loss", name, takes=("terms",)))
    return Loss(function=partial(_checked, name, own))


def _checked(name: str, own: LossFunction, terms: LossTerms) -> Numbers:
    """Return what a user-defined loss returns: a mean would be trained on as if it were each token's loss.

    Raises:
        UsageError: it is not one number for each token, or has no gradient.
    """
    found, wanted = own(terms), tuple(terms.logprob.shape)
    shape = getattr(found, "shape", None)
    if shape is None or tuple(shape) != wanted:
        gave = f"a {type(found).__name__}" if shape is None else f"shape {tuple(shape)}"
        raise UsageError(
            f"agent.loss {name!r} must return one number for each token, here shape {wanted}, and gave "
            f"{gave}; genenv weights and averages them (agent.loss_average)"
        )
    if terms.logprob.requires_grad and not found.requires_grad:
        raise UsageError(
            f"agent.loss {name!r} gave numbers without a gradient: make them of terms.logprob or terms.ratio"
        )
    return found


def held(log_ratio: float) -> float:
    """Return a log-ratio clamped to [-20, 20]. Nats."""
    return min(max(log_ratio, -LOG_RATIO_MAX), LOG_RATIO_MAX)


def k3(own: float, other: float) -> float:
    """Estimate KL(own || other) from one token that `own` sampled: e^d - 1 - d, d = other - own, in [0, 10].

    Args:
        own: log-probability under the policy that sampled the token. Nats.
        other: log-probability under the other policy. Nats.
    """
    difference = held(other - own)
    return min(K3_MAX, math.expm1(difference) - difference)
