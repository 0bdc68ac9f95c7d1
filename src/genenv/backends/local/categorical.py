# pyright: standard
"""From scores to a drawn token, in as few passes over the vocabulary as there can be.

`torch.multinomial` over a large vocabulary costs more than the forward pass of a small model on a CPU. Here a
distribution function is inverted: probabilities are summed in chunks, the chunk is found first, then the
token in it. The same sums give the normaliser of the log-probabilities.

Shapes: R = rows, V = vocabulary, C = tokens of a chunk, K = chunks.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from genenv.backends.local.cpu.kernels import Kernels
from genenv.sampling import SamplingParams

CHUNK = 256


class Odds:
    """The distributions softmax(scores), one a row: their largest scores, and sums over chunks.

    Args:
        scores_RV: log-probabilities up to a constant per row; -inf is never drawn.
        chunk: tokens per chunk.
        kernels: compiled code, where there is some.
    """

    def __init__(self, scores_RV: Tensor, chunk: int = CHUNK, kernels: Kernels | None = None) -> None:
        self._scores_RV, self._chunk = scores_RV, chunk
        self._top_R1, sums_RK = (kernels.chunk_sums if kernels else _chunk_sums)(scores_RV, chunk)
        self._below_RK = sums_RK.double().cumsum(-1)
        self.norm_R = (self._top_R1.double() + self._below_RK[:, -1:].log())[:, 0].float()
        """log sum exp of the scores."""

    def draw(self, uniform_R: Tensor) -> Tensor:
        """[R] one token per row; equal numbers draw equal tokens.

        Args:
            uniform_R: uniform numbers in [0, 1), one a row.
        """
        below_RK, chunk = self._below_RK, self._chunk
        total_R1 = below_RK[:, -1:]
        # Rounding must not lift the target to the total: the chunk there may hold only forbidden tokens.
        target_R1 = torch.minimum(
            uniform_R.to(below_RK)[:, None] * total_R1, total_R1.nextafter(torch.zeros_like(total_R1))
        )
        piece_R1 = torch.searchsorted(below_RK, target_R1, right=True).clamp_(max=below_RK.shape[1] - 1)
        before_R1 = torch.where(piece_R1 > 0, below_RK.gather(1, (piece_R1 - 1).clamp_(min=0)), 0.0)
        steps_C = torch.arange(chunk, device=below_RK.device)
        at_RC, end = piece_R1 * chunk + steps_C, self._scores_RV.shape[1]
        inside_RC = (self._scores_RV.gather(1, at_RC.clamp(max=end - 1)).float() - self._top_R1).exp()
        inside_RC[at_RC >= end] = 0.0
        cdf_RC = inside_RC.double().cumsum(-1)
        last_R1 = torch.where(inside_RC > 0, steps_C, 0).amax(-1, keepdim=True)
        token_R1 = torch.minimum(torch.searchsorted(cdf_RC, target_R1 - before_R1, right=True), last_R1)
        return (piece_R1 * chunk + token_R1)[:, 0]


def _chunk_sums(scores_RV: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
    """[R, 1] largest score of each row, and [R, K] sums of exp(score - largest); as `Kernels.chunk_sums`."""
    rows, vocabulary = scores_RV.shape
    chunks = -(-vocabulary // chunk)
    top_R1 = scores_RV.amax(-1, keepdim=True).float()
    weights = top_R1.new_empty(rows, chunks * chunk)
    weights[:, vocabulary:] = 0.0
    torch.sub(scores_RV, top_R1, out=weights[:, :vocabulary]).exp_()
    return top_R1, weights.view(rows, chunks, chunk).sum(-1)


def truncated(scores_RV: Tensor, requests: Sequence[SamplingParams]) -> Tensor:
    """[R, V] scores in which what each row's request does not draw is -inf."""
    if not any(request.truncates for request in requests):
        return scores_RV
    top_p_R = torch.tensor([request.top_p for request in requests], device=scores_RV.device)
    return nucleus(scores_RV.float(), top_p_R)


def nucleus(scores_RV: Tensor, top_p_R: Tensor) -> Tensor:
    """Scores in which all but the most probable tokens are -inf (nucleus sampling, arXiv:1904.09751).

    Args:
        scores_RV: log-probabilities up to a constant per row.
        top_p_R: the fewest tokens are kept whose probabilities sum up to at least this much; tokens that are
            as probable as the last of them are kept too. 1 keeps all.
    """
    sorted_RV = scores_RV.sort(-1, descending=True).values
    before_RV = sorted_RV.softmax(-1).cumsum(-1).roll(1, -1)
    before_RV[:, 0] = 0.0  # the most probable one is always kept
    kept_R = torch.where(top_p_R < 1.0, (before_RV < top_p_R[:, None]).sum(-1), scores_RV.shape[1])
    least_R1 = sorted_RV.gather(1, (kept_R - 1).clamp_(min=0)[:, None])
    return scores_RV.masked_fill(scores_RV < least_R1, float("-inf"))
