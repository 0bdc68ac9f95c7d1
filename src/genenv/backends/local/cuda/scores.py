# pyright: standard
"""Log-probabilities over the vocabulary, KL and entropy as in `token_logprobs`, in compiled code.

Scores of `ROWS` states at a time are read three times: for their sum, for the derivative, and by the product
that takes the derivative back to the states.

Shapes: M = rows, R = rows of a piece, W = width, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from genenv.backends.local.cuda.compiling import any_length, compiled
from genenv.backends.local.grammar import is_forbidden
from genenv.backends.local.token_logprobs import Scores

ROWS = 2048
"""Rows scored at a time: 1.2 GiB of scores and derivatives for a vocabulary of 150,000 in bfloat16."""


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
    chunk = compiled(piece) if compile else piece
    found = _Scored.apply(
        hidden_MW,
        head.weight.detach(),
        None if head.bias is None else head.bias.detach(),
        tokens_M,
        temperature or 1.0,
        allowed,
        reference_MW,
        entropy,
        chunk,
    )
    return Scores(*found)  # type: ignore[misc]


def piece(
    scores_RV: Tensor,
    reference_RV: Tensor | None,
    tokens_R: Tensor,
    allowed: Tensor | None,
    cooler: float,
    which: tuple[bool, bool],
) -> tuple[list[Tensor], list[Tensor]]:
    """Log-probabilities, then KL and entropy where they are wanted; and the derivatives by the scores.

    Args:
        scores_RV: of the policy.
        reference_RV: of the reference; None: no KL.
        tokens_R: whose log-probabilities are wanted.
        allowed: bit masks of what could be sampled; None: everything.
        cooler: 1 / temperature.
        which: whether entropy is wanted, and whether derivatives are.
    """
    entropy, learns = which
    forbidden = None if allowed is None else is_forbidden(allowed, scores_RV.shape[1])
    own = _log_softmax(scores_RV, cooler, forbidden)
    share, dtype = own.exp(), scores_RV.dtype
    values, slopes = [own.gather(1, tokens_R[:, None])[:, 0]], list[Tensor]()
    if learns:
        places_V = torch.arange(scores_RV.shape[1], device=scores_RV.device)
        slopes.append((((places_V == tokens_R[:, None]).float() - share) * cooler).to(dtype))
    if reference_RV is not None:
        apart = own - _log_softmax(reference_RV, cooler, forbidden)
        apart = apart if forbidden is None else apart.masked_fill(forbidden, 0.0)
        divergence = (share * apart).sum(-1)
        values.append(divergence)
        if learns:
            slopes.append(((apart - divergence[:, None]) * share * cooler).to(dtype))
    if entropy:
        terms = own if forbidden is None else own.masked_fill(forbidden, 0.0)
        uncertainty = -(share * terms).sum(-1)
        values.append(uncertainty)
        if learns:
            slopes.append((-(terms + uncertainty[:, None]) * share * cooler).to(dtype))
    return values, slopes


def _log_softmax(scores_RV: Tensor, cooler: float, forbidden: Tensor | None) -> Tensor:
    scores_RV = scores_RV.float() * cooler
    if forbidden is not None:
        scores_RV = scores_RV.masked_fill(forbidden, float("-inf"))
    return scores_RV - scores_RV.logsumexp(-1, keepdim=True)


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
        chunk: Callable[..., tuple[list[Tensor], list[Tensor]]],
    ) -> tuple[Tensor | None, ...]:
        learns, kinds = ctx.needs_input_grad[0], 1 + (reference_MW is not None) + entropy
        hidden_MW = hidden_MW.detach()
        values_of: list[list[Tensor]] = [[hidden_MW.new_empty(0, dtype=torch.float32)] for _ in range(kinds)]
        slopes_of: list[list[Tensor]] = [[hidden_MW.new_empty(0, hidden_MW.shape[1])] for _ in range(kinds)]
        for start in range(0, len(hidden_MW), ROWS):
            rows = slice(start, start + ROWS)
            own, other = (
                None if states is None else any_length(nn.functional.linear(states[rows], weight_VW, bias_V))
                for states in (hidden_MW, reference_MW)
            )
            masks = None if allowed is None else any_length(allowed[rows])
            tokens = any_length(tokens_M[rows])
            values, slopes = chunk(own, other, tokens, masks, 1.0 / temperature, (entropy, learns))
            del own, other
            for place, value in enumerate(values):
                values_of[place].append(value)
            for place in range(len(slopes)):
                slopes_of[place].append(slopes[place] @ weight_VW)
            del slopes
        if learns:
            ctx.save_for_backward(*(torch.cat(parts) for parts in slopes_of))
        ctx.places = [0, *([1] if reference_MW is not None else []), *([2] if entropy else [])]
        found: list[Tensor | None] = [None, None, None]
        for place, parts in zip(ctx.places, values_of, strict=True):
            found[place] = torch.cat(parts)
        return tuple(found)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor | None) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        total: Tensor | None = None
        for slope_MW, place in zip(ctx.saved_tensors, ctx.places, strict=True):
            gradient_M = gradients[place]
            if gradient_M is not None:
                part = slope_MW * gradient_M[:, None].to(slope_MW.dtype)
                total = part if total is None else total.add_(part)
        return total, *(None,) * 8
