from __future__ import annotations

import pytest

from genenv.runs.metrics import FAMILIES, METRICS, check_names, describe, late_p_hats, target_band
from genenv.types import RejectReason


def test_the_list_holds_every_metric_of_the_design_and_every_reason(design_metrics: frozenset[str]) -> None:
    check_names([*design_metrics, *(f"simulator/rejected/{reason}" for reason in RejectReason)])


def test_every_metric_has_a_family_a_unit_and_a_sentence() -> None:
    for metric in [*METRICS.values(), *FAMILIES.values()]:
        assert metric.name.count("/") >= 1
        assert metric.unit
        assert metric.about.endswith((".", "follows."))


@pytest.mark.parametrize(
    ("alpha", "band"), [(0.5, (0.35, 0.65)), (0.3, (0.15, 0.45)), (0.1, (0, 0.25)), (0.9, (0.75, 1))]
)
def test_the_target_band_lies_around_alpha(alpha: float, band: tuple[float, float]) -> None:
    assert target_band(alpha) == pytest.approx(band)


@pytest.mark.parametrize(
    ("rounds", "late"),
    [
        (12, [9, 10, 11, 12]),
        (10, [7, 8, 9, 10]),
        (9, [7, 8, 9]),
        (8, [6, 7, 8]),
        (5, [4, 5]),
        (2, [2]),
        (1, [1]),
    ],
)
def test_the_last_third_of_the_rounds_is_rounded_up(rounds: int, late: list[int]) -> None:
    metrics = {number: {"curriculum/p_hat_mean": number / 10} for number in range(rounds + 1)}
    assert late_p_hats(metrics) == [number / 10 for number in late]


def test_a_run_that_has_played_no_round_has_no_late_one() -> None:
    assert late_p_hats({0: {"curriculum/p_hat_mean": 0.5}}) == []


def test_a_late_round_without_p_hat_is_left_out() -> None:
    metrics = {number: {"curriculum/p_hat_mean": number / 10} for number in range(1, 7)}
    assert late_p_hats({**metrics, 6: {}}) == [0.5]


def test_a_family_takes_the_names_of_skills() -> None:
    assert describe("tasks/share/calls:2").unit == "share"


@pytest.mark.parametrize(
    "name", ["agent/succes_rate", "tasks/share/", "tasks/share/a b", "simulator/rejected/mood", ""]
)
def test_a_name_that_is_not_in_the_list_is_refused(name: str) -> None:
    with pytest.raises(ValueError, match="unknown metric"):
        check_names([name])


def test_a_misspelt_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(ValueError, match="did you mean 'agent/success_rate'"):
        describe("agent/succes_rate")
