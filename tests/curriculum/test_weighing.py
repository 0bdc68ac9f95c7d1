from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genenv.curriculum.scoring import in_band
from genenv.curriculum.simulator_rewards import env_reward
from genenv.curriculum.update_selection import band_divides, effective_samples, rwr_weights, weight_contrast

rates = st.floats(min_value=0, max_value=1)
rewards = st.lists(rates, min_size=1, max_size=40)


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
