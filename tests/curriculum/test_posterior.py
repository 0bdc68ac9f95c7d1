from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genenv.curriculum.posterior import BetaPosterior

shapes = st.floats(min_value=0.2, max_value=500)


def test_three_of_four_after_a_flat_prior_is_beta_4_2() -> None:
    posterior = BetaPosterior.of(3, 4)
    assert (posterior.a, posterior.b) == (4, 2)
    assert posterior.mean == pytest.approx(2 / 3)
    assert posterior.variance == pytest.approx(4 * 2 / (6**2 * 7))


@pytest.mark.parametrize(
    ("a", "b", "p", "expected"),
    [
        (1, 1, 0.3, 0.3),  # uniform
        (2, 1, 0.5, 0.25),  # p^2
        (1, 3, 0.5, 0.875),  # 1 - (1 - p)^3
        (2, 2, 0.25, 3 * 0.25**2 - 2 * 0.25**3),
        (0.5, 0.5, 0.25, 1 / 3),  # arcsine law: 2/pi asin(sqrt(p))
        (300, 300, 0.5, 0.5),
    ],
)
def test_the_cdf_has_its_closed_forms(a: float, b: float, p: float, expected: float) -> None:
    assert BetaPosterior(a, b).cdf(p) == pytest.approx(expected, abs=1e-12)


def test_the_interval_of_the_uniform_is_its_middle() -> None:
    assert BetaPosterior(1, 1).interval(0.9) == pytest.approx((0.05, 0.95), abs=1e-9)


def test_the_interval_narrows_with_evidence_and_holds_the_mean() -> None:
    few, many = BetaPosterior.of(3, 6).interval(), BetaPosterior.of(300, 600).interval()
    assert few[0] < many[0] < 0.5 < many[1] < few[1]
    # with 600 attempts the normal approximation holds: 0.5 +- 1.645 * sqrt(0.25 / 603)
    assert many == pytest.approx((0.4665, 0.5335), abs=2e-4)


@given(shapes, shapes)
def test_quadrature_gives_the_first_two_moments(a: float, b: float) -> None:
    posterior = BetaPosterior(a, b)
    assert posterior.expectation(np.ones_like) == pytest.approx(1)
    assert posterior.expectation(lambda p: p) == pytest.approx(posterior.mean, rel=1e-9)
    second = posterior.variance + posterior.mean**2
    assert posterior.expectation(lambda p: p * p) == pytest.approx(second, rel=1e-9)


@given(shapes, shapes, st.floats(min_value=0.05, max_value=0.99))
def test_an_interval_holds_the_mass_it_promises(a: float, b: float, mass: float) -> None:
    posterior = BetaPosterior(a, b)
    low, high = posterior.interval(mass)
    # near 0 or 1 the density of a < 1 or b < 1 is so steep that 1e-12 of p is a visible share of the mass
    assert posterior.cdf(high) - posterior.cdf(low) == pytest.approx(mass, abs=5e-3)


@given(shapes, shapes, st.floats(min_value=0, max_value=1))
def test_the_cdf_mirrors(a: float, b: float, p: float) -> None:
    total = BetaPosterior(a, b).cdf(p) + BetaPosterior(b, a).cdf(1 - p)
    assert total == pytest.approx(1, abs=2e-3 if min(p, 1 - p) < 1e-9 else 1e-9)


@pytest.mark.parametrize(("successes", "attempts"), [(-1, 4), (5, 4), (math.nan, 4)])
def test_impossible_counts_are_refused(successes: float, attempts: float) -> None:
    with pytest.raises(ValueError, match="successes must be in"):
        BetaPosterior.of(successes, attempts)


@pytest.mark.parametrize(("a", "b"), [(0, 1), (1, -1), (math.inf, 1), (math.nan, 1)])
def test_what_is_no_distribution_is_refused(a: float, b: float) -> None:
    with pytest.raises(ValueError, match="needs a > 0"):
        BetaPosterior(a, b)


@pytest.mark.parametrize("mass", [0, 1, -0.5])
def test_an_interval_needs_a_mass_between_0_and_1(mass: float) -> None:
    with pytest.raises(ValueError, match="mass must be"):
        BetaPosterior(1, 1).interval(mass)
