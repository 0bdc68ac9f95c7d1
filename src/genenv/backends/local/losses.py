# pyright: standard
"""The losses of `genenv.algorithms.losses` on tensors, with the KL term and the entropy bonus.

    loss_t = w_t (loss of the token's name + beta k3_t - c H_t),   beta and c only for policy gradients
    k3_t = exp(d_t) - d_t - 1,  d_t = log pi_ref(t) - log pi(t)

H_t is the entropy over the tokens that could have been sampled in place of t, at the sampling temperature.
Log-ratios are clamped to 20 nats, and k3 to 10.

Shapes: M = tokens of a micro-batch with a nonzero weight.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from genenv.algorithms.datum import Datum, Objective
from genenv.algorithms.losses import K3_MAX, LOG_RATIO_MAX, Loss, LossTerms, find_loss
from genenv.backends.local.packing import on_device


@dataclass(frozen=True, slots=True, kw_only=True)
class Tokens:
    """Inputs of the losses for a micro-batch, one entry per token with a nonzero weight."""

    weight_M: Tensor
    advantage_M: Tensor
    """Advantage; 0 for `nll`."""
    old_M: Tensor
    """Log-probability when the token was sampled; 0 for `nll`. Nats."""
    nll_M: Tensor
    """True if the loss is `nll`."""
    loss: Loss | None
    """The policy-gradient loss of the tokens that are not `nll`; None if all are."""
    lengths: tuple[int, ...]
    """Number of tokens with a nonzero weight in each sequence."""

    @staticmethod
    def of(data: Sequence[Datum], device: torch.device) -> Tokens:
        """Collect the inputs from data, in order."""
        parts = [_numbers(datum) for datum in data]
        weight, advantage, old, nll = np.concatenate(parts, 1).astype(np.float32)
        numbers = on_device(np.stack([weight, advantage, old, nll]), device)
        return Tokens(
            weight_M=numbers[0],
            advantage_M=numbers[1],
            old_M=numbers[2],
            nll_M=numbers[3] > 0,
            loss=_policy_gradient(data),
            lengths=tuple(part.shape[1] for part in parts),
        )

    def sequence_mean(self, values_M: Tensor) -> Tensor:
        """Return [M] the mean over each token's sequence."""
        return torch.cat([part_T.mean().expand_as(part_T) for part_T in values_M.split(self.lengths)])


def _policy_gradient(data: Sequence[Datum]) -> Loss | None:
    """Return the one policy-gradient loss of data with a nonzero weight; None if there is none."""
    names = {datum.loss for datum in data if datum.is_policy_gradient and datum.tokens}
    if len(names) > 1:
        raise ValueError(f"one step has one policy gradient, not {', '.join(sorted(names))}")
    return find_loss(names.pop()) if names else None


def _numbers(datum: Datum) -> np.ndarray:
    """Return [4, M] weight, advantage, old log-probability, and 1 for `nll`, if the weight is not 0."""
    zeros = (0.0,) * len(datum.weights)
    nll = (float(datum.loss == "nll"),) * len(datum.weights)
    rows = np.array([datum.weights, datum.advantages or zeros, datum.old_logprobs or zeros, nll])
    return rows[:, rows[0] > 0]


def token_losses(
    logprobs_M: Tensor,
    tokens: Tokens,
    objective: Objective,
    reference_M: Tensor | None = None,
    entropy_M: Tensor | None = None,
) -> tuple[Tensor, dict[str, Tensor]]:
    """Return the loss of a micro-batch as its share of the step's loss, so that micro-batches add up.

    Args:
        logprobs_M: log-probabilities under the present weights. Nats.
        tokens: the other inputs of the losses.
        objective: clip range, and weights of KL term and entropy bonus.
        reference_M: log-probabilities under the reference, for k3; None: no KL term.
        entropy_M: entropy over the tokens that could be sampled; None: no bonus.

    Returns:
        The loss, and the sums behind `kl`, `old_kl`, `entropy` and `clip_rate`, weighted like the loss.
    """
    weight_M, nll_M = tokens.weight_M, -logprobs_M
    if tokens.loss is None:
        return (nll_M * weight_M).sum(), {}
    terms = LossTerms(
        logprob=logprobs_M,
        old=tokens.old_M,
        advantage=tokens.advantage_M,
        low=1 - objective.clip_low,
        high=1 + objective.clip_high,
        sequence_mean=tokens.sequence_mean,
    )
    loss_M = tokens.loss.function(terms)
    sums = {
        "clip_rate": (tokens.loss.clipped(terms) * weight_M).sum().detach(),
        "old_kl": _old_kl(terms.log_ratio, tokens),
    }
    if reference_M is not None:
        # the estimate is only valid for tokens that the policy sampled
        kl_M = k3(logprobs_M, reference_M).masked_fill(tokens.nll_M, 0.0)
        loss_M = loss_M + objective.kl_coefficient * kl_M if objective.kl_coefficient else loss_M
        sums["kl"] = (kl_M * weight_M).sum().detach()
    if entropy_M is not None:
        entropy_M = entropy_M.masked_fill(tokens.nll_M, 0.0)
        loss_M = loss_M - objective.entropy_coefficient * entropy_M
        sums["entropy"] = (entropy_M * weight_M).sum().detach()
    loss_M = torch.where(tokens.nll_M, nll_M, loss_M)
    return (loss_M * weight_M).sum(), sums


@torch.no_grad()
def _old_kl(log_ratio_M: Tensor, tokens: Tokens) -> Tensor:
    """Return KL(pi_old || pi) of policy-gradient tokens by k3, weighted like the loss.

    The rounding error of expm1 is near 1e-13; exp(d) - 1 in float32 would add 1e-7.
    """
    kl_M = (torch.expm1(log_ratio_M) - log_ratio_M).clamp(max=K3_MAX)
    return (kl_M * tokens.weight_M).masked_fill(tokens.nll_M, 0.0).sum()


def k3(logprobs_M: Tensor, reference_M: Tensor) -> Tensor:
    """Low-variance estimate of KL(pi || pi_ref) from samples of pi: exp(d) - d - 1, d = ref - own.

    Without bounds, one token that has become very unlikely would outweigh all others. So, as in verl
    (`kl_penalty` of `verl/trainer/ppo/core_algos.py`, "low_var_kl"; the authors train with it), d is clamped
    to [-20, 20] and the estimate to at most 10 (verl writes [-10, 10]; it is never negative). A token beyond
    d = 2.61 or -11 has no gradient: the term does not pull it back.

    Returns:
        [M] in [0, 10]. Nats.
    """
    difference_M = (reference_M - logprobs_M).clamp(-LOG_RATIO_MAX, LOG_RATIO_MAX)
    return (difference_M.exp() - difference_M - 1).clamp(max=K3_MAX)
