"""Replies without what a model thought before them."""

from __future__ import annotations

CLOSING = "\n</think>\n\n"
"""What ends a thought that is cut short, or that a chat template has begun for nothing."""


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
