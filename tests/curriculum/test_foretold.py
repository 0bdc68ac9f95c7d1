"""Foretold success rates: the tasks worth most are chosen, and it is said how far off they were."""

from __future__ import annotations

import math
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genenv.curriculum.settings import CurriculumConfig
from genenv.curriculum.task_choice import Predicted, distance, worth_most, worth_most_that_pass

RATES = st.dictionaries(st.text(min_size=1, max_size=3), st.floats(0, 1), max_size=20)


def config(**settings: object) -> CurriculumConfig:
    return CurriculumConfig.model_validate({"candidates": 4, **settings})


@given(RATES, st.integers(0, 30), st.integers(0, 99))
def test_so_many_are_chosen_and_each_once(rates: dict[str, float], n: int, seed: int) -> None:
    chosen = worth_most(rates, n, random.Random(seed), config())
    assert chosen <= rates.keys()
    assert len(chosen) == min(n, len(rates))
    assert chosen == worth_most(rates, n, random.Random(seed), config())


def test_the_chance_of_a_task_grows_with_what_it_is_worth() -> None:
    rates = {"never": 0.0, "seldom": 0.1, "half": 0.5, "always": 1.0}
    counts = Counter[str]()
    settings, rng = config(candidate_temperature=2.0), random.Random(1)
    for _ in range(4000):
        counts.update(worth_most(rates, 1, rng, settings))
    weights = {name: math.exp(2 * 4 * p * (1 - p)) for name, p in rates.items()}
    for name, weight in weights.items():
        assert counts[name] / 4000 == pytest.approx(weight / sum(weights.values()), abs=0.03)


def test_progress_prefers_what_has_risen_whatever_its_rate() -> None:
    told = Predicted(
        rates={"learned": 0.9, "guessed": 0.5, "forgotten": 0.5},
        earlier={"learned": 0.5, "guessed": 0.5, "forgotten": 0.9},
    )
    assert told.progress == pytest.approx({"learned": 0.4, "guessed": 0.0, "forgotten": -0.4})
    settings = config(candidate_reward="progress", candidate_temperature=5.0)
    counts, rng = Counter[str](), random.Random(1)
    for _ in range(4000):
        counts.update(worth_most(told.rates, 1, rng, settings, told.progress))
    weights = {name: math.exp(5 * rise / 2) for name, rise in told.progress.items()}
    for name, weight in weights.items():
        assert counts[name] / 4000 == pytest.approx(weight / sum(weights.values()), abs=0.03)


def test_without_an_older_version_nothing_has_risen_and_the_choice_is_random(make) -> None:
    told = Predicted(rates={"never": 0.0, "half": 0.5})
    assert told.progress == {"never": 0.0, "half": 0.0}
    settings, rng = config(candidate_reward="progress"), random.Random(2)
    half = sum("half" in worth_most(told.rates, 1, rng, settings, told.progress) for _ in range(2000))
    assert half / 2000 == pytest.approx(0.5, abs=0.04)
    tasks = [make.task("half")]
    assert "probe/progress" not in told.metrics(tasks, tasks)
    risen = Predicted(rates=told.rates, earlier={"never": 0.0, "half": 0.25})
    assert risen.metrics(tasks, tasks)["probe/progress"] == 0.25


@pytest.mark.parametrize("reward", ["constant", "shuffled"])
def test_under_a_control_all_tasks_are_alike(reward: str) -> None:
    rates = {"never": 0.0, "half": 0.5}
    settings, rng = config(candidate_reward=reward), random.Random(2)
    half = sum("half" in worth_most(rates, 1, rng, settings) for _ in range(2000))
    assert half / 2000 == pytest.approx(0.5, abs=0.04)


def test_a_share_of_the_places_is_drawn_blindly_from_those_that_are_left() -> None:
    rates = {"half": 0.5, **{f"never-{n}": 0.0 for n in range(20)}, **{f"some-{n}": 0.4 for n in range(7)}}
    settings, rng, seen = config(candidate_explore=0.5), random.Random(0), Counter[str]()
    for _ in range(300):
        chosen = worth_most(rates, 8, rng, settings)
        assert len(chosen) == 8
        seen.update(name.partition("-")[0] for name in chosen)
    assert 4 < seen["never"] / 300 * 24 / 20 < 5  # four blind places, of 24 that are left 20 are such
    assert worth_most(dict(list(rates.items())[:5]), 8, rng, settings) == set(list(rates)[:5])
    never = worth_most(rates, 8, rng, config(candidate_explore=1.0))
    assert len(never) == 8


def passed(rates: dict[str, float], n: int, seed: int, settings: CurriculumConfig) -> tuple[set[str], int]:
    """The tasks that pass, of which those with an x in their name never do; and how many were checked."""
    found, checked = set[str](), list[str]()

    def passes(name: str) -> bool:
        checked.append(name)
        if "x" not in name:
            found.add(name)
        return "x" not in name

    worth_most_that_pass(rates, n, random.Random(seed), settings, passes)
    assert len(checked) == len(set(checked))
    return found, len(checked)


@given(RATES, st.integers(0, 30), st.integers(0, 99), st.sampled_from([0.0, 0.5]))
def test_as_many_as_are_wanted_pass_if_there_are_so_many(
    rates: dict[str, float], n: int, seed: int, explore: float
) -> None:
    found, checked = passed(rates, n, seed, config(candidate_explore=explore))
    able = {name for name in rates if "x" not in name}
    assert len(found) == min(n, len(able))
    assert checked <= len(rates)
    if len(able) == len(rates):
        assert checked == min(n, len(rates))
        assert explore or found == worth_most(rates, n, random.Random(seed), config())


@pytest.mark.parametrize("explore", [0.0, 0.5])
def test_checking_those_that_are_drawn_is_drawing_from_those_that_pass(explore: float) -> None:
    rates = {
        f"{name}{n}": rate for name, rate in (("half", 0.5), ("some", 0.3), ("x", 0.5)) for n in range(4)
    }
    able = {name: rate for name, rate in rates.items() if "x" not in name}
    settings = config(candidate_temperature=3.0, candidate_explore=explore)
    after, before = Counter[str](), Counter[str]()
    for seed in range(3000):
        after.update(worth_most(able, 4, random.Random(seed), settings))
        before.update(passed(rates, 4, seed + 10_000, settings)[0])
    for name in able:
        assert before[name] / 3000 == pytest.approx(after[name] / 3000, abs=0.04)


def test_what_was_foretold_is_held_against_what_was_found(make) -> None:
    told = Predicted(rates={"a": 0.5, "b": 1.0})
    groups = [make.group("a", 6), make.group("b", 4), make.group("c", 0)]  # of eight attempts
    assert distance(told, groups) == {"probe/error": pytest.approx((0.25 + 0.5) / 2)}
    assert distance(told, groups[2:]) == {}
