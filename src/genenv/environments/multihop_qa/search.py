"""Comparison of answers word by word, and a search index over passages."""

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
"""Longer replies are not read."""
_MAX_ANSWER_CHARS = 400
_PREFIX = re.compile(
    r"[*_]{0,3}(?:the\s+)?(?:final\s+|correct\s+)?answer\s*[*_]{0,3}\s*(?:is\b\s*:?|:)[*_]{0,3}\s*",
    re.IGNORECASE,
)
_FENCE = "```"
_LAST_LETTERS = {"ł": "l", "đ": "d", "ð": "d", "ı": "i", "ø": "o", "æ": "ae", "œ": "oe", "þ": "th"}
PLAIN = str.maketrans(_LAST_LETTERS)
"""Translates lower-case letters that Unicode does not decompose into a plain letter and an accent."""
_SIGN = re.compile(r"(?<!\w)[-\u2010-\u2015\u2212](?=\d)")
_MEANT = re.compile(r"(?<=\d)[.:](?=\d)|(?<=\w)[+#]+(?!\w)")
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_MEASURES = {"height": " feet", "block": "-block"}
_NUMBERED = {"group": "group ", "period": "period "}


def accepted(base: KnowledgeBase, name: str) -> list[str]:
    """Return the accepted answers for a name, including aliases, a number without unit, a singular."""
    kind = base.kind(name)
    short = name.removesuffix(_MEASURES.get(kind, "")).removeprefix(_NUMBERED.get(kind, ""))
    if kind == "family":
        short = name.removesuffix("es") if name.endswith("gases") else name.removesuffix("s")
    spaced = [name.replace("-", " ")] if kind == "block" else []
    return list(dict.fromkeys((*base.names(name), short, *spaced)))


def last_line(reply: str) -> str:
    """Return the last line of a reply, stripped, without empty lines and a closing code fence."""
    *before, last = reply.rstrip().rsplit("\n", 1)
    if before and last.strip() == _FENCE:
        last = before[0].rstrip().rsplit("\n", 1)[-1]
    return last.strip()


def answer_of(reply: str) -> str:
    """Return the answer on the last line of a reply, without a leading "Answer:" or "The answer is"."""
    line = last_line(reply)
    match = _PREFIX.match(line)
    return line[match.end() :] if match else line


def normalized(text: str) -> str:
    """Return a text in the form in which answers are compared.

    A text of punctuation alone keeps its currency signs, or stays as it is. Otherwise punctuation and symbols
    are left out, but not a point or a colon within a number (2.5, 10:30), and not
    plus and number signs at the end of a word (C++).
    """
    folded = unicodedata.normalize("NFKD", text[:_MAX_ANSWER_CHARS]).casefold().translate(PLAIN)
    signs = {match.start() for match in _SIGN.finditer(folded)}
    meant = {place for match in _MEANT.finditer(folded) for place in range(*match.span())}
    kept = "".join(
        "-" if place in signs else char
        for place, char in enumerate(folded)
        if place in signs or place in meant or unicodedata.category(char)[0] not in "PSM"
    )
    signs_of_money = "".join(char for char in folded if unicodedata.category(char) == "Sc")
    return " ".join(_ARTICLES.sub(" ", kept).split()) or signs_of_money or folded.strip()


def exact(answer: str, right: Iterable[str]) -> bool:
    """Return whether an answer equals one of the right ones."""
    given = normalized(answer)
    return len(answer) <= _MAX_ANSWER_CHARS and any(given == normalized(each) for each in right)


def token_f1(answer: str, right: Sequence[str]) -> float:
    """Return the F1 of the answer's words against the most similar right answer, in [0, 1]."""
    if len(answer) > _MAX_ANSWER_CHARS:
        return 0.0
    return max((word_f1(normalized(answer).split(), normalized(each).split()) for each in right), default=0.0)


def word_f1(given: Sequence[str], wanted: Sequence[str]) -> float:
    """Return the F1 of two bags of words (SQuAD): 2PR / (P + R), in [0, 1]."""
    shared = sum((Counter(given) & Counter(wanted)).values())
    return 2 * shared / (len(given) + len(wanted)) if shared else 0.0


_MAX_QUERY_CHARS = 200
_WORD = re.compile(r"[^\W_]+")
_SENTENCE = re.compile(r"(?<=[.!?]) (?=Its? )|(?<=\w\w\w[.!?]) (?=[A-Z])")
"""Matches the space between two sentences, but not after abbreviations like "St."."""
_COMMON = frozenset(
    ("a", "an", "and", "for", "has", "in", "is", "it", "its", "of", "on", "the", "to", "what", "whose")
)
_TITLE_WEIGHT = 4
_LENGTH_PENALTY = 0.1
"""BM25's `b`, between 0 and 1. Low, because long passages state more facts instead of repeating words."""
NOTHING = "Nothing found."


def require_search() -> None:
    """Check that searching is possible before any other work begins.

    Raises:
        UsageError: the package bm25s is not installed.
    """
    if importlib.util.find_spec("bm25s") is None:
        raise UsageError("mode search needs the package bm25s: pip install 'genenv[multihop_qa]'")


class SearchIndex:
    """A BM25 index of passages."""

    def __init__(self, passages: Iterable[Passage]) -> None:
        bm25s: Any = importlib.import_module("bm25s")
        logging.getLogger("bm25s").setLevel(logging.WARNING)  # it would announce every index
        self._passages = tuple(passages)
        words = [_weighted(passage) for passage in self._passages]
        self._known = {word for each in words for word in each}
        self._index = bm25s.BM25(b=_LENGTH_PENALTY)
        self._index.index(words, show_progress=False)

    def search(self, query: str, *, results: int, chars: int) -> str:
        """Return the result of a search: passages, best first, one per line, of about `chars` characters."""
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
    """Return the words of a passage for the index: each word once, but words of its title several times."""
    name, _, kind = passage.title.partition(" (")
    return _TITLE_WEIGHT * words_of(name) + sorted(set(words_of(f"{kind} {passage.text}"))) or ["-"]


def words_of(text: str) -> list[str]:
    """Return the words that search compares: lower case, without accents and without very common words."""
    plain = "".join(char for char in unicodedata.normalize("NFKD", text) if not unicodedata.combining(char))
    return [word for word in _WORD.findall(plain.lower().translate(PLAIN)) if word not in _COMMON]


def _snippet(passage: Passage, words: frozenset[str], chars: int) -> str:
    """Return a passage's title and its sentences with the most query words, in their original order."""
    sentences: Sequence[str] = _SENTENCE.split(passage.text)
    by_words = sorted(range(len(sentences)), key=lambda i: -len(words & set(words_of(sentences[i]))))
    kept, left = [by_words[0]], chars - len(sentences[by_words[0]])
    for place in by_words[1:]:
        if len(sentences[place]) < left:
            kept.append(place)
            left -= len(sentences[place]) + 1
    return f"{passage.title}: {' '.join(sentences[place] for place in sorted(kept))[:chars]}"
