"""What is known of a benchmark like TravelPlanner comes out: of one made by us, and of the authors' own."""

from __future__ import annotations

import ast
import csv
import io
import json
import random

import pytest

from genenv.benchmarks.travelplanner import TravelPlanner
from genenv.environments.travel.constraints import COMMONSENSE, HARD

BENCH = TravelPlanner()
SIX = (
    "delivery_rate",
    "commonsense_micro",
    "commonsense_macro",
    "hard_micro",
    "hard_macro",
    "final_pass_rate",
)
KINDS = (*COMMONSENSE, *HARD)
RECORDED = {"commonsense_met": 300, "commonsense_all": 17, "hard_met": 46, "hard_all": 19, "passed": 17}
"""What the official files at da7c1d4 give the 45 damaged plans, by `bench/parity_travelplanner.py`."""


def six(graded):
    named = {figure.name: figure.value for figure in BENCH.figures(graded) if not figure.group}
    return [named[name] for name in SIX]


def plans_in(data, split):
    rows = csv.DictReader(io.StringIO(data.read(f"travelplanner/{split}.csv"), newline=""))
    return [[day for day in ast.literal_eval(row["annotated_plan"])[1] if day] for row in rows]


def all_met(pairs, form):
    return six([(item, BENCH.grade(item, form(plan))) for item, plan in pairs]) == [1.0] * 6


def broken_by(edits, pairs, kind):
    """How many edits of a kind there are; each breaks its constraint and no other.

    Where a plan is not complete, or not within the sandbox, the hard constraints are not looked at.
    """
    rng, made = random.Random(kind), 0
    for item, plan in pairs:
        for edited in edits.EDITS[kind](edits.Base(item.data.query, plan, item.data.database), rng):
            measures = BENCH.grade(item, edited).measures
            fallen = {name for name, value in measures.items() if value == 0 and "_met" not in name} - {
                "passed"
            }
            unseen = set(HARD) if kind in ("within_sandbox", "complete_information") else set()
            assert fallen - unseen == {kind}, item.id
            made += 1
    return made


def test_the_denominators_are_eight_a_plan_and_what_each_query_asks_for(made_pairs):
    none = [BENCH.unanswered(item, "").measures for item, _ in made_pairs["train"]]
    wishes = 3 * 1 + 3 * 3  # three queries with one, three with three, and a budget for each of the nine
    assert sum(measures["commonsense_asked"] for measures in none) == 8 * 9
    assert sum(measures["hard_asked"] for measures in none) == 9 + wishes
    assert len({item.id for item, _ in made_pairs["train"]}) == 9


@pytest.mark.parametrize("form", [lambda plan: plan, json.dumps, str])
def test_plans_that_meet_everything_do_so_in_each_form(made_pairs, form):
    assert all_met(made_pairs["train"], form)
    assert all_met(made_pairs["validation"], form)


def test_the_plans_of_a_split_are_read_from_its_file(made, made_data):
    assert plans_in(made_data, "train") == [known.plan for known in made.made("train")]


@pytest.mark.parametrize("kind", KINDS)
def test_an_edit_breaks_its_constraint_and_no_other(edits, made_pairs, kind):
    assert broken_by(edits, [*made_pairs["train"], *made_pairs["validation"]], kind) > 0


def test_damaged_plans_get_what_the_authors_evaluator_gave_them(made, made_pairs):
    grades = [BENCH.grade(item, plan).measures for item, plan in made.damaged_plans(made_pairs["train"])]
    counts = {
        "commonsense_met": sum(grade["commonsense_met"] for grade in grades),
        "commonsense_all": sum(grade["commonsense_met"] == 8 for grade in grades),
        "hard_met": sum(grade["hard_met"] for grade in grades),
        "hard_all": sum(grade["hard_met"] == grade["hard_asked"] for grade in grades),
        "passed": sum(grade["passed"] for grade in grades),
    }
    assert counts == RECORDED


# --- the authors' own data ---


def test_the_authors_own_plans_and_edits_of_them_come_out(data_folder, edits):
    pairs = list(zip(BENCH.load(data_folder, "train"), plans_in(data_folder, "train"), strict=True))
    none = [BENCH.unanswered(item, "").measures for item, _ in pairs]
    assert sum(measures["commonsense_asked"] for measures in none) == 360
    assert sum(measures["hard_asked"] for measures in none) == 105
    for form in (lambda plan: plan, json.dumps, str):
        assert all_met(pairs, form)
    for kind in KINDS:
        assert broken_by(edits, pairs, kind) > 0


def test_the_authors_example_submission_gets_what_their_evaluator_gives_it(data_folder):
    """On the flights that there are, by their files at da7c1d4: `bench/parity_travelplanner.py`."""
    validation = BENCH.load(data_folder, "validation")
    none = [BENCH.unanswered(item, "").measures for item in validation]
    assert sum(measures["commonsense_asked"] for measures in none) == 1440
    assert sum(measures["hard_asked"] for measures in none) == 420
    assert len({item.id for item in validation}) == 180
    lines = [value for _, value in data_folder.json_lines("travelplanner/example_evaluation.jsonl")]
    graded = [(item, BENCH.grade(item, line)) for item, line in zip(validation, lines, strict=True)]
    expected = [161 / 180, 853 / 1440, 3 / 180, 46 / 420, 13 / 180, 1 / 180]
    assert six(graded) == pytest.approx(expected)
