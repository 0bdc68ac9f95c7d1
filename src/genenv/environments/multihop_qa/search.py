"""Search over passages with BM25 (Robertson and Zaragoza 2009, by way of the package bm25s)."""

from __future__ import annotations

import importlib.util
import logging
import re
import unicodedata
from collections.abc import Iterable, Sequence
from typing import Any

from genenv.environments.multihop_qa.answers import PLAIN
from genenv.environments.multihop_qa.kb import Passage
from genenv.errors import UsageError

_MAX_QUERY_CHARS = 200
_WORD = re.compile(r"[^\W_]+")
_SENTENCE = re.compile(r"(?<=[.!?]) (?=Its? )|(?<=\w\w\w[.!?]) (?=[A-Z])")
"""Between sentences, not after "St."."""
_COMMON = frozenset(
    ("a", "an", "and", "for", "has", "in", "is", "it", "its", "of", "on", "the", "to", "what", "whose")
)
_TITLE_WEIGHT = 4
_LENGTH_PENALTY = 0.1
"""Between 0 and 1; passages differ in length by how much is known, not by how much they ramble."""
NOTHING = "Nothing found."


def require_search() -> None:
    """Notice that searching is not possible before anything else is done.

    Raises:
        UsageError: the package bm25s is not installed.
    """
    if importlib.util.find_spec("bm25s") is None:
        raise UsageError("mode search needs the package bm25s: pip install 'genenv[multihop_qa]'")


class SearchIndex:
    """Finds passages by their words."""

    def __init__(self, passages: Iterable[Passage]) -> None:
        bm25s: Any = importlib.import_module("bm25s")
        logging.getLogger("bm25s").setLevel(logging.WARNING)  # it would announce every index
        self._passages = tuple(passages)
        words = [_weighted(passage) for passage in self._passages]
        self._known = {word for each in words for word in each}
        self._index = bm25s.BM25(b=_LENGTH_PENALTY)
        self._index.index(words, show_progress=False)

    def search(self, query: str, *, results: int, chars: int) -> str:
        """What a search shows: passages, best first, one a line, each cut to some characters."""
        words = words_of(query[:_MAX_QUERY_CHARS])
        asked = [[word for word in words if word in self._known]]
        if not asked[0]:
            return NOTHING
        most = min(results, len(self._passages))
        found, scores = self._index.retrieve(asked, k=most, show_progress=False)
        hits = [int(place) for place, score in zip(found[0], scores[0], strict=True) if score > 0]
        lines = [_snippet(self._passages[place], frozenset(words), chars) for place in hits]
        return "\n".join(lines) or NOTHING


def _weighted(passage: Passage) -> list[str]:
    """The words of a passage, each once, but those of its name several times: what it is about tells most."""
    name, _, kind = passage.title.partition(" (")
    return _TITLE_WEIGHT * words_of(name) + sorted(set(words_of(f"{kind} {passage.text}"))) or ["-"]


def words_of(text: str) -> list[str]:
    """The words that search compares: lower case, without accents and the most common ones."""
    plain = "".join(char for char in unicodedata.normalize("NFKD", text) if not unicodedata.combining(char))
    return [word for word in _WORD.findall(plain.lower().translate(PLAIN)) if word not in _COMMON]


def _snippet(passage: Passage, words: frozenset[str], chars: int) -> str:
    """A passage's title and those of its sentences that have most of the words, in their order."""
    sentences: Sequence[str] = _SENTENCE.split(passage.text)
    by_words = sorted(range(len(sentences)), key=lambda i: -len(words & set(words_of(sentences[i]))))
    kept, left = [by_words[0]], chars - len(sentences[by_words[0]])
    for place in by_words[1:]:
        if len(sentences[place]) < left:
            kept.append(place)
            left -= len(sentences[place]) + 1
    return f"{passage.title}: {' '.join(sentences[place] for place in sorted(kept))[:chars]}"
