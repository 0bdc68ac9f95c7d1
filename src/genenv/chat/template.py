# pyright: standard
"""A tokenizer's chat template, and conversations in the form that it takes.

Templates differ in what they accept. Where one refuses or leaves out a system message, that begins the first
user message; where it refuses the role `tool`, what tools say comes from the user; where roles must take
turns, messages of one role become one.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from genenv.chat.assistant import ChatMessage
from genenv.errors import UsageError, first_line
from genenv.types import Json, JsonObject

log = logging.getLogger(__name__)

_SAID = "\u2403"
"""Stands for a content, so that it can be seen whether a template leaves it out."""
_GAP = "\n\n"
"""Between messages that become one."""

_OWN = frozenset(
    {"add_generation_prompt", "chat_template", "continue_final_message", "conversation", "max_length"}
    | {"messages", "padding", "return_assistant_tokens_mask", "return_dict", "return_tensors"}
    | {"sanitize_control_tokens", "tokenize", "tokenizer_kwargs", "tools", "truncation"}
)
"""What is no variable of a template, or not free."""


class ChatTemplate:
    """Messages to text, as the template writes them."""

    def __init__(self, tokenizer: Any, arguments: Mapping[str, Json] | None = None) -> None:  # noqa: ANN401
        """Find out what a template takes.

        Args:
            tokenizer: has a chat template.
            arguments: given to the template each time, such as `enable_thinking`.

        Raises:
            UsageError: it cannot be applied to a plain conversation, or an argument is not free.
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
        """A conversation as text; with `reply`, ready for the assistant's."""
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
        """Whether the template takes these messages and shows the one that is asked for."""
        try:
            return _SAID in self._apply(messages, (), reply=True)
        except Exception:  # noqa: BLE001 - templates are programs: they raise what they like
            return False


def _without_system(messages: Sequence[ChatMessage]) -> list[ChatMessage]:
    """What the system says at the start begins the first user message; later on the user says it."""
    first = next((i for i, message in enumerate(messages) if message["role"] != "system"), len(messages))
    said = [str(message["content"]) for message in messages[:first]]
    later = [{**m, "role": "user"} if m["role"] == "system" else m for m in messages[first:]]
    if not said:
        return later
    if later and later[0]["role"] == "user":
        return [{**later[0], "content": _GAP.join([*said, str(later[0]["content"])])}, *later[1:]]
    return [{"role": "user", "content": _GAP.join(said)}, *later]


def _merged(messages: Iterable[ChatMessage]) -> list[ChatMessage]:
    """Messages of one role that follow each other as one; those with calls and of tools stay apart."""
    taken: list[ChatMessage] = []
    for message in messages:
        last = taken[-1] if taken else {"role": ""}
        plain = not (message.get("tool_calls") or last.get("tool_calls"))
        if plain and message["role"] == last["role"] != "tool":
            taken[-1] = {**last, "content": f"{last['content']}{_GAP}{message['content']}"}
        else:
            taken.append(message)
    return taken
