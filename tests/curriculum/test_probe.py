"""The probe: likelihoods of known solutions become success rates, and the tasks worth most are chosen."""

from __future__ import annotations

import math
import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genenv.curriculum.probe import Probe, fitted
from genenv.curriculum.settings import CurriculumConfig
from genenv.errors import DataError

LIKELIHOODS = st.dictionaries(st.text(min_size=1, max_size=3), st.floats(-1e4, 0), max_size=20)


def config(**settings: object) -> CurriculumConfig:
    return CurriculumConfig.model_validate({"candidates": 4, **settings})


@given(LIKELIHOODS)
def test_before_any_attempt_a_rate_is_the_likelihood_itself(likelihoods: dict[str, float]) -> None:
    for name, rate in Probe(config()).foretell(likelihoods).rates.items():
        assert rate == pytest.approx(math.exp(likelihoods[name]), abs=1e-5)


def test_attempts_correct_the_bound(make) -> None:
    """Tasks that are solved twice as often as their solution is likely: other replies are right as well."""
    probe, rng = Probe(config()), random.Random(0)
    for round_ in range(8):
        likelihoods, groups = {}, []
        for number in range(32):
            task = make.task(f"{round_}-{number}")
            rate = rng.uniform(0.02, 0.48)
            likelihoods[task.id] = math.log(rate)
            groups.append(make.group(task, sum(rng.random() < 2 * rate for _ in range(8))))
        found = probe.observe(likelihoods, groups)
    assert found["probe/error"] < 0.15
    for rate in (0.1, 0.25, 0.4):
        assert probe.foretell({"new": math.log(rate)}).rates["new"] == pytest.approx(2 * rate, abs=0.1)


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
    assert Probe(config()).observe({"a": -1.0}, groups) == {}


@given(LIKELIHOODS, st.integers(0, 30), st.integers(0, 99))
def test_so_many_are_chosen_and_each_once(likelihoods: dict[str, float], n: int, seed: int) -> None:
    probe = Probe(config())
    rates = probe.foretell(likelihoods).rates
    chosen = probe.choose(rates, n, random.Random(seed))
    assert chosen <= rates.keys()
    assert len(chosen) == min(n, len(rates))
    assert chosen == probe.choose(rates, n, random.Random(seed))


def test_the_chance_of_a_task_grows_with_what_it_is_worth() -> None:
    rates = {"never": 0.0, "seldom": 0.1, "half": 0.5, "always": 1.0}
    counts = Counter[str]()
    probe, rng = Probe(config(candidate_temperature=2.0)), random.Random(1)
    for _ in range(4000):
        counts.update(probe.choose(rates, 1, rng))
    weights = {name: math.exp(2 * 4 * p * (1 - p)) for name, p in rates.items()}
    for name, weight in weights.items():
        assert counts[name] / 4000 == pytest.approx(weight / sum(weights.values()), abs=0.03)


@pytest.mark.parametrize("reward", ["constant", "shuffled"])
def test_under_a_control_all_tasks_are_alike(reward: str) -> None:
    rates = {"never": 0.0, "half": 0.5}
    probe, rng = Probe(config(candidate_reward=reward)), random.Random(2)
    half = sum("half" in probe.choose(rates, 1, rng) for _ in range(2000))
    assert half / 2000 == pytest.approx(0.5, abs=0.04)


def test_a_share_of_the_places_is_drawn_blindly_from_those_that_are_left() -> None:
    rates = {"half": 0.5, **{f"never-{n}": 0.0 for n in range(20)}, **{f"some-{n}": 0.4 for n in range(7)}}
    probe, rng, seen = Probe(config(candidate_explore=0.5)), random.Random(0), Counter[str]()
    for _ in range(300):
        chosen = probe.choose(rates, 8, rng)
        assert len(chosen) == 8
        seen.update(name.partition("-")[0] for name in chosen)
    assert 4 < seen["never"] / 300 * 24 / 20 < 5  # four blind places, of 24 that are left 20 are such
    assert probe.choose(dict(list(rates.items())[:5]), 8, rng) == set(list(rates)[:5])
    never = Probe(config(candidate_explore=1.0)).choose(rates, 8, rng)
    assert len(never) == 8


def test_it_goes_on_where_it_was(make) -> None:
    first = Probe(config())
    first.observe({"a": -0.5}, [make.group("a", 6)])
    second = Probe(config())
    second.load_state_dict(first.state_dict())
    assert second.foretell({"b": -2.0}).rates == first.foretell({"b": -2.0}).rates
    assert second.state_dict() == first.state_dict()
    with pytest.raises(DataError, match="probe's state"):
        second.load_state_dict({"offset": 0})
