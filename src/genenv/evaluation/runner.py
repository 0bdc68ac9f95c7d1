"""Rolls out a benchmark's items concurrently, and stores each record when its item ends, for `--resume`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from genenv.chat.assistant import Assistant, ChatMessage, Closes, Reply, Talk
from genenv.errors import ContextOverflow, NoAnswer, RolloutError
from genenv.evaluation.base import Benchmark, Grade, HasPrerequisites, Item
from genenv.evaluation.results import FAILED, GRADED, OVERFLOW, Record, Results, read_records
from genenv.progress import Reporter, advance, staged
from genenv.seeding import stream
from genenv.types import JsonObject

_PATIENCE = 2
"""Items without an answer in a row, per worker, after which the remaining items are skipped."""


def choose(items: Sequence[Item], limit: int | None) -> list[Item]:
    """Return at most `limit` items, in order: a deterministic choice, spread evenly over all groups.

    Each combination of groups contributes its first item, then its second, and so on.
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
class _Recorder:
    """Wraps a conversation to record the last request and its reply, token counts and latencies."""

    talk: Talk
    max_tokens: int
    """The token limit of a reply, unless the benchmark passes one."""
    replied: Callable[[], None]
    """Called after each reply."""
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


class Runner:
    """Rolls out the items of one benchmark with one model."""

    def __init__(
        self,
        benchmark: Benchmark,
        assistant: Assistant,
        *,
        seed: int,
        keep: Callable[[Record], None],
    ) -> None:
        """Connect benchmark and model; no rollout starts yet.

        Args:
            benchmark: supplies prompts and grades.
            assistant: the model.
            seed: the seed from which each item's random stream is derived.
            keep: called with each record when its item ends.
        """
        self._benchmark, self._assistant, self._seed = benchmark, assistant, seed
        self._keep = keep
        self._scores: list[float] = []
        self._failures, self._workers = 0, 1
        self._why = ""
        self._replies, self._most = 0, dict[str, int]()
        self._count = _uncounted

    async def items(self, items: Sequence[Item], known: Sequence[Record] = ()) -> None:
        """Roll out all items; items without an answer are recorded as failed.

        Args:
            items: the items to roll out.
            known: records of earlier items, for the running score.
        """
        self._scores = [record.score for record in known]
        waiting = iter(items)

        async def work() -> None:
            for item in waiting:
                if self._failures < _PATIENCE * self._workers:
                    self._done(await self.one(item))
                else:
                    self._done(_failed(item, f"not asked, as too many others had no answer: {self._why}"))

        many = any(self._benchmark.many_turns(item) for item in items)
        self._count = self._replied if many else _uncounted
        most = {item.id: self._benchmark.most_replies(item) for item in items} if many else {}
        self._most = {name: found for name, found in most.items() if found is not None}
        self._workers = min(self._assistant.concurrency(many_turns=many), len(items))
        await asyncio.gather(*(work() for _ in range(self._workers)))

    async def one(self, item: Item) -> Record:
        """Roll out and grade an item, and return its record without storing it."""
        seed = stream(self._seed, self._benchmark.name, item.id)
        talk = self._assistant.talk(seed, many_turns=self._benchmark.many_turns(item))
        recorder = _Recorder(talk, self._benchmark.max_tokens, self._count)
        began = time.monotonic()
        status, answer = GRADED, None
        try:
            answer = await self._benchmark.attempt(item, recorder)
            grade = self._benchmark.grade(item, answer)
        except ContextOverflow as error:
            status, grade = OVERFLOW, self._benchmark.unanswered(item, str(error))
        except NoAnswer as error:
            self._failures, self._why = self._failures + 1, str(error)
            return _failed(item, str(error), recorder)
        except RolloutError as error:  # of this item alone, such as a refused request
            return _failed(item, str(error), recorder)
        finally:
            if item.id in self._most:
                self._most[item.id] = len(recorder.latencies_s)
        self._failures = 0
        return _record(item, status, grade, recorder, answer=answer, seconds=time.monotonic() - began)

    def _done(self, record: Record) -> None:
        if record.status != FAILED:
            self._scores.append(record.score)
        self._keep(record)
        advance(items=1, note=self._note())

    def _replied(self) -> None:
        """Report progress after a reply, since a multi-turn item takes minutes."""
        self._replies += 1
        advance(note=self._note())

    def _note(self) -> str:
        """Return the number of replies, their maximum if known, and the running score."""
        most = f" of at most {sum(self._most.values()):,}" if self._most else ""
        replies = [f"{self._replies:,}{most} replies"] if self._replies else []
        score = [f"score {sum(self._scores) / len(self._scores):.1%}"] if self._scores else []
        return ", ".join([*replies, *score])


