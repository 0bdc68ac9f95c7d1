"""Difficulty steered by feedback."""

from __future__ import annotations

import random
from statistics import fmean

import pytest

from genenv.curriculum.seed_choice import Controller
from genenv.errors import DataError


@pytest.fixture
def seeds(make):
    return [make.seed(f"s{i}", "add") for i in range(100)]


def level_of(chosen) -> float:
    return fmean(int(seed.id[1:]) for seed in chosen)


def test_tasks_get_harder_while_they_are_solved_and_easier_while_they_are_not(make, seeds) -> None:
    controller = Controller({f"s{i}": (float(i),) for i in range(100)}, alpha=0.5)
    rng = random.Random(0)
    start = level_of(controller.choose(seeds, 10, rng))
    controller.observe([make.group(make.task("t"), 8, 8)])
    harder = level_of(controller.choose(seeds, 10, rng))
    for _ in range(3):
        controller.observe([make.group(make.task("t"), 0, 8)])
    easier = level_of(controller.choose(seeds, 10, rng))
    assert start == pytest.approx(50, abs=8)
    assert harder > start + 5
    assert easier < start - 15


def test_it_settles_where_half_of_the_attempts_succeed(make, seeds) -> None:
    controller = Controller({f"s{i}": (float(i),) for i in range(100)}, alpha=0.5)
    rng = random.Random(0)
    for _ in range(40):
        chosen = controller.choose(seeds, 10, rng)
        solved = [8 if int(seed.id[1:]) < 30 else 0 for seed in chosen]  # what is solved, and what is not
        controller.observe([make.group(make.task(f"t{i}"), k, 8) for i, k in enumerate(solved)])
    assert controller.level == pytest.approx(0.3, abs=0.11)


def test_without_attempts_it_stays_and_its_state_reads_back(make, seeds) -> None:
    controller = Controller({}, alpha=0.5)
    controller.observe([])
    assert controller.level == 0.5
    other = Controller({}, alpha=0.5)
    controller.observe([make.group(make.task("t"), 8, 8)])
    other.load_state_dict(controller.state_dict())
    assert other.level == controller.level == 0.6
    with pytest.raises(DataError, match="controller's state"):
        other.load_state_dict({"level": 2.0})
    assert len({seed.id for seed in controller.choose(seeds, 100, random.Random(0))}) == 100
