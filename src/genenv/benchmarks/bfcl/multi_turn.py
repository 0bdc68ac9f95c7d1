"""BFCL's multi-turn items: conversations of several user turns with executed calls, and memory items.

Source: `inference_multi_turn_prompting` and `inference_multi_turn_FC` of bfcl-eval's `base_handler.py`, with
the messages of its `openai_completion.py`. A turn ends with the first reply without parsable calls. Exceeding
the limit of steps ends the whole conversation: that is wrong unless it was the last turn, as officially.

The official `multi_turn_checker` grades, in a separate process. In each turn that has right calls, the model
must have made calls. After each, the public attributes of all instances must equal those after the right
calls, and the results of the right calls must be among all results so far, in any order.

With `protocol: genenv`, an item is one turn; the turns before it are replayed with the right calls.

Memory items follow `process_memory_test_case` and `process_agentic_test_case` of bfcl-eval's `utils.py`, and
`_evaluate_single_agentic_entry` of its `eval_runner.py`. Each scenario has one memory, filled by its
conversations in the order of the file. A conversation that exceeds the model's context window leaves the
memory unchanged. Every question starts from the memory after the last conversation; changes made by a
question are discarded. A question is right if the last message, which has no calls, contains one of the
possible answers. The official run stores memories as files. Here the stored answer of a conversation holds
the memory that it leaves, so runs cannot mix their memories.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from genenv.benchmarks.bfcl.data import Conversation, MemoryTask, Messages, prompts
from genenv.benchmarks.bfcl.single_turn import (
    as_sent,
    one_line,
    readable,
    shown,
    tools,
    with_system_prompt,
    without_thinking,
)
from genenv.benchmarks.bfcl.worker import Stopped, worker
from genenv.chat.assistant import ChatMessage, Reply, Talk, ToolCall
from genenv.errors import RolloutError
from genenv.evaluation.base import Grade
from genenv.types import Json

Turns = list[list[list[str]]]
"""Calls as text, by turn and step."""


Execute = Callable[[Sequence[str]], list[str]]
"""Executes a conversation's calls in order, keeps their effects, and returns the result of each as text."""


class World:
    """The simulated APIs of a conversation, in the state after its calls so far."""

    def __init__(self, conversation: Conversation) -> None:
        self._about = conversation
        self._steps: list[list[str]] = []

    def run(self, calls: Sequence[str]) -> list[str]:
        """Execute calls in order, and return the result of each as text.

        All earlier calls are executed again, since the worker process keeps no state. Calls that exceed the
        worker's limits return an error and change nothing.
        """
        steps, about = [*self._steps, list(calls)], self._about
        try:
            results = worker().ask(
                "execute",
                entry_id=about.id,
                config=about.config,
                classes=about.classes,
                long_context=about.long_context,
                steps=steps,
            )
        except Stopped as error:
            return [f"Error during execution: {error}"] * len(calls)
        self._steps = steps
        return results


async def ask_turns(conversation: Conversation, talk: Talk, *, native: bool, max_steps: int) -> Json:
    """Roll out a conversation; return `{"turns": [[["call(...)", ...], ...steps], ...turns]}`."""
    execute = World(conversation).run
    turns, _ = await hold(conversation, talk, execute, native=native, max_steps=max_steps)
    return {"turns": turns}


async def hold(
    conversation: Conversation, talk: Talk, execute: Execute, *, native: bool, max_steps: int
) -> tuple[Turns, str | None]:
    """Roll out a conversation whose calls are executed.

    Returns:
        The calls by turn and step; and the last message, the one without calls, for the official grader of
        answers, or None if too many steps ended the conversation first.
    """
    form = _Native(conversation) if native else _Text(conversation)
    messages: list[ChatMessage] = []
    turns: Turns = []
    said: str | None = None
    for index in range(len(conversation.turns)):
        messages = form.opened(messages, index)
        if conversation.only is not None and index < conversation.only:
            messages += form.shown_calls(conversation.truth[index], execute)
            continue
        steps, last = await _turn(form, talk, execute, messages, max_steps)
        turns.append(steps)
        said = None if last is None else form.answer(last)
        if last is None or index == conversation.only:
            break
    return turns, said


def grade_turns(conversation: Conversation, answer: Json) -> Grade:
    """Grade the calls of all turns, or of the one turn that was rolled out."""
    turns = _turns(answer)
    if turns is None:
        return _wrong("The answer is not a list of turns of steps of calls")
    first, truth = conversation.only or 0, conversation.truth
    asked = len(truth) if conversation.only is None else 1
    if len(turns) != asked:
        return _wrong(f"The conversation was ended by force: {len(turns)} of {asked} turns were carried out")
    entry = {"id": conversation.id, "initial_config": conversation.config}
    try:
        result = worker().ask(
            "grade_turns",
            turns=[*([calls] for calls in truth[:first]), *turns],
            truth=truth[: first + asked],
            entry={**entry, "involved_classes": conversation.classes},
            category=conversation.category,
        )
    except Stopped as error:
        return _wrong(f"The calls cannot be carried out: {error}")
    if result["valid"]:
        return Grade(score=1.0, explanation="After each turn the world is as it should be.")
    return _wrong(one_line(result["why"]))


