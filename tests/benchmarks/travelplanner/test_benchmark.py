"""TravelPlanner asked and graded: the prompt, the numbers of a plan, the figures over all plans."""

from __future__ import annotations

import asyncio
import json
import math
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from genenv.benchmarks.travelplanner import TravelPlanner
from genenv.benchmarks.travelplanner.benchmark import TravelPlannerSettings, prompt
from genenv.benchmarks.travelplanner.replies import plan_of
from genenv.chat.assistant import Reply
from genenv.environments.travel.query import FIELDS
from genenv.errors import ContextOverflow
from genenv.evaluation.base import Benchmark
from recited import Recited

BENCH: Benchmark = TravelPlanner()
ALL = [TravelPlannerSettings(strategy=s, form=f) for s in ("direct", "cot") for f in ("json", "text")]


@pytest.mark.parametrize("config", ALL)
def test_the_prompt_gives_the_information_the_query_and_an_example_that_can_be_read(items, config):
    text = prompt(items[0].data, config)
    question = items[0].data
    assert f"Given information: {question.information}\nQuery: {question.text}\n" in text
    example = plan_of(question, text.split("***** Example *****")[1].split("***** Example Ends *****")[0])
    assert [entry["current_city"] for entry in example] == [
        "from Alderbrook to Quillport",
        "Quillport",
        "from Quillport to Alderbrook",
    ]
    assert ("JSON" in text) == (config.form == "json")
    assert ("step by step" in text) == (config.strategy == "cot")


def test_an_attempt_asks_once_and_keeps_the_reply_even_if_it_was_cut_off(items, good):
    talk = Recited(Reply(text=json.dumps(good), finished=False))
    answer = asyncio.run(BENCH.attempt(items[0], talk))
    assert answer == json.dumps(good)
    assert [[message["role"] for message in messages] for messages in talk.heard] == [["user"]]
    assert talk.offered == [[]]
    assert talk.max_tokens == [None]  # the run's settings say, by default from the benchmark
    assert BENCH.max_tokens == 2048
    assert TravelPlanner(TravelPlannerSettings(strategy="cot")).max_tokens == 4096


def test_a_window_that_is_too_small_is_for_the_runner(items):
    with pytest.raises(ContextOverflow):
        asyncio.run(BENCH.attempt(items[0], Recited(ContextOverflow("too long"))))


def test_a_plan_that_meets_everything_passes_as_submission_and_as_reply(items, good):
    for answer in (good, json.dumps(good), {"idx": 1, "plan": good}):
        grade = BENCH.grade(items[0], answer)
        assert grade.score == 1
        assert grade.explanation == "The plan meets every constraint."
        assert grade.measures == {
            **{"delivered": 1, "commonsense_met": 8, "commonsense_asked": 8, "hard_met": 1, "hard_asked": 1},
            **dict.fromkeys(
                [
                    *("within_sandbox", "complete_information", "within_current_city", "reasonable_route"),
                    *("diverse_restaurants", "diverse_attractions", "non_conflicting_transportation"),
                    *("minimum_nights", "budget", "passed"),
                ],
                1.0,
            ),
        }


def test_the_score_is_the_mean_of_four_rates(items, good):
    good[1]["attraction"] = "Pier, Bay;Pier, Bay;"
    grade = BENCH.grade(items[1], good)  # French is had, Indian is not; budget and smoking are fine
    assert grade.score == pytest.approx((7 / 8 + 0 + 2 / 3 + 0) / 4)
    assert grade.measures["diverse_attractions"] == grade.measures["cuisine"] == grade.measures["passed"] == 0
    assert "room_type" not in grade.measures
    assert "Pier, Bay" in grade.explanation


def test_hard_constraints_are_not_met_where_they_are_not_looked_at(items, good):
    good[1]["lunch"] = "Nowhere, Bay"
    grade = BENCH.grade(items[1], good)
    assert grade.measures["within_sandbox"] == 0
    assert [grade.measures[name] for name in ("budget", "room_rule", "cuisine")] == [0, 0, 0]
    assert (grade.measures["commonsense_met"], grade.measures["hard_met"]) == (7, 0)


@pytest.mark.parametrize("answer", ["", "Sorry.", None, [], {}, 7, {"plan": []}])
def test_no_plan_is_not_delivered_and_counts_in_every_denominator(items, answer):
    grade = BENCH.grade(items[1], answer)
    assert (grade.score, grade.explanation) == (0, "The reply holds no plan.")
    assert grade.measures == BENCH.unanswered(items[1], "The window is too small.").measures
    assert (grade.measures["commonsense_asked"], grade.measures["hard_asked"]) == (8, 3)
    assert grade.measures["delivered"] == grade.measures["commonsense_met"] == 0


