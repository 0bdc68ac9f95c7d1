"""What answers a conversation: messages and tools in OpenAI's format go in, text and calls come out.

Training keeps every sampled token (`genenv.sampling`); evaluation needs the words alone, so that a model
on this machine and one behind an endpoint are asked in the same way.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from genenv.types import JsonObject

ChatMessage = dict[str, Any]
"""A message in OpenAI's chat format: `role`, `content`, perhaps `tool_calls` or `tool_call_id`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A call as the model wrote it. Data only: nothing has been looked up or run."""

    name: str
    arguments: JsonObject
    id: str = ""
    """What a tool's answer refers to; empty where the model's format has none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """What the model answered."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    """Calls of the tools that were offered, as the model's own format writes them."""
    finished: bool = True
    """False when the token limit came first."""
    prompt_tokens: int = 0
    tokens: int = 0
    """How many were sampled."""

    def message(self) -> ChatMessage:
        """The reply as a message, for what is asked next."""
        said: ChatMessage = {"role": "assistant", "content": self.text}
        if self.calls:
            said["tool_calls"] = [
                {
                    "id": call.id or f"call_{index}",
                    "type": "function",
                    "function": {"name": call.name, "arguments": dict(call.arguments)},
                }
                for index, call in enumerate(self.calls)
            ]
        return said


class Talk(Protocol):
    """One conversation with a model. What it remembers of it only makes the next answer faster."""

    @property
    def native_tools(self) -> bool:
        """Whether tools can be offered in the model's own format; else a prompt has to describe them."""
        ...

    async def __call__(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[JsonObject] = (),
        choices: Sequence[str] = (),
        max_tokens: int | None = None,
    ) -> Reply:
        """Answer a conversation, given whole every time.

        Args:
            messages: all of it so far.
            tools: offered in OpenAI's format, `{"type": "function", "function": {...}}`; where they can be.
            choices: the reply is one of these; none: any text.
            max_tokens: at most so many new ones; left out, as the run's settings say.

        Raises:
            ContextOverflow: the conversation does not fit into the model's window.
            RolloutError: no answer could be had; the item is failed, not wrong.
            UsageError: its replies cannot be held to choices.
        """
        ...


class Assistant(Protocol):
    """A model that answers conversations; many at the same time."""

    name: str
    """How results call it."""
    native_tools: bool
    """As `Talk.native_tools`."""

    def concurrency(self, *, many_turns: bool) -> int:
        """How many conversations it is best given at a time."""
        ...

    def talk(self, seed: int, *, many_turns: bool = False) -> Talk:
        """A fresh conversation.

        Args:
            seed: of its own random stream.
            many_turns: whether it is worth remembering it between its turns.
        """
        ...

    def spending(self) -> JsonObject:
        """What answering has cost so far, where it costs anything."""
        ...

    def describe(self) -> JsonObject:
        """What decides its answers, for the summary of a run: model, weights, settings."""
        ...
