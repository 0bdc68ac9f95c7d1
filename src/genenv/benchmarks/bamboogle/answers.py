r"""The final answer of a reply, and SQuAD's measures of how close it is to the right one.

SQuAD's normalization (Rajpurkar et al. 2016): lower case, no ASCII punctuation, no articles, single spaces,
in this order. As in SQuAD, minus signs are removed, accents and other punctuation are not. The environment
`multihop_qa` differs in both. Answers in LaTeX are opened: `\boxed{\text{the Tarn}}` becomes "the Tarn".
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
"""Boxes that are tried, from the last; empty ones are skipped."""
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
_DISPLAY = re.compile(r"\$|\\[\])]|\n")
"""End of a box without braces or without a closing brace."""
_STYLE = re.compile(
    r"\\(?:text(?:bf|it|rm|tt|sf|sc|sl|up|md|normal)?|math(?:rm|bf|it|sf|tt|cal|bb)|mbox|hbox|emph|underline"
    r"|operatorname|bm|boldsymbol|displaystyle|textstyle|left|right)(?![A-Za-z])\*?"
)
_SPACE = re.compile(r"\\(?:[ ,;:!/>\n]|q?quad(?![A-Za-z])|\\)|(?<!\\)~")
_MATHS = re.compile(r"(?<!\\)\$|\\[()\[\]]")
_ESCAPED = re.compile(r"\\([%&#_{}$])")


def last_box(text: str) -> str:
    """Content of the last box that is not empty; empty where there is none.

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
    r"""Text without LaTeX commands: `\textbf{10{,}000}~km` becomes "10,000 km"."""
    for marks, instead in ((_STYLE, ""), (_SPACE, " "), (_MATHS, "")):
        text = marks.sub(instead, text)
    text = re.sub(r"(?<!\\)[{}]", "", text)
    return " ".join(_ESCAPED.sub(r"\1", text).split())


MAX_REPLY_CHARS = 20_000
"""Characters at the end of a reply that are parsed."""
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
"""A colon of any width anywhere. A dash or an arrow only where the line starts with the word: elsewhere a
clause may follow."""
_TAGGED = re.compile("<answer>", re.IGNORECASE)
_END_TAG = re.compile("</answer>", re.IGNORECASE)
_STYLED = re.compile(r"\\(?:text|math)[a-z]*\{")
_TAGS = re.compile(r"</?[A-Za-z_|][^<>]{0,30}>")
"""Tags of a copied template, or a model's own end tokens, around an answer."""


@dataclass(frozen=True, slots=True)
class Closeness:
    """Measures of an answer against the closest right one; each in [0, 1]."""

    em: float
    """Equal after normalization."""
    f1: float
    """F1 of the words."""
    sub_em: float
    """The normalized right answer is a substring of the answer."""


def final_answer(reply: str) -> str:
    r"""Extract the answer from a reply.

    The content of the last `<answer>`; else what follows the last "Answer:", "Answer - " at the head of a
    line, or "final answer is", on its line or, if that is empty, on the next one; else the last line that is
    not empty. The last `\boxed{}` in that or after it is opened; without any of those marks, the last of the
    reply. Thoughts are ignored.
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
    """Text normalized as SQuAD compares it."""
    return " ".join(_ARTICLES.sub(" ", text.lower().translate(_PUNCTUATION)).split())


def closeness(answer: str, right: Sequence[str]) -> Closeness:
    """The maximum of each measure over the right answers."""
    given, wanted = normalized(answer), [normalized(each) for each in right]
    return Closeness(
        em=float(given in wanted),
        f1=max((word_f1(given.split(), each.split()) for each in wanted), default=0.0),
        sub_em=float(any(each and each in given for each in wanted)),
    )
