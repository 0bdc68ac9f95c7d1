"""Two rounds compared: parts that add up, pairs of tasks, and words on the page."""

from __future__ import annotations

import json
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genenv.viewer import address
from genenv.viewer.kinds import Played, groupings, kinds, predicted, summed
from genenv.viewer.rounds import Change, Compared, change, evaluations_of, falls, measured, points
from viewer_runs import HOSTILE, Tags, run_of, text_of, write_run


def played(*rows: tuple[str, str, int, int], origin: str = "new") -> list[Played]:
    """Tasks as (id, skills with spaces between, rollouts, solved)."""
    return [
        Played(id=id_, origin=origin, skills=skills.split(), tried=tried, solved=solved)
        for id_, skills, tried, solved in rows
    ]


def test_a_fall_is_split_into_the_mix_of_tasks_and_the_success_within_kinds() -> None:
    before = played(("a", "easy", 8, 8), ("b", "easy", 8, 6), ("c", "hard", 8, 2), ("d", "easy", 8, 6))
    after = played(("e", "easy", 8, 7), ("f", "hard", 8, 1), ("g", "hard", 8, 1), ("h", "hard", 8, 1))
    hard, easy = kinds(before, after, groupings(before, after)["skill"].split)
    # 3/4 of 20/24 and 1/4 of 2/8 became 1/4 of 7/8 and 3/4 of 3/24; c is the mean of 22/32 and 10/32, 1/2
    assert (hard.name, hard.shares, hard.rates) == ("hard", (0.25, 0.75), (0.25, 0.125))
    assert hard.mix == pytest.approx(0.5 * ((0.25 + 0.125) / 2 - 0.5))
    assert hard.within == pytest.approx(0.5 * (0.125 - 0.25))
    assert easy.mix == pytest.approx(-0.5 * ((20 / 24 + 7 / 8) / 2 - 0.5))
    assert hard.total + easy.total == pytest.approx(10 / 32 - 22 / 32)
    found = Compared(numbers=(4, 5), before=before, after=after, by="skill")
    assert found.words[0].startswith("Success fell by 37.5 points, from 68.8% to 31.2% (95% interval ")
    assert (
        "By skill: −33.3 points come from the mix of tasks (most: fewer of easy, 75% → 25% of the rollouts, "
        "85% solved), −4.2 from success within kinds (most at hard, 25% → 12% solved)."
    ) in found.words


_TASKS = st.lists(
    st.tuples(
        st.lists(st.sampled_from(["a", "b", "of:1", "of:2", "at:3"]), max_size=3, unique=True),
        st.integers(1, 8),
        st.integers(0, 8),
    ),
    min_size=1,
    max_size=12,
)


@given(_TASKS, _TASKS)
def test_the_parts_of_a_change_add_up_to_it_in_any_grouping(one: Any, other: Any) -> None:
    sides = [
        [
            Played(id=str(n), origin="base", skills=skills, tried=tried, solved=min(tried, solved))
            for n, (skills, tried, solved) in enumerate(tasks)
        ]
        for tasks in (one, other)
    ]
    found = change(*sides)
    assert found is not None
    for grouping in groupings(*sides).values():
        parts = kinds(sides[0], sides[1], grouping.split)
        assert 0 <= grouping.predicted <= 1
        for rows in (parts, summed(parts, (1, 2)), [*parts[:2], *summed(parts[2:], (1, 2))]):
            assert sum(kind.total for kind in rows) == pytest.approx(found.value, abs=1e-9)
            for side in (0, 1):
                assert sum(kind.shares[side] for kind in rows) == pytest.approx(1)


