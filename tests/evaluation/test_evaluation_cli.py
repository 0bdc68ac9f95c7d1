"""`genenv eval` and `genenv compare` on a tiny local model: files, tables, exit statuses."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from genenv.errors import RolloutError
from typed import refused, run


@pytest.fixture
def model(tiny: Any) -> Path:
    return tiny.folder(max_position_embeddings=256)


def measure(model: Path, data: Path, out: Path, *more: object) -> Result:
    return run(
        "eval", "sums", "--policy", model, "--data", data, "--out", out, "--set", "policy.device=cpu", *more
    )


@pytest.mark.usefixtures("sums")
@pytest.mark.long
def test_a_local_model_is_measured_and_compared(model: Path, sums_data: Path, tmp_path: Path) -> None:
    first = measure(model, sums_data, tmp_path / "a", "--limit", 6)
    assert first.exit_code == 0, (first.exception, first.stderr)
    assert "accuracy" in first.stdout
    assert "size=large" in first.stdout
    summary = json.loads((tmp_path / "a" / "sums-test.summary.json").read_text())
    assert summary["policy"]["kind"] == "local"
    assert summary["items"] == 6
    assert summary["of"] == 12
    assert "sums, 6 of 12 items" in first.stdout
    second = measure(model, sums_data, tmp_path / "b.jsonl", "--limit", 6, "--set", "sampling.temperature=1")
    assert second.exit_code == 0, (second.exception, second.stderr)
    compared = run("compare", tmp_path / "a" / "sums-test.summary.json", tmp_path / "b.jsonl")
    assert compared.exit_code == 0, compared.exception
    assert "over the 6 items both answered" in compared.stdout
    assert "differs from" in compared.stdout


@pytest.mark.usefixtures("sums")
def test_greedy_answers_are_the_same_twice(model: Path, sums_data: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        assert measure(model, sums_data, tmp_path / f"{name}.jsonl").exit_code == 0
    answers = [
        [json.loads(line)["answer"] for line in (tmp_path / f"{name}.jsonl").read_text().splitlines()]
        for name in ("a", "b")
    ]
    assert answers[0] == answers[1]


@pytest.mark.usefixtures("sums")
def test_items_that_failed_end_in_status_1_and_a_sentence(
    sums_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scripted: Any
) -> None:
    down = scripted(lambda q: RolloutError("the line is dead") if q.startswith("3") else "0")
    monkeypatch.setattr("genenv.evaluation.evaluate.assistant", lambda *_: down)
    result = measure(Path("x"), sums_data, tmp_path)
    assert result.exit_code == 1
    assert "1 of 12 items were not answered and are in no figure (the line is dead)" in " ".join(
        result.stdout.split()
    )


@pytest.mark.usefixtures("sums")
def test_stopping_keeps_what_is_done(
    sums_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scripted: Any
) -> None:
    def stop(_: str) -> str:
        raise KeyboardInterrupt

    monkeypatch.setattr("genenv.evaluation.evaluate.assistant", lambda *_: scripted(stop))
    result = measure(Path("x"), sums_data, tmp_path)
    assert result.exit_code == 130
    assert "continue with --resume" in result.stderr


def test_wrong_input_is_one_sentence(sums_data: Path, tmp_path: Path) -> None:
    assert "unknown benchmark 'alfwrld'; did you mean 'alfworld'" in refused(
        "eval", "alfwrld", "--policy", "x"
    )
    assert "is missing" in refused("eval", "bamboogle", "--policy", "x", "--data", sums_data)
    assert "--protocol is of bfcl" in refused("eval", "bamboogle", "--policy", "x", "--protocol", "genenv")
    assert "allowed: " in refused("eval", "bfcl", "--policy", "x", "--protocol", "nonsense")
    assert "at least two" in refused("compare", tmp_path / "one.jsonl")
    assert "there is no summary" in refused("compare", tmp_path / "a", tmp_path / "b")


@pytest.mark.usefixtures("sums")
@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        ("openai:nonsense", "openai:BASE_URL#MODEL"),
        ("nowhere/run@3:agent", "nowhere/run holds no run"),
        ("./nothing", "there is no model folder ./nothing"),
    ],
)
def test_a_policy_that_is_none_is_one_sentence(
    sums_data: Path, tmp_path: Path, policy: str, sentence: str
) -> None:
    assert sentence in refused(
        "eval", "sums", "--policy", policy, "--data", sums_data, "--out", tmp_path / "o"
    )
