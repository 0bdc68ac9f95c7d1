# pyright: standard
"""Grammar-constrained sampling: a JSON schema becomes a mask over the vocabulary at every step (xgrammar)."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any

import torch
import xgrammar
from torch import Tensor

from genenv.errors import UsageError
from genenv.types import JsonObject


class Grammars:
    """Compiles schemas for one tokenizer, and keeps the latest: a round's are needed again for its update."""

    def __init__(self, tokenizer: Any, vocabulary: int, stop_id: int) -> None:  # noqa: ANN401
        info = xgrammar.TokenizerInfo.from_huggingface(
            tokenizer, vocab_size=vocabulary, stop_token_ids=[stop_id]
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=2, cache_enabled=False)
        self._vocabulary = vocabulary
        self._compile = functools.lru_cache(maxsize=64)(self._compile_text)

    def matcher(self, schema: JsonObject) -> xgrammar.GrammarMatcher:
        """A fresh matcher for one completion."""
        return xgrammar.GrammarMatcher(self._compile(json.dumps(schema)))

    def allowed(self, matchers: list[xgrammar.GrammarMatcher]) -> Tensor:
        """[R, ceil(V / 32)] bit mask of the tokens each row may take next."""
        mask = self.anything(len(matchers))
        for row, matcher in enumerate(matchers):
            matcher.fill_next_token_bitmask(mask, row)
        return mask

    def anything(self, tokens: int) -> Tensor:
        """[T, ceil(V / 32)] bit masks that allow all tokens."""
        return xgrammar.allocate_token_bitmask(tokens, self._vocabulary)

    def along(self, schema: JsonObject, token_ids: Sequence[int]) -> Tensor:
        """[T, ceil(V / 32)] bit masks of the tokens that a completion could take in the place of each of its.

        Raises:
            ValueError: the completion does not follow the grammar.
        """
        matcher = self.matcher(schema)
        mask = self.anything(len(token_ids))
        for t, token in enumerate(token_ids):
            matcher.fill_next_token_bitmask(mask, t)
            if not matcher.accept_token(token):
                raise ValueError(f"token {t} of a completion does not follow its grammar")
        return mask

    def forbid(self, scores_RV: Tensor, mask: Tensor) -> None:
        """Set the scores of all other tokens to -inf, in place."""
        xgrammar.apply_token_bitmask_inplace(scores_RV, mask.to(scores_RV.device, non_blocking=True))

    def _compile_text(self, schema: str) -> xgrammar.CompiledGrammar:
        try:
            return self._compiler.compile_json_schema(schema, any_whitespace=False, separators=(",", ":"))
        except RuntimeError as error:
            raise UsageError(f"the domain's spec schema cannot be made into a grammar: {error}") from error


def is_forbidden(mask: Tensor, vocabulary: int) -> Tensor:
    """[R, V] True at the tokens that a bit mask [R, ceil(V / 32)] does not allow."""
    bits = torch.arange(32, dtype=torch.int32, device=mask.device)
    return ((mask[:, :, None] >> bits) & 1).flatten(1)[:, :vocabulary] == 0


def nucleus(scores_RV: Tensor, top_p_R: Tensor) -> Tensor:
    """Scores in which all but the most probable tokens are -inf (nucleus sampling, arXiv:1904.09751).

    Args:
        scores_RV: log-probabilities up to a constant per row.
        top_p_R: the fewest tokens are kept whose probabilities sum up to at least this much; tokens that are
            as probable as the last of them are kept too.
    """
    sorted_RV = scores_RV.sort(-1, descending=True).values
    before_RV = sorted_RV.softmax(-1).cumsum(-1).roll(1, -1)
    before_RV[:, 0] = 0.0  # the most probable one is always kept
    kept_R = (before_RV < top_p_R[:, None]).sum(-1)
    least_R1 = sorted_RV.gather(1, (kept_R - 1).clamp_(min=0)[:, None])
    return scores_RV.masked_fill(scores_RV < least_R1, float("-inf"))


def sample_inverse_cdf(scores_RV: Tensor, uniform_R: Tensor, chunk: int = 256) -> Tensor:
    """Draw one token per row from softmax(scores) by inverting its distribution function.

    `torch.multinomial` over a large vocabulary costs more than the forward pass of a small model on a CPU.
    Here the probabilities are summed in chunks, the chunk is found first, then the token in it: one pass over
    the vocabulary.

    Args:
        scores_RV: log-probabilities up to a constant per row; -inf is never drawn.
        uniform_R: uniform numbers in [0, 1), one a row; equal numbers draw equal tokens.
        chunk: tokens per chunk.

    Returns:
        [R] token ids.
    """
    rows, vocabulary = scores_RV.shape
    weights_RV = (scores_RV - scores_RV.amax(-1, keepdim=True)).exp_()
    if vocabulary % chunk:
        weights_RV = torch.nn.functional.pad(weights_RV, (0, chunk - vocabulary % chunk))
    weights_RKC = weights_RV.view(rows, -1, chunk)
    below_RK = weights_RKC.sum(-1, dtype=torch.float64).cumsum(-1)
    total_R1 = below_RK[:, -1:]
    # Rounding must not lift the target to the total: the chunk there may hold only forbidden tokens.
    target_R1 = torch.minimum(
        uniform_R.to(below_RK)[:, None] * total_R1, total_R1.nextafter(torch.zeros_like(total_R1))
    )
    piece_R1 = torch.searchsorted(below_RK, target_R1, right=True).clamp_(max=below_RK.shape[1] - 1)
    before_R1 = torch.where(piece_R1 > 0, below_RK.gather(1, (piece_R1 - 1).clamp_(min=0)), 0.0)
    inside_RC = weights_RKC.gather(1, piece_R1[:, :, None].expand(-1, -1, chunk))[:, 0]
    cdf_RC = inside_RC.to(torch.float64).cumsum(-1)
    last_R1 = torch.where(inside_RC > 0, torch.arange(chunk, device=inside_RC.device), 0).amax(
        -1, keepdim=True
    )
    token_R1 = torch.minimum(torch.searchsorted(cdf_RC, target_R1 - before_R1, right=True), last_R1)
    return (piece_R1 * chunk + token_R1)[:, 0]
