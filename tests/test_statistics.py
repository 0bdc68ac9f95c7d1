"""Intervals and tests: by hand, by scipy, on data without a difference, and by coverage."""

from __future__ import annotations

import math
import runpy
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from genenv.statistics import (
    Difference,
    Part,
    Spread,
    by_group,
    difference,
    holm,
    mean_interval,
    p_value,
    rate,
    ratio,
    seeds_needed,
    weighted,
    wilson,
)

BENCH = Path(__file__).parents[1] / "bench"
interval_size = SimpleNamespace(**runpy.run_path(str(BENCH / "interval_size.py")))


def pairs(seed: int, seeds: int, *, gain: float = 0.0, tasks: int = 100) -> Iterator[Difference]:
    """Differences of two groups of runs on the same tasks; tasks differ in difficulty, seeds in success."""
    rng = np.random.default_rng(seed)
    while True:
        hard_N = rng.normal(0, 1.2, tasks)

        def group(shift: float, hard_N: np.ndarray = hard_N) -> np.ndarray:
            able_S = rng.normal(shift, 0.25, seeds)
            return (rng.random((seeds, tasks)) < 1 / (1 + np.exp(hard_N - able_S[:, None]))).astype(float)

        yield difference(group(gain), group(0.0))


@pytest.mark.parametrize("seeds", [2, 3, 5, 30])
def test_a_variant_is_called_different_from_itself_at_most_as_often_as_said(seeds: int) -> None:
    found = list(islice(pairs(seeds, seeds), 1000))
    assert sum(one.p < 0.05 for one in found) <= 60
    assert sum(one.low <= 0 <= one.high for one in found) >= 940


def test_of_twenty_comparisons_of_a_variant_with_itself_at_most_two_are_called_different() -> None:
    found = list(islice(pairs(1, 5), 20))
    assert sum(one.p < 0.05 for one in found) <= 2
    assert sum(p < 0.05 for p in holm([one.p for one in found])) == 0


def test_a_difference_that_is_there_is_found() -> None:
    found = list(islice(pairs(2, 10, gain=0.8), 50))
    assert sum(one.p < 0.05 for one in found) >= 45
    assert np.mean([one.value for one in found]) == pytest.approx(0.16, abs=0.02)


@pytest.mark.parametrize("name", interval_size.SETTINGS)
def test_a_variant_is_called_different_from_itself_about_as_often_as_said(name: str) -> None:
    crossed, _, _ = interval_size.rejected(interval_size.SETTINGS[name], 1, 2000)
    assert 0.035 <= crossed <= 0.065


def test_the_form_before_counted_the_error_of_tasks_twice() -> None:
    _, before, _ = interval_size.rejected(interval_size.SETTINGS["few seeds"], 1, 1000)
    assert before <= 0.02


def test_the_variance_is_by_hand_that_of_two_crossed_factors() -> None:
    apart_SN = np.array([[1.0, 0.0, 2.0], [2.0, 1.0, 3.0], [0.0, 2.0, 4.0]])
    # means of seeds 1, 2, 2; of tasks 1, 1, 3; overall 5/3
    # residuals of d - seed - task + mean: 2/3 -1/3 -1/3 | 2/3 -1/3 -1/3 | -4/3 2/3 2/3
    error = (4 + 1 + 1 + 4 + 1 + 1 + 16 + 4 + 4) / 9 / 4
    spread = Spread.of(apart_SN)
    assert (spread.seed, spread.error, spread.tasks) == pytest.approx((1 / 3, error, 3))
    assert spread.task == pytest.approx(4 / 3 - error / 3)
    mean_squares = 3 * spread.seed, 3 * (4 / 3), error
    variance = (mean_squares[0] + mean_squares[1] - mean_squares[2]) / 9
    assert spread.variance(3) == pytest.approx(variance)
    freedom = (9 * variance) ** 2 / sum(ms**2 / df for ms, df in zip(mean_squares, (2, 2, 4), strict=True))
    assert freedom == pytest.approx(1.829, abs=1e-3)
    assert spread.freedom(3) == 2, "at least the smaller of S - 1 and N - 1"
    assert Spread(seed=1.0, task=1.0, error=2.0, tasks=10).freedom(4) == pytest.approx(
        0.35**2 / (0.25**2 / 3 + 0.15**2 / 9 + 0.05**2 / 27)
    )
    found = difference(apart_SN, np.zeros((3, 3)))
    half = stats.t.ppf(0.975, 2) * math.sqrt(variance)
    assert (found.low, found.high) == pytest.approx((5 / 3 - half, 5 / 3 + half))


def test_the_variance_is_that_of_the_means_of_new_seeds_and_new_tasks() -> None:
    rng = np.random.default_rng(0)
    drawn = (
        rng.normal(0, 0.3, (4000, 6, 1)) + rng.normal(0, 0.5, (4000, 1, 20)) + rng.normal(0, 1, (4000, 6, 20))
    )
    said = np.mean([Spread.of(apart_SN).variance(6) for apart_SN in drawn])
    assert said == pytest.approx(0.09 / 6 + 0.25 / 20 + 1 / 120, rel=0.03)
    assert np.var(drawn.mean(axis=(1, 2))) == pytest.approx(said, rel=0.06)


def test_without_a_task_effect_it_is_the_paired_t_test_over_seeds() -> None:
    apart_SN = np.array([[1.0, 0.0, 0.0, 1.0], [0.0, 1.0, 1.0, 1.0]])  # tasks agree less than by chance
    assert Spread.of(apart_SN).task == 0
    right = stats.ttest_1samp(apart_SN.mean(axis=1), 0.0)
    assert difference(apart_SN, np.zeros((2, 4))).p == pytest.approx(right.pvalue)  # pyright: ignore[reportAttributeAccessIssue]


