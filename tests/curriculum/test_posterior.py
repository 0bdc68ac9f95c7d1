from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genenv.curriculum.stats import BetaPosterior

shapes = st.floats(min_value=0.2, max_value=500)


def test_three_of_four_after_a_flat_prior_is_beta_4_2() -> None:
    posterior = BetaPosterior.of(3, 4)
    assert (posterior.a, posterior.b) == (4, 2)
    assert posterior.mean == pytest.approx(2 / 3)
    assert posterior.variance == pytest.approx(4 * 2 / (6**2 * 7))


@given(shapes, shapes)
def test_quadrature_gives_the_first_two_moments(a: float, b: float) -> None:
    posterior = BetaPosterior(a, b)
    assert posterior.expectation(np.ones_like) == pytest.approx(1)
    assert posterior.expectation(lambda p: p) == pytest.approx(posterior.mean, rel=1e-9)
    second = posterior.variance + posterior.mean**2
    assert posterior.expectation(lambda p: p * p) == pytest.approx(second, rel=1e-9)


@pytest.mark.parametrize(("successes", "attempts"), [(-1, 4), (5, 4), (math.nan, 4)])
def test_impossible_counts_are_refused(successes: float, attempts: float) -> None:
    with pytest.raises(ValueError, match="successes must be in"):
        BetaPosterior.of(successes, attempts)


@pytest.mark.parametrize(("a", "b"), [(0, 1), (1, -1), (math.inf, 1), (math.nan, 1)])
def test_what_is_no_distribution_is_refused(a: float, b: float) -> None:
    with pytest.raises(ValueError, match="needs a > 0"):
        BetaPosterior(a, b)