def _wrong(why: str) -> Grade:
    return Grade(score=0.0, explanation=f"{why}.")


def _turns(answer: Json) -> Turns | None:
    """Return the calls of an answer; None if it is malformed."""
    turns: Any = answer.get("turns") if isinstance(answer, Mapping) else None
    if not _lists(turns) or not all(_lists(turn) for turn in turns):
        return None
    calls = [call for turn in turns for step in turn for call in step]
    return turns if all(isinstance(call, str) for call in calls) else None


def _lists(value: Any) -> bool:  # noqa: ANN401
    return isinstance(value, list) and all(isinstance(part, list) for part in value)  # pyright: ignore[reportUnknownVariableType]


async def _turn(
    form: _Form, talk: Talk, execute: Execute, messages: list[ChatMessage], max_steps: int
) -> tuple[list[list[str]], Reply | None]:
    """Return the calls of a turn's steps and the reply that ended it, or None if too many steps did.

    Appends to `messages`.
    """
    steps: list[list[str]] = []
    while True:
        reply = await talk(list(messages), tools=form.tools)
        calls = form.calls(reply)
        messages.append(form.message(reply))
        if not calls:
            return steps, reply
        steps.append(calls)
        messages += form.results(reply, calls, execute(calls))
        if len(steps) > max_steps:
            return steps, None


class _Form(ABC):
    """The format of prompts, calls and results; subclasses implement text and native mode."""

    def __init__(self, conversation: Conversation) -> None:
        self.conversation = conversation
        self.functions = shown(conversation.functions, conversation.category)
        self.tools: list[Any] = []

    @abstractmethod
    def opened(self, messages: list[ChatMessage], index: int) -> list[ChatMessage]:
        """Return the conversation with a turn's user messages added."""

    @abstractmethod
    def calls(self, reply: Reply) -> list[str]:
        """Return the calls of a reply as text; may be empty."""

    @abstractmethod
    def message(self, reply: Reply) -> ChatMessage:
        """Return the reply as a message."""

    @abstractmethod
    def answer(self, reply: Reply) -> str:
        """Return the text of a reply without calls."""

    @abstractmethod
    def results(self, reply: Reply, calls: Sequence[str], results: Sequence[str]) -> list[ChatMessage]:
        """Return the calls' results as messages."""

    @abstractmethod
    def reply_with(self, calls: Sequence[str]) -> Reply:
        """Return a reply that makes these calls."""

    def shown_calls(self, calls: Sequence[str], execute: Execute) -> list[ChatMessage]:
        """Execute calls, and return the messages that would result if the model had made them."""
        if not calls:
            return []
        reply = self.reply_with(calls)
        return [self.message(reply), *self.results(reply, calls, execute(calls))]


class _Text(_Form):
    """Text mode: functions in the system prompt, calls as Python, results in a user message."""

    def opened(self, messages: list[ChatMessage], index: int) -> list[ChatMessage]:
        turn = self.conversation.turns[index]
        if index in self.conversation.added:
            template = prompts().DEFAULT_USER_PROMPT_FOR_ADDITIONAL_FUNCTION_PROMPTING
            turn = [{"role": "user", "content": template.format(functions=self.conversation.added[index])}]
        if index == 0:
            return with_system_prompt(turn, self.functions)
        if turn and messages[-1]["role"] == turn[0]["role"] == "user":  # only after replayed calls
            joined = f"{messages[-1]['content']}\n\n{turn[0]['content']}"
            return [*messages[:-1], {"role": "user", "content": joined}, *turn[1:]]
        return [*messages, *turn]

    def calls(self, reply: Reply) -> list[str]:
        try:
            return worker().ask("commands", text=without_thinking(reply))
        except Stopped:
            return []

    def message(self, reply: Reply) -> ChatMessage:
        return {"role": "assistant", "content": without_thinking(reply)}

    def answer(self, reply: Reply) -> str:
        return without_thinking(reply)

    def results(self, reply: Reply, calls: Sequence[str], results: Sequence[str]) -> list[ChatMessage]:
        told = [
            {"role": "tool", "name": call, "content": result}
            for call, result in zip(calls, results, strict=True)
        ]
        return [{"role": "user", "content": repr(told)}]

    def reply_with(self, calls: Sequence[str]) -> Reply:
        return Reply(text=f"[{', '.join(calls)}]")


class _Native(_Form):
    """Native mode: functions as tools, calls and results in the model's own format."""

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

    def message(self, reply: Reply) -> ChatMessage:
        return reply.message()

    def answer(self, reply: Reply) -> str:
        """Return the reply's text, or as officially the first call as sent if calls cannot be parsed."""
        if not reply.calls:
            return without_thinking(reply)
        return str({reply.calls[0].name: as_sent(reply.calls[0].arguments)})

    def results(self, reply: Reply, calls: Sequence[str], results: Sequence[str]) -> list[ChatMessage]:
        return [
            {"role": "tool", "tool_call_id": call.id or f"call_{index}", "content": result}
            for index, (call, result) in enumerate(zip(reply.calls, results, strict=True))
        ]

    def reply_with(self, calls: Sequence[str]) -> Reply:
        named = [named_arguments(call, self.conversation) for call in calls]
        return Reply(text="", calls=tuple(ToolCall(name=name, arguments=words) for name, words in named))


