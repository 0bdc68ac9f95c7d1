"""The claims of GenEnv (arXiv:2512.19682), held to arithmetic and to simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest

from genenv.curriculum.scoring import in_band
from genenv.curriculum.stats import BetaPosterior

DRAWS = 200_000
P = np.linspace(0.05, 0.95, 19)


def squared_gradients(p_good: np.ndarray, p_bad: np.ndarray, q: float) -> np.ndarray:
    """E[g^2] by Monte-Carlo, for each pair of success rates of the two arms of a bandit.

    The logistic policy pulls arm 1 with probability q = sigmoid(theta); its score is a - q. REINFORCE with
    the expected reward p as its baseline: g = (r - p)(a - q).
    """
    rng = np.random.default_rng(0)
    arm = rng.random((DRAWS, 1)) < q
    reward = rng.random((DRAWS, len(p_good))) < np.where(arm, p_good, p_bad)
    p = q * p_good + (1 - q) * p_bad
    return (((reward - p) * (arm - q)) ** 2).mean(axis=0)


@pytest.mark.parametrize("q", [0.2, 0.5, 0.7])
@pytest.mark.parametrize("advantage", [0.0, 0.04])
def test_eq_4_and_5_the_signal_is_bounded_by_multiples_of_p_1_minus_p(q: float, advantage: float) -> None:
    """C_min = min(q, 1 - q)^2 and C_max = max(q, 1 - q)^2: the smallest and largest squared score."""
    measured = squared_gradients(P + advantage * (1 - q), P - advantage * q, q)  # the mean rate is P
    variance = P * (1 - P)
    assert (measured >= min(q, 1 - q) ** 2 * variance * 0.98).all()
    assert (measured <= max(q, 1 - q) ** 2 * variance * 1.02).all()


def test_eq_4_and_5_the_signal_is_largest_at_one_half() -> None:
    measured = squared_gradients(P, P, 0.5)  # here E[g^2] = p(1 - p) / 4 exactly
    assert P[measured.argmax()] == pytest.approx(0.5, abs=0.051)
    assert measured == pytest.approx(P * (1 - P) / 4, rel=0.02)


def test_eq_4_and_5_the_bounds_hold_but_the_peak_moves_where_the_action_alone_decides() -> None:
    """Arm 1 always wins, arm 0 never: q = p, and E[g^2] = v (1 - 3v) with v = p(1 - p).

    C_min = 1/4 and C_max = 1 hold, but the score shrinks as the policy gets sure, and the largest signal is
    at v = 1/6, p = 0.21: "largest at p = 1/2" needs a score whose size does not depend on p.
    """
    measured = np.concatenate([squared_gradients(np.ones(1), np.zeros(1), float(p)) for p in P])
    variance = P * (1 - P)
    assert measured == pytest.approx(variance * (1 - 3 * variance), rel=0.03)
    assert (measured >= 0.25 * variance * 0.98).all()
    assert (measured <= variance * 1.02).all()
    assert measured[P.searchsorted(0.2)] > 1.2 * measured[P.searchsorted(0.5)]


def binomial(n: int, p: float) -> np.ndarray:
    """Pr[k successes of n], k = 0 .. n."""
    return np.array([math.comb(n, k) * p**k * (1 - p) ** (n - k) for k in range(n + 1)])


def mis_ranking(d1: float, d2: float, n1: int, n2: int) -> float:
    """Pr[the batch farther from alpha looks at least as near], exactly; one above alpha, the other below
    it."""
    near = np.abs(np.arange(n1 + 1) / n1 - 0.5)
    far = np.abs(np.arange(n2 + 1) / n2 - 0.5)
    wrong = near[:, None] >= far[None, :] - 1e-9
    return float(binomial(n1, 0.5 + d1) @ wrong @ binomial(n2, 0.5 - d2))


@pytest.mark.parametrize("n", [4, 8, 32, 100, 200, 400])
@pytest.mark.parametrize(
    ("d1", "d2"), [(0.0, 0.1), (0.0, 0.3), (0.0, 0.5), (0.1, 0.4), (0.2, 0.5), (0.3, 0.4)]
)
def test_eq_9_bounds_how_often_two_batches_are_mis_ranked(d1: float, d2: float, n: int) -> None:
    bound = 4 * math.exp(-(2 / 9) * (d2 - d1) ** 2 * n)
    assert mis_ranking(d1, d2, n, n) <= bound
    assert mis_ranking(d1, d2, n, n + 3) <= bound  # n is the smaller number


@pytest.mark.parametrize(("d1", "d2", "n"), [(0.0, 0.3, 8), (0.1, 0.4, 32), (0.0, 0.1, 100)])
def test_eq_9_simulated_batches_are_mis_ranked_as_often_as_computed(d1: float, d2: float, n: int) -> None:
    rng = np.random.default_rng(1)
    near = np.abs(rng.binomial(n, 0.5 + d1, DRAWS) / n - 0.5)
    far = np.abs(rng.binomial(n, 0.5 - d2, DRAWS) / n - 0.5)
    assert (near >= far - 1e-9).mean() == pytest.approx(mis_ranking(d1, d2, n, n), abs=0.005)


def test_eq_9_says_something_only_for_large_batches() -> None:
    """At D2 - D1 = 0.4 the bound is below 1 from n = 39 on; at n = 32 it is empty, though mis-ranking is
    rare."""
    bounds = [4 * math.exp(-(2 / 9) * 0.4**2 * n) for n in (38, 39)]
    assert bounds[0] > 1 > bounds[1]
    assert mis_ranking(0.0, 0.4, 32, 32) < 0.001


@pytest.mark.parametrize(("n", "percent"), [(4, 37.5), (8, 27.3), (10, 65.6), (16, 54.6)])
def test_the_filter_accepts_so_many_batches_at_the_perfect_rate(n: int, percent: float) -> None:
    inside = np.array([in_band(k / n, 0.5, 0.1) for k in range(n + 1)])
    exact = 100 * float(binomial(n, 0.5) @ inside)
    assert exact == pytest.approx(percent, abs=0.05)
    simulated = 100 * inside[np.random.default_rng(2).binomial(n, 0.5, DRAWS)].mean()
    assert simulated == pytest.approx(percent, abs=0.5)


def test_the_posterior_mean_accepts_more_of_the_perfect_batches_and_few_of_the_hopeless() -> None:
    inside = np.array([in_band(BetaPosterior.of(k, 8).mean, 0.5, 0.1) for k in range(9)])
    assert float(binomial(8, 0.5) @ inside) == pytest.approx((56 + 70 + 56) / 256)  # 71.1% instead of 27.3%
    assert float(binomial(8, 0.1) @ inside) < 0.04
