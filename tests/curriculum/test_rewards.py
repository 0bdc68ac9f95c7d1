from __future__ import annotations

import math
import random
from pathlib import Path
from statistics import fmean
from typing import get_args

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genenv.curriculum.settings import CurriculumConfig, EnvRewardName
from genenv.curriculum.simulator_rewards import (
    ENV_REWARDS,
    env_reward,
    expected_env_reward,
    handed_out,
    in_round,
    progress_reward,
    reward_at,
)

rates = st.floats(min_value=0, max_value=1)


@pytest.mark.parametrize(
    ("p_hat", "expected"), [(0.5, 1.0), (0.4, 0.9802), (0.6, 0.9802), (0.0, 0.6065), (1.0, 0.6065)]
)
def test_env_reward_is_symmetric_around_the_target(p_hat: float, expected: float) -> None:
    assert env_reward(p_hat, alpha=0.5, beta=2.0) == pytest.approx(expected, abs=1e-4)


@given(rates, rates, st.floats(min_value=0.01, max_value=0.99), st.floats(min_value=0.01, max_value=50))
def test_a_rate_nearer_to_the_target_never_earns_less(p: float, q: float, alpha: float, beta: float) -> None:
    near, far = sorted((p, q), key=lambda rate: abs(rate - alpha))
    assert env_reward(near, alpha=alpha, beta=beta) >= env_reward(far, alpha=alpha, beta=beta)


@pytest.mark.parametrize(
    ("p_hat", "alpha", "beta", "named"),
    [
        (1.1, 0.5, 2, "p_hat"),
        (-0.1, 0.5, 2, "p_hat"),
        (0.5, 0, 2, "alpha"),
        (0.5, 1, 2, "alpha"),
        (0.5, 0.5, 0, "beta"),
    ],
)
def test_env_reward_refuses_what_is_out_of_range(p_hat: float, alpha: float, beta: float, named: str) -> None:
    with pytest.raises(ValueError, match=named):
        env_reward(p_hat, alpha=alpha, beta=beta)


@pytest.mark.parametrize("beta", [0.5, 2.0, 50.0])
def test_without_attempts_the_expected_reward_is_the_mean_over_all_rates(beta: float) -> None:
    # integral of exp(-beta (p - 1/2)^2) over [0, 1] = sqrt(pi / beta) erf(sqrt(beta) / 2)
    exact = math.sqrt(math.pi / beta) * math.erf(math.sqrt(beta) / 2)
    assert expected_env_reward(0, 0, alpha=0.5, beta=beta) == pytest.approx(exact, rel=1e-10)


@pytest.mark.parametrize(("successes", "attempts"), [(0, 8), (4, 8), (7, 8), (13, 32), (250, 1000)])
@pytest.mark.parametrize(("alpha", "beta"), [(0.5, 2.0), (0.3, 20.0)])
def test_the_expected_reward_equals_a_brute_force_integral(
    successes: int, attempts: int, alpha: float, beta: float
) -> None:
    p = (np.arange(200_000) + 0.5) / 200_000
    log_density = successes * np.log(p) + (attempts - successes) * np.log1p(-p)
    density = np.exp(log_density - log_density.max())
    exact = (density * np.exp(-beta * (p - alpha) ** 2)).sum() / density.sum()
    assert expected_env_reward(successes, attempts, alpha=alpha, beta=beta) == pytest.approx(exact, rel=1e-7)


