r"""Answers in LaTeX: `\boxed{\text{the Tarn}}` says "the Tarn".

Models that were trained on mathematics put any answer into a box. What it holds is read as text: commands
that only set it in some type are opened, spaces and escaped characters are what they stand for.
"""

from __future__ import annotations

import re

_BOX = re.compile(r"\\(?:boxed|fbox|framebox)(?![A-Za-z])[ \t]*")
_MOST = 8
"""Boxes that are tried, from the last on; an empty one is passed over."""
_BRACES = re.compile(r"\\.|[{}]", re.DOTALL)
_DISPLAY = re.compile(r"\$|\\[\])]|\n")
"""Where a box without braces, or without an end, is over."""
_STYLE = re.compile(
    r"\\(?:text(?:bf|it|rm|tt|sf|sc|sl|up|md|normal)?|math(?:rm|bf|it|sf|tt|cal|bb)|mbox|hbox|emph|underline"
    r"|operatorname|bm|boldsymbol|displaystyle|textstyle|left|right)(?![A-Za-z])\*?"
)
_SPACE = re.compile(r"\\(?:[ ,;:!/>\n]|q?quad(?![A-Za-z])|\\)|(?<!\\)~")
_MATHS = re.compile(r"(?<!\\)\$|\\[()\[\]]")
_ESCAPED = re.compile(r"\\([%&#_{}$])")


def last_box(text: str) -> str:
    """What the last box of a text holds that is not empty; empty where there is none.

    Braces inside are matched. A box without an end holds the rest of its line.
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
    r"""Text without LaTeX's marks: `\textbf{10{,}000}~km` says "10,000 km"."""
    for marks, instead in ((_STYLE, ""), (_SPACE, " "), (_MATHS, "")):
        text = marks.sub(instead, text)
    text = re.sub(r"(?<!\\)[{}]", "", text)
    return " ".join(_ESCAPED.sub(r"\1", text).split())
