from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genenv.curriculum.reward import (
    band_divides,
    effective_samples,
    env_reward,
    expected_env_reward,
    in_band,
    rwr_weights,
    weight_contrast,
)

rates = st.floats(min_value=0, max_value=1)
rewards = st.lists(rates, min_size=1, max_size=40)


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


@pytest.mark.parametrize(
    ("p_hat", "inside"), [(0.4, True), (0.6, True), (0.5, True), (0.39, False), (0.601, False), (0.0, False)]
)
def test_the_edge_of_the_band_belongs_to_it(p_hat: float, inside: bool) -> None:
    assert in_band(p_hat, 0.5, 0.1) is inside


def test_ninths_and_tenths_on_the_edge_count_whatever_their_binary_form() -> None:
    assert in_band(6 / 10, 0.5, 0.1)
    assert in_band(3 / 10, 0.4, 0.1)
    assert in_band(1 / 3, 4 / 9, 1 / 9)


@pytest.mark.parametrize(
    ("attempts", "k_min", "divides"),
    [(0, 0.1, False), (1, 0.3, False), (2, 0.1, True), (3, 0.1, False), (3, 0.3, True), (4, 0.5, False)],
)
def test_the_band_divides_rates_of_which_some_lie_inside_and_some_outside(attempts, k_min, divides) -> None:
    assert band_divides(attempts, 0.5, k_min) is divides


@pytest.mark.parametrize(("attempts", "least", "most"), [(3, 0.80, 0.91), (8, 0.72, 0.96), (32, 0.64, 0.99)])
def test_few_attempts_leave_the_expected_reward_little_room(attempts, least, most) -> None:
    """As docs/report.md says of simulator/env_reward."""
    rewards = [expected_env_reward(k, attempts, alpha=0.5, beta=2) for k in range(attempts + 1)]
    assert (round(min(rewards), 2), round(max(rewards), 2)) == (least, most)


def test_weights_follow_the_exponential() -> None:
    # exp(0) : exp(log 2) = 1 : 2
    assert rwr_weights([0.0, 1.0], rwr_lambda=math.log(2)) == pytest.approx([1 / 3, 2 / 3])


def test_standardised_weights_count_in_standard_deviations() -> None:
    # rewards 0.98 and 1.00 lie one standard deviation below and above their mean: 1 : e^2
    weights = rwr_weights([0.98, 1.0], rwr_lambda=1.0, standardise=True)
    assert weights == pytest.approx([1 / (1 + math.e**2), math.e**2 / (1 + math.e**2)])


def test_inside_the_band_plain_weights_differ_by_two_percent_and_standardised_ones_by_far_more() -> None:
    inside = [env_reward(p, alpha=0.5, beta=2) for p in (0.4, 0.45, 0.5, 0.55, 0.6)]
    assert weight_contrast(rwr_weights(inside, rwr_lambda=1)) == pytest.approx(1.02, abs=0.001)
    assert weight_contrast(rwr_weights(inside, rwr_lambda=1, standardise=True)) > 9


@pytest.mark.parametrize("standardise", [False, True])
def test_equal_rewards_weigh_equally(standardise: bool) -> None:
    assert rwr_weights([0.7] * 4, rwr_lambda=50, standardise=standardise) == pytest.approx([0.25] * 4)


@pytest.mark.parametrize("standardise", [False, True])
def test_a_huge_lambda_leaves_only_the_best(standardise: bool) -> None:
    weights = rwr_weights([0.2, 0.9, 0.5], rwr_lambda=1e6, standardise=standardise)
    assert weights == pytest.approx([0, 1, 0])


@given(rewards, st.floats(0, 1e4), st.booleans())
def test_weights_sum_to_one_and_keep_the_order_of_rewards(
    env_rewards: list[float], rwr_lambda: float, standardise: bool
) -> None:
    weights = rwr_weights(env_rewards, rwr_lambda=rwr_lambda, standardise=standardise)
    assert math.fsum(weights) == pytest.approx(1)
    assert all(0 <= weight <= 1 for weight in weights)
    by_reward = [weight for _, weight in sorted(zip(env_rewards, weights, strict=True))]
    assert all(low <= high + 1e-12 for low, high in pairwise(by_reward))


@given(rewards, st.booleans())
def test_at_rwr_lambda_zero_every_task_counts_alike(env_rewards: list[float], standardise: bool) -> None:
    weights = rwr_weights(env_rewards, rwr_lambda=0, standardise=standardise)
    assert weights == pytest.approx([1 / len(env_rewards)] * len(env_rewards))


@given(st.lists(rates, min_size=2, max_size=20), st.floats(0.1, 10), st.floats(0.1, 1), st.floats(0, 1))
def test_standardised_weights_ignore_scale_and_shift(
    env_rewards: list[float], rwr_lambda: float, scale: float, shift: float
) -> None:
    if np.std(env_rewards) < 1e-3:
        return
    moved = [scale * reward + shift for reward in env_rewards]
    plain = rwr_weights(env_rewards, rwr_lambda=rwr_lambda, standardise=True)
    assert rwr_weights(moved, rwr_lambda=rwr_lambda, standardise=True) == pytest.approx(plain, abs=1e-6)


@pytest.mark.parametrize(
    ("env_rewards", "rwr_lambda", "said"),
    [
        ([], 1, "no rewards"),
        ([0.5, math.nan], 1, "finite"),
        ([0.5], -1, "rwr_lambda"),
        ([0.5], math.inf, "rwr_lambda"),
    ],
)
def test_weights_refuse_what_makes_no_sense(env_rewards: list[float], rwr_lambda: float, said: str) -> None:
    with pytest.raises(ValueError, match=said):
        rwr_weights(env_rewards, rwr_lambda=rwr_lambda)


def test_contrast_is_largest_over_smallest_and_always_finite() -> None:
    assert weight_contrast([0.2, 0.6, 0.2]) == pytest.approx(3)
    assert math.isfinite(weight_contrast([1.0, 0.0]))
    with pytest.raises(ValueError, match="no weights"):
        weight_contrast([])


@pytest.mark.parametrize(
    ("weights", "expected"), [([0.25] * 4, 4), ([1.0, 0.0], 1), ([0.75, 0.25], 1.6), ([], 0)]
)
def test_effective_samples_count_the_weights_that_matter(weights: list[float], expected: float) -> None:
    assert effective_samples(weights) == pytest.approx(expected)  # 1 / (9/16 + 1/16) = 1.6
