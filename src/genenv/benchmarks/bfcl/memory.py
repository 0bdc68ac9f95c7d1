"""Memory items: conversations in which the model fills a memory, then questions about what it noted.

Source: `process_memory_test_case` and `process_agentic_test_case` of bfcl-eval's `utils.py`, its
`base_handler.py`, and `_evaluate_single_agentic_entry` of its `eval_runner.py`. Every scenario has one
memory. Its conversations are held in the order of the file, each with the memory as the one before left it;
one that did not fit into the model's window leaves it as it was. Every question then starts from the memory
as the last of them left it, and what the model changes in it while it answers is forgotten. A question is
right if the last message, which has no calls, contains one of the possible answers.

The official run keeps memories as files below its results. Here a memory is part of the stored answer to the
conversation that left it, so that runs cannot mix theirs up.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from genenv.benchmarks.bfcl import multi
from genenv.benchmarks.bfcl.load import Conversation, MemoryTask, Messages
from genenv.benchmarks.bfcl.package import prompts
from genenv.benchmarks.bfcl.worker import Stopped, worker
from genenv.chat.assistant import Talk
from genenv.errors import RolloutError
from genenv.evaluation.base import Grade
from genenv.types import Json

Memory = Mapping[str, Any]
"""What a memory holds, in the form of the official snapshots."""


class Memories:
    """The memories of one run, as the conversations so far have left them."""

    def __init__(self) -> None:
        self._held: set[str] = set()
        self._memories: dict[tuple[str, str], Memory] = {}

    def keep(self, task: MemoryTask, answer: Json) -> None:
        """Take over what a conversation left; one without an answer leaves the memory as it was."""
        self._held.add(task.id)
        if task.first:
            self._memories.pop(task.memory, None)
        memory = answer.get("memory") if isinstance(answer, Mapping) else None
        if isinstance(memory, Mapping):
            self._memories[task.memory] = memory

    def of(self, task: MemoryTask) -> Memory | None:
        """What a task starts from; None: an empty memory.

        Raises:
            RolloutError: a conversation that fills it was not held.
        """
        if lost := [item.id for item in task.before if item.id not in self._held]:
            raise RolloutError(f"the conversation {lost[0]}, which fills the memory, was not held")
        return None if task.first else self._memories.get(task.memory)


async def ask(task: MemoryTask, talk: Talk, memory: Memory | None, *, native: bool, max_steps: int) -> Json:
    """Hold a conversation: `{"turns": ..., "said": the last message or null, "memory": what it holds then}`.

    Questions leave the memory out: it is forgotten.
    """
    world = _MemoryWorld(task, memory)
    conversation = _conversation(task, memory)
    turns, said = await multi.hold(conversation, talk, world, native=native, max_steps=max_steps)
    if task.possible:
        return {"turns": turns, "said": said}
    return {"turns": turns, "said": said, "memory": world.memory}


def grade(task: MemoryTask, answer: Json) -> Grade:
    """Whether the last message contains a possible answer; what fills the memory has no grade."""
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
    """Carries out calls on a memory. It has no state but what the memory holds."""

    def __init__(self, task: MemoryTask, memory: Memory | None) -> None:
        self._task, self.memory = task, memory

    def run(self, calls: Sequence[str]) -> list[str]:
        """Carry out calls; those that take too much answer an error, and change nothing."""
        task = self._task
        try:
            found = worker().ask(
                "remember", api=task.api, memory=self.memory, calls=list(calls), entry_id=task.id
            )
        except Stopped as error:
            return [f"Error during execution: {error}"] * len(calls)
        self.memory = found["memory"]
        return found["results"]


def _conversation(task: MemoryTask, memory: Memory | None) -> Conversation:
    """The conversation as the model has it: told first what the memory is, and what it shows of itself."""
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
