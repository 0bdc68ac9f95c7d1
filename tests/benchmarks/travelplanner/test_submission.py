"""The lines that the authors' evaluator and leaderboard read."""

from __future__ import annotations

import hashlib
import json

import pytest

from genenv.benchmarks.travelplanner import TravelPlanner
from genenv.benchmarks.travelplanner.benchmark import AUTHORS_FILE, TravelPlannerSettings, prompt
from genenv.errors import DataError
from genenv.evaluation.data import DataFolder, known_hashes
from genenv.evaluation.results import Record


def record(item, answer):
    return Record(
        id=item.id, groups=item.groups, status="done", score=0, measures={}, explanation="", answer=answer
    )


def test_a_submission_has_a_line_for_each_query_of_the_split(items, good):
    bench = TravelPlanner()
    easy, hard = items
    text = bench.export([(hard, record(hard, json.dumps(good)))], "a-model")["submission.jsonl"]
    first, second = map(json.loads, text.splitlines())
    assert first == {"idx": 1, "query": easy.data.text, "plan": None}
    assert (second["idx"], second["query"], second["plan"]) == (2, hard.data.text, good)


@pytest.mark.parametrize("answer", [None, "", "I cannot.", "\ud800", 3])
def test_what_is_no_plan_is_null(items, answer):
    text = TravelPlanner().export([(items[0], record(items[0], answer))], "p")["submission.jsonl"]
    assert [json.loads(line)["plan"] for line in text.splitlines()] == [None, None]
    assert TravelPlanner().export([], "p") == {"submission.jsonl": ""}


def test_the_exported_plan_is_the_one_that_was_graded(made_pairs):
    bench = TravelPlanner()
    answered = [
        (item, record(item, f"```json\n{json.dumps(plan)}\n```")) for item, plan in made_pairs["train"]
    ]
    lines = bench.export(answered, "p")["submission.jsonl"].splitlines()
    for (item, one), line in zip(answered, lines, strict=True):
        assert bench.grade(item, json.loads(line)) == bench.grade(item, one.answer)


# --- the authors' prompt ---

THEIRS = """raise SystemExit("nothing of this is run")
PLANNER_INSTRUCTION = \"\"\"Plan.
Given information: {text}
Query: {query} {{braces}}
Travel Plan:\"\"\"
COT_PLANNER_INSTRUCTION = "{text}{query} step by step"
"""


def asked(folder, source, **config):
    (folder / AUTHORS_FILE).write_text(source, encoding="utf-8")
    bench = TravelPlanner(TravelPlannerSettings(prompt="authors", **config))
    return bench, bench.load(DataFolder(folder, known={}), "validation")[0]


def test_the_authors_prompt_is_read_from_their_file_and_not_run(folder):
    bench, item = asked(folder, THEIRS)
    question = item.data
    assert prompt(question, bench.settings) == (
        f"Plan.\nGiven information: {question.information}\nQuery: {question.text} {{braces}}\nTravel Plan:"
    )
    assert bench.describe()["prompt"] == "the authors', PLANNER_INSTRUCTION of agents/prompts.py"
    bench, item = asked(folder, THEIRS, strategy="cot")
    assert prompt(item.data, bench.settings).endswith(f"{item.data.text} step by step")


def test_our_prompt_is_named_with_its_version(items):
    bench = TravelPlanner(TravelPlannerSettings(strategy="cot", form="text"))
    assert bench.describe()["prompt"] == "genenv's, version 1, cot, text"
    assert "experienced travel planner" in prompt(items[0].data, bench.settings)


@pytest.mark.parametrize(
    ("source", "sentence"),
    [
        ("PLANNER_INSTRUCTION = (", "it is not Python"),
        ("OTHER = 'x'", "PLANNER_INSTRUCTION"),
        ("PLANNER_INSTRUCTION = '{text} {query.__class__}'", "other blanks than"),
        ("PLANNER_INSTRUCTION = '{text} {query'", r"prompts\.py, PLANNER_INSTRUCTION: "),
    ],
)
def test_a_file_without_their_prompt_is_one_sentence(folder, source, sentence):
    with pytest.raises(DataError, match=sentence) as caught:
        asked(folder, source)
    assert "\n" not in str(caught.value)


def test_a_changed_prompt_is_refused(folder):
    known = known_hashes()[AUTHORS_FILE]
    assert known != hashlib.sha256(THEIRS.encode()).hexdigest()
    (folder / AUTHORS_FILE).write_text(THEIRS, encoding="utf-8")
    bench = TravelPlanner(TravelPlannerSettings(prompt="authors"))
    with pytest.raises(DataError, match=r"prompts\.py is not the file"):
        bench.load(DataFolder(folder, known={AUTHORS_FILE: known}), "validation")


def test_a_missing_prompt_is_a_sentence(folder):
    bench = TravelPlanner(TravelPlannerSettings(prompt="authors"))
    with pytest.raises(DataError, match=r"prompts\.py is missing"):
        bench.load(DataFolder(folder, known={}), "validation")


def test_the_test_split_has_no_answers_and_is_exported_whole(folder, good):
    path = folder / "travelplanner" / "test.csv"
    text = "query,reference_information,level,days\n" + "".join(f"Trip {n},Pier,easy,3\n" for n in (1, 2, 3))
    path.write_text(text, encoding="utf-8")
    bench = TravelPlanner()
    items = bench.load(DataFolder(folder, known={}), "test")
    assert [item.id for item in items] == ["test-001", "test-002", "test-003"]
    assert items[0].groups == {"level": "easy", "days": "3"}
    assert "Trip 1" in prompt(items[0].data, bench.settings)
    grades = [bench.grade(items[0], str(list(good))), bench.unanswered(items[1], "too long")]
    assert grades[0].explanation == "There is a plan of 3 days; the authors' leaderboard grades it."
    figures = bench.figures(list(zip(items, grades, strict=False)))
    assert [(figure.name, figure.group, figure.value) for figure in figures] == [
        ("delivery_rate", "", 0.5),
        ("delivery_rate", "level=easy", 0.5),
        ("delivery_rate", "days=3", 0.5),
    ]
    answered = [(items[0], record(items[0], str(list(good)))), (items[2], record(items[2], "no plan"))]
    lines = [json.loads(line) for line in bench.export(answered, "p")["submission.jsonl"].splitlines()]
    assert [line["idx"] for line in lines] == [1, 2, 3]
    assert [line["query"] for line in lines] == ["Trip 1", "Trip 2", "Trip 3"]
    assert [line["plan"] and len(line["plan"]) for line in lines] == [3, None, None]


def test_a_test_query_without_its_information_is_one_sentence(folder):
    (folder / "travelplanner" / "test.csv").write_text("query,level\nTrip 1,easy\n", encoding="utf-8")
    with pytest.raises(DataError, match=r"test\.csv, line 2: it is not as expected .*reference_information"):
        TravelPlanner().load(DataFolder(folder, known={}), "test")
