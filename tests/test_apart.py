"""Players on devices of their own learn at the same time; others one after the other."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Generator, Mapping, Sequence

from genenv.algorithms.datum import Datum, Objective
from genenv.curriculum.update_selection import Selection
from genenv.progress import Silent, Stage
from genenv.runs.metrics import Stages
from genenv.types import Group, Profile, SimulatorSample, TaskBatch
from lessons import Recorder
from loops import learner_of


class Meeting(Recorder):
    """Goes on with its gradient only when as many as the barrier wants are at it."""

    def __init__(self, name: str, barrier: asyncio.Barrier, log: list[str]) -> None:
        super().__init__()
        self.name, self.barrier, self.log = name, barrier, log

    async def forward_backward(self, data: Sequence[Datum], objective: Objective) -> Mapping[str, float]:
        self.log.append(f"{self.name} begins")
        async with asyncio.timeout(5):
            await self.barrier.wait()
        self.log.append(f"{self.name} ends")
        return await super().forward_backward(data, objective)


def both_learn(toy, *, apart: bool, meeting: int) -> tuple[list[str], Mapping[str, float], dict[str, int]]:
    """One update of each player, as in a round; what happened, the metrics, and the items of each stage."""
    traces = (toy.trace((5, 6), [(8, 9, 1)], reward=1.0), toy.trace((5, 6), [(30, 1)], reward=0.0))
    groups = [Group(task=toy.task(), traces=traces)]
    batches = [TaskBatch(context=toy.context(), proposals=(), groups=(), p_hat=0.5, env_reward=1.0)]
    selection = Selection(samples=(SimulatorSample(generation=toy.generation("abc"), weight=1.0),))
    log: list[str] = []
    told: dict[str, int] = {}

    class Telling(Silent):
        """Counts the items of each stage."""

        @contextlib.contextmanager
        def stage(self, name: str, *, items: int | None, unit: str) -> Generator[Stage]:
            def tell(tokens: int, items: int, note: str = "") -> None:
                told[name] = told.get(name, 0) + items

            yield tell

    stages = Stages(Telling(), 1, 1)

    async def go() -> Mapping[str, float]:
        barrier = asyncio.Barrier(meeting)
        agent, simulator = (Meeting(name, barrier, log) for name in ("agent", "simulator"))
        learner = learner_of(toy, agent=agent, simulator=simulator, apart=apart)
        return await learner.both(
            lambda: learner.agent_learns(1, groups, [], stages),
            lambda: learner.simulator_learns(1, batches, selection, Profile(), stages),
        )

    metrics = asyncio.run(go())
    return log, metrics, told


def test_players_apart_learn_at_the_same_time(toy):
    log, metrics, told = both_learn(toy, apart=True, meeting=2)
    assert sorted(log[:2]) == ["agent begins", "simulator begins"]
    assert sorted(log[2:]) == ["agent ends", "simulator ends"]
    assert metrics["tokens/trained"] == 5 + 3  # of both
    assert metrics["agent/steps"] == metrics["simulator/steps"] == 1
    assert sorted(told.values()) == [1, 2]  # a spec, and two attempts: each stage is told of its own


def test_players_that_share_a_device_learn_one_after_the_other(toy):
    log, metrics, _ = both_learn(toy, apart=False, meeting=1)
    assert log == ["agent begins", "agent ends", "simulator begins", "simulator ends"]
    assert metrics == both_learn(toy, apart=True, meeting=1)[1]
