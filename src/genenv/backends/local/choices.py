# pyright: standard
"""Sampling held to a few replies: at every step only the next tokens of those that are still possible.

The replies are token sequences, each in the one form that the tokenizer gives it. So the policy over replies
is a distribution over exactly these, and most of their tokens are no choice at all: they follow from those
before.
"""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor


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
