"""How new a task is: Jaccard similarity to everything written before, found with an inverted index.

Texts are sets of shingles, words and pairs of neighbouring words. The nearest text is found exactly without
looking at all: the shingles of the new text are taken from the rarest to the commonest. As soon as the common
ones that are left cannot lift a text above the best one, no further text is looked at (prefix filtering as in
PPJoin, Xiao et al. 2008).

Shapes: P = pairs of shingle and text, N = texts, M = shingles of the new text.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass
from itertools import chain
from typing import Self

import numpy as np
from numpy.typing import NDArray

MOST_TEXTS = 1 << 14
"""Texts in one index at most: what a search writes down fits into the processor's cache."""
FIRST_PAIRS = 2048
"""So many pairs are counted before the first look at how near the nearest is."""
_COST = 16
"""Looking a text up in a list takes about as long as counting so many pairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Postings:
    """Texts by their shingles; texts are known by their place, from `first` on."""

    first: int
    keys_P: NDArray[np.uint64]
    """Shingles, ascending."""
    texts_P: NDArray[np.uint16]
    """The place of a text that has the shingle, counted from `first`; ascending for each shingle."""
    sizes_N: NDArray[np.int64]
    """How many shingles each text has."""

    @classmethod
    def of(cls, first: int, texts: Sequence[Set[int]]) -> Self:
        """An index of texts that are sets of shingles."""
        sizes_N = np.fromiter(map(len, texts), np.int64, len(texts))
        keys_P = np.fromiter(chain.from_iterable(texts), np.uint64, int(sizes_N.sum()))
        texts_P = np.repeat(np.arange(len(texts), dtype=np.uint16), sizes_N)
        return cls._sorted(first, keys_P, texts_P, sizes_N)

    @classmethod
    def joined(cls, parts: Sequence[Postings]) -> Self:
        """One index instead of several that follow each other; together at most `MOST_TEXTS`."""
        first = parts[0].first
        return cls._sorted(
            first,
            np.concatenate([part.keys_P for part in parts]),
            np.concatenate([part.texts_P + np.uint16(part.first - first) for part in parts]),
            np.concatenate([part.sizes_N for part in parts]),
        )

    @classmethod
    def _sorted(
        cls,
        first: int,
        keys_P: NDArray[np.uint64],
        texts_P: NDArray[np.uint16],
        sizes_N: NDArray[np.int64],
    ) -> Self:
        order = np.argsort(keys_P, kind="stable")  # stable: the texts of a shingle stay in order
        return cls(first=first, keys_P=keys_P[order], texts_P=texts_P[order], sizes_N=sizes_N)

    def __len__(self) -> int:
        """How many texts are in it."""
        return len(self.sizes_N)

    def search(self, keys_M: NDArray[np.uint64], size: int) -> Search:
        """Look for the nearest to a new text.

        Args:
            keys_M: the shingles of the new text, ascending.
            size: how many those are, > 0.
        """
        starts = np.searchsorted(self.keys_P, keys_M, "left").tolist()
        ends = np.searchsorted(self.keys_P, keys_M, "right").tolist()
        lists = [self.texts_P[start:end] for start, end in zip(starts, ends, strict=True) if end > start]
        return Search(self, sorted(lists, key=len), size)


class Search:
    """The nearest to one new text among the texts of an index.

    Args:
        index: the index.
        lists: for each shingle of the new text that is here, the texts that have it; rarest first.
        size: how many shingles the new text has, > 0.
    """

    def __init__(self, index: Postings, lists: Sequence[NDArray[np.uint16]], size: int) -> None:
        self._index, self._size = index, size
        self._rest = list(reversed(lists))
        self._pairs = sum(map(len, lists))
        self._counts_N = np.zeros(len(index), np.int64)

    def look(self, pairs: int) -> float:
        """Count the rarest shingles that are left, about so many pairs; a similarity that is reached."""
        block: list[NDArray[np.uint16]] = []
        while self._rest and (not block or len(self._rest[-1]) <= pairs):
            block.append(self._rest.pop())
            pairs -= len(block[-1])
            self._pairs -= len(block[-1])
        if block:
            self._counts_N += np.bincount(np.concatenate(block), minlength=len(self._index))
        return float(self._similarity(self._counts_N).max())

    def finish(self, floor: float) -> tuple[float, list[int]]:
        """The highest similarity to a text, if it is at least `floor`, and the places of all that have it.

        Args:
            floor: a similarity > 0 that is reached somewhere; lower ones do not matter.

        Returns:
            (similarity, places); (floor, []) when no text reaches it.
        """
        pairs = FIRST_PAIRS
        places = self._able(floor)
        while len(places) * len(self._rest) * _COST > self._pairs:
            pairs *= 4
            floor = max(floor, self.look(pairs))
            places = self._able(floor)
        counts = self._counts_N[places]
        if not len(places):
            return floor, []
        for texts in self._rest:
            at = np.minimum(np.searchsorted(texts, places), len(texts) - 1)
            counts += texts[at] == places
        similar = self._similarity(counts, places)
        highest = max(floor, float(similar.max()))
        return highest, (self._index.first + places[similar == highest]).tolist()

    def _able(self, floor: float) -> NDArray[np.int64]:
        """The places of the texts that reach `floor` if they have all shingles that are left."""
        sizes_N = self._index.sizes_N
        most_N = np.minimum(self._counts_N + len(self._rest), np.minimum(sizes_N, self._size))
        return np.flatnonzero(self._similarity(most_N) >= floor)

    def _similarity(
        self, shared: NDArray[np.int64], places: NDArray[np.int64] | None = None
    ) -> NDArray[np.float64]:
        """Jaccard's: of all shingles of two texts the share that both have. Rounded as Python rounds it."""
        sizes = self._index.sizes_N if places is None else self._index.sizes_N[places]
        return shared / (self._size + sizes - shared)


