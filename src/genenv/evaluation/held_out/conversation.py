"""One attempt at a task as a run plays it, with a model that is given the conversation whole.

A reply that the token limit cuts off ends the attempt as a failure, and so does a conversation that leaves
no room for a whole reply in the run's window: the same that happens in training.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass, field

from genenv.chat.assistant import ChatMessage, Reply, Talk
from genenv.chat.tool_format import as_text
from genenv.environments.base import Episode, OutOfTurns
from genenv.errors import ContextOverflow, RolloutError, UsageError
from genenv.rollout.driver import choices_of, tools_of
from genenv.types import JsonObject, Message


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """What bounds an attempt: the run's own settings."""

    max_new_tokens: int
    """Of a reply."""
    context_tokens: int
    """Of the conversation and a whole reply."""
    timeout_s: float
    """Of the environment alone: the time that the model takes does not count."""


class _Cut(Exception):
    """A reply did not come to its end."""


@dataclass(slots=True)
class Conversation:
    """An episode's messages and replies."""

    talk: Talk
    limits: Limits
    replies: list[str] = field(default_factory=list[str])
    cut: bool = False
    """Whether the last reply did not come to its end."""
    _messages: list[ChatMessage] = field(default_factory=list[ChatMessage])
    _calls: list[str] = field(default_factory=list[str])
    """Ids of calls in the last reply that have no answer yet."""
    _tools: Sequence[JsonObject] = ()
    _left_s: float = 0.0

    async def play(self, episode: Episode) -> None:
        """Converse until the episode ends.

        Raises:
            ContextOverflow: the conversation leaves no room for a reply.
            RolloutError: no answer could be had, or the environment takes too long.
            UsageError: the model cannot be offered tools, or held to choices, as the environment wants it.
        """
        self._tools, self._left_s = self._offered(episode), self.limits.timeout_s
        try:
            async with asyncio.timeout(self._left_s) as clock:
                try:
                    await episode.run(lambda messages: self._ask(messages, choices_of(episode), clock))
                except _Cut:
                    self.cut = True
                except OutOfTurns:
                    pass
        except TimeoutError as error:
            raise RolloutError(f"the environment took longer than {self.limits.timeout_s:g} s") from error

    def _offered(self, episode: Episode) -> Sequence[JsonObject]:
        """Tools that the episode wants offered in the model's own form; others are in its messages."""
        tools = tools_of(episode)
        if tools and not self.talk.native_tools:
            raise UsageError(
                "these tasks offer tools in the model's own form, and this model takes none; measure it with "
                "held_out.config, a file whose environment describes tools in the prompt"
            )
        return tools

    async def _ask(self, messages: Sequence[Message], choices: Sequence[str], clock: asyncio.Timeout) -> str:
        loop = asyncio.get_running_loop()
        self._left_s = (clock.when() or 0.0) - loop.time()
        if self._left_s <= 0:  # an environment that never awaits gives the clock no chance to ring
            raise TimeoutError
        clock.reschedule(None)
        self._tell(messages)
        reply = await self.talk(self._messages, tools=self._tools, choices=choices)
        clock.reschedule(loop.time() + self._left_s)
        return self._heard(reply)

    def _tell(self, messages: Sequence[Message]) -> None:
        for message in messages:
            said: ChatMessage = {"role": message.role, "content": message.content}
            if message.role == "tool" and self._calls:
                said["tool_call_id"] = self._calls.pop(0)
            self._messages.append(said)

    def _heard(self, reply: Reply) -> str:
        room = self.limits.context_tokens - self.limits.max_new_tokens
        if reply.prompt_tokens > room:
            raise ContextOverflow(
                f"the conversation has {reply.prompt_tokens} tokens; a reply of {self.limits.max_new_tokens} "
                f"then passes the run's window of {self.limits.context_tokens}"
            )
        message = reply.message()
        self._messages.append(message)
        self._calls = [str(call["id"]) for call in message.get("tool_calls", ())]
        self.replies.append(as_text(reply.text, reply.calls))
        if not reply.finished:
            raise _Cut
        return self.replies[-1]
