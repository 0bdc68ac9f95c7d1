"""Conversations that must be held before a benchmark's items can be asked, such as those that fill a memory.

They are no items: they have no score, and are in no figure. Their records are in a file of their own next to
the results, so that a run that was stopped continues with what they left.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from genenv.chat.assistant import Assistant
from genenv.evaluation.base import Benchmark, Item
from genenv.evaluation.records import FAILED, Record, read_records
from genenv.evaluation.run import Run
from genenv.files import write_whole
from genenv.progress import Reporter, advance, staged
from genenv.types import Json


@runtime_checkable
class HasPrerequisites(Protocol):
    """A benchmark some of whose items need conversations before them."""

    def prerequisites(self, items: Sequence[Item]) -> Sequence[Sequence[Item]]:
        """The conversations that these items need, in chains: each builds on those before it in its chain."""
        ...

    def held(self, item: Item, answer: Json) -> None:
        """Take over what a conversation left; the answer is None where it did not fit into the window."""
        ...


class Prerequisites:
    """The prerequisites of one evaluation, and their file."""

    def __init__(self, results: Path, *, resume: bool) -> None:
        """Name the file.

        Args:
            results: the file of the items' results.
            resume: whether conversations of an earlier run count, as its summary says that it measured the
                same; else they are deleted.
        """
        self.path = results.with_suffix(".prerequisites.jsonl")
        if not resume:
            self.path.unlink(missing_ok=True)

    def hold(
        self,
        benchmark: Benchmark,
        assistant: Assistant,
        items: Sequence[Item],
        *,
        seed: int,
        reporter: Reporter,
    ) -> None:
        """Hold what the items need, and was not held before. A chain ends with the first that has no answer.

        Args:
            benchmark: whose items they are; nothing happens if it needs no conversations.
            assistant: holds them.
            items: what is to be asked next.
            seed: of all random streams.
            reporter: shows how many are done.
        """
        if not isinstance(benchmark, HasPrerequisites) or not (chains := benchmark.prerequisites(items)):
            return
        done = {record.id: record for record in self.records() if record.status != FAILED}
        write_whole(self.path, "".join(record.line() for record in done.values()))
        run = Run(benchmark, assistant, seed=seed, keep=self._append)
        waiting = iter(chains)

        async def work() -> None:
            for chain in waiting:
                for item in chain:
                    if item.id not in done:
                        done[item.id] = await run.one(item)
                        self._append(done[item.id])
                        advance(items=1)
                    if done[item.id].status == FAILED:
                        break
                    benchmark.held(item, done[item.id].answer)

        async def all_chains() -> None:
            workers = min(assistant.concurrency(many_turns=True), len(chains))
            await asyncio.gather(*(work() for _ in range(workers)))

        count = sum(item.id not in done for chain in chains for item in chain)
        with staged(reporter, f"{benchmark.name}: conversations before", items=count, unit="conversations"):
            asyncio.run(all_chains())

    def records(self) -> list[Record]:
        """What became of those that were held."""
        return list(read_records(self.path, cut_off_is_fine=True).values()) if self.path.exists() else []

    def _append(self, record: Record) -> None:
        with self.path.open("a", encoding="utf-8") as file:
            file.write(record.line())
