"""The simulated agent: what it can do, what it learns from, what it forgets."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genenv.research.simulation.learner import Integers, LabConfig, SimulatedAgent, sigmoid


def agent(seed: int = 0, **settings: float) -> SimulatedAgent:
    return SimulatedAgent(LabConfig.model_validate(settings), np.random.default_rng(seed))


def tasks(skill: int, level: int, n: int = 4) -> tuple[Integers, Integers]:
    return np.full(n, skill), np.full(n, level)


@given(st.floats(-10, 20), st.floats(0, 5), st.floats(0.01, 5))
def test_success_rises_with_ability_and_falls_with_difficulty(mean: float, more: float, slope: float) -> None:
    lower = agent(ability_mean=mean, ability_sd=0, slope=slope).success()
    higher = agent(ability_mean=mean + more, ability_sd=0, slope=slope).success()
    assert (higher >= lower).all()
    assert (np.diff(lower, axis=1) <= 0).all()
    assert lower.min() >= 0
    assert lower.max() <= 1


def test_a_task_at_the_level_of_the_ability_is_solved_half_the_time() -> None:
    able = agent(ability_mean=5, ability_sd=0, slope=2)
    assert able.success()[0, 5] == pytest.approx(0.5)
    assert able.success()[0, 6] == pytest.approx(1 / (1 + np.exp(2)))


def test_a_sigmoid_neither_overflows_nor_leaves_its_range() -> None:
    with np.errstate(all="raise"):
        found = sigmoid(np.array([-1e9, 0.0, 1e9]))
    assert found.tolist() == [0, 0.5, 1]


@pytest.mark.parametrize("successes", [0, 8])
def test_groups_that_agree_teach_nothing(successes: int) -> None:
    learner = agent(noise=0, forgetting=0)
    before = learner.success()
    learner.learn(*tasks(1, 3), np.full(4, successes))
    assert (learner.success() == before).all()


def test_practice_is_as_the_variance_of_the_group_and_fades_with_distance() -> None:
    learner = agent(noise=0, forgetting=0, slope=1, rate=0.1, spread_levels=2, spread_skills=0.25, rollouts=8)

    def logits() -> np.ndarray:
        chance = learner.success()
        return np.log(chance / (1 - chance))

    before = logits()
    learner.learn(*tasks(1, 3, n=2), np.array([4, 2]))
    gained = logits() - before
    signal = 1 + 4 * 0.25 * 0.75
    assert gained[1, 3] == pytest.approx(0.1 * signal)
    assert gained[1, 5] == pytest.approx(0.1 * signal * np.exp(-1))
    assert gained[0, 3] == pytest.approx(0.1 * signal * 0.25)


def test_what_was_learned_is_forgotten_but_not_what_was_there_before() -> None:
    learner = agent(noise=0, forgetting=0.5)
    start = learner.held_out()
    learner.learn(*tasks(0, 3), np.full(4, 4))
    learned = learner.held_out()
    for _ in range(60):
        learner.learn(*tasks(0, 3), np.zeros(4, dtype=np.int64))
    assert learned > start
    assert learner.held_out() == pytest.approx(start)


def test_luck_is_the_same_whatever_is_attempted() -> None:
    first, second = agent(7), agent(7)
    first.attempt(*tasks(0, 0, n=3))
    second.attempt(*tasks(3, 9, n=30))
    assert first.attempt(*tasks(2, 3)).tolist() == second.attempt(*tasks(2, 3)).tolist()


def test_attempts_succeed_as_often_as_they_should() -> None:
    learner = agent(contexts=48, variations=64, ability_mean=4, ability_sd=0)
    rate = learner.attempt(*tasks(0, 4, n=3000)).mean() / 8
    assert rate == pytest.approx(0.5, abs=0.015)  # 4.6 standard errors
