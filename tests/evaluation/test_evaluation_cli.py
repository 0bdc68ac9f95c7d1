"""`genenv eval` and `genenv compare` on a tiny local model: files, tables, exit statuses."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from typer.testing import Result

from genenv.errors import RolloutError, UsageError
from typed import refused, run


@pytest.fixture
def model(tiny: Any) -> Path:
    return tiny.folder(max_position_embeddings=256)


ANYWHERE = "openai:http://127.0.0.1:1/v1#nobody"
"""A policy whose name can be right; nothing is sent to it."""


def measure(model: Path | str, data: Path, out: Path, *more: object) -> Result:
    here = () if model == ANYWHERE else ("--set", "policy.device=cpu")
    return run("eval", "sums", "--policy", model, "--data", data, "--out", out, *here, *more)


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


@pytest.mark.long
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
    result = measure(ANYWHERE, sums_data, tmp_path)
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
    result = measure(ANYWHERE, sums_data, tmp_path)
    assert result.exit_code == 130
    assert "continue with --resume" in result.stderr


def test_wrong_input_is_one_sentence(sums_data: Path, tmp_path: Path) -> None:
    assert "unknown benchmark 'alfwrld'; did you mean 'alfworld'" in refused(
        "eval", "alfwrld", "--policy", "x"
    )
    assert "is missing" in refused("eval", "bamboogle", "--policy", ANYWHERE, "--data", sums_data)
    assert "--protocol is of bfcl" in refused("eval", "bamboogle", "--policy", "x", "--protocol", "genenv")
    assert "allowed: " in refused("eval", "bfcl", "--policy", "x", "--protocol", "nonsense")
    one = tmp_path / "one.jsonl"
    assert f"{one} does not exist; name results of genenv eval, or folders of runs" in refused("compare", one)
    one.touch()
    assert "at least two" in refused("compare", one)
    assert "there is no summary" in refused("compare", one, one)
    assert f"{tmp_path / 'b'} does not exist" in refused("compare", one, tmp_path / "b")
    assert "--last, --at and --out are for runs" in refused("compare", one, one, "--last", "3")


@pytest.mark.usefixtures("sums")
@pytest.mark.parametrize(
    ("policy", "sentence"),
    [
        ("openai:nonsense", "is named BASE_URL#MODEL, such as"),
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


@pytest.mark.usefixtures("sums")
@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (("sums", "alfwrld", "--policy", ANYWHERE), "unknown benchmark 'alfwrld'"),
        (("sums", "--policy", "smollm2-135mm"), "smollm2-135m"),
        (("bamboogle", "--policy", ANYWHERE, "--judge", "nowhere/run@3"), "holds no run"),
        (("sums", "--policy", ANYWHERE, "--split", "nowhere"), "there is no split 'nowhere'"),
        (("sums", "--policy", ANYWHERE, "--export", "x"), "none of these benchmarks has an export"),
        (("sums", "--policy", ANYWHERE, "--set", "sums.strct=true"), "did you mean 'sums.strict'"),
        (
            ("sums", "--policy", ANYWHERE, "--set", "policy.max_thinking_tokens=0"),
            "policy.max_thinking_tokens: without effect, as no model is loaded on this machine (openai:",
        ),
        (
            ("sums", "--policy", "smollm2-135m", "--set", "endpoint.retries=1"),
            "endpoint.retries: without effect, as no model is behind an endpoint (smollm2-135m)",
        ),
        (
            ("sums", "--policy", "smollm2-135m", "--set", "policy.vllm.at_once=1"),
            "unknown setting 'policy.vllm'",
        ),
        (("sums", "bamboogle", "--policy", ANYWHERE, "--out", "x.jsonl"), "one file for 2 benchmarks"),
    ],
)
def test_names_are_checked_before_anything_begins(
    tmp_path: Path, sums_data: Path, words: tuple[str, ...], sentence: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    result = run("eval", *words, "--data", sums_data)
    assert result.exit_code == 2
    assert sentence in " ".join(result.stderr.split())
    assert "measuring" not in result.stderr
    assert not (tmp_path / "evaluations").exists()


@pytest.mark.usefixtures("sums")
def test_nothing_is_left_of_what_never_began(
    sums_data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, scripted: Any
) -> None:
    def fails(*_: object) -> Any:
        raise UsageError("the server does not answer; start it")

    monkeypatch.setattr("genenv.evaluation.evaluate.assistant", fails)
    (tmp_path / "kept").mkdir()
    for out in ("new/deep", "kept"):
        assert measure(ANYWHERE, sums_data, tmp_path / out).exit_code == 2
    left = {path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("*")}
    assert left == {"kept", "data", "data/sums", "data/sums/test.jsonl"}
    monkeypatch.setattr("genenv.evaluation.evaluate.assistant", lambda *_: scripted(lambda _: "0"))
    assert measure(ANYWHERE, sums_data, tmp_path / "new/deep").exit_code == 0


STOPPED = """
import os, signal, sys
sys.path.insert(0, {tests!r})
from evaluation.conftest import Scripted
from genenv.cli.app import main
from genenv.evaluation import evaluate
from genenv.evaluation import config
config.OTHERS["sums"] = "evaluation.conftest:Sums"

def answer(question):
    if question.startswith("3"):
        os.kill(os.getpid(), signal.SIGTERM)
    return "0"

evaluate.assistant = lambda *_: Scripted(answer, 1)
sys.argv = ["genenv", "eval", "sums", *sys.argv[1:]]
main()
"""


@pytest.mark.long
def test_sigterm_says_what_is_kept_as_an_interrupt_does(sums_data: Path, tmp_path: Path) -> None:
    out = tmp_path / "r.jsonl"
    words = ["--policy", ANYWHERE, "--data", str(sums_data), "--out", str(out)]
    code = STOPPED.format(tests=str(Path(__file__).parents[1]))
    done = subprocess.run([sys.executable, "-c", code, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 128 + 15, done.stderr
    assert done.stderr.splitlines()[-1].endswith("items that were done are kept, continue with --resume")
    assert "Traceback" not in done.stderr
    assert len(out.read_text(encoding="utf-8").splitlines()) >= 1
