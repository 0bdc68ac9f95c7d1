"""Stored answers are graded again by the code of now, without any model, and what was before is kept."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from genenv.cli.app import app
from genenv.errors import ContextOverflow, DataError, RolloutError, UsageError
from genenv.evaluation import evaluate as evaluation
from genenv.evaluation.base import Grade
from genenv.evaluation.config import load_evaluation_config
from genenv.evaluation.evaluate import Request, evaluate, regrade
from genenv.evaluation.results import Outcome
from genenv.progress import Silent


def answers(question: str) -> Any:
    """Right, but for one that is wrong, one that is cut off, one that fails and one too long."""
    said = {
        "1 + 1": "3",
        "2 + 2": "4, I think",
        "3 + 3": RolloutError("down"),
        "4 + 4": ContextOverflow("long"),
    }
    return said.get(question, str(sum(int(part) for part in question.split("+"))))


@pytest.fixture
def measured(
    sums: Any, sums_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scripted: Any
) -> Any:
    """Twelve sums with stored answers in `r.jsonl`; calling it measures once more."""
    monkeypatch.setattr("genenv.evaluation.evaluate.benchmark_class", lambda _: sums)

    def measure(answer: Any = answers, **changes: Any) -> Outcome:
        monkeypatch.setattr(evaluation, "assistant", lambda *_: scripted(answer))
        fields = {"names": ["sums"], "policy": "p", "data": sums_data, "out": tmp_path / "r.jsonl", **changes}
        return next(evaluate(Request(**fields), load_evaluation_config([]), Silent()))

    measure()
    monkeypatch.setattr(evaluation, "assistant", lambda *_: pytest.fail("a model was asked"))
    return measure


@pytest.fixture
def laxer(measured: Any, sums: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The rule of now: what follows a comma does not count."""

    def grade(self: Any, item: Any, answer: Any) -> Grade:
        right = str(answer).partition(",")[0] == str(sum(item.data))
        return Grade(score=float(right), explanation="Right now." if right else "Wrong now.")

    monkeypatch.setattr(sums, "grade", grade)
    monkeypatch.setattr(sums, "describe", lambda self: {"rule": "laxer"})
    monkeypatch.setattr("genenv.config.__version__", "99.0")


def again(path: Path, data: Path, **changes: Any) -> Outcome:
    return next(regrade([path], data, **changes))


def summary_of(path: Path) -> dict[str, Any]:
    return json.loads(path.read_text())


@pytest.mark.usefixtures("measured", "laxer")
def test_stored_answers_are_graded_by_the_rule_of_now_without_a_model(
    sums_data: Path, tmp_path: Path
) -> None:
    outcome = again(tmp_path / "r.jsonl", sums_data)
    records = {record.id: record for record in outcome.records}
    assert (records["s1"].score, records["s1"].explanation) == (0.0, "Wrong now.")
    assert (records["s2"].score, records["s2"].explanation) == (1.0, "Right now.")
    assert records["s3"].status == "failed"
    assert (records["s4"].status, records["s4"].score, records["s4"].explanation) == ("overflow", 0.0, "long")
    assert outcome.figures[0].value == pytest.approx(9 / 11)
    kept = tmp_path / "r.before-1.jsonl"
    assert outcome.notes == (f"regraded: 1 of 12 scores are other than before; those are kept in {kept}",)


@pytest.mark.usefixtures("laxer")
def test_the_summary_says_that_it_was_regraded_and_what_was_before_is_kept(
    measured: Any, sums_data: Path, tmp_path: Path
) -> None:
    path, kept = tmp_path / "r.summary.json", tmp_path / "r.before-1.summary.json"
    before, items = path.read_bytes(), (tmp_path / "r.jsonl").read_bytes()
    again(path, sums_data)
    assert (kept.read_bytes(), (tmp_path / "r.before-1.jsonl").read_bytes()) == (before, items)
    old, new = summary_of(kept), summary_of(path)
    assert new["regraded"] == {
        "genenv_before": old["genenv"],
        "rules_before": {},
        "scores_changed": 1,
        "kept": "r.before-1.jsonl",
    }
    assert (new["genenv"], new["rules"]) == ("99.0", {"rule": "laxer"})
    for key in ("policy", "sampling", "prompt_version", "settings", "data", "limit", "tokens", "seconds"):
        assert new[key] == old[key]
    again(tmp_path, sums_data)
    assert (tmp_path / "r.before-2.jsonl").exists()
    assert summary_of(path)["regraded"]["scores_changed"] == 0


@pytest.mark.usefixtures("laxer")
def test_regraded_results_continue_and_still_say_so(measured: Any, sums_data: Path, tmp_path: Path) -> None:
    again(tmp_path / "r.jsonl", sums_data)
    outcome = measured(lambda _: "6", resume=True)
    assert not outcome.failed
    summary = summary_of(tmp_path / "r.summary.json")
    assert (summary["complete"], summary["regraded"]["scores_changed"]) == (True, 1)


@pytest.mark.usefixtures("measured")
def test_grading_again_by_the_same_rule_changes_nothing_but_the_summary(
    sums_data: Path, tmp_path: Path
) -> None:
    before = (tmp_path / "r.jsonl").read_bytes()
    again(tmp_path / "r.jsonl", sums_data)
    assert (tmp_path / "r.jsonl").read_bytes() == before


@pytest.mark.usefixtures("measured")
def test_answers_on_other_data_are_not_regraded(sums_data: Path, tmp_path: Path) -> None:
    path = sums_data / "sums" / "test.jsonl"
    path.write_text(path.read_text().replace('"b": 2', '"b": 3'))
    before = (tmp_path / "r.jsonl").read_bytes()
    with pytest.raises(UsageError, match=r"other data than there is now: sums/test\.jsonl"):
        again(tmp_path / "r.jsonl", sums_data)
    assert (tmp_path / "r.jsonl").read_bytes() == before


@pytest.mark.usefixtures("measured")
def test_an_item_that_is_unknown_now_is_named(sums_data: Path, tmp_path: Path) -> None:
    path = tmp_path / "r.jsonl"
    path.write_text(path.read_text().replace('"id": "s2"', '"id": "t2"'))
    with pytest.raises(DataError, match="has item 't2', which is not in sums"):
        again(path, sums_data)


@pytest.mark.usefixtures("measured")
def test_the_command_regrades_and_prints_and_fails_where_items_did(sums_data: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(
        app, ["eval", "--regrade", str(tmp_path / "r.jsonl"), "--data", str(sums_data)]
    )
    assert result.exit_code == 1, (result.exception, result.stderr)
    assert "regraded: 0 of 12 scores are other than before" in result.stdout


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--regrade", "x", "--policy", "p"], "--regrade goes with --data, --changed-data and --export only"),
        (["bamboogle", "--regrade", "x"], "--regrade goes with --data, --changed-data and --export only"),
        (["--regrade", "nowhere.jsonl"], "there is no summary nowhere.summary.json"),
        (["--regrade", "."], "holds no results of genenv eval"),
        (["bamboogle"], "name a benchmark and a --policy"),
        ([], "name a benchmark and a --policy"),
    ],
)
def test_a_wrong_regrading_is_one_sentence(
    words: list[str], sentence: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = CliRunner().invoke(app, ["eval", *words])
    assert result.exit_code == 2, (result.exception, result.stderr)
    assert sentence in result.stderr.splitlines()[-1]
