"""Tasks that nothing solves: the tool that is needed is not shown, or the user leaves out a value.

The right answer changes nothing and says so, or asks. A bundle has such tasks where its `bundle.toml` names
tools that can pass for each other (`alike`), or its wordings leave something out (`transfer without amount`).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Mapping, Sequence

from genenv.tools.calls import Reply
from genenv.tools.language.wording import label
from genenv.tools.spec import Gap, Step
from genenv.tools.worlds.base import Tool
from genenv.types import Verdict

_WITHOUT = " without "
_DECLINES = re.compile(
    r"\b(?:can\s?not|can['’]?t|could(?: not|n['’]t)|unable|impossible|unavailable|sorry"
    r"|not (?:able|possible|available|supported|something i can)"
    r"|\w+n['’]t (?:a|any|able|possible|available|supported)|lack"
    r"|(?:do not|don['’]t) (?:have|know)"
    r"|(?:no|none of) (?:[\w ]{0,20})?(?:tools?|functions?|way|option))\b",
    re.IGNORECASE,
)
_ASKS = re.compile(
    r"\b(?:which|what|who|how|when|where)\b[^?]{3,}\?"
    r"|\b(?:need|missing|specify|provide|tell me|let me know|unclear|not (?:given|clear|sure))\b",
    re.IGNORECASE,
)
_POLITE = re.compile(r"[^.!?]*\b(?:else|more|anything|further)\b[^.!?]*(?:[.!?]|$)", re.IGNORECASE)
"""Sentences that ask for nothing, such as "Let me know if you need anything else."."""


def without(tool: str, parameter: str) -> str:
    """The name under which `wordings.toml` has how a tool is asked for without a value that it needs."""
    return f"{tool}{_WITHOUT}{parameter}"


def left_out(tool: Tool, wordings: Iterable[str]) -> list[str]:
    """The parameters without which a tool is asked for in some wordings, by the names of these."""
    return [name for name in tool.properties if without(tool.name, name) in wordings]


def absent(tool: Tool, step: Step) -> list[str]:
    """The parameters that a call needs and does not give."""
    given = {*step.args, *(use.parameter for use in step.uses)}
    return [name for name in tool.properties if name in tool.required and name not in given]


def alike(names: Collection[str], groups: Iterable[Sequence[str]]) -> set[str]:
    """Tools that could do the job of one of these, by groups of such tools."""
    return {one for group in groups if not set(names).isdisjoint(group) for one in group} - set(names)


def known_answer(gap: Gap, tool: Tool, step: Step) -> str:
    """What a good agent says."""
    if gap == "no_tool":
        return "I cannot do that: none of my tools fits."
    return f"I cannot do that yet: what is the {label(absent(tool, step)[0])}?"


def verdict(
    gap: str,
    turns: Sequence[Reply],
    writes: Mapping[str, bool],
    *,
    single: bool,
    lacking: Collection[str] = (),
) -> Verdict:
    """Grade an attempt at such a task: it has to say that it cannot be done, or ask, in English.

    Args:
        gap: what is missing.
        turns: the replies.
        writes: which tools write, by name: none of these may be called.
        single: whether there is one reply, which may then call nothing at all.
        lacking: the tools for which a value is missing: to call one is to guess.
    """

    def failed(explanation: str, *, readable: bool = True) -> Verdict:
        return Verdict(reward=0.0, success=False, explanation=explanation, readable=readable)

    called = [
        call.tool
        for reply in turns
        for call in reply.calls
        if single or call.tool in lacking or writes.get(call.tool, True)
    ]
    if called:
        return failed(f"It calls {called[0]}, though the task cannot be done.")
    malformed = next((reply.malformed for reply in turns if reply.malformed), None)
    if malformed:
        return failed(f"A reply is malformed: {malformed}.", readable=False)
    words = turns[-1].words if turns else ""
    if not words:
        return failed("Nothing is said; it should say that the task cannot be done.", readable=False)
    asked = _POLITE.sub("", words)
    if _DECLINES.search(words) or (gap == "missing_info" and _ASKS.search(asked)):
        return Verdict(reward=1.0, success=True, explanation="It rightly changes nothing, and says so.")
    wanted = "ask for what is missing" if gap == "missing_info" else "say that no tool fits"
    return failed(f"It does not {wanted}.")
