# pyright: standard
"""Grammar-constrained sampling: a JSON schema becomes a mask over the vocabulary at every step (xgrammar)."""

from __future__ import annotations

import functools
import json
from collections.abc import Sequence
from typing import Any, Protocol

import torch
import xgrammar
from torch import Tensor

from genenv.backends.local.choices import OneOf
from genenv.errors import UsageError, first_line
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
