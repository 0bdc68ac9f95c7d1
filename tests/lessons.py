"""Lessons made by hand, and a trainer that only records: for tests of learning, without torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from genenv.algorithms.datum import Datum, Objective
from genenv.backends.scripted import ScriptedTrainer
from genenv.types import Generation, Group, SimulatorSample, StopReason

SEQUENCES = [
    ((5, 6, 7), (8, 9, 10, 1)),
    ((5, 6, 7), (9, 1)),
    ((11, 12), (40, 41, 42, 43, 44, 1)),
]
"""Prompts and completions."""


def make_groups(toy: Any) -> list[Group]:
    """Attempts at two tasks: a turn of the environment, no token at all, and one that does not count."""
    first = (
        toy.trace((5, 6, 7), [(8, 9, 1), (30, 31), (4, 1)], reward=1.0),
        toy.trace((5, 6, 7), [(8, 2)], reward=0.0),
        toy.trace((5, 6, 7), [(9, 9, 9, 9, 9)], reward=0.25, stop_reason=StopReason.LENGTH),
        toy.trace((5, 6, 7), [], reward=0.0, stop_reason=StopReason.CONTEXT),
    )
    second = (
        toy.trace((11, 12), [(13, 1)], reward=0.0),
        toy.trace((11, 12), [(14, 15, 1), (40,), (3,)], reward=1.0),
        toy.trace((11, 12), [(99, 98)], reward=1.0, stop_reason=StopReason.TIMEOUT),
    )
    return [
        Group(task=toy.task(name="task-1"), traces=first),
        Group(task=toy.task(name="task-2"), traces=second),
    ]


def imitated(prompt: tuple[int, ...], ids: tuple[int, ...], weight: float = 1.0, **changes: Any) -> Datum:
    """A sequence to imitate, each of its tokens with that weight."""
    values = {"prompt_ids": prompt, "completion_ids": ids, "weights": (weight,) * len(ids), "loss": "nll"}
    return Datum(**(values | changes))


def weighted(*weights: float) -> list[Datum]:
    """The sequences, imitated with these weights."""
    return [imitated(*pair, weight) for pair, weight in zip(SEQUENCES, weights, strict=True)]


def samples(*weights: float) -> list[SimulatorSample]:
    """The sequences, as generations with these weights."""
    return [
        SimulatorSample(
            generation=Generation(
                id=f"g{i}",
                context_id=f"c{i}",
                prompt_ids=prompt,
                token_ids=ids,
                logprobs=(0.0,) * len(ids),
                text="",
                finished=True,
            ),
            weight=weight,
        )
        for i, ((prompt, ids), weight) in enumerate(zip(SEQUENCES, weights, strict=True))
    ]


class Recorder(ScriptedTrainer):
    """Keeps what it is told, in order, and counts tokens as one that learns."""

    def __init__(self, distances: Sequence[float] = ()) -> None:
        """A recorder; distances are what `moved` says, one after the other, and 0 when there are no more."""
        super().__init__()
        self.calls: list[str] = []
        self.data: list[list[Datum]] = []
        self.watched: list[Datum] = []
        self.rates: list[float] = []
        self.fractions: list[float] = []
        self._distances: Iterator[float] = iter(distances)

    async def forward_backward(self, data: Sequence[Datum], objective: Objective) -> Mapping[str, float]:
        self.calls.append("forward_backward")
        self.data.append(list(data))
        measured = await super().forward_backward(data, objective)
        return {**measured, "tokens": float(sum(datum.tokens for datum in data))}

    async def step(self, learning_rate: float) -> Mapping[str, float]:
        self.calls.append("step")
        self.rates.append(learning_rate)
        return await super().step(learning_rate)

    async def watch(self, data: Sequence[Datum]) -> None:
        self.calls.append("watch")
        self.watched = list(data)

    async def moved(self) -> float:
        self.calls.append("moved")
        return next(self._distances, 0.0)

    async def shorten(self, fraction: float) -> None:
        self.calls.append("shorten")
        self.fractions.append(fraction)

    async def publish(self) -> int:
        self.calls.append("publish")
        return await super().publish()
