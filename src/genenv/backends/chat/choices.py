"""Replies of which one must be given: as tokens, and which of their tokens are no choice."""

from __future__ import annotations

from collections.abc import Sequence

from genenv.backends.base import Sampler
from genenv.backends.chat.reasoning import CLOSING


def encoded(texts: Sequence[str], sampler: Sampler, *, thinks: bool) -> tuple[tuple[int, ...], ...]:
    """Replies to choose from as they would be sampled.

    Args:
        texts: what may be said.
        sampler: whose tokens they are.
        thinks: whether the prompt begins a thought, which is then empty.
    """
    return tuple(sampler.encode_reply((CLOSING if thinks else "") + text) for text in dict.fromkeys(texts))


def forced_places(reply: Sequence[int], choices: Sequence[tuple[int, ...]]) -> frozenset[int]:
    """The places where no other token could stand, in a reply that is one of some; none without choices."""
    left, forced = list(choices), set[int]()
    for place, token in enumerate(reply if left else ()):
        if len({choice[place] for choice in left}) == 1:
            forced.add(place)
        left = [choice for choice in left if choice[place] == token]
    return frozenset(forced)
