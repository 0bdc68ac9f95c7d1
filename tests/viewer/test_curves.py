"""What the curves of a run say in words: alarms at their limits, charts, and damaged lines of metrics."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from genenv.viewer.alarms import alarms
from genenv.viewer.curves import charts, heats, numbers, sections, spark, table
from genenv.viewer.folders import Run
from genenv.viewer.rounds import evaluations_of, falls
from viewer_runs import run_of


@pytest.mark.parametrize(
    ("metrics", "sentence"),
    [
        ({"simulator/valid_rate": [0.8] * 3 + [0.65] * 3}, "The valid rate fell from 0.80 to 0.65"),
        ({"simulator/valid_rate": [0.8] * 3 + [0.66] * 3}, ""),
        ({"simulator/valid_rate": [0.1] * 3 + [0.9] * 3}, ""),
        ({"agent/entropy": [1.0] * 3 + [0.2] * 3}, "The agent's entropy collapsed: 0.2, after 1"),
        ({"agent/entropy": [1.0] * 3 + [0.3] * 3}, ""),
        ({"agent/response_tokens": [80] * 3 + [30] * 3}, "The length of rollouts collapsed: 30, after 80"),
        ({"simulator/kl_retries": [0, 1, 1, 1]}, "met its KL cap in each of the last 3 rounds"),
        ({"simulator/kl_retries": [1, 1, 1, 0]}, ""),
        ({"curriculum/p_hat_mean": [0.5] + [0.9] * 5}, "target band 0.35 to 0.65 for 5 rounds"),
        ({"curriculum/p_hat_mean": [0.9] * 4 + [0.6]}, ""),
        (
            {"tasks/share/mail": [0.1, 0.6], "tasks/share/shop": [0.9, 0.2]},
            "60% of the last round's new tasks need 'mail', after 10% in the first round.",
        ),
        ({"tasks/share/whole": [1.0] * 6}, ""),
        ({"tasks/share/mail": [0.45] * 3 + [0.6]}, ""),
        ({"tasks/share/mail": [0.3] * 4 + [None, 0.8]}, "after 30% in the first 3 rounds"),
        ({"tasks/share/new": [None] * 4 + [0.8], "tasks/share/mail": [0.2] * 5}, "'new', after 0%"),
        ({"tasks/share/mail": [0.5]}, ""),
        (
            {"agent/reward": [0.4] * 3 + [0.6] * 3, "agent/eval_success": [0.5] * 3 + [0.4] * 3},
            "The reward in training rises by 0.20 while held-out success falls by 0.10",
        ),
        ({"agent/reward": [0.4] * 3 + [0.6] * 3, "agent/eval_success": [0.5] * 6}, ""),
        (
            {"agent/mismatch_kl": [0.004] * 3 + [0.012] * 3},
            "The mismatch of the agent's sampler and trainer grows: 0.012 nats a token, after 0.004",
        ),
        ({"agent/mismatch_kl": [0.004] * 3 + [0.011] * 3}, ""),
        ({"agent/mismatch_kl": [0.001] * 3 + [0.009] * 3}, ""),
    ],
)  # fmt: skip
def test_an_alarm_is_given_from_its_limit_on(
    metrics: Mapping[str, Sequence[float | None]], sentence: str
) -> None:
    found = alarms(run_of(metrics))
    assert len(found) == bool(sentence)
    assert sentence in "".join(found)


def test_equal_lines_of_a_chart_are_one_with_all_their_names() -> None:
    line = [0.1, 0.2]
    (found,) = charts(
        run_of({"agent/success_rate": line, "agent/new_success": line, "agent/reward": [0.1, 0.3]})
    )
    assert [one["name"] for one in found["series"]] == ["all tasks = new tasks", "reward"]


def test_a_run_without_rounds_has_no_numbers_charts_or_alarms() -> None:
    run = run_of({})
    assert (sections(run), numbers(run), alarms(run), table(run), spark(run)) == ([], {}, [], [], "")


def test_a_chart_has_one_value_a_round_and_the_rest_of_a_family_in_one_series() -> None:
    stages = {f"time/{name}_s": [1.0, None] for name in "abcdefghi"} | {"time/round_s": [9.0, 9.0]}
    (found,) = charts(run_of(stages))
    series = {one["name"]: one["values"] for one in found["series"]}
    assert list(series) == [*"abcdefg", "others"]
    assert series["a"] == [1.0, None]
    assert series["others"] == [2.0, 0.0]


def test_a_small_picture_is_within_its_frame_and_says_its_values() -> None:
    svg = str(spark(run_of({"agent/eval_success": [0.0, None, 1.0]})))
    assert 'aria-label="held-out success: 0 first, 1 last, from 0 to 1"' in svg
    points = [tuple(map(float, pair.split(","))) for pair in re.findall(r'points="([^"]*)"', svg)[0].split()]
    assert points == [(3.0, 25.0), (117.0, 3.0)]
    near = str(spark(run_of({"agent/eval_success": [0.45, 0.55]})))
    assert 'points="3.0,19.5 117.0,8.5"' in near, "near values are seen to differ: the frame is 0.4 to 0.6"


def test_the_table_names_metrics_of_other_versions_too() -> None:
    rows = table(run_of({"agent/kl": [0.5], "of/another_version": [2.0]}))
    assert rows[0][:3] == ("agent/kl", "0.5", "nats/token")
    assert rows[1] == ("of/another_version", "2", "", "")


def test_a_long_line_has_its_running_mean_and_a_long_stack_consists_of_means() -> None:
    found = charts(run_of({"agent/kl": [0.0, 1.0] * 100, "time/rollout_s": [1.0, 3.0] * 100}))
    kl, seconds = (chart["series"][0] for chart in found if chart["kind"] in ("line", "stack"))
    assert kl["values"] == [0.0, 1.0] * 100
    assert kl["mean"][100] == 0.44444, "four of nine rounds"
    assert kl["mean"][0] == 0.4, "two of five rounds: there is none before"
    assert seconds["values"][100] == 1.8889
    assert found[0]["note"] == "running means of 9 rounds"
    assert charts(run_of({"agent/kl": [0.5] * 150}))[0]["series"][0]["mean"] is None


def test_the_cap_of_an_update_is_drawn_with_its_kl() -> None:
    run = replace(run_of({"simulator/kl_step": [0.05]}), settings={"simulator.kl_cap": 0.1})
    assert (charts(run)[0]["limit"], charts(run)[0]["note"]) == (
        0.1,
        "cap of an update: 0.1 (simulator.kl_cap)",
    )


def test_the_map_of_success_rates_marks_the_rows_of_the_band_and_links_to_their_tasks() -> None:
    rates = {"tasks/solved": [0.25, 0.5], "tasks/unsolved": [0.25, 0.5], "tasks/mixed": [0.5, 0.0]}
    (found,) = heats(run_of(rates | {"tasks/p_hat/0-20": [0.5, 0.0], "tasks/p_hat/60-80": [0.0, None]}))
    rows = {row.label: row for row in found.rows}
    assert [label for label, row in rows.items() if row.marked] == ["60 to 80%", "40 to 60%", "20 to 40%"]
    assert rows["0 to 20%"].shares == [0.5, 0.0]
    assert rows["60 to 80%"].shares == [0.0, None]
    assert rows["all"].links[1] == "tasks?round=2&origin=new&low=1.0&high=1.0"
    assert rows["0 to 20%"].links[0] == "tasks?round=1&origin=new&low=0.0001&high=0.1999"
    assert found.cells(rows["all"]) == (
        '<td class="h5"><a href="tasks?round=1&amp;origin=new&amp;low=1.0&amp;high=1.0">25</a></td>'
        '<td class="h10"><a href="tasks?round=2&amp;origin=new&amp;low=1.0&amp;high=1.0">50</a></td>'
    )
    assert found.cells(rows["60 to 80%"]) == '<td class="h0">0</td><td></td>'
    (older,) = heats(run_of(rates))
    assert [row.label for row in older.rows] == ["all", "some", "none"]


def test_a_column_of_a_long_map_is_the_mean_of_its_rounds_and_links_to_them() -> None:
    (found,) = heats(run_of({"tasks/share/mail": [0.0, 1.0, 0.5] * 24}))
    assert found.columns[:2] == [(1, 2), (3, 4)]
    (row,) = found.rows
    assert row.shares[:3] == [0.5, 0.25, 0.75]
    assert row.links[0] == "?from=1&to=2"


def test_skills_are_shown_by_what_the_simulator_writes_and_by_what_the_agent_solves() -> None:
    found = heats(run_of({"tasks/share/a b": [0.5], "agent/skill/a b": [0.25]}))
    assert [(one.title, one.rows[0].label, one.rows[0].shares) for one in found] == [
        ("Skills of new tasks", "a b", [0.5]),
        ("The agent's success by skill", "a b", [0.25]),
    ]
    links = {heat.title: (heat.of_new, heat.rows[0].links) for heat in found}
    assert links["Skills of new tasks"] == (True, ["tasks?round=1&origin=new&skill=a+b"])
    assert links["The agent's success by skill"] == (False, ["tasks?round=1&skill=a+b"])


MOVING = {"curriculum.alpha": 0.3, "curriculum.alpha_last": 0.8, "run.rounds": 10}


def moving(p_hats: Sequence[float]) -> Run:
    """A run whose alpha moves from 0.3 to 0.8 over ten rounds."""
    return replace(run_of({"curriculum/p_hat_mean": p_hats}), settings=MOVING)


def test_a_target_band_that_moves_is_drawn_and_said_by_round() -> None:
    (chart,) = charts(moving([0.3 + 0.5 * place / 9 for place in range(10)]))
    assert chart["note"] == "shaded: the target band of p̂, 0.15 to 0.45 in round 1, 0.65 to 0.95 in round 10"
    band: Any = chart["band"]
    assert len(band) == 10
    assert [*band[0], *band[3], *band[9]] == pytest.approx([0.15, 0.45, 0.3167, 0.6167, 0.65, 0.95], abs=1e-4)
    fixed: Any = charts(run_of({"curriculum/p_hat_mean": [0.5]}))[0]
    assert (fixed["band"], fixed["note"]) == ([0.35, 0.65], "shaded: the target band of p̂, 0.35 to 0.65")


def test_p_hat_that_follows_a_moving_band_raises_no_alarm_and_one_that_stays_does() -> None:
    assert not alarms(moving([0.3 + 0.5 * place / 9 for place in range(10)]))
    assert alarms(moving([0.3] * 10)) == [
        "The mean p̂ has been outside of the target band 0.65 to 0.95 for 5 rounds or more; now it is 0.30."
    ]


def test_the_map_of_success_rates_marks_the_band_of_the_last_round() -> None:
    run = replace(run_of({"tasks/mixed": [1.0], "tasks/p_hat/60-80": [1.0]}), settings=MOVING)
    (found,) = heats(run)
    assert [row.label for row in found.rows if row.marked] == ["80 to 100%", "60 to 80%"]
    assert "▸ marks the rows in the target band of round 10 0.65 to 0.95." in found.note


SHIFTED = {
    "agent/eval_success": [0.8, 0.9, 0.3, 0.4],
    "agent/eval_at_shift": [None, None, 0.2, None],
    "agent/reward": [0.5, 0.5, 0.5, 0.5],
}
"""The environment changes before round 3."""


def test_a_shift_is_drawn_and_divides_held_out_success_into_two_lines() -> None:
    run = run_of(SHIFTED)
    chart = charts(run)[0]
    assert chart["series"] == [
        {"name": "success", "values": [0.8, 0.9, None, None], "mean": None},
        {"name": "success in the other environment", "values": [None, 0.2, 0.3, 0.4], "mean": None},
    ]
    assert chart["shift"] == 2
    assert chart["note"] == "from round 3 on in another environment (vertical line)"
    assert "0.2 first, 0.4 last" in spark(run)


def test_a_shift_is_no_fall_of_held_out_success() -> None:
    run = run_of(SHIFTED)
    assert "Held-out success" not in falls(run)
    assert evaluations_of(run, 2, 3) is None, "the tasks of round 2 are others"
    assert evaluations_of(run, 1, 4) == (3, 4)
    assert evaluations_of(run, 1, 2) == (1, 2)
    metrics = {"agent/eval_success": [0.9] * 4 + [0.3] * 4, "agent/reward": [0.2] * 4 + [0.8] * 4}
    assert alarms(run_of(metrics))
    assert not alarms(run_of(metrics | {"agent/eval_at_shift": [None] * 4 + [0.3] + [None] * 3}))
