"""The simulated simulator: what it writes, and which way it moves."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genenv.research.simulation.learner import LabConfig, SimulatedSimulator

ONE = np.array([1])


def simulator(*, conditioned: bool = False, **settings: float) -> SimulatedSimulator:
    return SimulatedSimulator(LabConfig.model_validate(settings), conditioned=conditioned)


def test_it_starts_with_every_level_alike() -> None:
    assert np.allclose(simulator().policy, 1 / 12)


def test_it_writes_as_its_policy_says() -> None:
    writer = simulator(contexts=48, variations=64)
    skills, seeds = np.zeros(3000, dtype=np.int64), np.full(3000, 2)
    for _ in range(3):
        writer.learn(np.array([0]), np.array([2]), np.array([7]), np.array([0.3]))
    written = writer.write(skills, seeds, np.random.default_rng(0))
    shares = np.bincount(written, minlength=12) / 3000
    assert np.allclose(shares, writer.policy[0], atol=0.04)


def test_what_pays_becomes_likelier_and_what_costs_less_likely() -> None:
    for weight, sign in ((0.1, 1), (-0.1, -1)):
        writer = simulator()
        writer.learn(ONE, np.array([2]), np.array([7]), np.array([weight]))
        assert np.sign(writer.policy[1, 7] - 1 / 12) == sign


@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 11), st.floats(-1, 1)), min_size=1, max_size=20),
    st.floats(0, 0.9),
)
def test_its_gradient_is_that_of_the_log_likelihood(rows: list[tuple[int, int, float]], copy: float) -> None:
    """Against a difference: a small step raises sum w log pi by step |gradient|^2."""
    skills, levels, weights = (np.array(column) for column in zip(*rows, strict=True))
    seeds, step = np.full(len(rows), 3), 1e-6

    def objective(writer: SimulatedSimulator) -> float:
        chance = (1 - copy) * writer.policy[skills, levels] + copy * (levels == seeds)
        return float(weights @ np.log(chance))

    writer = simulator(copy_share=copy, anchor=0, step=step)
    before, policy = objective(writer), writer.policy
    writer.learn(skills, seeds, levels, weights)
    # own and shared logits move alike, so a logit moves by step times (own gradient + sum over skills)
    part = (1 - copy) * policy[skills, levels]
    part /= part + copy * (levels == seeds)
    gradient = np.zeros_like(policy)
    np.add.at(gradient, (skills, levels), weights * part)
    gradient -= np.bincount(skills, weights * part, minlength=4)[:, None] * policy
    expected = step * ((gradient**2).sum() + (gradient.sum(axis=0) ** 2).sum())
    assert objective(writer) - before == pytest.approx(expected, rel=1e-2, abs=1e-12)


def test_one_that_copies_writes_its_seeds_and_learns_nothing() -> None:
    writer = simulator(copy_share=1)
    seeds = np.arange(12)
    skills = np.zeros(12, dtype=np.int64)
    assert writer.write(skills, seeds, np.random.default_rng(0)).tolist() == seeds.tolist()
    writer.learn(skills, seeds, seeds, np.linspace(-1, 1, 12))
    assert np.allclose(writer.policy, 1 / 12)


def test_the_anchor_leads_back() -> None:
    writer = simulator(anchor=0.3)
    writer.learn(ONE, np.array([2]), np.array([7]), np.array([0.2]))
    moved = writer.policy[1, 7]
    for _ in range(200):
        writer.learn(ONE, np.array([2]), np.array([7]), np.zeros(1))
    assert writer.policy[1, 7] < moved
    assert writer.policy[1, 7] == pytest.approx(1 / 12, abs=1e-3)


def test_one_that_is_told_the_state_moves_with_it() -> None:
    """What it learned a level above one ability, it writes a level above another."""
    observe_profile, deaf = simulator(conditioned=True), simulator()
    for writer in (observe_profile, deaf):
        writer.observe_profile(np.full(4, 3.0))
        for _ in range(5):
            writer.learn(ONE, np.array([2]), np.array([4]), np.array([0.1]))
        writer.observe_profile(np.full(4, 6.0))
    assert observe_profile.policy[0, 7] > 1.5 * observe_profile.policy[0, 8]
    assert deaf.policy[0, 7] == pytest.approx(deaf.policy[0, 8])