def named_arguments(call: str, conversation: Conversation) -> tuple[str, dict[str, Any]]:
    """Return a right call's name, and its arguments by name."""
    name, arguments = worker().ask("name_arguments", call=call, classes=conversation.classes)
    return name, arguments


def native_commands(calls: Sequence[tuple[str, Mapping[str, Any]]]) -> list[str]:
    """Return native calls as the text to execute (`convert_to_function_call`).

    Raises:
        Unreadable: some arguments are not JSON; then no call of the reply counts, as officially.
    """
    return [
        f"{name}({','.join(f'{key}={value!r}' for key, value in readable(arguments).items())})"
        for name, arguments in calls
    ]


Memory = Mapping[str, Any]
"""A memory's contents, in the form of the official snapshots."""


class Memories:
    """The memories of one run, after the conversations so far."""

    def __init__(self) -> None:
        self._held: set[str] = set()
        self._memories: dict[tuple[str, str], Memory] = {}

    def keep(self, task: MemoryTask, answer: Json) -> None:
        """Store the memory that a conversation leaves; without an answer it stays unchanged."""
        self._held.add(task.id)
        if task.first:
            self._memories.pop(task.memory, None)
        memory = answer.get("memory") if isinstance(answer, Mapping) else None
        if isinstance(memory, Mapping):
            self._memories[task.memory] = memory

    def of(self, task: MemoryTask) -> Memory | None:
        """Return the memory before a task; None if it is empty.

        Raises:
            RolloutError: a conversation that fills it is missing.
        """
        if lost := [item.id for item in task.before if item.id not in self._held]:
            raise RolloutError(f"the conversation {lost[0]}, which fills the memory, was not held")
        return None if task.first else self._memories.get(task.memory)


async def ask_about_memory(
    task: MemoryTask, talk: Talk, memory: Memory | None, *, native: bool, max_steps: int
) -> Json:
    """Roll out a memory task; return `{"turns": ..., "said": last message or null, "memory": contents}`.

    `memory` is the state at the end. A question returns none, as its changes to the memory are discarded.
    """
    world = _MemoryWorld(task, memory)
    conversation = _memory_conversation(task, memory)
    turns, said = await hold(conversation, talk, world.run, native=native, max_steps=max_steps)
    if task.possible:
        return {"turns": turns, "said": said}
    return {"turns": turns, "said": said, "memory": world.memory}


def grade_memory(task: MemoryTask, answer: Json) -> Grade:
    """Grade a question about a memory: 1 if the last message contains a possible answer, else 0."""
    if not task.possible:
        return Grade(score=0.0, explanation="It fills the memory, and is not graded.")
    said = answer.get("said") if isinstance(answer, Mapping) else None
    if not isinstance(said, str) or not said:
        return Grade(score=0.0, explanation="There is no last message without calls.")
    try:
        right = worker().ask("grade_answer", said=said, possible=task.possible)
    except Stopped as error:
        return Grade(score=0.0, explanation=f"The message cannot be compared: {error}.")
    has = "contains" if right else "contains none of"
    return Grade(score=float(right), explanation=f"The last message {has} the possible answers.")


class _MemoryWorld:
    """Executes calls on a memory, which is its only state."""

    def __init__(self, task: MemoryTask, memory: Memory | None) -> None:
        self._task, self.memory = task, memory

    def run(self, calls: Sequence[str]) -> list[str]:
        """Execute calls; calls that exceed the worker's limits return an error and change nothing."""
        task = self._task
        try:
            found = worker().ask(
                "remember", api=task.api, memory=self.memory, calls=list(calls), entry_id=task.id
            )
        except Stopped as error:
            return [f"Error during execution: {error}"] * len(calls)
        self.memory = found["memory"]
        return found["results"]


def _memory_conversation(task: MemoryTask, memory: Memory | None) -> Conversation:
    """Return the conversation for the model, whose first messages explain the memory and its contents."""
    first: Messages = list(task.turns[0])
    if task.possible:
        form = prompts().ADDITIONAL_SYSTEM_PROMPT_FOR_AGENTIC_RESPONSE_FORMAT
        first.insert(0, {"role": "system", "content": form})
    opened = worker().ask(
        "with_memory",
        api=task.api,
        memory=memory,
        messages=first,
        scenario=task.scenario,
        category=task.category,
    )
    return Conversation(
        id=task.id,
        category=task.category,
        turns=[opened, *task.turns[1:]],
        truth=[[] for _ in task.turns],
        functions=task.functions,
        added={},
        classes=[task.api],
        config={},
    )
