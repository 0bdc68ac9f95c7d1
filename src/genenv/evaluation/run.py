"""Runs a benchmark: items concurrently, each written down as it ends, so that a stopped run continues."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from genenv.chat.assistant import Assistant, ChatMessage, Reply, Talk
from genenv.errors import ContextOverflow, RolloutError
from genenv.evaluation.base import Benchmark, Bounded, Grade, Item
from genenv.evaluation.records import FAILED, GRADED, OVERFLOW, Record
from genenv.progress import advance
from genenv.seeding import stream
from genenv.types import JsonObject

_PATIENCE = 2
"""After so many times as many failures in a row as run at a time, the rest is not asked any more."""


def choose(items: Sequence[Item], limit: int | None) -> list[Item]:
    """At most `limit` items, spread evenly over all groups, always the same; in their own order.

    The items of each combination of groups take turns, from the first of each on.
    """
    if limit is None or limit >= len(items):
        return list(items)
    strata: dict[tuple[tuple[str, str], ...], int] = {}
    turns: list[tuple[int, int]] = []
    for index, item in enumerate(items):
        key = tuple(sorted(item.groups.items()))
        turns.append((strata.setdefault(key, 0), index))
        strata[key] += 1
    return [items[index] for index in sorted(index for _, index in sorted(turns)[:limit])]


@dataclass(slots=True)
class _Heard:
    """A conversation that writes down what was said last, and counts tokens."""

    talk: Talk
    max_tokens: int
    """Of a reply, where the benchmark does not say."""
    replied: Callable[[], None]
    """Told of each reply."""
    messages: list[ChatMessage] = field(default_factory=list[ChatMessage])
    tools: list[JsonObject] = field(default_factory=list[JsonObject])
    prompt_tokens: int = 0
    tokens: int = 0
    latencies_s: list[float] = field(default_factory=list[float])
    cut: int = 0

    @property
    def native_tools(self) -> bool:
        return self.talk.native_tools

    async def __call__(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[JsonObject] = (),
        choices: Sequence[str] = (),
        max_tokens: int | None = None,
    ) -> Reply:
        self.messages, self.tools = list(messages), list(tools)
        most = max_tokens or self.max_tokens
        began = time.monotonic()
        reply = await self.talk(messages, tools=tools, choices=choices, max_tokens=most)
        self.latencies_s.append(round(time.monotonic() - began, 3))
        self.messages.append(reply.message())
        self.prompt_tokens += reply.prompt_tokens
        self.tokens += reply.tokens
        self.cut += not reply.finished
        self.replied()
        return reply


class Run:
    """One benchmark, one assistant, and what has been found so far."""

    def __init__(
        self,
        benchmark: Benchmark,
        assistant: Assistant,
        *,
        seed: int,
        keep: Callable[[Record], None],
    ) -> None:
        """Prepare a run.

        Args:
            benchmark: asks and grades.
            assistant: answers.
            seed: of all random streams; each item has its own.
            keep: told of every record as its item ends.
        """
        self._benchmark, self._assistant, self._seed = benchmark, assistant, seed
        self._keep = keep
        self._scores: list[float] = []
        self._failures, self._workers = 0, 1
        self._why = ""
        self._replies, self._most = 0, dict[str, int]()
        self._count = _unheard

    async def items(self, items: Sequence[Item], known: Sequence[Record] = ()) -> None:
        """Ask for all items; those that cannot be answered are kept as failed.

        Args:
            items: what to ask.
            known: records of other items, for the running score.
        """
        self._scores = [record.score for record in known]
        waiting = iter(items)

        async def work() -> None:
            for item in waiting:
                self._done(await self.one(item))

        many = any(self._benchmark.many_turns(item) for item in items)
        self._count = self._replied if many else _unheard
        if many and isinstance(self._benchmark, Bounded):
            self._most = {item.id: self._benchmark.most_replies(item) for item in items}
        self._workers = min(self._assistant.concurrency(many_turns=many), len(items))
        await asyncio.gather(*(work() for _ in range(self._workers)))

    async def one(self, item: Item) -> Record:
        """Ask for an item; what became of it is not kept yet."""
        if self._failures >= _PATIENCE * self._workers:
            return _failed(item, f"not asked, as too many others failed in a row: {self._why}")
        seed = stream(self._seed, self._benchmark.name, item.id)
        talk = self._assistant.talk(seed, many_turns=self._benchmark.many_turns(item))
        heard = _Heard(talk, self._benchmark.max_tokens, self._count)
        began = time.monotonic()
        status, answer = GRADED, None
        try:
            answer = await self._benchmark.attempt(item, heard)
            grade = self._benchmark.grade(item, answer)
        except ContextOverflow as error:
            status, grade = OVERFLOW, self._benchmark.unanswered(item, str(error))
        except RolloutError as error:
            return _failed(item, str(error), heard)
        finally:
            if item.id in self._most:
                self._most[item.id] = len(heard.latencies_s)
        return _record(item, status, grade, heard, answer=answer, seconds=time.monotonic() - began)

    def _done(self, record: Record) -> None:
        failed = record.status == FAILED
        if failed and record.conversation:  # else the model was not asked, which says nothing of it
            self._failures += 1
        if failed:
            self._why = self._why or record.explanation
        else:
            self._failures = 0
            self._scores.append(record.score)
        self._keep(record)
        advance(items=1, note=self._note())

    def _replied(self) -> None:
        """One more reply: items of many turns take minutes each."""
        self._replies += 1
        advance(note=self._note())

    def _note(self) -> str:
        """Replies so far, of how many at most where that is known, and the running score."""
        most = f" of at most {sum(self._most.values()):,}" if self._most else ""
        replies = [f"{self._replies:,}{most} replies"] if self._replies else []
        score = [f"score {sum(self._scores) / len(self._scores):.1%}"] if self._scores else []
        return ", ".join([*replies, *score])


def _unheard() -> None:
    """Where every item is one reply: the items are counted anyway."""


def _failed(item: Item, why: str, heard: _Heard | None = None) -> Record:
    return _record(item, FAILED, Grade(score=0.0, explanation=why), heard)


def _record(
    item: Item,
    status: str,
    grade: Grade,
    heard: _Heard | None,
    *,
    answer: object = None,
    seconds: float = 0.0,
) -> Record:
    return Record(
        id=item.id,
        groups=item.groups,
        status=status,
        score=grade.score,
        measures=grade.measures,
        explanation=grade.explanation,
        unread=tuple(grade.unread),
        answer=answer,
        conversation=heard.messages if heard else [],
        tools=heard.tools if heard else [],
        tokens={
            "prompt": heard.prompt_tokens,
            "sampled": heard.tokens,
            "replies": len(heard.latencies_s),
            "cut": heard.cut,
        }
        if heard
        else {},
        seconds=round(seconds, 3),
        latencies_s=heard.latencies_s if heard else [],
        cluster=item.cluster,
    )


def graded(items: Sequence[Item], records: Mapping[str, Record]) -> list[tuple[Item, Grade]]:
    """Items and their grades, those that failed left out."""
    return [
        (
            item,
            Grade(
                score=record.score,
                explanation=record.explanation,
                measures=record.measures,
                unread=record.unread,
            ),
        )
        for item in items
        if (record := records.get(item.id)) is not None and record.status != FAILED
    ]
