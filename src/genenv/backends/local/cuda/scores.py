# pyright: standard
"""Log-probabilities over the vocabulary, KL and entropy as in `token_logprobs`, in compiled code.

Scores of `ROWS` states at a time are read twice: for their sum, and for the derivative, which is written in
their number format and read by the product that takes it back to the states.

Shapes: M = rows, R = rows of a piece, W = width, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from genenv.backends.local.cuda.tree_layers import any_length, as_it_is, compiled
from genenv.backends.local.next_token import is_forbidden
from genenv.backends.local.token_logprobs import Scores, along

ROWS = 2048
"""Rows scored at a time: 1.2 GiB of scores and derivatives for a vocabulary of 150,000 in bfloat16."""
_FEWEST = 2
"""Fewer rows would be compiled as cases of their own."""


def compiled_scores(  # noqa: PLR0913 - as `frozen_scores`
    head: Any,  # noqa: ANN401
    hidden_MW: Tensor,
    tokens_M: Tensor,
    reference_MW: Tensor | None = None,
    *,
    temperature: float = 1.0,
    allowed: Tensor | None = None,
    entropy: bool = False,
    compile: bool = True,
) -> Scores:
    """What `frozen_scores` says, with the same arguments; without `compile` in plain torch, for tests."""
    found = _Scored.apply(
        hidden_MW,
        head.weight.detach(),
        None if head.bias is None else head.bias.detach(),
        tokens_M,
        temperature or 1.0,
        allowed,
        reference_MW,
        entropy,
        compiled if compile else as_it_is,
    )
    return Scores(*found)  # type: ignore[misc]


def totals(
    scores_RV: Tensor, tokens_R: Tensor, allowed: Tensor | None, cooler: Tensor
) -> tuple[Tensor, Tensor]:
    """Log-probabilities of tokens, and [R, 1] what makes log-probabilities of scores: log sum exp.

    Args:
        scores_RV: of the tokens of the vocabulary.
        tokens_R: whose log-probabilities are wanted.
        allowed: bit masks of what could be sampled; None: everything.
        cooler: 1 / temperature, one number.
    """
    cooled_RV = _cooled(scores_RV, allowed, cooler)
    most_R1 = cooled_RV.amax(-1, keepdim=True)  # with the sum in one pass, where it is compiled
    total_R1 = (cooled_RV - most_R1).exp().sum(-1, keepdim=True).log() + most_R1
    return (cooled_RV.gather(1, tokens_R[:, None]) - total_R1)[:, 0], total_R1


def slope(
    scores_RV: Tensor, total_R1: Tensor, tokens_R: Tensor, allowed: Tensor | None, cooler: Tensor
) -> Tensor:
    """[R, V] the derivatives of the log-probabilities by the scores, in their number format.

    A function of its own, so that the compiler has no log-probability of all tokens to keep.
    """
    share_RV = (_cooled(scores_RV, allowed, cooler) - total_R1).exp()
    places_V = torch.arange(scores_RV.shape[1], device=scores_RV.device)
    return (((places_V == tokens_R[:, None]).float() - share_RV) * cooler).to(scores_RV.dtype)


def divergence(
    scores_RV: Tensor,
    total_R1: Tensor,
    reference_RV: Tensor,
    reference_total_R1: Tensor,
    allowed: Tensor | None,
    cooler: Tensor,
) -> tuple[Tensor, Tensor]:
    """KL to the reference, and its derivatives by the policy's scores."""
    own_RV = _cooled(scores_RV, allowed, cooler) - total_R1
    apart_RV = own_RV - (_cooled(reference_RV, allowed, cooler) - reference_total_R1)
    apart_RV = _zero_where_forbidden(apart_RV, allowed)
    share_RV = own_RV.exp()
    kl_R1 = (share_RV * apart_RV).sum(-1, keepdim=True)
    return kl_R1[:, 0], ((apart_RV - kl_R1) * share_RV * cooler).to(scores_RV.dtype)


def uncertainty(
    scores_RV: Tensor, total_R1: Tensor, allowed: Tensor | None, cooler: Tensor
) -> tuple[Tensor, Tensor]:
    """Entropy, and its derivatives by the scores."""
    own_RV = _cooled(scores_RV, allowed, cooler) - total_R1
    share_RV, terms_RV = own_RV.exp(), _zero_where_forbidden(own_RV, allowed)
    entropy_R1 = -(share_RV * terms_RV).sum(-1, keepdim=True)
    return entropy_R1[:, 0], (-(terms_RV + entropy_R1) * share_RV * cooler).to(scores_RV.dtype)


def _cooled(scores_RV: Tensor, allowed: Tensor | None, cooler: Tensor) -> Tensor:
    cooled_RV = scores_RV.float() * cooler
    if allowed is None:
        return cooled_RV
    return cooled_RV.masked_fill(is_forbidden(allowed, scores_RV.shape[1]), float("-inf"))


def _zero_where_forbidden(values_RV: Tensor, allowed: Tensor | None) -> Tensor:
    return (
        values_RV
        if allowed is None
        else values_RV.masked_fill(is_forbidden(allowed, values_RV.shape[1]), 0.0)
    )


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
        as_is: Callable[..., Any],
    ) -> tuple[Tensor | None, ...]:
        learns, hidden_MW = ctx.needs_input_grad[0], hidden_MW.detach()
        ctx.places = [0, *([1] if reference_MW is not None else []), *([2] if entropy else [])]
        values_of: list[list[Tensor]] = [[] for _ in ctx.places]
        slopes_of = [torch.empty_like(hidden_MW) for _ in ctx.places if learns]
        # a number in a tensor: as a number of Python each temperature would be compiled
        cooler = torch.full((), 1.0 / temperature, device=hidden_MW.device)
        for start in range(0, max(1, len(hidden_MW)), ROWS):
            rows = slice(start, start + ROWS)
            tokens = any_length(tokens_M[rows])
            run = as_is if len(tokens) >= _FEWEST else as_it_is
            masks = None if allowed is None else any_length(allowed[rows])
            scores = any_length(nn.functional.linear(hidden_MW[rows], weight_VW, bias_V))
            value, total = run(totals)(scores, tokens, masks, cooler)
            found: list[tuple[Tensor, Tensor | None]] = [
                (value, run(slope)(scores, total, tokens, masks, cooler) if learns else None)
            ]
            if reference_MW is not None:
                other = any_length(nn.functional.linear(reference_MW[rows], weight_VW, bias_V))
                _, other_total = run(totals)(other, tokens, masks, cooler)
                found.append(run(divergence)(scores, total, other, other_total, masks, cooler))
                del other
            if entropy:
                found.append(run(uncertainty)(scores, total, masks, cooler))
            del scores
            for place in range(len(found)):
                value, slope_RV = found[place]
                values_of[place].append(value)
                if learns and slope_RV is not None:
                    torch.mm(slope_RV, weight_VW, out=slopes_of[place][rows])
                del slope_RV
            del found
        ctx.save_for_backward(*slopes_of)
        wholes: list[Tensor | None] = [None, None, None]
        for place, parts in zip(ctx.places, values_of, strict=True):
            wholes[place] = torch.cat(parts)
        return tuple(wholes)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        return along(ctx.saved_tensors, [gradients[place] for place in ctx.places]), *(None,) * 8
