"""How new a task is: measured against everything written before, not against its batch."""

from __future__ import annotations

import itertools
import re
from collections import Counter, defaultdict

_WORD = re.compile(r"[^\W_]+")


def shingles(text: str) -> frozenset[str]:
    """The words and the pairs of neighbouring words of a text, lower-cased."""
    words = _WORD.findall(text.lower())
    return frozenset(words) | {f"{a} {b}" for a, b in itertools.pairwise(words)}


class Archive:
    """Texts by id, and the nearest one to a new text by Jaccard similarity of shingles."""

    def __init__(self) -> None:
        self._sizes: dict[str, int] = {}
        self._with: defaultdict[str, list[str]] = defaultdict(list)

    def __len__(self) -> int:
        """How many texts are in it."""
        return len(self._sizes)

    def add(self, name: str, text: str) -> None:
        """Put a text into the archive, once."""
        if name in self._sizes:
            return
        parts = shingles(text)
        self._sizes[name] = len(parts)
        for part in parts:
            self._with[part].append(name)

    def nearest(self, text: str) -> tuple[float, str | None]:
        """Similarity in [0, 1] to the nearest text, and its id; (0, None) when nothing is shared with any.

        Of several that are equally near it names the first by id, whatever the order in which they came.
        """
        parts = shingles(text)
        shared = Counter(name for part in parts for name in self._with.get(part, ()))
        best, found = 0.0, None
        for name, count in shared.items():
            similarity = count / (len(parts) + self._sizes[name] - count)
            if similarity > best or (similarity == best and found is not None and name < found):
                best, found = similarity, name
        return best, found
