"""The novelty of tasks: Jaccard similarity to all earlier texts, by an exact search in an inverted index.

Texts are sets of shingles: words and pairs of neighbouring words. The search takes the shingles of the new
text from the rarest to the most common. It stops adding texts once the remaining shingles cannot lift a text
above the best one (prefix filtering as in PPJoin, Xiao et al. 2008). So it finds the nearest text exactly
without comparing all.

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
"""Maximum number of texts per index, so that the counts of a search fit into the processor's cache."""
FIRST_PAIRS = 2048
"""Number of pairs that are counted before the first estimate of the highest similarity."""
_COST = 16
"""Looking a text up in a list takes about as long as counting this many pairs."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Postings:
    """An inverted index: texts by shingle. Texts are numbered from `first` on."""

    first: int
    keys_P: NDArray[np.uint64]
    """Shingles, ascending."""
    texts_P: NDArray[np.uint16]
    """Number of a text that has the shingle, minus `first`; ascending within each shingle."""
    sizes_N: NDArray[np.int64]
    """Number of shingles of each text."""

    @classmethod
    def of(cls, first: int, texts: Sequence[Set[int]]) -> Self:
        """Index texts that are given as sets of shingles."""
        sizes_N = np.fromiter(map(len, texts), np.int64, len(texts))
        keys_P = np.fromiter(chain.from_iterable(texts), np.uint64, int(sizes_N.sum()))
        texts_P = np.repeat(np.arange(len(texts), dtype=np.uint16), sizes_N)
        return cls._sorted(first, keys_P, texts_P, sizes_N)

    @classmethod
    def joined(cls, parts: Sequence[Postings]) -> Self:
        """Merge consecutive indices into one, with at most `MOST_TEXTS` texts in total."""
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
        """Return the number of texts."""
        return len(self.sizes_N)

    def search(self, keys_M: NDArray[np.uint64], size: int) -> Search:
        """Start a search for the text nearest to a new text.

        Args:
            keys_M: the shingles of the new text, ascending.
            size: number of these shingles, > 0.
        """
        starts = np.searchsorted(self.keys_P, keys_M, "left").tolist()
        ends = np.searchsorted(self.keys_P, keys_M, "right").tolist()
        lists = [self.texts_P[start:end] for start, end in zip(starts, ends, strict=True) if end > start]
        return Search(self, sorted(lists, key=len), size)


class Search:
    """A search for the nearest texts to one new text in an index.

    Args:
        index: the index to search.
        lists: for each shingle of the new text that the index has, the texts with it; rarest shingle first.
        size: number of shingles of the new text, > 0.
    """

    def __init__(self, index: Postings, lists: Sequence[NDArray[np.uint16]], size: int) -> None:
        self._index, self._size = index, size
        self._rest = list(reversed(lists))
        self._pairs = sum(map(len, lists))
        self._counts_N = np.zeros(len(index), np.int64)

    def look(self, pairs: int) -> float:
        """Count about `pairs` pairs of the rarest remaining shingles; return the best similarity so far."""
        block: list[NDArray[np.uint16]] = []
        while self._rest and (not block or len(self._rest[-1]) <= pairs):
            block.append(self._rest.pop())
            pairs -= len(block[-1])
            self._pairs -= len(block[-1])
        if block:
            self._counts_N += np.bincount(np.concatenate(block), minlength=len(self._index))
        return float(self._similarity(self._counts_N).max())

    def finish(self, floor: float) -> tuple[float, list[int]]:
        """Return the highest similarity to a text, and the numbers of all texts that have it.

        Args:
            floor: a similarity > 0 that some text is known to reach; lower ones do not matter.

        Returns:
            (similarity, text numbers); (floor, []) if no text reaches it.
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
        """Return the numbers of the texts that would reach `floor` if they had all remaining shingles."""
        sizes_N = self._index.sizes_N
        most_N = np.minimum(self._counts_N + len(self._rest), np.minimum(sizes_N, self._size))
        return np.flatnonzero(self._similarity(most_N) >= floor)

    def _similarity(
        self, shared: NDArray[np.int64], places: NDArray[np.int64] | None = None
    ) -> NDArray[np.float64]:
        """Return Jaccard similarities: shared shingles / shingles of either text, rounded as in Python."""
        sizes = self._index.sizes_N if places is None else self._index.sizes_N[places]
        return shared / (self._size + sizes - shared)


