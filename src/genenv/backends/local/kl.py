# pyright: standard
"""How far apart two policies are in what they would sample: KL over the vocabulary, or what is allowed of it.

Shapes: M = tokens, W = width, V = vocabulary.
"""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor

from genenv.backends.local.next_token import is_forbidden
from genenv.backends.local.policy_weights import PlayerWeights, in_pieces


def kl_full(scores_MV: Tensor, reference_MV: Tensor) -> Tensor:
    """[M] KL(pi || pi_ref) over the whole vocabulary but for tokens whose scores are -inf in both. Nats."""
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
    """[M] KL of what two policies would sample, each given as its output layer and its states. Nats."""
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


def frozen_head(weights: PlayerWeights) -> Callable[[Tensor], Tensor]:
    """The output layer of the weights in place, which stays as it is now.

    With adapters the output layer never changes; when it is trained, it is copied.
    """
    if weights.adapter is not None:
        return weights.model.head
    head = copy.deepcopy(weights.model.causal.get_output_embeddings())
    return lambda hidden: weights.model.shaping(head(hidden)).float()
