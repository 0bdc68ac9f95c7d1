"""Which weights produce which round, what is side by side, and what an error ends."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any

import pytest

from genenv.training.loop import Pipeline
from genenv.training.rounds import together

ROUNDS = 6


class Made:
    """Rounds that are made of nothing but the weights that were published when they were begun."""

    def __init__(self) -> None:
        self.published, self.log = 0, list[str]()

    async def produce(self, number: int, tasks: Any) -> Any:
        weights = self.published
        self.log.append(f"begin {number}")
        await asyncio.sleep(0)
        self.log.append(f"end {number}")
        assert self.published == weights, "published in the middle of a round"
        return SimpleNamespace(number=number, weights=weights, groups=())

    async def learn(self, produced: Any) -> dict[str, float]:
        self.log.append(f"learn {produced.number}")
        await asyncio.sleep(0)
        self.log.append(f"learned {produced.number}")
        return {"agent/steps": 1.0}


def played(staleness: int, *, overlaps: bool, rounds: int = ROUNDS) -> tuple[Made, list[int]]:
    """All rounds; with the weights that produced each."""
    made, weights = Made(), list[int]()
    line = Pipeline(made, rounds=rounds, staleness=staleness, overlaps=overlaps)  # pyright: ignore

    async def go() -> None:
        for number in range(1, rounds + 1):
            produced, metrics = await line.learned(number, None, made.learn)  # pyright: ignore
            assert produced.number == number
            assert metrics["agent/steps"] == 1
            beside = overlaps and 0 < staleness <= rounds - number
            assert ("time/sampling_waited_s" in metrics) == beside
            weights.append(produced.weights)
            made.published = number

    asyncio.run(go())
    return made, weights


@pytest.mark.parametrize("overlaps", [False, True])
@pytest.mark.parametrize("staleness", [0, 1, 2, 4, 9])
def test_a_round_is_produced_with_the_weights_of_so_many_updates_ago(staleness: int, *, overlaps: bool):
    _, weights = played(staleness, overlaps=overlaps)
    assert weights == [max(0, number - 1 - staleness) for number in range(1, ROUNDS + 1)]


@pytest.mark.parametrize("staleness", [0, 1, 2, 4, 9])
def test_rounds_are_produced_in_order_once_and_none_beyond_the_last(staleness: int):
    made, _ = played(staleness, overlaps=True)
    assert [line for line in made.log if line.startswith("begin")] == [f"begin {n}" for n in range(1, 7)]


def test_side_by_side_learning_begins_before_sampling_ends():
    made, _ = played(1, overlaps=True, rounds=2)
    assert made.log == [
        *("begin 1", "end 1", "begin 2", "learn 1", "end 2", "learned 1"),
        *("learn 2", "learned 2"),
    ]
    made, _ = played(1, overlaps=False, rounds=2)
    assert made.log[2:6] == ["begin 2", "end 2", "learn 1", "learned 1"]


def test_what_was_in_flight_is_known_from_the_last_round():
    line = Pipeline(Made(), rounds=ROUNDS, staleness=2, overlaps=True)  # pyright: ignore
    assert list(line.due(0)) == [1, 2]
    assert list(line.due(3)) == [4, 5]
    assert list(line.due(5)) == [6]
    assert list(line.due(6)) == []
    assert [line.weights(n) for n in (1, 4, 5)] == [0, 1, 2]
    line.oldest = 3
    assert line.weights(4) == 3, "none older is kept, as where a branch begins"


def test_the_first_error_ends_what_runs_beside_it():
    ended = list[str]()

    async def fails() -> None:
        await asyncio.sleep(0)
        raise ZeroDivisionError

    async def lasts() -> None:
        try:
            await asyncio.sleep(60)
        finally:
            ended.append("lasts")

    with pytest.raises(ZeroDivisionError):
        asyncio.run(together(lasts(), fails()))
    assert ended == ["lasts"]