_WORD = re.compile(r"[^\W_]+")
_LOOSE = 64
"""Number of texts that are compared one by one before they get an index."""
_JOINED = 4
"""Number of indices of equal size that are merged into one."""


class Archive:
    """Texts by id, with an exact search for the nearest text by Jaccard similarity of shingles.

    Shingles are the lower-cased words and pairs of neighbouring words. A shingle is stored as a number, made
    from the words' places in the archive's vocabulary. Search time grows far more slowly than the archive:
    the latest texts are compared one by one, and each few thousand older ones have an inverted index
    (`Postings`).
    """

    def __init__(self) -> None:
        self._names: list[str] = []
        self._known: set[str] = set()
        self._vocabulary: dict[str, int] = {}
        self._loose: list[frozenset[int]] = []
        self._indices: list[Postings] = []

    def __len__(self) -> int:
        """Return the number of texts."""
        return len(self._names)

    def add(self, name: str, text: str) -> None:
        """Add a text to the archive; ignored if the name is known."""
        if name in self._known:
            return
        self._known.add(name)
        self._names.append(name)
        places = self._vocabulary
        self._loose.append(_keys([places.setdefault(word, len(places)) for word in _words(text)]))
        if len(self._loose) == _LOOSE:
            self._index()

    def nearest(self, text: str) -> tuple[float, str | None]:
        """Return the similarity in [0, 1] to the nearest text, and its id; (0, None) if nothing is shared.

        Among equally near texts it returns the smallest id, whatever the order in which they were added.
        """
        new: dict[str, int] = {}  # temporary places of unknown words, which no text has
        places, free = self._vocabulary, len(self._vocabulary)
        words = _words(text)
        keys = _keys([places[w] if w in places else new.setdefault(w, free + len(new)) for w in words])
        best, found = self._nearest_loose(keys)
        for similarity, near in self._nearest_indexed(keys, best):
            found = near + (found if similarity == best else [])
            best = similarity
        return best, min((self._names[place] for place in found), default=None)

    def _nearest_loose(self, keys: frozenset[int]) -> tuple[float, list[int]]:
        """Return the highest similarity to a text without an index, and the numbers of all such texts."""
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
        """Yield (similarity, text numbers) of each index in turn, if it is at least the best so far."""
        if not keys:
            return
        keys_M = np.sort(np.fromiter(keys, np.uint64, len(keys)))
        searches = [index.search(keys_M, len(keys)) for index in self._indices]
        # a first look at all indices: a high floor found early saves the most work
        best = max([best, *(search.look(FIRST_PAIRS) for search in searches)])
        for search in searches:
            best, found = search.finish(best) if best else (best, [])
            yield best, found

    def _index(self) -> None:
        """Build an index of the loose texts, and merge indices of equal size."""
        self._indices.append(Postings.of(len(self._names) - len(self._loose), self._loose))
        self._loose = []
        while len(last := self._indices[-_JOINED:]) == _JOINED and _may_join(last):
            self._indices[-_JOINED:] = [Postings.joined(last)]


def _may_join(parts: Sequence[Postings]) -> bool:
    return len({len(part) for part in parts}) == 1 and sum(map(len, parts)) <= MOST_TEXTS


def _words(text: str) -> list[str]:
    return _WORD.findall(text.lower())


def _keys(words: Sequence[int]) -> frozenset[int]:
    """Return shingles as numbers: a word's place, or both places of a pair packed into one number."""
    return frozenset(words).union([(a + 1) << 32 | b for a, b in itertools.pairwise(words)])
