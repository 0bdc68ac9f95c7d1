"""A conversation that says what it was given to say, for tests of what converses."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from genenv.chat.assistant import ChatMessage, Reply, ToolCall
from genenv.types import JsonObject


class Recited:
    """Says its replies in turn, and remembers what it was told and offered.

    A reply is a text, a list of calls as (name, arguments), a whole `Reply`, or an error, which is raised.
    """

    def __init__(self, *replies: Any, native_tools: bool = False, seconds: float = 0.0) -> None:
        self.native_tools = native_tools
        self.heard: list[list[ChatMessage]] = []
        self.tools: list[list[Any]] = []
        self.max_tokens: list[int | None] = []
        self._replies, self._seconds = list(replies), seconds

    async def __call__(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[JsonObject] = (),
        choices: Sequence[str] = (),
        max_tokens: int | None = None,
    ) -> Reply:
        await asyncio.sleep(self._seconds)
        self.heard.append([dict(message) for message in messages])
        self.tools.append(list(tools))
        self.max_tokens.append(max_tokens)
        said = self._replies.pop(0)
        if isinstance(said, Exception):
            raise said
        if isinstance(said, list):
            calls = tuple(ToolCall(name=name, arguments=words) for name, words in said)
            return Reply(text="", calls=calls)
        return Reply(text=said) if isinstance(said, str) else said

    @property
    def offered(self) -> list[list[str]]:
        """The names of the tools, each time that it was asked."""
        return [[tool["function"]["name"] for tool in tools] for tools in self.tools]