_WORD = re.compile(r"[^\W_]+")
_LOOSE = 64
"""So many texts are compared one by one; then they get an index."""
_JOINED = 4
"""So many indices of equal size become one."""


class Archive:
    """Texts by id, and the nearest one to a new text by Jaccard similarity of their shingles.

    These are its words and its pairs of neighbouring words, lower-cased; one is kept as a number, the places
    of its words in the archive's vocabulary. The answer is exact, the time to find it grows far more slowly
    than the archive: the latest texts are compared one by one, older ones have an inverted index each some
    thousand (`Postings`).
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._known: set[str] = set()
        self._vocabulary: dict[str, int] = {}
        self._loose: list[frozenset[int]] = []
        self._indices: list[Postings] = []

    def __len__(self) -> int:
        """How many texts are in it."""
        return len(self._names)

    def add(self, name: str, text: str) -> None:
        """Put a text into the archive, once."""
        if name in self._known:
            return
        self._known.add(name)
        self._names.append(name)
        places = self._vocabulary
        self._loose.append(_keys([places.setdefault(word, len(places)) for word in _words(text)]))
        if len(self._loose) == _LOOSE:
            self._index()

    def nearest(self, text: str) -> tuple[float, str | None]:
        """Similarity in [0, 1] to the nearest text, and its id; (0, None) when nothing is shared with any.

        Of several that are equally near it names the first by id, whatever the order in which they came.
        """
        new: dict[str, int] = {}  # words without a place get one for the moment: no text has them
        places, free = self._vocabulary, len(self._vocabulary)
        words = _words(text)
        keys = _keys([places[w] if w in places else new.setdefault(w, free + len(new)) for w in words])
        best, found = self._nearest_loose(keys)
        for similarity, near in self._nearest_indexed(keys, best):
            found = near + (found if similarity == best else [])
            best = similarity
        return best, min((self._names[place] for place in found), default=None)

    def _nearest_loose(self, keys: frozenset[int]) -> tuple[float, list[int]]:
        """The highest similarity to a text without an index, and the places of all that have it."""
        best, found = 0.0, list[int]()
        first = len(self._names) - len(self._loose)
        for place, own in enumerate(self._loose, start=first):
            if shared := len(own & keys):
                similarity = shared / (len(keys) + len(own) - shared)
                if similarity > best:
                    best, found = similarity, []
                if similarity == best:
                    found.append(place)
        return best, found

    def _nearest_indexed(self, keys: frozenset[int], best: float) -> Iterator[tuple[float, list[int]]]:
        """The same for each index in turn, where it is at least the best so far."""
        if not keys:
            return
        keys_M = np.sort(np.fromiter(keys, np.uint64, len(keys)))
        searches = [index.search(keys_M, len(keys)) for index in self._indices]
        # a first look everywhere: the sooner one is known to be near, the less is looked at
        best = max([best, *(search.look(FIRST_PAIRS) for search in searches)])
        for search in searches:
            best, found = search.finish(best) if best else (best, [])
            yield best, found

    def _index(self) -> None:
        """Give the loose texts an index, and join indices of equal size."""
        self._indices.append(Postings.of(len(self._names) - len(self._loose), self._loose))
        self._loose = []
        while len(last := self._indices[-_JOINED:]) == _JOINED and _may_join(last):
            self._indices[-_JOINED:] = [Postings.joined(last)]


def _may_join(parts: Sequence[Postings]) -> bool:
    return len({len(part) for part in parts}) == 1 and sum(map(len, parts)) <= MOST_TEXTS


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _keys(words: Sequence[int]) -> frozenset[int]:
    """Shingles as numbers: a word's place, and for a pair of neighbours both places, side by side."""
    return frozenset(words).union([(a + 1) << 32 | b for a, b in itertools.pairwise(words)])
