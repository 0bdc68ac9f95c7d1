"""The final answer of a reply, and how near it is to the right one: SQuAD's measures, plain.

SQuAD's normalization (Rajpurkar et al. 2016): lower case, no ASCII punctuation, no articles, single spaces,
in this order. Minus signs go, accents and other punctuation stay, as in SQuAD; the environment `multihop_qa`
does otherwise.
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass

from genenv.benchmarks.bamboogle.boxes import last_box, plain
from genenv.chat.reasoning import without_thoughts
from genenv.environments.multihop_qa.search import word_f1

MAX_REPLY_CHARS = 20_000
"""Of a longer reply only the end is read."""
_MAX_ANSWER_CHARS = 2_000
_PUNCTUATION = str.maketrans("", "", string.punctuation)
_ARTICLES = re.compile(r"\b(?:a|an|the)\b")
_COLON = r"\\?[:：﹕︰]"
_DASH = r"(?:[-–—−=]++>?|[→⇒➔])[ \t\u00a0]"
_MARKER = re.compile(
    rf"\b(?:answer[ \t*_\u00a0]*+{_COLON}|final answer is\b[ \t*_\u00a0]*+(?:{_COLON})?+)"
    rf"|^[ \t*_#>\u00a0-]*+(?:the )?(?:final )?answer[ \t*_\u00a0]*+(?<=[ \t*_\u00a0]){_DASH}",
    re.IGNORECASE | re.MULTILINE,
)
"""A colon of any width anywhere; a dash or an arrow only where the line begins with the word, for elsewhere a
clause may follow."""
_TAGGED = re.compile("<answer>", re.IGNORECASE)
_END_TAG = re.compile("</answer>", re.IGNORECASE)
_STYLED = re.compile(r"\\(?:text|math)[a-z]*\{")
_TAGS = re.compile(r"</?[A-Za-z_|][^<>]{0,30}>")
"""Of a copied template or a model's own end marks, around an answer."""


@dataclass(frozen=True, slots=True)
class Closeness:
    """How near an answer is to the nearest right one; each in [0, 1]."""

    em: float
    """Equal after normalization."""
    f1: float
    """Of the words."""
    sub_em: float
    """The right answer is a part of the answer, after normalization, letter by letter."""


def final_answer(reply: str) -> str:
    r"""What a reply gives as its answer.

    The content of the last `<answer>`; else what follows the last "Answer:", "Answer - " at the head of a
    line, or "final answer is", on its line or, if that is empty, on the next one; else the last line that is
    not empty. Where any `\boxed{}` stands in that or after it, the last is opened, and without all those
    marks the last of the reply. Thoughts are not read.
    """
    text = without_thoughts(reply[-MAX_REPLY_CHARS:])
    tagged = list(_TAGGED.finditer(text))
    if tagged:
        content = _END_TAG.split(text[tagged[-1].end() :], maxsplit=1)[0]
        return _cut(last_box(content) or content)
    for marker in reversed(list(_MARKER.finditer(text))):
        rest = text[marker.end() :]
        lines = _lines(rest.replace("*", " "))
        if lines:
            return _cut(last_box(rest) or lines[0])
    lines = _lines(text)
    return _cut(last_box(text) or lines[-1]) if lines else ""


def _lines(text: str) -> list[str]:
    return [line.strip() for line in text.splitlines() if line.strip()]


def _cut(text: str) -> str:
    cut = text.strip()[:_MAX_ANSWER_CHARS]
    cut = plain(cut) if _STYLED.search(cut) else cut
    return _TAGS.sub("", cut).strip() or cut


def normalized(text: str) -> str:
    """A text as SQuAD compares it."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def closeness(answer: str, right: Sequence[str]) -> Closeness:
    """The best of each measure over the right answers."""
    given, wanted = normalized(answer), [normalized(each) for each in right]
    return Closeness(
        em=float(given in wanted),
        f1=max((word_f1(given.split(), each.split()) for each in wanted), default=0.0),
        sub_em=float(any(each and each in given for each in wanted)),
    )
