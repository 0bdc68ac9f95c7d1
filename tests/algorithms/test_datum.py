"""Data: which tokens count, and weights scaled to a sum."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genenv.algorithms.datum import Datum, Objective, UpdateBatch, averaged
from lessons import imitated

losses = st.sampled_from(["nll", "ppo"])
weights = st.lists(st.just(0.0) | st.floats(1e-3, 10), max_size=6)


def datum(loss, row) -> Datum:
    return imitated((1,), (2,) * len(row), loss=loss, weights=tuple(row))


def test_the_tokens_of_a_datum_are_those_that_count():
    assert datum("nll", (1.0, 0.0, 0.25)).tokens == 2
    assert datum("ppo", (0.0, 0.0)).tokens == datum("ppo", ()).tokens == 0


def test_the_data_of_a_lesson_are_those_of_its_units_in_order():
    first, second, third = (datum("nll", (float(i),)) for i in range(3))
    assert UpdateBatch(units=[[first, second], [third]], objective=Objective()).data == [first, second, third]


def test_averaged_weights_by_hand():
    data = [datum("ppo", (1.0, 1.0)), datum("nll", (1.0, 0.0, 3.0)), datum("ppo", (0.0, 2.0))]
    found = averaged(data, {"ppo": 1.0, "nll": 0.5})
    assert [d.weights for d in found] == [(0.25, 0.25), (0.125, 0.0, 0.375), (0.0, 0.5)]
    assert [(d.loss, d.completion_ids) for d in found] == [(d.loss, d.completion_ids) for d in data]


def test_where_no_token_counts_there_is_nothing_to_average():
    data = [datum("ppo", (0.0, 0.0)), datum("nll", (2.0,))]
    assert [d.weights for d in averaged(data, {"ppo": 1.0, "nll": 1.0})] == [(0.0, 0.0), (1.0,)]
    assert averaged([], {"ppo": 1.0}) == []


@given(
    rows=st.lists(st.tuples(losses, weights), max_size=6),
    ppo=st.floats(1e-3, 10),
    nll=st.floats(1e-3, 10),
)
def test_the_weights_of_each_loss_add_up_to_its_coefficient_and_keep_their_proportions(rows, ppo, nll):
    data = [datum(*row) for row in rows]
    coefficients = {"ppo": ppo, "nll": nll}
    found = averaged(data, coefficients)
    for loss, coefficient in coefficients.items():
        before, after = ([w for d in x if d.loss == loss for w in d.weights] for x in (data, found))
        total = math.fsum(before)
        assert math.fsum(after) == pytest.approx(coefficient if total else 0.0)
        assert after == pytest.approx([w / total * coefficient if total else 0.0 for w in before])
