"""The simulator's credit: what a token of a generation counts, under which grammar, in which steps."""

from __future__ import annotations

import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genenv.algorithms.datum import Objective, UpdateBatch
from genenv.algorithms.reward_weighting import rwr_credit, simulator_credit
from genenv.algorithms.settings import SimulatorLearningConfig
from genenv.config.run import load_config
from genenv.errors import UsageError
from lessons import SEQUENCES, samples

SCHEMAS = {"c0": {"type": "boolean"}, "c2": {"type": "string"}}


def credit(written, schemas=None, temperature: float = 1.0, **config) -> UpdateBatch:
    return rwr_credit(written, schemas or {}, SimulatorLearningConfig(**config), temperature=temperature)


def test_weights_count_for_each_token_that_the_player_wrote():
    total = 0.5 * 4 + 0.25 * 2 + 0.25 * 6  # 4
    lesson = credit(samples(0.5, 0.25, 0.25))
    assert [(d.prompt_ids, d.completion_ids) for d in lesson.data] == SEQUENCES
    assert [d.weights for d in lesson.data] == [(0.5 / total,) * 4, (0.25 / total,) * 2, (0.25 / total,) * 6]
    assert {(d.loss, d.advantages, d.old_logprobs) for d in lesson.data} == {("nll", None, None)}


def test_a_factor_on_all_weights_changes_nothing():
    rows = ([0.6, 0.3, 0.1], [6.0, 3.0, 1.0])
    first, second = ([d.weights for d in credit(samples(*row)).data] for row in rows)
    assert sum(first, ()) == pytest.approx(sum(second, ()), rel=1e-12)


def test_what_has_no_weight_or_no_token_is_left_out():
    silent = samples(0.5, 0.25, 0.25)
    silent[1] = replace(silent[1], generation=replace(silent[1].generation, token_ids=(), logprobs=()))
    assert [len(d.completion_ids) for d in credit(silent).data] == [4, 6]
    assert [len(d.completion_ids) for d in credit(samples(0.9, 0.0, 0.1)).data] == [4, 6]
    assert not credit(samples(0.0, 0.0, 0.0)).units
    assert not credit([]).units


def test_each_sample_is_learnt_under_the_schema_of_its_context_at_the_temperature_of_the_sampling():
    lesson = credit(samples(0.5, 0.25, 0.25), SCHEMAS, temperature=0.7)
    assert [d.schema for d in lesson.data] == [{"type": "boolean"}, None, {"type": "string"}]
    assert {d.temperature for d in lesson.data} == {0.7}


@given(weights=st.lists(st.floats(1e-3, 1.0), min_size=3, max_size=3), batch=st.integers(1, 4))
def test_the_steps_of_an_update_share_its_weights(weights, batch):
    """Averaged over the steps the weighted sum over all tokens is one; no step is scaled up."""
    lesson = credit(samples(*weights), batch=batch)
    assert lesson.steps == -(-3 // batch)
    assert lesson.coefficients is None
    assert [len(unit) for unit in lesson.units] == [1, 1, 1]
    assert math.fsum(w for d in lesson.data for w in d.weights) == pytest.approx(lesson.steps, rel=1e-12)


def test_the_settings_become_the_objective_and_the_cap():
    lesson = credit(samples(1, 1, 1), kl_coefficient=0.2, kl_cap=0.3, kl_retries=5, epochs=2)
    assert lesson.objective == Objective(kl_coefficient=0.2, kl="exact")
    assert (lesson.cap, lesson.cap_retries, lesson.epochs) == (0.3, 5, 2)


def test_reward_weighted_regression_is_what_the_settings_name():
    assert simulator_credit(SimulatorLearningConfig()) is rwr_credit
    with pytest.raises(UsageError, match=r'\'simulator.algorithm\' is "none"; allowed: "rwr" or'):
        load_config(None, ["simulator.algorithm=none"])
