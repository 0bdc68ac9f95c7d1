"""Replies of which one must be given: as tokens, and which of their tokens are no choice."""

from __future__ import annotations

import json
from collections.abc import Sequence

from genenv.chat.reasoning import CLOSING
from genenv.sampling import Sampler


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


def structural_tag(choices: Sequence[tuple[int, ...]]) -> str:
    """Replies to choose from as a structural tag of xgrammar: token by token, as texts have many spellings.

    Args:
        choices: each ends with the token that ends a reply, which a server adds itself.
    """
    spelled = [
        {"type": "sequence", "elements": [{"type": "token", "token": token} for token in choice[:-1]]}
        for choice in choices
    ]
    return json.dumps({"type": "structural_tag", "format": {"type": "or", "elements": spelled}})


def tagged(tag: str, end_id: int) -> tuple[tuple[int, ...], ...]:
    """The replies that `structural_tag` wrote down.

    Raises:
        ValueError: it is another kind of tag.
    """
    try:
        spelled = [one["elements"] for one in json.loads(tag)["format"]["elements"]]
        replies = tuple((*(part["token"] for part in parts), end_id) for parts in spelled)
    except (KeyError, TypeError, ValueError, RecursionError) as error:
        raise ValueError(_UNKNOWN_TAG) from error
    if not replies or any(type(token) is not int for reply in replies for token in reply):
        raise ValueError(_UNKNOWN_TAG)
    return replies


_UNKNOWN_TAG = "of structural tags only replies to choose from, token by token, are known here"
