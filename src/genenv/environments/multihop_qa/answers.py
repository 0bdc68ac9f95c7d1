"""What counts as the right answer: exact match and token F1 after normalization, as SQuAD has it.

Lower case, no punctuation but the minus sign of a number, no articles, single spaces; and no accents, as
keyboards differ.
"""

from __future__ import annotations

import re
import unicodedata
from collections import Counter
from collections.abc import Iterable, Sequence

from genenv.environments.multihop_qa.kb import KnowledgeBase

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