def test_seeds_that_agree_exactly_by_chance_are_no_certainty() -> None:
    found = difference(np.array([[1.0, 0.0, 1.0], [0.0, 1.0, 1.0], [1.0, 1.0, 0.0]]), np.zeros((3, 3)))
    assert found.spread is not None
    assert found.spread.seed == pytest.approx(found.spread.error / 3)
    assert found.p > 0.01


def test_with_tasks_that_agree_it_is_the_paired_t_test_of_scipy() -> None:
    means = np.array([0.02, 0.05, -0.01, 0.04, 0.03])
    found = difference(np.tile(means[:, None], (1, 7)), np.zeros((5, 7)))
    right = stats.ttest_1samp(means, 0.0)
    low, high = right.confidence_interval()
    assert found.value == pytest.approx(0.026)
    assert found.p == pytest.approx(right.pvalue)  # pyright: ignore[reportAttributeAccessIssue]
    assert (found.low, found.high) == pytest.approx((low, high))
    assert found.spread is not None
    assert (found.spread.seed, found.spread.task) == pytest.approx((means.var(ddof=1), 0), abs=1e-12)


def test_one_seed_says_nothing_of_seeds_but_has_an_interval_over_tasks() -> None:
    found = difference(np.array([[1.0, 1.0, 0.0, 1.0]]), np.array([[0.0, 1.0, 0.0, 0.0]]))
    assert found.value == 0.5
    assert math.isnan(found.p)
    assert (found.low, found.high) == pytest.approx((0.5 - 1.96 * 0.25, 0.5 + 1.96 * 0.25), abs=1e-3)
    assert found.needed() is None


def test_runs_that_are_the_same_do_not_differ() -> None:
    same = np.ones((3, 4))
    found = difference(same, same)
    assert (found.value, found.low, found.high, found.p, found.needed()) == (0, 0, 0, 1, None)
    with pytest.raises(ValueError, match="not paired"):
        difference(np.ones((2, 3)), np.ones((3, 3)))


def test_p_is_by_t() -> None:
    assert p_value(2.0, 1.0, 4) == pytest.approx(0.1161, abs=1e-4)
    assert (p_value(0.0, 0.0, 4), p_value(1.0, 0.0, 4)) == (1.0, 0.0)


def test_holm_by_hand() -> None:
    assert holm([0.01, 0.04, 0.03]) == pytest.approx([0.03, 0.06, 0.06])
    assert holm([0.5, 0.9]) == pytest.approx([1.0, 1.0])
    adjusted = holm([0.01, math.nan, 0.02])
    assert adjusted[0] == pytest.approx(0.02)
    assert adjusted[2] == pytest.approx(0.02)
    assert math.isnan(adjusted[1])


@given(st.lists(st.floats(0, 1), min_size=1, max_size=12))
def test_holm_makes_nothing_smaller_and_keeps_the_order(values: list[float]) -> None:
    adjusted = holm(values)
    assert all(value <= new <= 1 for value, new in zip(values, adjusted, strict=True))
    assert [new for _, new in sorted(zip(values, adjusted, strict=True))] == sorted(adjusted)


def test_seeds_needed_are_those_of_the_tables() -> None:
    one = Spread(seed=1.0)
    assert seeds_needed(1.0, one) == 10  # an effect of one standard deviation: 80% power, 5%, two-sided
    assert seeds_needed(0.5, one) == 34
    assert seeds_needed(-0.5, one) == 34
    assert seeds_needed(0.5, one, 0.05 / 5) == 51
    assert (seeds_needed(0.0, one), seeds_needed(1.0, Spread(seed=0.0))) == (None, 2)


def test_no_number_of_seeds_makes_up_for_few_tasks() -> None:
    assert seeds_needed(0.05, Spread(seed=0.01, task=0.02, error=0.2, tasks=20)) is None
    assert seeds_needed(0.05, Spread(seed=0.01, task=0.02, error=0.2, tasks=2000)) == 35
    assert seeds_needed(0.05, Spread(seed=0.01, task=0.02, error=0.2, tasks=200)) > 35  # pyright: ignore[reportOptionalOperand]


def test_means_and_ratios_have_their_intervals_by_t() -> None:
    mean, low, high = mean_interval([1.0, 2.0, 3.0])
    assert (mean, low, high) == pytest.approx((2.0, 2 - 2.4841, 2 + 2.4841), abs=1e-3)
    assert math.isnan(mean_interval([1.0])[1])
    assert ratio([2.0, 8.0], [1.0, 4.0]) == pytest.approx((2.0, 2.0, 2.0))


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


def test_seeds_that_differ_by_exactly_the_same_have_the_p_of_the_sign_test() -> None:
    """Two runs that need one round more each: all signs agree with the chance 1/2."""
    for seeds in (2, 3, 10):
        found = difference(np.full((seeds, 1), 4.0), np.full((seeds, 1), 3.0))
        assert (found.value, found.low, found.high) == (1.0, 1.0, 1.0)
        assert found.p == 0.5 ** (seeds - 1)
    assert difference(np.ones((3, 4)), np.ones((3, 4))).p == 1.0
    tenths = difference(np.array([[0.3], [0.4], [0.6]]), np.array([[0.2], [0.3], [0.5]]))
    assert tenths.p == 0.25  # equal but for rounding
