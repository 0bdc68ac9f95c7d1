"""What a reply says, in English, instead of doing what was asked: that it cannot, or what is missing."""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence

from genenv.tools.calls import Reply
from genenv.tools.discover.state_values import words_of
from genenv.tools.language.wording import absent, label
from genenv.tools.spec import Gap, Step
from genenv.tools.worlds.base import Tool
from genenv.types import Verdict

_DECLINES = re.compile(
    r"\b(?:can\s?not|can['’]?t|could(?: not|n['’]t)|unable|impossible|unavailable|lack|sorry(?! for\b)"
    r"|not (?:able|possible|available|supported|something i can)"
    r"|\w+n['’]t (?:able|possible|available|supported)"
    r"|(?:do not|don['’]t) (?:have|know)(?! to\b)|(?:beyond|outside)(?: of)? (?:what|my)"
    r"|(?:no|none of|not an?|\w+n['’]t (?:an?|any|among|one of)) (?:[\w ]{0,20})?"
    r"(?:tools?|functions?|way|option))\b",
    re.IGNORECASE,
)
_REFUSED = re.compile(r"^[^\w\n]{0,6}refused[*_]*[ \t]*:.*[^\W\d_]", re.IGNORECASE | re.MULTILINE)
_ASKS = re.compile(
    r"\b(?:which|what|who|how|when|where)\b[^?]{3,400}\?"
    r"|\b(?:need|missing|specify|provide|(?:tell|give|send) me|(?:please|you) share|(?:let me|like to) know"
    r"|unclear|not (?:given|clear|sure))\b",
    re.IGNORECASE,
)
_POLITE = re.compile(r"\b(?:else|more|anything|further)\b", re.IGNORECASE)
"""A word of sentences that are only polite, such as "Let me know if you need anything else."."""
_CLAUSE = re.compile(r"[^.!?]*[.!?]|[^.!?]+")
_SENTENCE = re.compile(r"(?:\b(?:e\.g|i\.e)\.|\.(?=\w)|[^.!?\n])+[.!?]?")
"""A sentence; points inside amounts, addresses and `e.g.` do not end it."""


def reports_refusal(words: str) -> bool:
    """Whether a reply has a line `Refused: REASON`; a mere number is a value, and no reason."""
    return _REFUSED.search(words) is not None


def asks(words: str) -> bool:
    """Whether a reply asks for something, in English; polite offers of more help do not count."""
    kept = "".join(one for one in _CLAUSE.findall(words) if not _POLITE.search(one))
    return _ASKS.search(kept) is not None


def asks_for(words: str, tool: Tool, name: str) -> bool:
    """Whether a sentence of a reply asks for an argument, in English.

    It has a word of the parameter's name that no other parameter has, or a word of the tool's name and none
    of another parameter.

    Args:
        words: the reply.
        tool: the tool.
        name: the parameter.
    """
    others = {word for other in tool.properties if other != name for word in words_of(other)}
    own, doing = set(words_of(name)) - others or set(words_of(name)), set(words_of(tool.name))
    questions = [one for one in _SENTENCE.findall(words) if one.endswith("?") or _ASKS.search(one)]
    return any(
        not own.isdisjoint(said) or (others.isdisjoint(said) and not doing.isdisjoint(said))
        for said in map(words_of, questions)
    )


def known_answer(gap: Gap, tool: Tool, step: Step) -> str:
    """Return a correct first reply to a task that lacks a tool or a value."""
    if gap == "no_tool":
        return "I cannot do that: none of my tools fits."
    question = f"what is the {label(absent(tool, step)[0])}?"
    return question.capitalize() if gap == "user_answers" else f"I cannot do that yet: {question}"


def failed_verdict(explanation: str, *, readable: bool = True) -> Verdict:
    """Return the verdict of a rollout without success."""
    return Verdict(reward=0.0, success=False, explanation=explanation, readable=readable)


def unsolvable_verdict(
    gap: str,
    turns: Sequence[Reply],
    writes: Mapping[str, bool],
    *,
    single: bool,
    lacking: Collection[str] = (),
) -> Verdict:
    """Grade a rollout of a task without a solution: it must decline, or ask for the value, in English.

    Args:
        gap: the kind of gap, `missing_info` or `no_tool`.
        turns: the parsed replies.
        writes: for each tool, whether it writes; such tools must not be called.
        single: whether the task has one reply, which then must not call any tool.
        lacking: the tools for which a value is missing, which must not be called with a guess.
    """
    called = premature(turns, writes, lacking, any_call=single)
    if called:
        return failed_verdict(f"It calls {called}, though the task cannot be done.")
    malformed = next((reply.malformed for reply in turns if reply.malformed), None)
    if malformed:
        return failed_verdict(f"A reply is malformed: {malformed}.", readable=False)
    words = turns[-1].words if turns else ""
    if not words:
        return failed_verdict("Nothing is said; it should say that the task cannot be done.", readable=False)
    if _DECLINES.search(words) or (gap == "missing_info" and asks(words)):
        return Verdict(reward=1.0, success=True, explanation="It rightly changes nothing, and says so.")
    wanted = "ask for what is missing" if gap == "missing_info" else "say that no tool fits"
    return failed_verdict(f"It does not {wanted}.")


def premature(
    turns: Sequence[Reply], writes: Mapping[str, bool], lacking: Collection[str], *, any_call: bool = False
) -> str | None:
    """Return the first tool that must not be called while a tool or a value is lacking; None if none is.

    Args:
        turns: the parsed replies.
        writes: for each tool, whether it writes.
        lacking: the tools for which a value is missing, which must not be called with a guess.
        any_call: whether no tool at all may be called.
    """
    calls = (call.tool for reply in turns for call in reply.calls)
    return next((tool for tool in calls if any_call or tool in lacking or writes.get(tool, True)), None)