def test_the_expected_reward_approaches_the_reward_as_attempts_grow() -> None:
    gaps = [
        abs(expected_env_reward(n // 4, n, alpha=0.5, beta=2) - env_reward(0.25, alpha=0.5, beta=2))
        for n in (4, 40, 400, 4000)
    ]
    assert gaps == sorted(gaps, reverse=True)
    assert gaps[-1] < 1e-3


def test_half_solved_on_much_evidence_is_worth_more_than_half_solved_by_chance() -> None:
    assert expected_env_reward(1, 2, alpha=0.5, beta=2) < expected_env_reward(16, 32, alpha=0.5, beta=2) < 1


@given(st.integers(0, 60), st.integers(0, 60), st.floats(0.05, 0.95), st.floats(0.1, 100))
def test_the_expected_reward_is_a_reward(successes: int, failures: int, alpha: float, beta: float) -> None:
    value = expected_env_reward(successes, successes + failures, alpha=alpha, beta=beta)
    assert 0 < value <= 1


@pytest.mark.parametrize(("attempts", "least", "most"), [(3, 0.80, 0.91), (8, 0.72, 0.96), (32, 0.64, 0.99)])
def test_few_attempts_leave_the_expected_reward_little_room(attempts, least, most) -> None:
    """As docs/guides/report.md says of simulator/env_reward."""
    rewards = [expected_env_reward(k, attempts, alpha=0.5, beta=2) for k in range(attempts + 1)]
    assert (round(min(rewards), 2), round(max(rewards), 2)) == (least, most)


def paid(name: str, successes: int, attempts: int, **settings: object) -> float:
    config = CurriculumConfig.model_validate({"env_reward": name, "posterior": False, **settings})
    rewards = [1.0] * successes + [0.0] * (attempts - successes)
    return ENV_REWARDS[name](successes, attempts, rewards, config)


def test_every_reward_can_be_asked_for_by_its_name_and_no_other() -> None:
    assert {*ENV_REWARDS, "progress"} == set(get_args(EnvRewardName)[1].func.known)


@pytest.mark.parametrize(
    ("name", "of_8"),
    [
        ("alpha", [0.6065, 0.8825, 1.0, 0.8825, 0.6065]),
        ("learnability", [0.0, 0.75, 1.0, 0.75, 0.0]),
        ("variance", [0.0, 0.75, 1.0, 0.75, 0.0]),
        ("signal", [0.0, 0.8999, 0.9922, 0.8999, 0.0]),
        ("difficulty", [1.0, 0.75, 0.5, 0.25, 0.0]),
        ("constant", [1.0] * 5),
        ("shuffled", [0.6065, 0.8825, 1.0, 0.8825, 0.6065]),
    ],
)
def test_what_a_rate_is_worth(name: str, of_8: list[float]) -> None:
    assert [paid(name, k, 8) for k in (0, 2, 4, 6, 8)] == pytest.approx(of_8, abs=1e-4)


@pytest.mark.parametrize(("rise", "reward"), [(1.0, 1.0), (0.2, 0.6), (0.0, 0.5), (-0.2, 0.4), (-1.0, 0.0)])
def test_progress_is_signed_and_no_change_earns_one_half(rise: float, reward: float) -> None:
    assert progress_reward(rise) == pytest.approx(reward)


def test_variance_counts_partial_credit_which_success_does_not_show() -> None:
    config = CurriculumConfig(env_reward="variance")
    assert ENV_REWARDS["variance"](0, 2, [0.0, 0.5], config) == pytest.approx(0.25)
    assert ENV_REWARDS["variance"](0, 2, [0.5, 0.5], config) == 0


@given(st.sampled_from(sorted(ENV_REWARDS)), st.integers(0, 40), st.integers(1, 40), st.booleans())
def test_every_reward_lies_in_the_unit_interval(name: str, k: int, n: int, posterior: bool) -> None:
    assert 0 <= paid(name, min(k, n), n, posterior=posterior) <= 1 + 1e-12


@given(st.integers(0, 9), st.integers(1, 9), st.floats(0.5, 3), st.floats(0.5, 3))
def test_expected_forms_have_their_closed_form(k: int, n: int, a: float, b: float) -> None:
    k = min(k, n)
    a_, b_ = a + k, b + n - k
    first, second = a_ / (a_ + b_), a_ * (a_ + 1) / ((a_ + b_) * (a_ + b_ + 1))
    given_ = {"posterior": True, "prior": [a, b], "signal_attempts": 2}
    assert paid("learnability", k, n, **given_) == pytest.approx(4 * (first - second))
    assert paid("signal", k, n, **given_) == pytest.approx(2 * (first - second))
    assert paid("difficulty", k, n, **given_) == pytest.approx(1 - first)


def test_shuffled_rewards_are_the_same_rewards_of_other_tasks() -> None:
    rewards = [i / 50 for i in range(50)]
    asked = CurriculumConfig(env_reward="shuffled")
    given_out = handed_out(rewards, asked, random.Random(0))
    assert sorted(given_out) == rewards
    assert given_out != rewards
    assert handed_out(rewards, CurriculumConfig(), random.Random(0)) == rewards
    draws = [handed_out([0.0, 1.0], asked, random.Random(i))[0] for i in range(400)]
    assert 0.4 < fmean(draws) < 0.6


def test_alpha_moves_evenly_from_the_first_round_to_the_last() -> None:
    config = CurriculumConfig(alpha=0.7, alpha_last=0.3)
    assert [in_round(config, i, 5).alpha for i in range(1, 6)] == pytest.approx([0.7, 0.6, 0.5, 0.4, 0.3])
    assert in_round(config, 1, 1) == config
    assert in_round(CurriculumConfig(), 3, 5) == CurriculumConfig()


def test_alpha_stays_at_its_end_after_the_last_round_and_where_there_is_no_way() -> None:
    config = CurriculumConfig(alpha=0.7, alpha_last=0.3)
    assert in_round(config, 9, 5).alpha == pytest.approx(0.3)
    assert [in_round(config, number, rounds) for number, rounds in ((1, 0), (2, 0), (2, 1))] == [config] * 3


def test_a_reward_of_ones_own_is_given_a_rollout_for_a_predicted_rate(tmp_path: Path) -> None:
    own = tmp_path / "own.py"
    own.write_text(
        "def mean(successes, rollouts, rewards, config):\n    return sum(rewards) / len(rewards)\n"
    )
    assert reward_at(0.25, f"{own}:mean", CurriculumConfig()) == 0.25
