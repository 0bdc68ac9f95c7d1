"""Thoughts in replies: the markup of different models, and the removal of thoughts.

In genenv a reply marks thoughts with `<think>` and `</think>`, whatever the model's markup (`Spelling.read`).
`SPELLINGS` is the only list of other markups.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

CLOSING = "\n</think>\n\n"
"""Ends a thought that is cut short, or an empty thought that a chat template has begun."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """A model's markup of thoughts, including control tokens."""

    opening: str
    ending: str
    """Ends a thought."""
    closing: str
    """Ends a thought that is cut short, and begins the answer."""
    answer: str = ""
    """Begins an answer without a thought."""
    frames: re.Pattern[str] | None = None
    """Markup around other parts of a reply, to be removed, or to be kept as its only group."""

    @property
    def tokens(self) -> tuple[str, ...]:
        """The strings of the markup that may be control tokens; decoding must keep them."""
        return tuple(_TOKEN.findall(self.opening + self.closing + self.answer))

    def opens(self, prompt: str) -> bool:
        """Return whether a prompt ends with the beginning of a thought."""
        return prompt.rstrip().endswith(self.opening.rstrip())

    def read(self, text: str) -> str:
        """Return a reply with its thoughts between `<think>` and `</think>`."""
        marks = (self.tokens[0], *((self.ending,) if self.frames is None else ()))
        if self is USUAL or not any(mark in text for mark in marks):
            return text
        found: list[str] = []
        for part in text.split(self.opening)[1:] if self.opening in text else ():
            thought, ended, rest = part.partition(self.ending)
            found += ["<think>", thought, *(["</think>", rest] if ended else [])]
        read = "".join([text.partition(self.opening)[0], *found])
        if self.frames is not None:
            return self.frames.sub(r"\1", read)
        return read.replace(self.ending, "</think>", 1)


_TOKEN = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")
USUAL = Spelling(opening="<think>", ending="</think>", closing=CLOSING)
"""The markup of Qwen, DeepSeek, GLM and most others."""
SPELLINGS = (
    Spelling(opening="[THINK]", ending="[/THINK]", closing="[/THINK]"),  # Magistral, Ministral 3
    Spelling(opening="<seed:think>", ending="</seed:think>", closing="</seed:think>"),  # Seed-OSS
    Spelling(opening="<|channel>thought\n", ending="<channel|>", closing="<channel|>"),  # Gemma 4
    Spelling(  # harmony, of gpt-oss
        opening="<|channel|>analysis<|message|>",
        ending="<|end|>",
        closing="<|end|><|start|>assistant<|channel|>final<|message|>",
        answer="<|channel|>final<|message|>",
        frames=re.compile(
            r"( ?to=[^\s<]{1,200}+\s*<\|channel\|>)|<\|start\|>assistant(?! to=)|<\|(?:end|return)\|>"
            r"|<\|channel\|>(?:final|commentary)(?:(?!\sto=)[^<])*+(?:<\|constrain\|>[^<]*+)?<\|message\|>"
        ),
    ),
)
"""The markups of other models."""


def spelling_of(template: str) -> Spelling:
    """Return the markup of the model with this chat template, or the usual one if it is unknown."""
    found = (one for one in SPELLINGS if one.opening.rstrip() in template)
    return next(found, USUAL)


def as_usual(text: str) -> str:
    """Return the reply of any model with its thoughts between `<think>` and `</think>`."""
    for spelling in SPELLINGS:
        text = spelling.read(text)
    return text


def without_thoughts(text: str) -> str:
    """Return a reply without text between `<think>` and `</think>`, or before a `</think>` that comes first.

    The latter occurs if the prompt opens the thought. A thought that is not closed is kept.
    """
    close, opened = text.find("</think>"), text.find("<think>")
    kept: list[str] = []
    at = 0
    if close >= 0 and not 0 <= opened < close:
        at = close + len("</think>")
    while (opened := text.find("<think>", at)) >= 0 and (close := text.find("</think>", opened)) >= 0:
        kept.append(text[at:opened])
        at = close + len("</think>")
    return "".join((*kept, text[at:]))


def answer_of(text: str, *, opened: bool = False, finished: bool = True) -> str:
    """Return the answer in a reply, without thoughts.

    Args:
        text: the reply.
        opened: whether the prompt has begun a thought.
        finished: whether the model ended the reply. An unclosed thought of a finished reply may contain the
            answer; one that the token limit cut off does not.
    """
    whole = f"<think>{text}" if opened else text
    left = without_thoughts(whole)
    unclosed = left.find("<think>")
    if unclosed < 0:
        return left.lstrip() if left != text else text
    if not finished:
        return left[:unclosed]
    return left.removeprefix("<think>") if opened and unclosed == 0 else left