def test_tasks_are_grouped_by_what_predicts_success_and_a_skill_of_all_is_no_kind() -> None:
    # the length alone decides; the letters are spread evenly over it, and all tasks have `whole`
    before = played(
        *((f"a{n}", f"whole {'xy'[n % 2]} length:{3 + (n > 5)}", 8, 8 * (n <= 5)) for n in range(8))
    )
    after = played(
        *((f"b{n}", f"whole {'xy'[n % 2]} length:{3 + (n > 1)}", 8, 8 * (n <= 1)) for n in range(8))
    )
    found = Compared(numbers=(1, 2), before=before, after=after)
    assert found.grouping.name == "length"
    assert found.grouping.predicted == pytest.approx(1, abs=0.01)
    assert {kind.name for kind in found.kinds} == {"length:3", "length:4"}
    by_skill = kinds(before, after, found.groupings["skill"].split)
    assert "whole" not in {kind.name for kind in by_skill}
    words = found.words
    assert words[1].startswith("By length: −50.0 points come from the mix of tasks")
    assert words[1].endswith(", 0.0 from success within kinds.")
    assert words[2].startswith(
        "Tasks are grouped by length. It predicts 100% of the differences in success between tasks of a "
        "round, more than the other groupings (combination of skills "
    )
    assert words[3] == "All tasks need whole, so it tells none apart and is left out."
    chosen = Compared(numbers=(1, 2), before=before, after=after, by="skill").words
    assert "length predicts most, 100%" in chosen[2]
    assert "counts for each with an equal part" in chosen[4]


def test_a_task_does_not_predict_itself() -> None:
    one = played(("a", "x", 4, 4), ("b", "y", 4, 0))
    by_id = lambda task: [task.id]  # noqa: E731 - each task is a kind
    assert predicted(one, one, by_id) == 0
    same = played(("a", "x", 4, 2), ("b", "y", 4, 2))
    words = Compared(numbers=(1, 2), before=same, after=same).words
    assert "No grouping predicts which tasks are solved" in words[2]


def test_kinds_of_one_round_alone_are_named_together() -> None:
    before = played(*((f"a{n}", f"k{n}", 8, 8) for n in range(3)), ("s", "both", 8, 4))
    after = played(*((f"b{n}", f"n{n}", 8, 0) for n in range(3)), ("s", "both", 8, 4))
    found = Compared(numbers=(1, 2), before=before, after=after, by="skills")
    assert (
        "−75.0 points come from the mix of tasks (−75.0 from kinds that only one round has: "
        "75% of round 1, 100% solved; 75% of round 2, 0% solved)"
    ) in found.words[1]
    assert [(row.name, row.rates) for row in summed(found.kinds, (1, 2))] == [
        ("3 more kinds of round 1 alone", (1.0, None)),
        ("3 more kinds of round 2 alone", (None, 0.0)),
        ("1 more kind of both rounds", (0.5, 0.5)),
    ]


def test_the_interval_takes_tasks_as_clusters() -> None:
    # p = 1/2 in both; squares (8 - 4)^2 and (0 - 4)^2; 32 * 2/1 / 16^2 = 1/4 for a side, so 1/2 for both
    side = played(("a", "x", 8, 8), ("b", "x", 8, 0))
    found = change(side, side)
    assert found is not None
    assert found.error == pytest.approx(1.96 * 0.5**0.5)
    assert found.is_chance
    assert change(side, []) is None
    assert change(side[:1], side).interval == "no interval"  # pyright: ignore[reportOptionalMemberAccess]


def test_tasks_of_both_rounds_are_paired_and_those_that_fell_most_come_first() -> None:
    before = played(("a", "x", 4, 4), ("b", "x", 4, 1), ("c", "x", 4, 2), ("d", "x", 4, 2))
    after = played(("d", "x", 4, 2), ("c", "x", 2, 0), ("b", "x", 4, 3), ("a", "x", 4, 1), ("e", "x", 4, 0))
    found = Compared(numbers=(1, 2), before=before, after=after)
    assert [(one.id, one.fall) for one in found.both] == [("a", 0.75), ("c", 0.5), ("d", 0.0), ("b", -0.5)]
    assert [one.id for one in found.lost] == ["a", "c"]
    assert [one.id for one in found.won] == ["b"]
    assert found.paired is not None
    assert found.paired.value == pytest.approx(-0.1875)
    assert found.hardest[0].id == "e"


