"""Answers compared word by word, and a search index over passages."""

from __future__ import annotations

import importlib.util
import logging
import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from genenv.environments.multihop_qa.kb import KnowledgeBase, Passage
from genenv.errors import UsageError

MAX_REPLY_CHARS = 20_000
"""A longer reply is not read."""
_MAX_ANSWER_CHARS = 400
_PREFIX = re.compile(
    r"[*_]{0,3}(?:the\s+)?(?:final\s+|correct\s+)?answer\s*[*_]{0,3}\s*(?:is\b\s*:?|:)[*_]{0,3}\s*",
    re.IGNORECASE,
)
_FENCE = "```"
_LAST_LETTERS = {"ł": "l", "đ": "d", "ð": "d", "ı": "i", "ø": "o", "æ": "ae", "œ": "oe", "þ": "th"}
PLAIN = str.maketrans(_LAST_LETTERS)
"""Small letters that Unicode does not take apart into a plain one and an accent."""
_SIGN = re.compile(r"(?<!\w)[-\u2010-\u2015\u2212](?=\d)")
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_MEASURES = {"height": " feet", "block": "-block"}
_NUMBERED = {"group": "group ", "period": "period "}


def accepted(base: KnowledgeBase, name: str) -> list[str]:
    """What may be answered for a name: itself, an alias, a number without its unit, a family's singular."""
    kind = base.kind(name)
    short = name.removesuffix(_MEASURES.get(kind, "")).removeprefix(_NUMBERED.get(kind, ""))
    if kind == "family":
        short = name.removesuffix("es") if name.endswith("gases") else name.removesuffix("s")
    return list(dict.fromkeys((*base.names(name), short)))


def last_line(reply: str) -> str:
    """The last line of a reply that is not empty or the end of a code block, stripped; what decides."""
    *before, last = reply.rstrip().rsplit("\n", 1)
    if before and last.strip() == _FENCE:
        last = before[0].rstrip().rsplit("\n", 1)[-1]
    return last.strip()


def answer_of(reply: str) -> str:
    """The answer that a reply gives on its last line, without a leading "Answer:" or "The answer is"."""
    line = last_line(reply)
    match = _PREFIX.match(line)
    return line[match.end() :] if match else line


def normalized(text: str) -> str:
    """A text as it is compared. What is punctuation alone ("$") stays as it is."""
    folded = unicodedata.normalize("NFKD", text[:_MAX_ANSWER_CHARS]).casefold().translate(PLAIN)
    signs = {match.start() for match in _SIGN.finditer(folded)}
    kept = "".join(
        "-" if place in signs else char
        for place, char in enumerate(folded)
        if place in signs or unicodedata.category(char)[0] not in "PSM"
    )
    return " ".join(_ARTICLES.sub(" ", kept).split()) or folded.strip()


def exact(answer: str, right: Iterable[str]) -> bool:
    """Whether an answer equals one of the right ones."""
    given = normalized(answer)
    return len(answer) <= _MAX_ANSWER_CHARS and any(given == normalized(each) for each in right)


def token_f1(answer: str, right: Sequence[str]) -> float:
    """F1 of the answer's words against the nearest right answer, in [0, 1]."""
    if len(answer) > _MAX_ANSWER_CHARS:
        return 0.0
    return max((word_f1(normalized(answer).split(), normalized(each).split()) for each in right), default=0.0)


def word_f1(given: Sequence[str], wanted: Sequence[str]) -> float:
    """F1 of words against others, in [0, 1]: 2PR / (P + R), each word as often as it stands there (SQuAD)."""
    shared = sum((Counter(given) & Counter(wanted)).values())
    return 2 * shared / (len(given) + len(wanted)) if shared else 0.0


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
