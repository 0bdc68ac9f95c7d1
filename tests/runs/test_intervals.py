"""Wilson's interval of a rate."""

from __future__ import annotations

import math

import numpy as np
import pytest

from genenv.runs.intervals import wilson


@pytest.mark.parametrize(
    ("successes", "trials", "low", "high"),
    [(0, 10, 0.0, 0.2775), (10, 10, 0.7225, 1.0), (5, 10, 0.2366, 0.7634), (60, 125, 0.3943, 0.5668)],
)
def test_wilsons_interval_is_the_published_one(successes: int, trials: int, low: float, high: float) -> None:
    assert wilson(successes, trials) == pytest.approx((low, high), abs=1e-4)


def test_wilsons_interval_covers_the_rate_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(1)
    inside = sum(low <= 0.3 <= high for low, high in (wilson(rng.binomial(80, 0.3), 80) for _ in range(2000)))
    assert 0.93 <= inside / 2000 <= 0.97


def test_of_no_trials_nothing_is_known() -> None:
    assert all(map(math.isnan, wilson(0, 0)))