def test_held_out_tasks_that_were_lost_and_won_are_counted_and_placed() -> None:
    before = played(("a", "x", 1, 1), ("b", "x", 1, 1), ("c", "y", 1, 0), ("d", "y", 1, 1), origin="held_out")
    after = played(("a", "x", 1, 0), ("b", "x", 1, 0), ("c", "y", 1, 1), ("d", "y", 1, 1), origin="held_out")
    words = Compared(numbers=(2, 4), before=before, after=after).held_out_words
    assert words[0].startswith(
        "Held-out success fell by 25.0 points, from 75.0% to 50.0%: 2 of 4 tasks lost, 1 won"
    )
    assert words[1:] == ["Most was lost at x, 100% → 0% solved; most was won at y, 50% → 100% solved."]
    assert Compared(numbers=(2, 4), before=[], after=[]).held_out_words == []
    same = Compared(numbers=(2, 4), before=before, after=before).held_out_words
    assert same[:1] == [
        "Held-out success is 75.0% in both: 0 of 4 tasks lost, 0 won (95% interval 0.0 to 0.0)."
    ]


def test_a_metric_that_changes_more_than_usual_is_marked() -> None:
    run = run_of({"agent/kl": [0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 1.0], "agent/truncated_rate": [0.1] * 7})
    rows = measured(run, 6, 7)
    (kl,) = rows["The agent's update"]
    (cut_off,) = rows["Rollouts"]
    assert (kl.times, kl.is_unusual, kl.cells) == (pytest.approx(5), True, ("0.5", "1", "+0.5"))
    assert (cut_off.times, cut_off.cells) == (0.0, ("10.0%", "10.0%", "0.0 points"))
    assert not measured(run_of({"agent/kl": [0.0, 9.0]}), 1, 2)["The agent's update"][0].times


def test_the_largest_falls_of_a_curve_are_named() -> None:
    run = run_of(
        {
            "agent/success_rate": [0.5, 0.38, 0.6, 0.3, 0.299, 0.2, 0.1],
            "agent/eval_success": [0.5, None, 0.4] + [None] * 4,
        }
    )
    assert [(one.before, one.number) for one in falls(run)["Success in training"]] == [(3, 4), (1, 2), (6, 7)]
    assert [(one.before, one.number) for one in falls(run)["Held-out success"]] == [(1, 3)]
    assert falls(run_of({"agent/success_rate": [0.1, 0.2]})) == {}


@pytest.mark.parametrize(
    ("before", "number", "found"),
    [(3, 4, (1, 4)), (4, 5, (1, 4)), (1, 7, (1, 7)), (1, 3, None), (5, 6, (1, 4))],
)
def test_evaluations_are_the_last_ones_up_to_the_rounds(before: int, number: int, found: Any) -> None:
    run = run_of({"agent/eval_success": [0.1, None, None, 0.2, None, None, 0.3]})
    assert evaluations_of(run, before, number) == found


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (0.524, 0.5242, "is 52.4% in both"),
        (0.2484, 0.2456, "hardly changed, by −0.3 points from 24.8% to 24.6%"),
    ],
)
def test_a_small_change_is_said_as_the_table_shows_it(before: float, after: float, said: str) -> None:
    tasks = [played(("a", "x", 10_000, round(10_000 * rate))) for rate in (before, after)]
    assert (
        Compared(numbers=(1, 2), before=tasks[0], after=tasks[1]).words[0] == f"Success {said} (no interval)."
    )


def test_an_interval_that_hardly_excludes_0_has_more_digits() -> None:
    found = Change(before=0.2, after=0.34, error=0.1397)
    assert found.interval == "95% interval +0.03 to +27.97"


def test_points_have_a_sign_and_no_negative_zero() -> None:
    assert [points(value) for value in (0.1234, -0.05, 0.0, -0.0001)] == ["+12.3", "−5.0", "0.0", "0.0"]


