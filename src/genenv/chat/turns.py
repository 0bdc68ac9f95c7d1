# pyright: standard
"""A chat template as what stands around each message, for servers whose templates are in another language.

A template is a program. Many come to the same: something stands around what each role says, whatever was said
before. Whether one does is found out by applying it to conversations.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from genenv.chat.template import ChatTemplate

_ROLES = ("system", "user", "assistant", "tool")
_TRIED = ("u", "su", "uau", "suau", "uat", "suatau", "uauatau", "suauauat")
"""Conversations by the first letters of their roles."""
_MARK = "\u2402"
"""Stands on both sides of a number, for what is said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """What a template writes besides what is said."""

    first: str
    """Before everything."""
    unasked: str
    """Before a conversation that does not begin with a system message."""
    around: Mapping[str, tuple[str, str]]
    """Before and after what a role says."""
    reply: str
    """Where the assistant is to go on."""

    def text(self, roles: Sequence[str], said: Sequence[str]) -> str:
        """A conversation, ready for the assistant's reply."""
        parts = [self.first, "" if roles[0] == "system" else self.unasked]
        for role, content in zip(roles, said, strict=True):
            before, after = self.around[role]
            parts += [before, content, after]
        return "".join([*parts, self.reply])


def turns_of(template: ChatTemplate, begin: str) -> Turns | None:
    """What a template writes around messages; None where that depends on more than their roles.

    Args:
        template: the template.
        begin: the token with which all texts begin, or nothing.
    """
    if not template.takes_system:
        return None
    found = _found(template, begin)
    names = {role[0]: role for role in _ROLES}
    for tried in _TRIED if found is not None else ():
        roles = [names[letter] for letter in tried]
        said = [f"{_MARK}{index}{_MARK}" for index in range(len(roles))]
        if found is None or found.text(roles, said) != _applied(template, roles, reply=True):
            return None
    return found


def _applied(template: ChatTemplate, roles: Sequence[str], *, reply: bool) -> str:
    said = [{"role": role, "content": f"{_MARK}{index}{_MARK}"} for index, role in enumerate(roles)]
    return template.text(said, reply=reply)


def _gaps(template: ChatTemplate, *roles: str, reply: bool = False) -> list[str]:
    """What stands before, between and after what is said; empty where something that is said is not there."""
    rest, gaps = _applied(template, roles, reply=reply), []
    for index in range(len(roles)):
        gap, found, rest = rest.partition(f"{_MARK}{index}{_MARK}")
        if not found:
            return []
        gaps.append(gap)
    return [*gaps, rest]


def _found(template: ChatTemplate, begin: str) -> Turns | None:
    """The one way to share the gaps out among roles, if there is any."""
    asked, ready = _gaps(template, "user"), _gaps(template, "user", reply=True)
    said = _gaps(template, "user", "assistant", "user")
    told = _gaps(template, "system", "user")
    answered, found = _gaps(template, "user", "assistant"), _gaps(template, "user", "assistant", "tool")
    if not all((asked, ready, said, told, answered, found)):
        return None
    after_user, after_assistant = asked[-1], answered[-1]
    before_user = said[2].removeprefix(after_assistant)
    first = begin if asked[0].startswith(begin) and told[0].startswith(begin) else ""
    return Turns(
        first=first,
        unasked=asked[0].removeprefix(first).removesuffix(before_user),
        around={
            "system": (told[0].removeprefix(first), told[1].removesuffix(before_user)),
            "user": (before_user, after_user),
            "assistant": (said[1].removeprefix(after_user), after_assistant),
            "tool": (found[2].removeprefix(after_assistant), found[3]),
        },
        reply=ready[-1].removeprefix(after_user),
    )