async def closing(work: Awaitable[None], *asked: Assistant | None) -> None:
    """Await work, then close the connections of the assistants, which are of this event loop."""
    try:
        await work
    finally:
        for one in asked:
            if isinstance(one, Closes):
                await one.close()


def _uncounted() -> None:
    """Do nothing: with one reply per item, counting the items is enough."""


def _failed(item: Item, why: str, recorder: _Recorder | None = None) -> Record:
    return _record(item, FAILED, Grade(score=0.0, explanation=why), recorder)


def _record(
    item: Item,
    status: str,
    grade: Grade,
    recorder: _Recorder | None,
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
        conversation=recorder.messages if recorder else [],
        tools=recorder.tools if recorder else [],
        tokens={
            "prompt": recorder.prompt_tokens,
            "sampled": recorder.tokens,
            "replies": len(recorder.latencies_s),
            "cut": recorder.cut,
        }
        if recorder
        else {},
        seconds=round(seconds, 3),
        latencies_s=recorder.latencies_s if recorder else [],
        cluster=item.cluster,
    )


def graded(items: Sequence[Item], records: Mapping[str, Record]) -> list[tuple[Item, Grade]]:
    """Return the items that did not fail, with their grades."""
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


class Prerequisites:
    """Runs and stores conversations that a benchmark's items need first, such as those that fill a memory.

    They have no score and count in no figure. Their records are in a separate file, for `--resume`.
    """

    def __init__(self, results: Path, *, resume: bool) -> None:
        """Set the path of the file.

        Args:
            results: the file of the items' records.
            resume: keep the conversations of an earlier run with the same identity; else delete them.
        """
        self._results = Results(results.with_suffix(".prerequisites.jsonl"))
        if not resume:
            self._results.path.unlink(missing_ok=True)

    def hold(
        self,
        benchmark: Benchmark,
        assistant: Assistant,
        items: Sequence[Item],
        *,
        seed: int,
        reporter: Reporter,
    ) -> None:
        """Roll out the missing conversations. A chain stops at its first failed conversation.

        Args:
            benchmark: the benchmark; if it needs no conversations, nothing happens.
            assistant: the model.
            items: the items that will be rolled out next.
            seed: the seed of all random streams.
            reporter: receives the progress.
        """
        if not isinstance(benchmark, HasPrerequisites) or not (chains := benchmark.prerequisites(items)):
            return
        done = {record.id: record for record in self.records() if record.status != FAILED}
        self._results.rewrite(done.values())
        run = Runner(benchmark, assistant, seed=seed, keep=self._results.append)
        waiting = iter(chains)

        async def work() -> None:
            for chain in waiting:
                for item in chain:
                    if item.id not in done:
                        done[item.id] = await run.one(item)
                        self._results.append(done[item.id])
                        advance(items=1)
                    if done[item.id].status == FAILED:
                        break
                    benchmark.held(item, done[item.id].answer)

        async def all_chains() -> None:
            workers = min(assistant.concurrency(many_turns=True), len(chains))
            await asyncio.gather(*(work() for _ in range(workers)))

        count = sum(item.id not in done for chain in chains for item in chain)
        with staged(reporter, f"{benchmark.name}: conversations before", items=count, unit="conversations"):
            asyncio.run(closing(all_chains(), assistant))

    def records(self) -> list[Record]:
        """Return the records stored so far."""
        path = self._results.path
        return list(read_records(path, cut_off_is_fine=True).values()) if path.exists() else []
