"""Success rates foretold from attempts at tasks of the same skills."""

from __future__ import annotations

import json
import random

import numpy as np
import pytest

from genenv.curriculum.predictors import History
from genenv.curriculum.predictors import fitted_skills as fitted
from genenv.curriculum.settings import CurriculumConfig
from genenv.curriculum.task_choice import Predicted
from genenv.errors import DataError

NOTHING = Predicted(rates={})


def config(**settings: object) -> CurriculumConfig:
    return CurriculumConfig.model_validate({"candidates": 4, "foretold_by": "attempts", **settings})


def test_before_any_attempt_all_tasks_are_alike(make) -> None:
    tasks = [make.task("a", ["add"]), make.task("b", ["add", "long"]), make.task("c", [])]
    assert set(History(config()).predict(tasks).rates.values()) == {0.5}


def test_kinds_that_were_never_attempted_are_put_together_from_their_skills(make) -> None:
    """Short sums are solved, long ones half of the time, short products too: long products hardly ever."""
    history, rng = History(config(profile_decay=1)), random.Random(0)
    rates = {("add", "short"): 0.9, ("add", "long"): 0.5, ("times", "short"): 0.5}
    for round_ in range(6):
        groups = [
            make.group(
                make.task(f"{round_}-{number}-{kind}", kind), sum(rng.random() < rate for _ in range(8))
            )
            for kind, rate in rates.items()
            for number in range(8)
        ]
        found = history.observe(NOTHING, groups)
    assert found == {}
    tasks = [make.task("known", ["add", "short"]), make.task("new", ["times", "long"])]
    told = history.predict(tasks)
    assert told.rates["known"] == pytest.approx(0.9, abs=0.07)
    assert told.rates["new"] < 0.25
    assert history.observe(told, [make.group(tasks[1], 0)]) == {
        "probe/error": pytest.approx(told.rates["new"])
    }
    assert (told.likelihoods, told.tokens, told.read) == ({}, 0, 0)


def test_it_follows_an_agent_that_learns(make) -> None:
    history, task = History(config(profile_decay=0.5)), make.task("a")
    for _ in range(20):
        history.observe(NOTHING, [make.group(make.task(f"old-{n}"), 0) for n in range(8)])
    assert history.predict([task]).rates["a"] < 0.1
    for _ in range(4):
        history.observe(NOTHING, [make.group(make.task(f"now-{n}"), 8) for n in range(8)])
    assert history.predict([task]).rates["a"] > 0.75


def test_attempts_that_broke_say_nothing(make) -> None:
    history = History(config())
    assert history.observe(NOTHING, [make.group("a", 0, 0, broken=8)]) == {}
    assert history.state_dict() == {"kinds": {}}


def test_what_is_long_ago_is_dropped(make) -> None:
    history = History(config(profile_decay=0.1))
    history.observe(NOTHING, [make.group(make.task("a", ["rare"]), 3)])
    for _ in range(3):
        history.observe(NOTHING, [make.group("b", 3)])
    assert history.state_dict()["kinds"].keys() == {"add"}


def test_the_fit_finds_the_weights_that_rates_came_from() -> None:
    rng = np.random.default_rng(0)
    x_ks = rng.integers(0, 2, (4000, 3)).astype(np.float64)
    rate_k = 1 / (1 + np.exp(-(-0.5 + x_ks @ np.array([2.0, -1.0, 0.5]))))
    offset, weights = fitted(x_ks, np.stack([rate_k, np.ones(4000)], axis=1))
    assert offset == pytest.approx(-0.5, abs=0.05)
    assert weights == pytest.approx([2, -1, 0.5], abs=0.05)


def test_it_goes_on_where_it_was(make) -> None:
    first, second = History(config()), History(config())
    first.observe(NOTHING, [make.group(make.task("a", ["add", "long"]), 6), make.group("b", 1)])
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    task = make.task("c", ["long"])
    assert second.predict([task]) == first.predict([task])
    assert second.state_dict() == first.state_dict()
    with pytest.raises(DataError, match="history of attempts in this run's store is damaged"):
        second.load_state_dict({"kinds": {"add": {"solved": -1, "tasks": 2}}})