def test_the_page_compares_two_rounds_and_two_evaluations(tmp_path: Path, serve: Any) -> None:
    write_run(tmp_path / "demo", rounds=6)
    reader = serve(tmp_path)
    page = reader.page(address("demo", "rounds", round=5))
    said = text_of(page)
    # round 4 has one new task with 3 of 4 rollouts solved, round 5 one with none
    assert "Round 5 against round 4" in said
    assert "Success fell by 100.0 points, from 100.0% to 0.0% (no interval)." in said
    assert "task-5 plain" in said
    assert "The evaluation after round 5 against that after round 4." in said
    assert "Held-out success is 100.0% in both: 0 of 1 task lost, 0 won (no interval)." in said
    assert 'rel="prev"' in page
    assert 'rel="next"' not in page
    assert "agent/eval_success" not in said.partition("What else changed")[2]
    assert "time/round_s" not in said
    assert "Round 5 against round 2" in text_of(
        reader.page(address("demo", "rounds", round=5, before=2, by="skill"))
    )
    assert "Round 5 against round 4" in text_of(reader.page(address("demo", "rounds")))
    of_kind = text_of(reader.page(address("demo", "rounds", round=5, by="origin", kind="new tasks")))
    assert "Tasks of the kind “new tasks” Round 4 task-4 plain" in of_kind


def test_held_out_tasks_that_were_lost_show_what_the_agent_answered(tmp_path: Path, serve: Any) -> None:
    folder = write_run(tmp_path / "demo", rounds=4)
    with closing(sqlite3.connect(folder.pool)) as db:
        db.execute("""UPDATE evaluations SET success = 0, replies = '["first","five"]' WHERE round = 3""")
        db.commit()
    reader = serve(tmp_path)
    said = text_of(reader.page(address("demo", "rounds", round=3)))
    assert "task asks answer, round 2 answer, round 3 held-0 2 + 2? plain plain five" in said
    held_out = text_of(reader.page(address("demo", "task", id="held-0")))
    assert "None in training: it is a held-out task" in held_out
    assert "has not been rolled out" not in held_out
    assert "The gate refused 1 more" in text_of(reader.page(address("demo", "task", id="task-2 plain")))
    linked = reader.page(address("demo", "sql", sql="SELECT DISTINCT task_id FROM traces"))
    assert f'<td><a href="{address("demo", "task", id="task-1 plain")}">task-1 plain</a></td>' in linked


def test_two_rounds_are_the_same_with_and_without_the_side_file(
    tmp_path: Path, serve: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_run(tmp_path / "demo", rounds=6)
    reader = serve(tmp_path)
    found = reader.page(address("demo", "rounds", round=5))
    assert not list(tmp_path.rglob("cache/**/*.db")), "a small round is read from the store"
    monkeypatch.setattr("genenv.viewer.rounds._FEW", 3)
    assert reader.page(address("demo", "rounds", round=5)) == found
    assert list(tmp_path.rglob("cache/**/*.db"))


def test_a_round_without_one_before_it_and_wrong_rounds_get_a_sentence(tmp_path: Path, serve: Any) -> None:
    write_run(tmp_path / "demo", rounds=3)
    reader = serve(tmp_path)
    assert "nothing to compare" in text_of(reader.page(address("demo", "rounds", round=0)))
    assert "the run has no round 9" in text_of(reader.page(address("demo", "rounds", round=9), 404))
    for before in (2, 7, -1):
        page = reader.page(address("demo", "rounds", round=2, before=before), 400)
        assert f"round {before} is no round before 2" in text_of(page)
    assert "give a number" in text_of(reader.page(address("demo", "rounds", round="x"), 400))


def test_hostile_texts_of_two_rounds_stay_text(tmp_path: Path, serve: Any) -> None:
    folder = write_run(tmp_path / "demo", rounds=4, text=HOSTILE)
    lines = [json.loads(line) for line in folder.metrics.read_text(encoding="utf-8").splitlines()]
    rates = (0.0, 0.5, 0.6, 0.2)
    folder.metrics.write_text(
        "".join(
            f"{json.dumps(line | {'agent/success_rate': rate})}\n"
            for line, rate in zip(lines, rates, strict=True)
        ),
        encoding="utf-8",
    )
    reader = serve(tmp_path)
    tags = Tags(reader.page(address("demo", "rounds", round=3)))
    assert not [tag for tag, given in tags.tags if tag == "script" and "src" not in given]
    assert not [tag for tag, _ in tags.tags if tag == "img"]
    run = reader.page(address("demo"))
    assert "Success in training fell most in" in run
    assert "rounds?round=3&amp;before=2" in run
