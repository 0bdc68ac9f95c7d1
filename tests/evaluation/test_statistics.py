from __future__ import annotations

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from genenv.statistics import Part, by_group, rate, weighted


@pytest.mark.parametrize("right", [0, 3, 40, 100])
def test_drawing_agrees_with_wilson_on_plain_rates(right: int) -> None:
    scores = [1.0] * right + [0.0] * (100 - right)
    exact, drawn = rate("r", scores), weighted("r", [Part(scores)])
    assert (drawn.low, drawn.high) == pytest.approx((exact.low, exact.high), abs=0.02)


@pytest.mark.parametrize("right", [0, 1, 40, 100])
def test_reweighted_items_agree_with_the_posterior_where_both_apply(right: int) -> None:
    scores = [1.0] * right + [0.0] * (100 - right)
    drawn = weighted("r", [Part([2 * score for score in scores], [2.0] * 100)])
    posterior = weighted("r", [Part(scores)])
    assert (drawn.low, drawn.high) == pytest.approx((posterior.low, posterior.high), abs=0.015)


@pytest.mark.parametrize("over", [[0, 0, 0], [8, 8, 8], [4, 4, 4]])
def test_a_micro_rate_of_three_items_that_agree_is_no_certainty(over: list[float]) -> None:
    figure = weighted("commonsense_micro", [Part(over, [8, 8, 8])])
    assert figure.high - figure.low > 0.3, "it once said 0.0% to 0.0%"


def test_lengths_that_agree_have_no_interval() -> None:
    assert math.isnan(weighted("commands", [Part([12.0, 12.0], bounds=None)], percent=False).low)
    assert weighted("commands", [Part([12.0, 20.0], bounds=None)], percent=False).low < 16


def test_a_difference_of_nothing_on_few_items_is_no_certainty() -> None:
    figure = weighted("gain", [Part([0.0] * 5, bounds=(-1.0, 1.0))])
    assert figure.value == 0
    assert figure.low < -0.1
    assert figure.high > 0.1


def test_items_that_hang_together_count_once() -> None:
    games = [str(game) for game in range(20) for _ in range(10)]
    scores = [float(game < 8) for game in range(20) for _ in range(10)]
    alone, together = rate("r", scores), rate("r", scores, clusters=games)
    assert alone.value == together.value == 0.4
    assert alone.items == together.items == 200
    by_game = rate("r", [float(game < 8) for game in range(20)])
    assert (together.low, together.high) == pytest.approx((by_game.low, by_game.high), abs=0.05)
    assert together.high - together.low > 2 * (alone.high - alone.low)


def test_items_that_stand_alone_have_the_same_interval_with_names() -> None:
    scores = [1.0, 0.0, 1.0, 1.0]
    assert rate("r", scores, clusters=["a", "b", "c", "d"]) == rate("r", scores)


def test_the_interval_covers_the_rate_of_clusters_about_as_often_as_it_says() -> None:
    rng = np.random.default_rng(2)

    def covers() -> bool:
        skills = rng.beta(1.2, 2.8, size=30)  # of 30 games, 0.3 on average
        scores = [float(rng.random() < skill) for skill in skills for _ in range(8)]
        figure = rate("r", scores, clusters=[str(game) for game in range(30) for _ in range(8)])
        return figure.low <= 0.3 <= figure.high

    assert 0.9 <= sum(covers() for _ in range(300)) / 300 <= 0.99


def test_that_all_agree_is_no_certainty() -> None:
    figure = weighted("overall", [Part([0.0] * 10), Part([1.0] * 20)])
    assert figure.low < 0.5 - 0.02
    assert figure.high > 0.5 + 0.05


@given(st.lists(st.floats(0, 1), min_size=1, max_size=60))
def test_an_interval_holds_its_value(scores: list[float]) -> None:
    figure = rate("r", scores)
    assert figure.low - 1e-9 <= figure.value <= figure.high + 1e-9
    assert figure.low >= 0
    assert figure.high <= 1 + 1e-9


def test_a_micro_average_divides_sums() -> None:
    figure = weighted("micro", [Part([3, 0, 5], [8, 0, 8])])
    assert figure.value == 0.5
    assert figure.items == 3


def test_parts_weigh_what_they_are_given_however_many_items_they_have() -> None:
    figure = weighted("overall", [Part([1.0] * 99, weight=1), Part([0.0], weight=3)])
    assert figure.value == 0.25


def test_a_part_without_items_counts_as_nothing_with_its_weight() -> None:
    assert weighted("overall", [Part([1.0], weight=1), Part([], weight=1)]).value == 0.5


def test_equal_items_give_equal_intervals() -> None:
    parts = [Part([0.2, 0.9, 0.4] * 20)]
    assert weighted("a", parts) == weighted("a", parts)


def test_nothing_measured_is_no_number() -> None:
    assert math.isnan(rate("r", []).value)
    assert math.isnan(weighted("r", []).low)


def test_groups_keep_the_order_in_which_they_come() -> None:
    groups = [{"k": "b"}, {"k": "a"}, {}, {"k": "b"}]
    figures = by_group(groups, "k", lambda at, label: rate("r", [float(i) for i in at if i < 2], group=label))
    assert [(f.group, f.items) for f in figures] == [("k=b", 1), ("k=a", 1)]
