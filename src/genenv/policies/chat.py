"""Messages to token ids, turn by turn: what was sampled is never tokenised again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genenv.errors import UsageError
from genenv.types import Message


class ChatFormat:
    """A model's chat template, applied incrementally."""

    def __init__(self, tokenizer: Any) -> None:
        """Probe a tokenizer's template once.

        Raises:
            UsageError: the template cannot be applied to a plain conversation.
        """
        self.tokenizer = tokenizer
        self.eos_id = int(tokenizer.eos_token_id)
        probe = [Message(role="system", content="s"), Message(role="user", content="u")]
        try:
            self._apply(probe, reply=True)
        except Exception as error:  # noqa: BLE001 - templates are programs: they raise what they like
            raise UsageError(f"the tokenizer's chat template does not accept a system and a user message: {error}") from error
        self._tool_role = self._accepts_tool_role()

    def render(self, messages: Sequence[Message], *, first: bool) -> tuple[int, ...]:
        """Ids of new messages, ready for the assistant's reply.

        Args:
            messages: what is new in the conversation.
            first: False when the ids continue an assistant turn that ended with the end-of-turn token.
        """
        text = self._apply(messages, reply=True) if first else self._continuation(messages)
        return tuple(self.tokenizer.encode(text, add_special_tokens=False))

    def decode(self, ids: Sequence[int]) -> str:
        """The text of sampled ids, special tokens left out."""
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))

    def _apply(self, messages: Sequence[Message], *, reply: bool) -> str:
        plain = [{"role": m.role, "content": m.content} for m in messages]
        return str(self.tokenizer.apply_chat_template(plain, tokenize=False, add_generation_prompt=reply))

    def _continuation(self, messages: Sequence[Message]) -> str:
        """What the template adds after an assistant's end-of-turn token."""
        messages = [m if self._tool_role or m.role != "tool" else Message(role="user", content=m.content) for m in messages]
        marker = "\u2402"
        before = [Message(role="user", content="u"), Message(role="assistant", content=marker)]
        text = self._apply([*before, *messages], reply=True)
        after = text[text.rindex(marker) + len(marker) :] if marker not in "".join(m.content for m in messages) else (
            text[text.index(marker) + len(marker) :]
        )
        end = self.tokenizer.eos_token
        return after[len(end) :] if after.startswith(end) else after.lstrip().removeprefix(end)

    def _accepts_tool_role(self) -> bool:
        probe = [Message(role="user", content="u"), Message(role="assistant", content="a")]
        try:
            return "\u2402" in self._apply([*probe, Message(role="tool", content="\u2402")], reply=True)
        except Exception:  # noqa: BLE001 - templates are programs: they raise what they like
            return False
