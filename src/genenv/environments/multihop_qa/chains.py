"""Which chains there are, and who may use them: the split between training and held-out tasks.

The split is by the two ends of a chain. A stable hash puts every name on one side, training or held-out, with
all that share a name or an alias with it; a chain belongs to a side when both its start and its answer are
there. So no start or answer of a held-out task is the start or the answer of a seed, of a variation or of
anything that the grammar can write; chains whose ends are on different sides are used by nobody. Bridges may
be met on both sides: which facts connect two ends can be learned only if those can be seen at all. But no
training chain has a whole held-out chain inside: no two of its bridges that are two hops apart are held out.
"""

from __future__ import annotations

import functools
import hashlib
import itertools
import random
from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from genenv.environments.multihop_qa.kb import KnowledgeBase
from genenv.environments.multihop_qa.relations import THINGS, Hop
from genenv.environments.multihop_qa.wording import EVERYDAY, named

MIN_HOPS, MAX_HOPS = 2, 4
MAX_CHAINS = 5_000
"""From one start; a user's facts may make millions."""
HELD_OUT_SHARE = 4
"""One name in this many is on the held-out side."""


class Chain(NamedTuple):
    """A chain that executes."""

    start: str
    hops: tuple[Hop, ...]
    answer: str
    kind: str
    """Of the answer."""
    bridges: tuple[str, ...]
    """What it passes through, between start and answer."""

    @property
    def path(self) -> tuple[str, ...]:
        """The names from start to answer."""
        return self.start, *self.bridges, self.answer


class Chains:
    """The chains of a knowledge base, by start."""

    def __init__(self, base: KnowledgeBase) -> None:
        self._base = base
        words = " ".join((*sorted(EVERYDAY), *(phrase for hop in base.hops.values() for phrase in hop.words)))
        lower = words.lower()
        self._unsayable = {
            name
            for name in base
            if any(each.lower() in lower and named([each], words) for each in base.names(name))
        }
        """Names that any question could have as words, such as the code "is", and so give away."""
        self._hidden = frozenset(name for name in base if _hashed(base.key(name)))
        self.of = functools.lru_cache(maxsize=2048)(self._of)
        """All chains of 2 to 4 hops from a start, whichever side its answer is on; the first `MAX_CHAINS`."""

    def is_held_out(self, name: str) -> bool:
        """The side of a name."""
        return name in self._hidden

    def reserved(self, path: Sequence[str]) -> str | None:
        """The first name for which a training chain may not go this way; None: it may."""
        for end in (path[0], path[-1]):
            if end in self._hidden:
                return end
        for place, name in enumerate(path):
            if name in self._hidden and not self._hidden.isdisjoint(path[place + MIN_HOPS :]):
                return name
        return None

    def _of(self, start: str) -> tuple[Chain, ...]:
        return tuple(itertools.islice(self._extend(start, start, (), (start,)), MAX_CHAINS))

    def _extend(self, start: str, here: str, hops: tuple[Hop, ...], seen: tuple[str, ...]) -> Iterator[Chain]:
        for hop in self._base.hops_from(here):
            if any(hop.relation == before.relation for before in hops):
                continue  # the element after the element after ... is no question that a person asks
            end = self._base.step(here, hop).end
            if end in seen or end in self._unsayable or named(self._base.names(end), start):
                continue
            so_far, kind = (*hops, hop), self._base.kind(end)
            if len(so_far) >= MIN_HOPS:
                yield Chain(start, so_far, end, kind, seen[1:])
            if len(so_far) < MAX_HOPS and kind in THINGS:
                yield from self._extend(start, end, so_far, (*seen, end))

    def on_side(self, start: str, *, held_out: bool) -> list[Chain]:
        """The chains from a start that belong to a side."""
        if (start in self._hidden) != held_out:
            return []
        if held_out:
            return [chain for chain in self.of(start) if chain.answer in self._hidden]
        return [chain for chain in self.of(start) if self.reserved(chain.path) is None]

    def some(
        self, start: str, per_length: Sequence[int], *, held_out: bool, rng: random.Random
    ) -> list[Chain]:
        """Some chains from a start: so many of 2, 3 and 4 hops, their answers of many kinds."""
        chosen: list[Chain] = []
        for length, wanted in enumerate(per_length, MIN_HOPS):
            found = [chain for chain in self.on_side(start, held_out=held_out) if len(chain.hops) == length]
            rng.shuffle(found)
            found.sort(key=_repeats(found))
            chosen += found[:wanted]
        return chosen


def _hashed(key: str) -> bool:
    return hashlib.sha256(key.casefold().encode()).digest()[0] % HELD_OUT_SHARE == 0


def _repeats(chains: Sequence[Chain]) -> Callable[[Chain], int]:
    """A sort key that takes each kind of answer once before any twice."""
    counts: dict[str, int] = {}
    rank: dict[Chain, int] = {}
    for chain in chains:
        rank[chain] = counts[chain.kind] = counts.get(chain.kind, 0) + 1
    return rank.__getitem__