def test_figures_are_the_six_numbers_worked_out_by_hand(items, good):
    wrong = [dict(entry) for entry in good]
    wrong[1]["attraction"] = "Pier, Bay;Pier, Bay;"
    easy, hard = items
    graded = [
        (easy, BENCH.grade(easy, good)),  # 8 of 8, 1 of 1
        (hard, BENCH.grade(hard, wrong)),  # 7 of 8, 2 of 3
        (easy, BENCH.grade(easy, "none")),  # 0 of 8, 0 of 1
    ]
    figures = BENCH.figures(graded)
    whole = {figure.name: figure.value for figure in figures if not figure.group}
    assert figures[0].name == "average"
    assert whole["delivery_rate"] == pytest.approx(2 / 3)
    assert whole["commonsense_micro"] == pytest.approx(15 / 24)
    assert whole["commonsense_macro"] == pytest.approx(1 / 3)
    assert whole["hard_micro"] == pytest.approx(3 / 5)
    assert whole["hard_macro"] == pytest.approx(1 / 3)
    assert whole["final_pass_rate"] == pytest.approx(1 / 3)
    assert whole["average"] == pytest.approx((15 / 24 + 1 / 3 + 3 / 5 + 1 / 3) / 4)
    assert whole["cuisine"] == 0
    by = {(figure.name, figure.group): figure for figure in figures}
    assert by["hard_micro", "level=hard"].value == pytest.approx(2 / 3)
    assert by["average", "days=3"].value == pytest.approx(whole["average"])
    assert by["budget", "level=easy"].items == 2
    assert len(by) == len(figures)
    assert all(figure.low <= figure.value <= figure.high for figure in figures if figure.items)


def test_no_grades_have_figures_that_are_no_numbers():
    assert all(math.isnan(figure.value) for figure in BENCH.figures([]))


def test_what_decides_the_numbers_is_told():
    about = BENCH.describe()
    assert about["mode"] == "sole-planning"
    assert json.loads(json.dumps(about)) == about


# --- hostile answers ---

TEXT = st.text(st.characters(exclude_categories=[]), max_size=40)
PIECES = st.sampled_from(
    [
        "from ",
        " to ",
        "Bay",
        "Home",
        ", ",
        ";",
        "-",
        "Flight Number: ",
        "F1",
        "Taxi",
        "(",
        ")",
        "\n",
        "\x00",
        "\ud800",
    ]
)
ENTRY = st.lists(PIECES, max_size=8).map("".join)
VALUE = st.one_of(
    ENTRY, TEXT, st.none(), st.booleans(), st.integers(), st.floats(), st.lists(TEXT), st.just({"a": [1]})
)
DAY = st.dictionaries(st.sampled_from(["days", "day", "current_city", *FIELDS]), VALUE)
JSON = st.recursive(VALUE, lambda inner: st.lists(inner) | st.dictionaries(TEXT, inner), max_leaves=8)
ANSWER = st.one_of(JSON, st.lists(st.one_of(DAY, JSON), max_size=4), st.lists(DAY).map(json.dumps), TEXT)


@pytest.mark.long
@settings(max_examples=300, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(answer=ANSWER)
def test_grading_never_raises(items, answer):
    for item in items:
        grade = BENCH.grade(item, answer)
        assert 0 <= grade.score <= 1
        assert grade.explanation.isprintable()
        assert grade.explanation.encode()
        assert set(BENCH.unanswered(item, "").measures) == set(grade.measures)


def nested(depth: int) -> Any:
    value: Any = []
    for _ in range(depth):
        value = [value]
    return value


@pytest.mark.long
def test_large_and_deep_answers_are_graded(items, good):
    long = "from a to b, " * 80_000
    deep = nested(100_000)
    for answer in (
        long,
        [dict.fromkeys(["current_city", *FIELDS], long)] * 3,
        [dict.fromkeys(["current_city", *FIELDS], "b" * 1_000_000)] * 3,
        [{**good[0], "dinner": deep}, *good[1:]],
        deep,
        {"plan": deep},
        [good[0]] * 100_000,
    ):
        assert BENCH.grade(items[0], answer).score < 1
