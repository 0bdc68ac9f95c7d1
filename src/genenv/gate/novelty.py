"""How new a task is: measured against everything written before, not against its batch."""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterator, Sequence

import numpy as np

from genenv.gate.postings import FIRST_PAIRS, MOST_TEXTS, Postings

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
    thousand (`genenv.gate.postings`).
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
