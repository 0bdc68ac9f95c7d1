"""Answers are written in the form of the authors' scorers, into a folder that holds nothing else."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from genenv.errors import ContextOverflow, RolloutError, UsageError
from genenv.evaluation import evaluate as evaluation
from genenv.evaluation.base import Answered
from genenv.evaluation.config import load_evaluation_config
from genenv.evaluation.evaluate import Request, evaluate, regrade
from genenv.evaluation.results import Outcome
from genenv.progress import Silent


def export(self: Any, answered: Sequence[Answered], policy: str) -> Mapping[str, str]:
    """Sums as their authors would have them."""
    lines = [json.dumps([item.id, record.answer]) + "\n" for item, record in answered]
    return {f"result/{policy}.jsonl": "".join(lines)}


@pytest.fixture
def measure(
    sums: Any, sums_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scripted: Any
) -> Any:
    exporting = type("Exporting", (sums,), {"export": export})
    monkeypatch.setattr("genenv.evaluation.evaluate.benchmark_class", lambda _: exporting)
    said = {"2 + 2": RolloutError("down"), "3 + 3": ContextOverflow("long")}

    def run(**changes: Any) -> Outcome:
        monkeypatch.setattr(evaluation, "assistant", lambda *_: scripted(lambda q: said.get(q, "2")))
        fields: dict[str, Any] = {"names": ["sums"], "policy": "a/b", "data": sums_data, "limit": 4}
        fields |= {"out": tmp_path / "r.jsonl", "export": tmp_path / "export", **changes}
        return next(evaluate(Request(**fields), load_evaluation_config([]), Silent()))

    return run


EXPORTED = '["s1", "2"]\n["s9", "2"]\n["s10", "2"]\n'


def test_answers_are_exported_without_those_that_failed(measure: Any, tmp_path: Path) -> None:
    outcome = measure()
    path = tmp_path / "export" / "result" / "a-b.jsonl"
    assert outcome.exported == [path]
    assert path.read_text() == EXPORTED


def test_stored_answers_are_exported_with_a_regrading(measure: Any, tmp_path: Path, sums_data: Path) -> None:
    measure(export=None, limit=6)
    outcome = next(regrade([tmp_path / "r.jsonl"], sums_data, export=tmp_path / "later"))
    (path,) = outcome.exported
    assert [json.loads(line) for line in path.read_text().splitlines()] == [
        ["s1", "2"],
        ["s3", None],
        ["s9", "2"],
        ["s10", "2"],
        ["s11", "2"],
    ]


def test_an_export_is_renewed_and_another_policys_is_not_overwritten(measure: Any, tmp_path: Path) -> None:
    measure(limit=1)
    assert measure(resume=True).exported
    assert (tmp_path / "export" / "result" / "a-b.jsonl").read_text() == EXPORTED
    with pytest.raises(UsageError, match="holds an export of a/b"):
        measure(policy="c", out=tmp_path / "c.jsonl")
    assert not (tmp_path / "c.jsonl").exists()


def test_a_password_in_the_policys_name_is_in_no_file_and_keeps_no_export_from_being_renewed(
    measure: Any, tmp_path: Path, sums_data: Path
) -> None:
    policy = "openai:http://me:pa55word@host/v1#m"
    measure(policy=policy)
    assert "pa55word" not in "".join(path.read_text() for path in tmp_path.rglob("*.json*"))
    assert next(regrade([tmp_path / "r.jsonl"], sums_data, export=tmp_path / "export")).exported
    assert measure(policy=policy, resume=True).exported


def test_a_folder_of_other_files_is_refused_before_anything_is_asked(measure: Any, tmp_path: Path) -> None:
    (tmp_path / "export").mkdir()
    (tmp_path / "export" / "score.csv").touch()
    with pytest.raises(UsageError, match="holds other files"):
        measure()
    assert not (tmp_path / "r.jsonl").exists()
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="is a file"):
        measure(export=tmp_path / "file")


def test_a_damaged_manifest_is_one_sentence(measure: Any, tmp_path: Path) -> None:
    measure()
    (tmp_path / "export" / "genenv-export.json").write_text("[]")
    with pytest.raises(UsageError, match=r"genenv-export\.json is damaged"):
        measure(resume=True)


def test_benchmarks_without_an_export_say_so(
    measure: Any, sums: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("genenv.evaluation.evaluate.benchmark_class", lambda _: sums)
    with pytest.raises(
        UsageError, match="none of these benchmarks has an export; bfcl and travelplanner have"
    ):
        measure()
