"""Thoughts in replies: how models spell them, and replies without them.

Whatever a model's own spelling, a reply is text with thoughts between `<think>` and `</think>` for everybody
who reads it (`Spelling.read`). `SPELLINGS` is the one place that knows how else models begin and end them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

CLOSING = "\n</think>\n\n"
"""What ends a thought that is cut short, or that a chat template has begun for nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Spelling:
    """How a model writes that a thought begins and ends, control tokens included."""

    opening: str
    ending: str
    """Ends a thought."""
    closing: str
    """Ends a thought that is cut short, and begins the answer."""
    answer: str = ""
    """Begins an answer without a thought."""
    frames: re.Pattern[str] | None = None
    """What stands around parts of a reply and says nothing."""

    @property
    def tokens(self) -> tuple[str, ...]:
        """What of it may be control tokens, which a reply is read with."""
        return tuple(_TOKEN.findall(self.opening + self.closing + self.answer))

    def opens(self, prompt: str) -> bool:
        """Whether a prompt ends with the beginning of a thought."""
        return prompt.rstrip().endswith(self.opening.rstrip())

    def read(self, text: str) -> str:
        """A reply whose thoughts stand between `<think>` and `</think>`."""
        marks = (self.tokens[0], *((self.ending,) if self.frames is None else ()))
        if self is USUAL or not any(mark in text for mark in marks):
            return text
        found: list[str] = []
        for part in text.split(self.opening)[1:] if self.opening in text else ():
            thought, ended, rest = part.partition(self.ending)
            found += ["<think>", thought, *(["</think>", rest] if ended else [])]
        read = "".join([text.partition(self.opening)[0], *found])
        if self.frames is not None:
            return self.frames.sub("", read)
        return read.replace(self.ending, "</think>", 1)


_TOKEN = re.compile(r"<[^<>\s]+>|\[[^\[\]\s]+\]")
USUAL = Spelling(opening="<think>", ending="</think>", closing=CLOSING)
"""As Qwen, DeepSeek, GLM and most others."""
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
            r"<\|start\|>assistant(?! to=)|<\|channel\|>(?:final|commentary)<\|message\|>"
            r"|<\|(?:end|return)\|>"
        ),
    ),
)
"""Other ways, by models of the time."""


def spelling_of(template: str) -> Spelling:
    """How the model of a chat template spells thoughts; as most do, where it does not say."""
    found = (one for one in SPELLINGS if one.opening.rstrip() in template)
    return next(found, USUAL)


def as_usual(text: str) -> str:
    """A reply of whatever model, with thoughts between `<think>` and `</think>`."""
    for spelling in SPELLINGS:
        text = spelling.read(text)
    return text


def without_thoughts(text: str) -> str:
    """A reply without what stands between `<think>` and `</think>`, or before a `</think>` that comes first.

    The latter is what a model writes whose prompt opens the thought. One that is not closed stays.
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
    """What of a reply is answer.

    Args:
        text: the reply.
        opened: whether the prompt has begun a thought.
        finished: whether the model came to its end; a thought that the token limit cut off has no answer, one
            that the model forgot to close may hold it.
    """
    whole = f"<think>{text}" if opened else text
    left = without_thoughts(whole)
    unclosed = left.find("<think>")
    if unclosed < 0:
        return left.lstrip() if left != text else text
    if not finished:
        return left[:unclosed]
    return left.removeprefix("<think>") if opened and unclosed == 0 else left
