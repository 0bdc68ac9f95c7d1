"""What samplers of chat models have in common: conversations to token ids, and thoughts of bounded length."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence

from genenv.chat.format import ChatFormat
from genenv.chat.reasoning_limit import ThoughtLimit
from genenv.errors import RolloutError
from genenv.sampling import Completion, SampleRequest
from genenv.texts import clean
from genenv.types import JsonObject, Message


class ChatSampler(ABC):
    """A sampler that knows a chat format; how one completion comes about is for a subclass to say."""

    def __init__(self, chat: ChatFormat, *, context_tokens: int, max_thinking_tokens: int | None) -> None:
        """A sampler.

        Args:
            chat: the model's chat format.
            context_tokens: the longest sequence.
            max_thinking_tokens: closes thoughts after so many tokens; None: never.
        """
        self.chat, self.context_tokens = chat, context_tokens
        self._max_thinking_tokens = max_thinking_tokens

    @property
    def closing(self) -> tuple[int, ...]:
        """What ends the thought that the chat template begins; nothing where it begins none."""
        return self.chat.encode(self.chat.spelling.closing) if self.chat.opens_thought else ()

    def render(
        self,
        messages: Sequence[Message],
        *,
        first: bool,
        tools: Sequence[JsonObject] = (),
        after: str = "",
    ) -> tuple[int, ...]:
        """Token ids of messages, ready for the assistant's reply."""
        return self.chat.render(messages, first=first, tools=tools, after=after)

    def encode_reply(self, text: str, tools: Sequence[JsonObject] = ()) -> tuple[int, ...]:
        """Token ids of an assistant's reply, end-of-turn token included."""
        return self.chat.encode_reply(clean(text), tools)

    def left_out(self, role: str, prompt: Sequence[int], reply: Sequence[int]) -> tuple[int, int, int]:
        """Tokens of an earlier turn that the template drops when a message of a role follows."""
        return self.chat.left_out(role, prompt, reply)

    async def sample(self, request: SampleRequest) -> Completion:
        """Sample one completion. Requests of all coroutines that wait at the same time may run as one batch.

        Raises:
            RolloutError: the prompt leaves no room in the context window; and what `_sample` raises.
        """
        limit, chat = self._max_thinking_tokens, self.chat
        if limit is None or request.schema is not None or request.choices:
            return await self._within_context(request)
        thoughts = ThoughtLimit(
            tokens=limit,
            opened=chat.opens_thought,
            spelling=chat.spelling,
            encode=chat.encode,
            decode=chat.decode,
        )
        return await thoughts.sample(request, self._within_context)

    async def _within_context(self, request: SampleRequest) -> Completion:
        if len(request.prompt_ids) + request.max_tokens > self.context_tokens:
            raise RolloutError(
                f"{len(request.prompt_ids)} prompt tokens and {request.max_tokens} new ones pass the context "
                f"window of {self.context_tokens}"
            )
        return await self._sample(request)

    @abstractmethod
    async def _sample(self, request: SampleRequest) -> Completion:
        """One completion, whose sequence has room in the context window."""
