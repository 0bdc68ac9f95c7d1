"""Generated tasks to look at: some of the first, some of the last, with what the agent made of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace

from genenv.runs.store.store import PoolStore
from genenv.types import Group, JsonObject, Message, Origin, StopReason, Task, Trace

_SHOWN_ATTEMPTS = 6
_LONGEST_TEXT = 2000  # characters of one message


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """Attempts that went alike, counted."""

    messages: tuple[Message, ...]
    """The conversation after the task."""
    success: bool
    explanation: str
    stop_reason: str | None
    """Why it ended, where it did not come to its own end."""
    count: int

    @property
    def turns(self) -> int:
        """How often the agent replied."""
        return sum(message.role == "assistant" for message in self.messages)


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """A task and what the agent made of it."""

    task_id: str
    round: int
    instruction: str
    difficulty: dict[str, str]
    oracle: tuple[str, ...]
    successes: int
    attempts: int
    """How many ran to a verdict."""
    distinct: tuple[Attempt, ...]
    """The most frequent ones."""
    hidden: int
    """How many attempts are not among them."""


def pick_examples(store: PoolStore, *, each: int = 5) -> tuple[list[Example], list[Example]]:
    """Early and late generated tasks that were attempted, no task twice and contexts varied.

    Args:
        store: the run's store.
        each: how many early ones and how many late ones, at most.
    """
    order = store.rounds()
    early = _pick(store, order, each, seen=frozenset())
    seen = frozenset(example.task_id for example in early)
    late = _pick(store, order[::-1], each, seen=seen)
    return early, sorted(late, key=lambda example: example.round)


def _pick(store: PoolStore, order: Sequence[int], wanted: int, *, seen: frozenset[str]) -> list[Example]:
    found: list[Example] = []
    for number in order:
        tasks = store.tasks(origin=Origin.GENERATED, rounds=range(number, number + 1))
        for task in _one_per_context_first([task for task in tasks if task.id not in seen]):
            traces = store.lineage(task.id).traces
            if traces:
                found.append(_example(task, number, traces))
            if len(found) == wanted:
                return found
    return found


def _one_per_context_first(tasks: Sequence[Task]) -> list[Task]:
    """Variations of one seed look alike: the first of every context, then the second of every one, ..."""
    taken: Counter[str | None] = Counter()
    turns: list[tuple[int, Task]] = []
    for task in tasks:
        turns.append((taken[task.lineage.context_id], task))
        taken[task.lineage.context_id] += 1
    return [task for _, task in sorted(turns, key=lambda turn: turn[0])]


def _example(task: Task, number: int, traces: Sequence[Trace]) -> Example:
    counts = Counter(
        (trace.messages, trace.success, trace.explanation, trace.stop_reason) for trace in traces
    )
    distinct = tuple(
        Attempt(
            messages=tuple(replace(one, content=_shorten(one.content)) for one in messages),
            success=success,
            explanation=explanation,
            stop_reason=None if reason is StopReason.DONE else _STOPPED[reason],
            count=count,
        )
        for (messages, success, explanation, reason), count in counts.most_common(_SHOWN_ATTEMPTS)
    )
    group = Group(task=task, traces=tuple(traces))
    return Example(
        task_id=task.id,
        round=number,
        instruction=_instruction(task),
        difficulty=_difficulty(task.spec),
        oracle=task.oracle,
        successes=group.successes,
        attempts=len(group.valid),
        distinct=distinct,
        hidden=len(traces) - sum(attempt.count for attempt in distinct),
    )


_STOPPED = {
    StopReason.DONE: "came to its end",
    StopReason.MAX_TURNS: "used all its turns",
    StopReason.LENGTH: "reached the token limit",
    StopReason.CONTEXT: "filled the context window",
    StopReason.TIMEOUT: "ran out of time",
    StopReason.ERROR: "got no answer",
}


def _instruction(task: Task) -> str:
    said = [message.content for message in task.messages if message.role == "user"]
    return _shorten(said[-1]) if said else "(no instruction)"


def _difficulty(spec: JsonObject) -> dict[str, str]:
    """The spec's leading keys up to the first that holds a structure or a text: they set the difficulty."""
    fields: dict[str, str] = {}
    for key, value in spec.items():
        if isinstance(value, bool):
            fields[key] = "yes" if value else "no"
        elif isinstance(value, int | float) or (isinstance(value, str) and len(value) <= 24):
            fields[key] = str(value)
        else:
            break
    return fields


def _shorten(text: str) -> str:
    return text if len(text) <= _LONGEST_TEXT else text[:_LONGEST_TEXT] + " …"
