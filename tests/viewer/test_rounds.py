"""Two rounds compared: parts that add up, pairs of tasks, and words on the page."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genenv.viewer import address
from genenv.viewer.rounds import (
    SPLITS,
    Compared,
    Played,
    change,
    evaluations_of,
    falls,
    kinds,
    measured,
    points,
)
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
    hard, easy = kinds(before, after, SPLITS["skill"])
    # 3/4 of 20/24 and 1/4 of 2/8 became 1/4 of 7/8 and 3/4 of 3/24; c is the mean of 22/32 and 10/32, 1/2
    assert (hard.name, hard.shares, hard.rates) == ("hard", (0.25, 0.75), (0.25, 0.125))
    assert hard.mix == pytest.approx(0.5 * ((0.25 + 0.125) / 2 - 0.5))
    assert hard.within == pytest.approx(0.5 * (0.125 - 0.25))
    assert easy.mix == pytest.approx(-0.5 * ((20 / 24 + 7 / 8) / 2 - 0.5))
    assert hard.total + easy.total == pytest.approx(10 / 32 - 22 / 32)
    found = Compared(numbers=(4, 5), before=before, after=after)
    assert found.words[0].startswith("Success fell by 37.5 points, from 68.8% to 31.2% (95% interval ")
    assert (
        "By skill: −33.3 points come from the mix of tasks (most: fewer of easy, 75% → 25% of the rollouts, "
        "85% solved), −4.2 from success within kinds (most at hard, 25% → 12% solved)."
    ) in found.words


_TASKS = st.lists(
    st.tuples(
        st.lists(st.sampled_from("abcd"), max_size=3, unique=True), st.integers(1, 8), st.integers(0, 8)
    ),
    min_size=1,
    max_size=12,
)


@given(_TASKS, _TASKS, st.sampled_from(list(SPLITS)))
def test_the_parts_of_a_change_add_up_to_it(one: Any, other: Any, by: str) -> None:
    sides = [
        [
            Played(id=str(n), origin="base", skills=skills, tried=tried, solved=min(tried, solved))
            for n, (skills, tried, solved) in enumerate(tasks)
        ]
        for tasks in (one, other)
    ]
    found = change(*sides)
    assert found is not None
    parts = kinds(*sides, SPLITS[by])
    assert sum(kind.total for kind in parts) == pytest.approx(found.value, abs=1e-9)
    for side in (0, 1):
        assert sum(kind.shares[side] for kind in parts) == pytest.approx(1)


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
    assert same == ["Held-out success stayed at 75.0%: 0 of 4 tasks lost, 0 won (95% interval 0.0 to 0.0)."]


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
    assert "Held-out success stayed at 100.0%: 0 of 1 task lost, 0 won (no interval)." in said
    assert 'rel="prev"' in page
    assert 'rel="next"' not in page
    assert "agent/eval_success" not in said.partition("What else changed")[2]
    assert "time/round_s" not in said
    assert "Round 5 against round 2" in text_of(
        reader.page(address("demo", "rounds", round=5, before=2, by="skill"))
    )
    assert "Round 5 against round 4" in text_of(reader.page(address("demo", "rounds")))


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
