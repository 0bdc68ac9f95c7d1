# pyright: standard
"""A tokenizer's chat template, and the adaptation of conversations to the messages that it accepts.

If a template rejects or drops system messages, their text begins the first user message. If it rejects the
role `tool`, tool results come from the user. If it requires alternating roles, adjacent messages of one role
are merged.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from genenv.chat.assistant import ChatMessage
from genenv.errors import UsageError, first_line
from genenv.types import Json, JsonObject

log = logging.getLogger(__name__)

_SAID = "\u2403"
"""A placeholder for content, used to find out whether a template drops it."""
_GAP = "\n\n"
"""The separator between merged messages."""

_OWN = frozenset(
    {"add_generation_prompt", "chat_template", "continue_final_message", "conversation", "max_length"}
    | {"messages", "padding", "return_assistant_tokens_mask", "return_dict", "return_tensors"}
    | {"sanitize_control_tokens", "tokenize", "tokenizer_kwargs", "tools", "truncation"}
)
"""Arguments that the user cannot set: they are not template variables, or genenv sets them."""


class ChatTemplate:
    """Renders messages to text with the tokenizer's template."""

    def __init__(self, tokenizer: Any, arguments: Mapping[str, Json] | None = None) -> None:  # noqa: ANN401
        """Find out which messages a template accepts.

        Args:
            tokenizer: a tokenizer with a chat template.
            arguments: variables for every application of the template, such as `enable_thinking`.

        Raises:
            UsageError: the template rejects a plain conversation, or an argument cannot be set.
        """
        self._tokenizer = tokenizer
        self._arguments = dict(arguments or {})
        if own := sorted(_OWN.intersection(self._arguments)):
            raise UsageError(f"policy.chat_template_kwargs cannot set {own[0]!r}, which genenv sets itself")
        if "strftime_now" in str(tokenizer.chat_template) and "date_string" not in self._arguments:
            log.warning(
                "the chat template may write today's date into prompts, which then differ from day to day; "
                "most of these take a fixed one: policy.chat_template_kwargs = {date_string = '26 Jul 2024'}"
            )
        user = {"role": "user", "content": _SAID}
        plain, said = {"role": "user", "content": "u"}, {"role": "assistant", "content": "a"}
        try:
            shown = _SAID in self._apply([user], (), reply=True)
            self._apply([user, said], (), reply=False)
        except Exception as error:
            raise UsageError(
                "the tokenizer's chat template does not accept a user message and a reply: "
                f"{first_line(error)}"
            ) from error
        if not shown:
            raise UsageError("the tokenizer's chat template leaves out what the user says")
        tool = {"role": "tool", "content": _SAID}
        self._merges = not self._takes([plain, said, plain, user])
        self.takes_system = self._takes([{"role": "system", "content": _SAID}, plain])
        self.takes_tool_role = self._takes([plain, said, tool])

    def text(self, messages: Iterable[ChatMessage], tools: Sequence[JsonObject] = (), *, reply: bool) -> str:
        """Return a conversation as text; with `reply`, up to the start of the assistant's reply."""
        taken = list(messages)
        calls = any(message.get("tool_calls") for message in taken)
        if not self.takes_tool_role and not calls:
            taken = [{**m, "role": "user"} if m["role"] == "tool" else m for m in taken]
        if not self.takes_system:
            taken = _without_system(taken)
        if self._merges:
            taken = _merged(taken)
        return self._apply(taken, tools, reply=reply)

    def _apply(self, messages: Sequence[ChatMessage], tools: Sequence[JsonObject], *, reply: bool) -> str:
        apply: Callable[..., object] = self._tokenizer.apply_chat_template
        return str(
            apply(
                list(messages),
                tools=list(tools) or None,
                tokenize=False,
                add_generation_prompt=reply,
                **self._arguments,
            )
        )

    def _takes(self, messages: Sequence[ChatMessage]) -> bool:
        """Return whether the template accepts these messages and shows the placeholder `_SAID`."""
        try:
            return _SAID in self._apply(messages, (), reply=True)
        except Exception:  # noqa: BLE001 - templates are programs: they raise what they like
            return False


def _without_system(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """Move leading system messages into the first user message; later ones become user messages."""
    first = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
    said = [str(message["content"]) for message in messages[:first]]
    later = [{**m, "role": "user"} if m["role"] == "system" else m for m in messages[first:]]
    if not said:
        return later
    if later and later[0]["role"] == "user":
        return [{**later[0], "content": _GAP.join([*said, str(later[0]["content"])])}, *later[1:]]
    return [{"role": "user", "content": _GAP.join(said)}, *later]


def _merged(messages: Iterable[ChatMessage]) -> list[ChatMessage]:
    """Merge adjacent messages of the same role, except those with calls and those of tools."""
    taken: list[ChatMessage] = []
    for message in messages:
        last = taken[-1] if taken else {"role": ""}
        plain = not (message.get("tool_calls") or last.get("tool_calls"))
        if plain and message["role"] == last["role"] != "tool":
            taken[-1] = {**last, "content": f"{last['content']}{_GAP}{message['content']}"}
        else:
            taken.append(message)
    return taken


_ROLES = ("system", "user", "assistant", "tool")
_TRIED = ("u", "su", "uau", "suau", "uat", "suatau", "uauatau", "suauauat")
"""Conversations to test, by the first letters of their roles."""
_MARK = "\u2402"
"""Stands on both sides of an index, as a placeholder for content."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turns:
    """The constant text of a template around the contents of messages."""

    first: str
    """Text before everything."""
    unasked: str
    """Text before a conversation that does not begin with a system message."""
    around: Mapping[str, tuple[str, str]]
    """Role -> text before and after its content."""
    reply: str
    """Text before the assistant's reply."""

    def text(self, roles: Sequence[str], said: Sequence[str]) -> str:
        """Return a conversation up to the start of the assistant's reply."""
        parts = [self.first, "" if roles[0] == "system" else self.unasked]
        for role, content in zip(roles, said, strict=True):
            before, after = self.around[role]
            parts += [before, content, after]
        return "".join([*parts, self.reply])


def turns_of(template: ChatTemplate, begin: str) -> Turns | None:
    """Return the template's text around messages, or None if it depends on more than their roles.

    Args:
        template: the template.
        begin: the token with which all texts begin, or an empty string.
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
    """Return the text before, between and after the contents; empty if a content is missing."""
    rest, gaps = _applied(template, roles, reply=reply), []
    for index in range(len(roles)):
        gap, found, rest = rest.partition(f"{_MARK}{index}{_MARK}")
        if not found:
            return []
        gaps.append(gap)
    return [*gaps, rest]


def _found(template: ChatTemplate, begin: str) -> Turns | None:
    """Assign the texts between contents to roles; return None if that is impossible."""
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


def with_variables(template: object, values: Mapping[str, Json]) -> object:
    """Return the template with default values for variables that the caller does not set.

    Args:
        template: the text of a template, or several by name; any other value is returned unchanged.
        values: variable -> default, such as `{"enable_thinking": False}`.
    """
    if isinstance(template, Mapping):
        named = cast("Mapping[str, object]", template)
        return {name: with_variables(text, values) for name, text in named.items()}
    if not isinstance(template, str):
        return template
    settings = (
        f"{{%- if {name} is not defined %}}{{%- set {name} = {_literal(value)} %}}{{%- endif %}}"
        for name, value in sorted(values.items())
    )
    return "".join([*settings, template])


def _literal(value: Json) -> str:
    """Return a value as Jinja source, which is JSON except for `none`."""
    return "none" if value is None else json.dumps(value, ensure_ascii=False)
