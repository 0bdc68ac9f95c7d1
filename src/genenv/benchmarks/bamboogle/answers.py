r"""Extracts the final answer of a reply, and measures its closeness to the right answer as SQuAD does.

SQuAD's normalization (Rajpurkar et al. 2016) applies, in this order: lower case, no ASCII punctuation, no
articles, single spaces. As in SQuAD, minus signs are removed, but accents and other punctuation are not. The
environment `multihop_qa` differs in both. LaTeX is removed: `\boxed{\text{the Tarn}}` becomes "the Tarn".
"""

from __future__ import annotations

import re
import string
from collections.abc import Sequence
from dataclasses import dataclass

from genenv.chat.reasoning import without_thoughts
from genenv.environments.multihop_qa.search import word_f1

_BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![A-Za-z])[ \t]*")
_MOST = 8
"""The most boxes to try, from the last one; empty boxes are skipped."""
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
_DISPLAY = re.compile(r"\$|\\[\])]|\n")
"""The end of a box without braces or without a closing brace."""
_STYLE = re.compile(
    r"\\(?:text(?:bf|it|rm|tt|sf|sc|sl|up|md|normal)?|math(?:rm|bf|it|sf|tt|cal|bb)|mbox|hbox|emph|underline"
    r"|operatorname|bm|boldsymbol|displaystyle|textstyle|left|right)(?![A-Za-z])\*?"
)
_SPACE = re.compile(r"\\(?:[ ,;:!/>\n]|q?quad(?![A-Za-z])|\\)|(?<!\\)~")
_MATHS = re.compile(r"(?<!\\)\$|\\[()\[\]]")
_ESCAPED = re.compile(r"\\([%&#_{}$])")


def last_box(text: str) -> str:
    """Return the content of the last non-empty box; "" if there is none.

    Braces inside are matched. A box without an end extends to the end of its line.
    """
    for box in list(_BOX.finditer(text))[: -_MOST - 1 : -1]:
        found = plain(_content(text, box.end()))
        if found:
            return found
    return ""


def _content(text: str, at: int) -> str:
    if not text.startswith("{", at):
        return _DISPLAY.split(text[at:], maxsplit=1)[0]
    depth = 0
    for brace in _BRACES.finditer(text, at):
        depth += {"{": 1, "}": -1}.get(brace[0], 0)
        if depth == 0:
            return text[at + 1 : brace.start()]
    return _DISPLAY.split(text[at + 1 :], maxsplit=1)[0]


def plain(text: str) -> str:
    r"""Return text without LaTeX commands: `\textbf{10{,}000}~km` becomes "10,000 km"."""
    for marks, instead in ((_STYLE, ""), (_SPACE, " "), (_MATHS, "")):
        text = marks.sub(instead, text)
    text = re.sub(r"(?<!\\)[{}]", "", text)
    return " ".join(_ESCAPED.sub(r"\1", text).split())


MAX_REPLY_CHARS = 20_000
"""The most characters parsed, counted from the end of a reply."""
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
"""A colon of any width is accepted anywhere. A dash or arrow is accepted only if the line starts with the
word, as elsewhere a clause may follow.
"""
_TAGGED = re.compile("<answer>", re.IGNORECASE)
_END_TAG = re.compile("</answer>", re.IGNORECASE)
_STYLED = re.compile(r"\\(?:text|math)[a-z]*\{")
_TAGS = re.compile(r"</?[A-Za-z_|][^<>]{0,30}>")
"""Tags of a copied template, or a model's end tokens, around an answer."""


@dataclass(frozen=True, slots=True)
class Closeness:
    """Measures of an answer against the closest right answer, each in [0, 1]."""

    em: float
    """Exact match after normalization."""
    f1: float
    """F1 of the words."""
    sub_em: float
    """Whether the normalized right answer is a substring of the normalized answer."""


def final_answer(reply: str) -> str:
    r"""Extract the final answer from a reply.

    It is the content of the last `<answer>`. Else it follows the last "Answer:", "Answer - " at the start of
    a line, or "final answer is", on the same line or, if that is empty, on the next. Else it is the last
    non-empty line. If the last `\boxed{}` is in that text or after it, its content is the answer; without any
    of those marks, the content of the reply's last box. Thoughts are ignored.
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
    """Return text in SQuAD's normalization."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def closeness(answer: str, right: Sequence[str]) -> Closeness:
    """Return the maximum of each measure over the right answers."""
    given, wanted = normalized(answer), [normalized(each) for each in right]
    return Closeness(
        em=float(given in wanted),
        f1=max((word_f1(given.split(), each.split()) for each in wanted), default=0.0),
        sub_em=float(any(each and each in given for each in wanted)),
    )
