"""Success rates predicted from the words of tasks."""

from __future__ import annotations

import json
import random
from dataclasses import replace

import numpy as np
import pytest
from scipy import sparse

from genenv.curriculum.predictors import FEATURES, TextModel, features, fitted_words
from genenv.curriculum.settings import CurriculumConfig
from genenv.curriculum.task_choice import Predicted
from genenv.errors import DataError
from genenv.types import Message

NOTHING = Predicted(rates={})


def config(**settings: object) -> CurriculumConfig:
    return CurriculumConfig.model_validate({"candidates": 4, "foretold_by": "text", **settings})


def asked(make, name: str, text: str):
    return replace(make.task(name), messages=(Message(role="user", content=text),))


def test_before_any_rollout_all_tasks_are_alike(make) -> None:
    tasks = [asked(make, "a", "1 + 1"), asked(make, "b", "")]
    assert set(TextModel(config()).predict(tasks).rates.values()) == {0.5}


def test_words_tell_tasks_apart_that_no_skill_does(make) -> None:
    """`len` is solved nine times in ten, `sorted` once in ten; their arguments say nothing."""
    model, rng = TextModel(config(profile_decay=1)), random.Random(0)
    for round_ in range(6):
        groups = [
            make.group(
                asked(
                    make, f"{round_}-{number}-{name}", f"{name}([{rng.randint(0, 99)}, {rng.randint(0, 99)}])"
                ),
                sum(rng.random() < rate for _ in range(8)),
            )
            for name, rate in (("len", 0.9), ("sorted", 0.1))
            for number in range(8)
        ]
        assert model.observe(NOTHING, groups) == {}
    tasks = [asked(make, "easy", "len([12, 13])"), asked(make, "hard", "sorted([12, 13])")]
    found = model.predict(tasks)
    assert found.rates["easy"] == pytest.approx(0.9, abs=0.12)
    assert found.rates["hard"] == pytest.approx(0.1, abs=0.12)
    assert model.observe(found, [make.group(tasks[0], 8)]) == {
        "probe/error": pytest.approx(1 - found.rates["easy"])
    }
    assert (found.likelihoods, found.tokens, found.read) == ({}, 0, 0)


def test_it_follows_an_agent_that_learns(make) -> None:
    model, task = TextModel(config(profile_decay=0.5)), asked(make, "a", "abs(-3)")
    for _ in range(20):
        model.observe(NOTHING, [make.group(task, 0)] * 8)
    assert model.predict([task]).rates["a"] < 0.1
    for _ in range(4):
        model.observe(NOTHING, [make.group(task, 8)] * 8)
    assert model.predict([task]).rates["a"] > 0.75


def test_it_goes_on_from_its_state(make) -> None:
    model, other = TextModel(config()), TextModel(config())
    for n in range(9):
        model.observe(NOTHING, [make.group(asked(make, str(n), f"x * {n % 7}"), n)])
    other.load_state_dict(json.loads(json.dumps(model.state_dict())))
    task = asked(make, "new", "x * 3")
    assert other.predict([task]).rates == model.predict([task]).rates
    with pytest.raises(DataError, match="texts of rollouts"):
        other.load_state_dict({"tried": [{"text": "a", "solved": 2, "weight": 1}]})


def test_the_weights_are_a_minimum() -> None:
    rng = np.random.default_rng(0)
    x = sparse.random(12, FEATURES, density=0.0005, random_state=0, format="csr")
    solved, weights = rng.random(12), rng.random(12)
    offset, w = fitted_words(x, solved, weights)
    excess = weights * (1 / (1 + np.exp(-(offset + x @ w))) - solved)
    assert np.abs(x.T @ excess + 0.1 * w).max() < 1e-4
    assert abs(excess.sum() + 1e-3 * offset) < 1e-4


def test_features_are_words_signs_and_neighbors() -> None:
    assert len(features("a + b")) == 5  # three words, two pairs
    assert list(features("a + b")) == list(features("a  +  b"))
    assert len(features("")) == 0
