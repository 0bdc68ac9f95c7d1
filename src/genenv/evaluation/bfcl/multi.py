"""Multi-turn items: the user's turns one after the other, up to so many steps in each, results fed back.

Source: `inference_multi_turn_prompting` and `inference_multi_turn_FC` of bfcl-eval's `base_handler.py`, with
the messages of its `openai_completion.py`. A turn ends with the first reply in which no calls can be read.
More steps than allowed end the whole conversation: that is wrong, unless it was the last turn, as officially.

The paper's form (`--protocol genenv`): each turn on its own. Those before it are shown as the right calls
make them, results included, and one turn is asked and graded.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

from genenv.assistants.base import ChatMessage, Reply, Talk, ToolCall
from genenv.evaluation.bfcl.check import Turns, rollout
from genenv.evaluation.bfcl.decode import Undecodable, calls_in_text, commands, native_commands
from genenv.evaluation.bfcl.load import Conversation
from genenv.evaluation.bfcl.package import prompts
from genenv.evaluation.bfcl.prompts import shown, tools, with_system_prompt
from genenv.evaluation.bfcl.simulate import Rollout
from genenv.evaluation.bfcl.single import spoken
from genenv.types import Json


async def ask(conversation: Conversation, talk: Talk, *, native: bool, max_steps: int) -> Json:
    """Hold a conversation: the answer is `{"turns": [[["call(...)", ...], ...steps], ...turns]}`."""
    form = _Native(conversation) if native else _Text(conversation)
    world = rollout(conversation, "model")
    messages: list[ChatMessage] = []
    turns: Turns = []
    for index in range(len(conversation.turns)):
        messages = form.opened(messages, index)
        if conversation.only is not None and index < conversation.only:
            messages += form.shown_calls(conversation.truth[index], world)
            continue
        steps, ended = await _turn(form, talk, world, messages, max_steps)
        turns.append(steps)
        if not ended or index == conversation.only:
            break
    return {"turns": turns}


async def _turn(
    form: _Form, talk: Talk, world: Rollout, messages: list[ChatMessage], max_steps: int
) -> tuple[list[list[str]], bool]:
    """The calls of a turn's steps, and whether the model ended it itself. Messages are added to the list."""
    steps: list[list[str]] = []
    while True:
        reply = await talk(list(messages), tools=form.tools)
        calls = form.calls(reply)
        messages.append(form.said(reply))
        if not calls:
            return steps, True
        steps.append(calls)
        messages += form.results(reply, calls, world.run(calls))
        if len(steps) > max_steps:
            return steps, False


class _Form(ABC):
    """How calls and results are written: what text and native mode have in common."""

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation
        self.functions = shown(conversation.functions, conversation.category)
        self.tools: list[Any] = []

    @abstractmethod
    def opened(self, messages: list[ChatMessage], index: int) -> list[ChatMessage]:
        """The conversation with the user's part of a turn."""

    @abstractmethod
    def calls(self, reply: Reply) -> list[str]:
        """The calls of a reply as text; empty where there are none."""

    @abstractmethod
    def said(self, reply: Reply) -> ChatMessage:
        """The reply as a message."""

    @abstractmethod
    def results(self, reply: Reply, calls: Sequence[str], results: Sequence[str]) -> list[ChatMessage]:
        """What the calls answered, as messages."""

    @abstractmethod
    def reply_with(self, calls: Sequence[str], world: Rollout) -> Reply:
        """The reply of a model that makes these calls."""

    def shown_calls(self, calls: Sequence[str], world: Rollout) -> list[ChatMessage]:
        """Calls that are carried out without asking the model, as if it had made them."""
        if not calls:
            return []
        reply = self.reply_with(calls, world)
        return [self.said(reply), *self.results(reply, calls, world.run(calls))]


class _Text(_Form):
    """Functions in the system prompt, calls as Python, results in a message of the user."""

    def opened(self, messages: list[ChatMessage], index: int) -> list[ChatMessage]:
        turn = self.conversation.turns[index]
        if index in self.conversation.added:
            template = prompts().DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_PROMPTING
            turn = [{"role": "user", "content": template.format(functions=self.conversation.added[index])}]
        if index == 0:
            return with_system_prompt(turn, self.functions)
        if turn and messages[-1]["role"] == turn[0]["role"] == "user":  # only after calls that were shown
            joined = f"{messages[-1]['content']}\n\n{turn[0]['content']}"
            return [*messages[:-1], {"role": "user", "content": joined}, *turn[1:]]
        return [*messages, *turn]

    def calls(self, reply: Reply) -> list[str]:
        try:
            return commands(calls_in_text(spoken(reply)))
        except Undecodable:
            return []

    def said(self, reply: Reply) -> ChatMessage:
        return {"role": "assistant", "content": spoken(reply)}

    def results(self, reply: Reply, calls: Sequence[str], results: Sequence[str]) -> list[ChatMessage]:
        told = [
            {"role": "tool", "name": call, "content": result}
            for call, result in zip(calls, results, strict=True)
        ]
        return [{"role": "user", "content": repr(told)}]

    def reply_with(self, calls: Sequence[str], world: Rollout) -> Reply:
        return Reply(text=f"[{', '.join(calls)}]")


class _Native(_Form):
    """Functions as tools, calls and results in the model's own format."""

    def opened(self, messages: list[ChatMessage], index: int) -> list[ChatMessage]:
        turn = self.conversation.turns[index]
        if index in self.conversation.added:
            self.functions = [*self.functions, *self.conversation.added[index]]
            turn = [{"role": "user", "content": prompts().DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_FC}]
        self.tools = tools(self.functions)
        return [*messages, *turn]

    def calls(self, reply: Reply) -> list[str]:
        try:
            return native_commands([(call.name, call.arguments) for call in reply.calls])
        except (ValueError, RecursionError):  # a number of thousands of digits, or endless nesting
            return []

    def said(self, reply: Reply) -> ChatMessage:
        return reply.message()

    def results(self, reply: Reply, calls: Sequence[str], results: Sequence[str]) -> list[ChatMessage]:
        return [
            {"role": "tool", "tool_call_id": call.id or f"call_{index}", "content": result}
            for index, (call, result) in enumerate(zip(reply.calls, results, strict=True))
        ]

    def reply_with(self, calls: Sequence[str], world: Rollout) -> Reply:
        named = [world.named(call) for call in calls]
        return Reply(text="", calls=tuple(ToolCall(name=name, arguments=words) for name, words in named))
