"""The probe: likelihoods of known solutions become success rates."""

from __future__ import annotations

import math
import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genenv.curriculum.predictors import Probe
from genenv.curriculum.predictors import fitted_line as fitted
from genenv.errors import DataError

LIKELIHOODS = st.dictionaries(st.text(min_size=1, max_size=3), st.floats(-1e4, 0), max_size=20)


@given(LIKELIHOODS)
def test_before_any_attempt_a_rate_is_the_likelihood_itself(likelihoods: dict[str, float]) -> None:
    for name, rate in Probe().predict(likelihoods).rates.items():
        assert rate == pytest.approx(math.exp(likelihoods[name]), abs=1e-5)


def test_attempts_correct_the_bound(make) -> None:
    """Tasks that are solved twice as often as their solution is likely: other replies are right as well."""
    probe, rng = Probe(), random.Random(0)
    for round_ in range(8):
        likelihoods, groups = {}, []
        for number in range(32):
            task = make.task(f"{round_}-{number}")
            rate = rng.uniform(0.02, 0.48)
            likelihoods[task.id] = math.log(rate)
            groups.append(make.group(task, sum(rng.random() < 2 * rate for _ in range(8))))
        found = probe.observe(probe.predict(likelihoods), groups)
    assert found["probe/error"] < 0.15
    for rate in (0.1, 0.25, 0.4):
        assert probe.predict({"new": math.log(rate)}).rates["new"] == pytest.approx(2 * rate, abs=0.1)


def test_the_fit_finds_the_line_that_attempts_came_from() -> None:
    rng = np.random.default_rng(0)
    x_n = rng.normal(-1, 2, 4000)
    k_n = rng.binomial(8, 1 / (1 + np.exp(-(0.7 + 0.6 * x_n))))
    found = fitted(np.stack([x_n, k_n, np.full(4000, 8)], axis=1).astype(np.float64))
    assert found == pytest.approx((0.7, 0.6), abs=0.05)


def test_a_few_attempts_that_cannot_say_leave_the_line_as_it_is() -> None:
    assert fitted(np.array([[12.0, 8, 8], [12.0, 8, 8]])) == pytest.approx((0, 1), abs=0.01)


def test_attempts_that_broke_and_other_tasks_say_nothing(make) -> None:
    groups = [make.group("a", 0, 0, broken=8), make.group("b", 3)]
    probe = Probe()
    assert probe.observe(probe.predict({"a": -1.0}), groups) == {}


def test_an_older_version_is_read_by_the_same_line(make) -> None:
    probe = Probe()
    probe.observe(probe.predict({"a": -0.5}), [make.group("a", 6)])
    told = probe.predict({"b": -0.5, "c": -1.0}, older={"b": -2.0, "c": -1.0})
    assert told.earlier == {"b": probe.predict({"b": -2.0}).rates["b"], "c": told.rates["c"]}
    assert told.progress["b"] > told.progress["c"] == 0


def test_it_goes_on_where_it_was(make) -> None:
    first = Probe()
    first.observe(first.predict({"a": -0.5}), [make.group("a", 6)])
    second = Probe()
    second.load_state_dict(first.state_dict())
    assert second.predict({"b": -2.0}).rates == first.predict({"b": -2.0}).rates
    assert second.state_dict() == first.state_dict()
    with pytest.raises(DataError, match="probe's state"):
        second.load_state_dict({"offset": 0})
