# pyright: standard
"""Messages to token ids, turn by turn: what was sampled is never tokenised again."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from genenv.errors import UsageError
from genenv.types import Message

_MARKER = "\u2402"
"""Stands for an assistant's text, so that what a template puts after it can be found."""


class ChatFormat:
    """A model's chat template, applied incrementally."""

    def __init__(self, tokenizer: Any) -> None:  # noqa: ANN401
        """Probe a tokenizer's template once.

        Raises:
            UsageError: the template cannot be applied to a plain conversation.
        """
        self.tokenizer = tokenizer
        probe = [Message(role="system", content="s"), Message(role="user", content="u")]
        try:
            self._apply(probe, reply=True)
        except Exception as error:
            raise UsageError(
                f"the tokenizer's chat template does not accept a system and a user message: {error}"
            ) from error
        self.end_id = self._end_of_turn()
        self._end: str = tokenizer.convert_ids_to_tokens(self.end_id)
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
        # Some tokenizers "clean up" spaces before punctuation by default, which changes what was said.
        return str(
            self.tokenizer.decode(list(ids), skip_special_tokens=True, clean_up_tokenization_spaces=False)
        )

    def _apply(self, messages: Sequence[Message], *, reply: bool) -> str:
        plain = [{"role": m.role, "content": m.content} for m in messages]
        return str(self.tokenizer.apply_chat_template(plain, tokenize=False, add_generation_prompt=reply))

    def _continuation(self, messages: Sequence[Message]) -> str:
        """What the template adds after an assistant's end-of-turn token."""
        if not self._tool_role:
            messages = [Message(role="user", content=m.content) if m.role == "tool" else m for m in messages]
        after = self._after_reply(messages, reply=True)
        return (
            after[len(self._end) :] if after.startswith(self._end) else after.lstrip().removeprefix(self._end)
        )

    def _after_reply(self, messages: Sequence[Message], *, reply: bool) -> str:
        """What the template puts after an assistant's text when these messages follow."""
        before = [Message(role="user", content="u"), Message(role="assistant", content=_MARKER)]
        return self._apply([*before, *messages], reply=reply).partition(_MARKER)[2]

    def _end_of_turn(self) -> int:
        """The special token that the template puts after an assistant's text; else the end of sequence.

        The two differ in some models: their replies would never end if only the latter stopped them.
        """
        ids = self.tokenizer.encode(self._after_reply([], reply=False).lstrip(), add_special_tokens=False)
        special = ids and ids[0] in self.tokenizer.all_special_ids
        return int(ids[0] if special else self.tokenizer.eos_token_id)

    def _accepts_tool_role(self) -> bool:
        probe = Message(role="tool", content="\u2403")
        try:
            return probe.content in self._after_reply([probe], reply=True)
        except Exception:  # noqa: BLE001 - templates are programs: they raise what they like
            return False
