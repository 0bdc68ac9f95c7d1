"""The interface of models in evaluation: messages and tools in OpenAI's format in, text and calls out.

Training keeps every sampled token (`genenv.sampling`). Evaluation needs only the text, so local models and
models behind an endpoint share this interface. An agent of a run that is behind an endpoint uses it too.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

from genenv.types import JsonObject

ChatMessage = dict[str, Any]
"""A message in OpenAI's chat format: `role`, `content`, and optionally `tool_calls` or `tool_call_id`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """A tool call as parsed from a reply. It is data only: the tool was neither looked up nor run."""

    name: str
    arguments: JsonObject
    id: str = ""
    """The id that the tool's answer refers to; empty if the model's format has no ids."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """A model's answer to a conversation."""

    text: str
    calls: tuple[ToolCall, ...] = ()
    """Calls of the offered tools, parsed from the model's format."""
    finished: bool = True
    """False if the token limit or a filter cut the reply off."""
    prompt_tokens: int = 0
    tokens: int = 0
    """The number of sampled tokens."""

    def message(self) -> ChatMessage:
        """Return the reply as a message for the next turn of the conversation."""
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


_ENDINGS: Mapping[str, bool | None] = {
    **dict.fromkeys(("length", "max_tokens", "model_length", "model_context_window_exceeded"), False),
    **dict.fromkeys(("content_filter", "content_filtered", "guardrail_intervened"), False),
    **dict.fromkeys(("error", "abort", "aborted", "cancelled", "timeout"), None),
    "insufficient_system_resource": None,
}


def ending(reason: object) -> bool | None:
    """Return whether a completion with this `finish_reason` is finished; None if the server failed.

    Unknown reasons are those of finished completions, since each server has its own. So is null.
    """
    return _ENDINGS.get(reason.lower(), True) if isinstance(reason, str) else True


class Talk(Protocol):
    """One conversation with a model. Its state, such as a KV cache, affects speed only.

    Implemented by `EndpointTalk`, and by `LocalTalk` for local models.
    """

    @property
    def native_tools(self) -> bool:
        """Whether the model's format can offer tools; if not, the prompt has to describe them."""
        ...

    async def __call__(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[JsonObject] = (),
        choices: Sequence[str] = (),
        max_tokens: int | None = None,
    ) -> Reply:
        """Answer a conversation, which is passed whole in every call.

        Args:
            messages: all messages so far.
            tools: tools to offer, in OpenAI's format `{"type": "function", "function": {...}}`.
            choices: the reply must be one of these texts; empty for any text.
            max_tokens: maximum number of new tokens; None for the limit in the run's settings.

        Raises:
            ContextOverflow: the conversation does not fit into the model's context window.
            RolloutError: the model gave no answer; the item counts as failed, not as wrong.
            UsageError: the model's replies cannot be restricted to choices.
        """
        ...


class Assistant(Protocol):
    """A model that answers many conversations concurrently; local or behind an endpoint."""

    name: str
    """The name in results."""
    native_tools: bool
    """See `Talk.native_tools`."""

    def concurrency(self, *, many_turns: bool) -> int:
        """Return the number of conversations that should run at a time."""
        ...

    def talk(self, seed: int, *, many_turns: bool = False) -> Talk:
        """Start a new conversation.

        Args:
            seed: seeds the conversation's random stream.
            many_turns: whether to keep the KV cache between turns.
        """
        ...

    def spending(self) -> JsonObject:
        """Return the cost of all answers so far; empty if they are free."""
        ...

    def describe(self) -> JsonObject:
        """Return everything that determines the answers (model, weights, settings), for a run's summary."""
        ...


@runtime_checkable
class Closes(Protocol):
    """An assistant with connections to close."""

    async def close(self) -> None:
        """Close them, in the event loop in which it was asked."""
        ...
