# pyright: standard
"""Log-probabilities, KL and entropy over the vocabulary from hidden states, in pieces of rows.

The logits of the whole vocabulary are by far the largest tensor of an update. This module holds at most
`ROWS` rows of them at a time, and neither keeps nor recomputes them for the backward pass. The derivative
with respect to a row's hidden state has the size of that state, and is computed while the logits exist.

    log pi(y) = s_y / T - log sum_v exp(s_v / T),   d log pi(y) / dh = (W_y - sum_v pi_v W_v) / T
    KL = sum_v pi_v (log pi_v - log ref_v),         dKL / dh = sum_v pi_v (log pi_v - log ref_v - KL) W_v / T
    H = -sum_v pi_v log pi_v,                       dH / dh = -sum_v pi_v (log pi_v + H) W_v / T

Sums go over the tokens v that could be sampled.

Shapes: M = rows, W = width, V = vocabulary.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from genenv.backends.local.next_token import is_forbidden

ROWS = 256
"""Rows scored at a time."""


HEAD_ROWS = 512
"""Rows scored at a time in `in_pieces`; bounds the [rows, vocabulary] tensor."""


class Scores(NamedTuple):
    """Log-probabilities, KL and entropy of the tokens of a micro-batch, each at its temperature. Nats."""

    logprobs_M: Tensor
    kl_M: Tensor | None
    """KL(pi || reference) over the tokens that could be sampled; None if not requested."""
    entropy_M: Tensor | None
    """Entropy over the tokens that could be sampled; None if not requested."""


def frozen_scores(  # noqa: PLR0913
    head: Any,  # noqa: ANN401
    hidden_MW: Tensor,
    tokens_M: Tensor,
    reference_MW: Tensor | None = None,
    *,
    temperature: float = 1.0,
    allowed: Tensor | None = None,
    entropy: bool = False,
) -> Scores:
    """Scores of tokens under an output layer that does not learn: KL and entropy where they are asked for.

    Args:
        head: the output layer of both.
        hidden_MW: what predicts each token.
        tokens_M: the tokens.
        reference_MW: the reference's states in their place; None: no KL.
        temperature: divides the scores of both; 0 counts as 1.
        allowed: [M, ceil(V / 32)] bit masks of the tokens that both could sample; None when all could.
        entropy: whether it is worked out.
    """
    found = _Scored.apply(
        hidden_MW, head.weight, head.bias, tokens_M, temperature or 1.0, allowed, reference_MW, entropy
    )
    return Scores(*found)


class _Scored(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]  # noqa: PLR0913
        ctx: Any,  # noqa: ANN401
        hidden_MW: Tensor,
        weight_VW: Tensor,
        bias_V: Tensor | None,
        tokens_M: Tensor,
        temperature: float,
        allowed: Tensor | None,
        reference_MW: Tensor | None,
        entropy: bool,
    ) -> tuple[Tensor, Tensor | None, Tensor | None]:
        logprobs, divergences, entropies = [], [], []
        learns = ctx.needs_input_grad[0]
        slopes: tuple[list[Tensor], ...] = ([], [], [])
        for start in range(0, len(hidden_MW), ROWS):
            rows = slice(start, start + ROWS)
            forbidden = None if allowed is None else is_forbidden(allowed[rows], len(weight_VW))
            tokens = tokens_M[rows]
            own = _log_softmax(
                nn.functional.linear(hidden_MW[rows], weight_VW, bias_V), temperature, forbidden
            )
            logprobs.append(own.gather(1, tokens[:, None])[:, 0])
            terms = None
            if entropy:  # 0 log 0 = 0
                terms = own.clone() if forbidden is None else own.masked_fill(forbidden, 0.0)
            if reference_MW is not None:
                apart = _log_softmax(
                    nn.functional.linear(reference_MW[rows], weight_VW, bias_V), temperature, forbidden
                )
                torch.sub(own, apart, out=apart)
                if forbidden is not None:  # -inf on both sides
                    apart.masked_fill_(forbidden, 0.0)
                share = own.exp_()
                divergence = (share * apart).sum(-1)
                divergences.append(divergence)
                if learns:
                    steepness = apart.sub_(divergence[:, None]).mul_(share)
                    slopes[1].append((steepness.to(weight_VW.dtype) @ weight_VW).div_(temperature))
                del apart
            elif learns or entropy:
                own.exp_()
            if terms is not None:
                uncertainty = -(own * terms).sum(-1)
                entropies.append(uncertainty)
                if learns:
                    steepness = terms.add_(uncertainty[:, None]).mul_(own).neg_()
                    slopes[2].append((steepness.to(weight_VW.dtype) @ weight_VW).div_(temperature))
                del terms
            if learns:
                share = own
                slope = weight_VW.index_select(0, tokens) - share.to(weight_VW.dtype) @ weight_VW
                slopes[0].append(slope.div_(temperature))
        if learns:
            ctx.with_slope = [bool(parts) for parts in slopes]
            ctx.save_for_backward(*(torch.cat(parts) for parts in slopes if parts))
        return (
            _joined(logprobs, hidden_MW),
            None if reference_MW is None else _joined(divergences, hidden_MW),
            _joined(entropies, hidden_MW) if entropy else None,
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        asked = itertools.compress(gradients, ctx.with_slope)
        return along(ctx.saved_tensors, asked), None, None, None, None, None, None, None


def along(slopes: Iterable[Tensor], gradients: Iterable[Tensor | None]) -> Tensor | None:
    """Return [M, W] the gradient with respect to the states: sum of slopes [M, W] times gradients [M]."""
    total: Tensor | None = None
    for slope_MW, gradient_M in zip(slopes, gradients, strict=True):
        if gradient_M is not None:
            part = slope_MW * gradient_M[:, None].to(slope_MW.dtype)
            total = part if total is None else total.add_(part)
    return total


def _log_softmax(scores: Tensor, temperature: float, forbidden: Tensor | None) -> Tensor:
    """Return log-probabilities in float32, at a temperature, over the tokens that are not forbidden."""
    scores = scores.float()
    if temperature != 1.0:
        scores.div_(temperature)
    if forbidden is not None:
        scores.masked_fill_(forbidden, float("-inf"))
    return scores.sub_(scores.logsumexp(-1)[:, None])


def _joined(pieces: list[Tensor], like: Tensor) -> Tensor:
    return torch.cat(pieces) if pieces else like.new_zeros(0, dtype=torch.float32)


def entropy_of(log_pi_MV: Tensor) -> Tensor:
    """Return [M] the entropy of log-distributions with -inf at excluded tokens. Nats."""
    return -(log_pi_MV.exp() * log_pi_MV.masked_fill(log_pi_MV == float("-inf"), 0.0)).sum(-1)


def kl_full(scores_MV: Tensor, reference_MV: Tensor) -> Tensor:
    """Return [M] KL(pi || pi_ref) over all tokens but those with -inf in both. Nats."""
    log_pi_MV, log_ref_MV = scores_MV.log_softmax(-1), reference_MV.log_softmax(-1)
    apart_MV = (log_pi_MV - log_ref_MV).masked_fill(log_pi_MV == float("-inf"), 0.0)
    return (log_pi_MV.exp() * apart_MV).sum(-1)


def kl_between(
    own: tuple[Callable[[Tensor], Tensor], Tensor],
    reference: tuple[Callable[[Tensor], Tensor], Tensor],
    *,
    temperature: float,
    allowed: Tensor | None,
) -> Tensor:
    """Return [M] the KL of two policies, each given as its output layer and hidden states. Nats."""
    (head, hidden_MW), (reference_head, reference_MW) = own, reference

    def piece(hidden: Tensor, other: Tensor, mask: Tensor | None = None) -> Tensor:
        with torch.no_grad():
            reference_scores = reference_head(other) / temperature
        scores = head(hidden) / temperature
        if mask is not None:
            forbidden = is_forbidden(mask, scores.shape[1])
            scores, reference_scores = (
                s.masked_fill(forbidden, float("-inf")) for s in (scores, reference_scores)
            )
        return kl_full(scores, reference_scores)

    masks = () if allowed is None else (allowed,)
    return in_pieces(piece, hidden_MW, reference_MW, *masks, rows=256)


def in_pieces(function: Callable[..., Tensor], *tensors: Tensor, rows: int = HEAD_ROWS) -> Tensor:
    """Apply a function that computes logits to pieces of rows; the backward pass recomputes them.

    Args:
        function: takes a piece of each tensor, returns a value for each of its rows.
        tensors: of equal length, hidden states [M, width] first.
        rows: maximum rows of a piece.
    """
    if len(tensors[0]) <= rows:
        return function(*tensors)
    pieces = zip(*(tensor.split(rows) for tensor in tensors), strict=True)
    if not torch.is_grad_enabled():
        return torch.cat([function(*piece) for piece in pieces])
    recompute = checkpoint
    return torch.cat([recompute(function, *piece, use_reentrant=False) for piece in pieces])
