# pyright: standard
"""Sampling of the next token: masks of grammars and choices, and fast drawing from large vocabularies.

A JSON schema becomes a mask over the vocabulary at every step (xgrammar). With a list of choices, only the
next tokens of the remaining choices are allowed, and each choice has exactly one tokenization. So the policy
over choices is a distribution over exactly these, and most of their tokens are determined by the tokens
before.

Drawing makes as few passes over the vocabulary as possible: on a CPU, `torch.multinomial` over a large
vocabulary takes longer than the forward pass of a small model. Instead the cumulative distribution is
inverted: probabilities are summed in chunks, and the token is searched first by chunk, then within it. The
same sums give the normalizer of the log-probabilities.

Shapes: R = rows, V = vocabulary, C = tokens of a chunk, K = chunks.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Collection, Sequence
from typing import Any

import torch
import xgrammar
from torch import Tensor

from genenv.backends.local.cpu.kernels import Kernels
from genenv.chat.sampler import with_free_text
from genenv.errors import UsageError, first_line
from genenv.sampling import SamplingParams
from genenv.types import Choices, JsonObject


class Grammars:
    """Compiles JSON schemas into grammars for one tokenizer, and caches the latest ones for the update.

    A grammar takes 1 to 60 MiB, so the cache is cleared after each round.
    """

    def __init__(self, tokenizer: Any, vocabulary: int, stop_ids: Collection[int]) -> None:  # noqa: ANN401
        info = xgrammar.TokenizerInfo.from_huggingface(
            tokenizer, vocab_size=vocabulary, stop_token_ids=sorted(stop_ids)
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=2, cache_enabled=False)
        self._vocabulary = vocabulary
        self._compile = functools.lru_cache(maxsize=64)(self._compile_text)

    def matcher(self, schema: JsonObject) -> Matcher:
        """Return a new matcher for one completion."""
        return xgrammar.GrammarMatcher(self._compile(json.dumps(schema)))

    def allowed(self, matchers: Sequence[Matcher]) -> Tensor:
        """Return [R, ceil(V / 32)] bit masks of the tokens that each row may take next."""
        mask = self.anything(len(matchers))
        for row, matcher in enumerate(matchers):
            matcher.fill_next_token_bitmask(mask, row)
        return mask

    def anything(self, tokens: int) -> Tensor:
        """Return [T, ceil(V / 32)] bit masks that allow all tokens."""
        return xgrammar.allocate_token_bitmask(tokens, self._vocabulary)

    def along(self, schema: JsonObject, token_ids: Sequence[int]) -> Tensor:
        """Return [T, ceil(V / 32)] bit masks of the tokens allowed at each place of a completion.

        All tokens are allowed from the place on at which it leaves the grammar, as a random variation may.
        """
        mask = self.anything(len(token_ids))
        followed = _follow(self.matcher(schema), token_ids, mask)
        mask[followed:] = self.anything(len(token_ids) - followed)
        return mask

    def among(self, choices: Sequence[Choices], token_ids: Sequence[int]) -> Tensor:
        """Return masks as `along`, for a completion with replies from lists of choices; the rest is free.

        Raises:
            ValueError: a reply is not one of its choices.
        """
        mask = self.anything(len(token_ids))
        for one in choices:
            part = token_ids[one.start : one.start + max(map(len, one.replies))]
            if (followed := _follow(OneOf(one.replies), part, mask[one.start :])) < len(part):
                raise ValueError(f"token {one.start + followed} of a completion is in none of its choices")
        return mask

    def forbid(self, scores_RV: Tensor, mask: Tensor) -> None:
        """Set the logits of tokens outside the mask to -inf, in place."""
        xgrammar.apply_token_bitmask_inplace(scores_RV, mask.to(scores_RV.device, non_blocking=True))

    def forget(self) -> None:
        """Clear the cache."""
        self._compile.cache_clear()

    def _compile_text(self, schema: str) -> xgrammar.CompiledGrammar:
        free = json.dumps(with_free_text(json.loads(schema)))
        try:
            return self._compiler.compile_json_schema(free, any_whitespace=False, separators=(",", ":"))
        except RuntimeError as error:
            raise UsageError(
                f"the environment's spec schema cannot be made into a grammar: {first_line(error)}"
            ) from error


def _follow(matcher: Matcher, token_ids: Sequence[int], mask: Tensor) -> int:
    """Write the tokens allowed at each place into a mask; return at which token they are left, or all tokens.

    What comes after the end of the matcher's sequence is not looked at.
    """
    for t, token in enumerate(token_ids):
        if matcher.is_terminated():
            break
        matcher.fill_next_token_bitmask(mask, t)
        if not matcher.accept_token(token):
            return t
    return len(token_ids)


def is_forbidden(mask: Tensor, vocabulary: int) -> Tensor:
    """Return [R, V] True at the tokens that a bit mask [R, ceil(V / 32)] does not allow."""
    bits = torch.arange(32, dtype=torch.int32, device=mask.device)
    return ((mask[:, :, None] >> bits) & 1).flatten(1)[:, :vocabulary] == 0


class OneOf:
    """Tracks which tokens may follow in a completion that must be one of given token sequences."""

    def __init__(self, replies: Sequence[tuple[int, ...]]) -> None:
        self._left, self._place = list(replies), 0

    def fill_next_token_bitmask(self, mask: Tensor, row: int) -> None:
        """Write the tokens that may come next into a row of a mask [R, ceil(V / 32)]."""
        mask[row] = 0
        for token in self._next():
            word, bit = divmod(token, 32)
            mask[row, word] |= -(2**31) if bit == 31 else 1 << bit

    def accept_token(self, token: int) -> bool:
        """Advance by a token; return whether it was allowed."""
        self._left = [r for r in self._left if len(r) > self._place and r[self._place] == token]
        self._place += 1
        return bool(self._left)

    def is_terminated(self) -> bool:
        """Return whether no token may follow."""
        return not self._next()

    def _next(self) -> set[int]:
        return {reply[self._place] for reply in self._left if len(reply) > self._place}


Matcher = xgrammar.GrammarMatcher | OneOf
"""Tracks which tokens may follow in one completion, and whether it is complete."""

CHUNK = 256


class Odds:
    """The distributions softmax(scores), one per row, as largest scores and sums over chunks.

    Args:
        scores_RV: log-probabilities up to a constant per row; -inf is never drawn.
        chunk: tokens per chunk.
        kernels: compiled code; None: torch.
    """

    def __init__(self, scores_RV: Tensor, chunk: int = CHUNK, kernels: Kernels | None = None) -> None:
        self._scores_RV, self._chunk = scores_RV, chunk
        self._top_R1, sums_RK = (kernels.chunk_sums if kernels else _chunk_sums)(scores_RV, chunk)
        self._below_RK = sums_RK.double().cumsum(-1)
        self.norm_R = (self._top_R1.double() + self._below_RK[:, -1:].log())[:, 0].float()
        """[R] the log-normalizer: log sum exp of the scores."""

    def draw(self, uniform_R: Tensor) -> Tensor:
        """Draw a token for each row, [R]; equal random numbers draw equal tokens.

        Args:
            uniform_R: uniform random numbers in [0, 1), one per row.
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
    """Return [R, 1] largest score, and [R, K] sums of exp(score - largest); see `Kernels.chunk_sums`."""
    rows, vocabulary = scores_RV.shape
    chunks = -(-vocabulary // chunk)
    top_R1 = scores_RV.amax(-1, keepdim=True).float()
    weights = top_R1.new_empty(rows, chunks * chunk)
    weights[:, vocabulary:] = 0.0
    torch.sub(scores_RV, top_R1, out=weights[:, :vocabulary]).exp_()
    return top_R1, weights.view(rows, chunks, chunk).sum(-1)


def nucleus(scores_RV: Tensor, top_p_R: Tensor) -> Tensor:
    """Return scores with all but the most probable tokens set to -inf (nucleus sampling, arXiv:1904.09751).

    Args:
        scores_RV: log-probabilities up to a constant per row.
        top_p_R: the smallest set of tokens whose probabilities sum to at least this is kept; ties with the
            last of them are kept too. 1 keeps all.
    """
    sorted_RV = scores_RV.sort(-1, descending=True).values
    before_RV = sorted_RV.softmax(-1).cumsum(-1).roll(1, -1)
    before_RV[:, 0] = 0.0  # the most probable token is always kept
    kept_R = torch.where(top_p_R < 1.0, (before_RV < top_p_R[:, None]).sum(-1), scores_RV.shape[1])
    least_R1 = sorted_RV.gather(1, (kept_R - 1).clamp_(min=0)[:, None])
    return scores_RV.masked_fill(scores_RV < least_R1, float("-inf"))


def truncated(scores_RV: Tensor, requests: Sequence[SamplingParams]) -> Tensor:
    """Return [R, V] scores with -inf at the tokens that each row's request excludes."""
    if not any(request.truncates for request in requests):
        return scores_RV
    top_p_R = torch.tensor([request.top_p for request in requests], device=scores_RV.device)
    return nucleus(scores_RV.float(), top_p_R)
