"""Rounds in flight: while one is learned from, later ones are produced (`run.staleness`).

    staleness s: round t is produced with the weights after round max(0, t - 1 - s), learned from after t - 1

With s = 0 nothing is ahead. With s = 1 round t + 1 is attempted while round t is learned from ("one step off
policy", Noukhovitch et al., arXiv:2410.18252), which takes as long as the slower of the two. Which weights
attempt which round does not depend on how long anything takes, so equal runs are equal. Where sampling and
learning share a device one follows the other, and nothing is gained but the knowledge of what it costs.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Coroutine, Mapping
from typing import Any

from genenv.training.policies import together
from genenv.training.producing import Ahead, Produced, Producer
from genenv.training.task_pool import Tasks

Learn = Callable[[Produced], Coroutine[Any, Any, Mapping[str, float]]]


class Pipeline:
    """Rounds that are produced and not committed yet."""

    def __init__(self, producer: Producer, *, rounds: int, staleness: int, overlaps: bool) -> None:
        """Nothing in flight.

        Args:
            producer: samples rounds.
            rounds: of the run; none beyond is produced.
            staleness: how many rounds may be produced ahead of the one that is learned from.
            overlaps: whether that happens while it is learned from, and not before.
        """
        self._producer, self._rounds = producer, rounds
        self._staleness, self._overlaps = staleness, overlaps and staleness > 0
        self._ahead: dict[int, Produced] = {}
        self.oldest = 0
        """The oldest weights that there are or were: after which round. A branch has none before its own."""

    def due(self, last: int) -> range:
        """The rounds that are produced when the last one committed is this."""
        return range(last + 1, min(last + self._staleness, self._rounds) + 1)

    def weights(self, number: int) -> int:
        """After which round the weights are that produce a round."""
        return max(self.oldest, number - 1 - self._staleness)

    async def produce(self, number: int, tasks: Tasks) -> None:
        """Produce a round with the weights that are published."""
        self._ahead[number] = await self._producer.produce(number, Ahead(tasks, self._ahead))

    async def learned(self, number: int, tasks: Tasks, learn: Learn) -> tuple[Produced, Mapping[str, float]]:
        """Produce what is due, have a round learned from, and let go of it.

        Args:
            number: of the round, the one after that which was committed last.
            tasks: of committed rounds.
            learn: has both players learn, and publishes nothing.

        Returns:
            The round, and the metrics of what was learned and of how it went side by side.
        """
        for missing in (number, *self.due(number)[: self._staleness - 1]):  # where a run begins
            if missing not in self._ahead:
                await self.produce(missing, tasks)
        produced, newest = self._ahead[number], number + self._staleness
        sampled_s = learned_s = 0.0
        metrics: Mapping[str, float] = {}

        async def sample() -> None:
            nonlocal sampled_s
            if newest <= self._rounds and newest not in self._ahead:
                start = time.perf_counter()
                await self.produce(newest, tasks)
                sampled_s = time.perf_counter() - start

        async def take() -> None:
            nonlocal learned_s, metrics
            start = time.perf_counter()
            metrics = await learn(produced)
            learned_s = time.perf_counter() - start

        if self._overlaps:
            await together(sample(), take())
        else:
            await sample()
            await take()
        found: dict[str, float] = {}
        if self._staleness:
            found["agent/staleness"] = float(number - 1 - self.weights(number))
        if self._overlaps and sampled_s:
            found = {
                **found,
                "time/sampling_waited_s": max(0.0, learned_s - sampled_s),
                "time/learning_waited_s": max(0.0, sampled_s - learned_s),
            }
        del self._ahead[number]
        return produced, {**metrics, **found}
