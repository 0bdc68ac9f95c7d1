# pyright: standard
"""The next token of a sequence: which tokens a grammar or a list of choices allows, and drawing one.

A JSON schema becomes a mask over the vocabulary at every step (xgrammar). With choices only the next tokens
of those that are still possible are allowed; each is in the one form that the tokenizer gives it. So the
policy over choices is a distribution over exactly these, and most of their tokens follow from those before.

Drawing takes as few passes over the vocabulary as possible: `torch.multinomial` over a large vocabulary costs
more than the forward pass of a small model on a CPU. Here a distribution function is inverted: probabilities
are summed in chunks, the chunk is found first, then the token in it. The same sums give the normalizer of the
log-probabilities.

Shapes: R = rows, V = vocabulary, C = tokens of a chunk, K = chunks.
"""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any, Protocol

import torch
import xgrammar
from torch import Tensor

from genenv.backends.local.cpu.kernels import Kernels
from genenv.errors import UsageError, first_line
from genenv.sampling import SamplingParams
from genenv.types import Choices, JsonObject


class Matcher(Protocol):
    """Follows one completion, token by token."""

    def fill_next_token_bitmask(self, mask: Any, row: int, /) -> Any:  # noqa: ANN401
        """Write into a row of a mask what may come next."""
        ...

    def accept_token(self, token: int, /) -> bool:
        """Go on with a token; whether it may be that one."""
        ...

    def is_terminated(self) -> bool:
        """Whether nothing comes any more."""
        ...


class Grammars:
    """Compiles schemas for one tokenizer, and keeps the latest: a round's are needed again for its update.

    One takes 1 to 60 MiB, so they are forgotten when a round is over.
    """

    def __init__(self, tokenizer: Any, vocabulary: int, stop_id: int) -> None:  # noqa: ANN401
        info = xgrammar.TokenizerInfo.from_huggingface(
            tokenizer, vocab_size=vocabulary, stop_token_ids=[stop_id]
        )
        self._compiler = xgrammar.GrammarCompiler(info, max_threads=2, cache_enabled=False)
        self._vocabulary = vocabulary
        self._compile = functools.lru_cache(maxsize=64)(self._compile_text)

    def matcher(self, schema: JsonObject) -> Matcher:
        """A fresh matcher for one completion."""
        return xgrammar.GrammarMatcher(self._compile(json.dumps(schema)))

    def allowed(self, matchers: Sequence[Matcher]) -> Tensor:
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
        mask = self.anything(len(token_ids))
        _follow(self.matcher(schema), token_ids, mask)
        return mask

    def among(self, choices: Sequence[Choices], token_ids: Sequence[int]) -> Tensor:
        """[T, ceil(V / 32)] the same where some replies had to be one of some; anything goes beside them.

        Raises:
            ValueError: a reply is none of its choices.
        """
        mask = self.anything(len(token_ids))
        for one in choices:
            part = token_ids[one.start : one.start + max(map(len, one.replies))]
            _follow(OneOf(one.replies), part, mask[one.start :])
        return mask

    def forbid(self, scores_RV: Tensor, mask: Tensor) -> None:
        """Set the scores of all other tokens to -inf, in place."""
        xgrammar.apply_token_bitmask_inplace(scores_RV, mask.to(scores_RV.device, non_blocking=True))

    def forget(self) -> None:
        """Keep none."""
        self._compile.cache_clear()

    def _compile_text(self, schema: str) -> xgrammar.CompiledGrammar:
        try:
            return self._compiler.compile_json_schema(schema, any_whitespace=False, separators=(",", ":"))
        except RuntimeError as error:
            raise UsageError(
                f"the environment's spec schema cannot be made into a grammar: {first_line(error)}"
            ) from error


def _follow(matcher: Matcher, token_ids: Sequence[int], mask: Tensor) -> None:
    """Write down what may stand in the place of each token, up to where the matcher ends."""
    for t, token in enumerate(token_ids):
        if matcher.is_terminated():
            return
        matcher.fill_next_token_bitmask(mask, t)
        if not matcher.accept_token(token):
            raise ValueError(f"token {t} of a completion does not follow its grammar")


def is_forbidden(mask: Tensor, vocabulary: int) -> Tensor:
    """[R, V] True at the tokens that a bit mask [R, ceil(V / 32)] does not allow."""
    bits = torch.arange(32, dtype=torch.int32, device=mask.device)
    return ((mask[:, :, None] >> bits) & 1).flatten(1)[:, :vocabulary] == 0


class OneOf:
    """Follows one completion that is to be one of some; has what xgrammar's matchers have."""

    def __init__(self, replies: Sequence[tuple[int, ...]]) -> None:
        self._left, self._place = list(replies), 0

    def fill_next_token_bitmask(self, mask: Tensor, row: int) -> None:
        """Write into a row of a mask [R, ceil(V / 32)] what may come next."""
        mask[row] = 0
        for token in self._next():
            word, bit = divmod(token, 32)
            mask[row, word] |= -(2**31) if bit == 31 else 1 << bit

    def accept_token(self, token: int) -> bool:
        """Go on with a token; whether it may be that one."""
        self._left = [r for r in self._left if len(r) > self._place and r[self._place] == token]
        self._place += 1
        return bool(self._left)

    def is_terminated(self) -> bool:
        """Whether nothing comes any more."""
        return not self._next()

    def _next(self) -> set[int]:
        return {reply[self._place] for reply in self._left if len(reply) > self._place}


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


def truncated(scores_RV: Tensor, requests: Sequence[SamplingParams]) -> Tensor:
    """[R, V] scores in which what each row's request does not draw is -inf."""
    if not any(request.truncates for request in requests):
        return scores_RV
    top_p_R = torch.tensor([request.top_p for request in requests], device=scores_RV.device)
    return nucleus(scores_RV.float(), top_p_R)
