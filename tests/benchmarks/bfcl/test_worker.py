"""The process of the official code: whatever it is asked, it ends within its limits, and another follows."""

from __future__ import annotations

import asyncio
import contextlib
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from genenv.benchmarks.bfcl.benchmark import Bfcl
from genenv.benchmarks.bfcl.worker import Stopped, Worker
from genenv.errors import RolloutError, UsageError
from genenv.evaluation.data import DataFolder
from recited import Recited

FEW_S = 30
"""Seconds in which whatever is asked has ended, on a busy machine too."""


def graded(worker: Worker, text: str, language: str = "python") -> Any:
    return worker.ask(
        "grade_calls",
        answer={"text": text},
        functions=[],
        possible=[],
        language=language,
        category="irrelevance",
        compared=False,
    )


BOMBS = [
    "[f(a=9**9**9)]",
    "[f(a=1<<10**10)]",
    "[f(a='x'*10**10)]",
    "[f(a=[[[[0]*400]*400]*400]*400)]",
    "[" * 100_000,
    "f(" * 100_000,
    "[f(a=" + "-" * 40_000 + "1)]",
    "[f(a=1" + "+1" * 20_000 + ")]",
    "[f(a=b" + ".c" * 20_000 + ")]",
    "[f(a=" + "not " * 10_000 + "1)]",
    "[f(a=" + "lambda a,b:" * 4_000 + "1)]",
    "[f(a=" + "x if y else " * 4_000 + "1)]",
    "[f(a=" + "9" * 40_000 + ")]",
    "[f(f'{" + "-" * 40_000 + "1}')]",
    "\\'" * 24_000,
    "'''\\" * 12_000,
    "x" * 1_000_000,
    "\ud800\0",
    '{"a":' * 100_000,
]


@pytest.mark.long
@pytest.mark.parametrize("text", BOMBS, ids=range(len(BOMBS)))
def test_what_takes_too_much_ends_and_the_next_is_answered(short: Worker, text: str) -> None:
    started = time.monotonic()
    with contextlib.suppress(Stopped):
        assert set(graded(short, text)) == {"called", "valid", "unread", "why"}
    assert time.monotonic() - started < FEW_S
    assert graded(short, "[f(a=1)]")["called"] is True


@pytest.mark.parametrize("language", ["java", "javascript"])
@pytest.mark.parametrize(
    "value",
    [
        "(" * 30_000,
        "!" * 30_000 + "1",
        "1" + "+1" * 30_000,
        "[" + "[1]," * 1_500 + "2]",
        "void " * 1_500 + "1",
    ],
    ids=range(5),
)
def test_bombs_in_other_languages_end_too(short: Worker, language: str, value: str) -> None:
    started = time.monotonic()
    with contextlib.suppress(Stopped):
        graded(short, f"[f(a={value})]", language)
    assert time.monotonic() - started < FEW_S
    assert graded(short, '[a.f(x=1, y="two")]', language)["called"] is True


def test_a_value_on_which_an_official_converter_takes_for_ever_is_stopped(short: Worker) -> None:
    tags = {"type": "Array", "items": {"type": "String"}}
    function = {"name": "f", "parameters": {"properties": {"tags": tags}, "required": []}}
    request: dict[str, Any] = {
        "functions": [function],
        "possible": [{"f": {"tags": [["x"]]}}],
        "language": "java",
        "category": "simple_java",
        "compared": True,
    }
    slow = "new String[]{" + "[" * 40 + " " * 60_000
    started = time.monotonic()
    with contextlib.suppress(Stopped):
        assert not short.ask("grade_calls", answer={"calls": [{"f": {"tags": slow}}]}, **request)["valid"]
    assert time.monotonic() - started < FEW_S


def test_requests_of_others_do_not_count() -> None:
    worker = Worker(cpu_s=0.1)
    assert worker.ask("commands", text="[f()]") == ["f()"]
    much = {"a": list(range(200_000))}  # whose reading takes the process about 20 ms each time
    for _ in range(10):
        assert (
            worker.ask("execute", entry_id="a", config=much, classes=[], long_context=False, steps=[]) == []
        )
    worker.end()


def test_a_prompt_that_takes_too_much_ends_the_rollout_alone(
    small: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stopped(self: Worker, what: str, **arguments: Any) -> Any:
        raise Stopped("it takes more than 5 s")

    item, talk = small.item("simple_python"), Recited([])
    monkeypatch.setattr(Worker, "ask", stopped)
    with pytest.raises(RolloutError, match="more than 5 s"):
        asyncio.run(Bfcl().attempt(item, talk))


def test_what_cannot_be_sent_is_stopped(short: Worker) -> None:
    deep: list[Any] = []
    for _ in range(100_000):
        deep = [deep]
    with pytest.raises(Stopped):
        short.ask("grade_turns", turns=deep)


def test_a_process_that_ended_is_replaced(short: Worker) -> None:
    process: Any = short._process
    process.kill()
    process.wait()
    with pytest.raises(Stopped, match=r"more than 0\.5 s of processor time or 1 GiB of memory, or is nested"):
        graded(short, "[f()]")
    assert graded(short, "[f()]")["called"] is True


def test_packages_that_are_missing_are_asked_for(monkeypatch: pytest.MonkeyPatch, small: Any) -> None:
    monkeypatch.setattr(sys, "path", [path for path in sys.path if "site-packages" not in path])
    monkeypatch.setattr(sys, "executable", sys._base_executable)  # type: ignore[attr-defined]
    with pytest.raises(UsageError, match=r"cannot be used .*: pip install --no-deps bfcl-eval==2026\.3\.23"):
        Worker().check()


def test_the_process_ends_with_the_one_that_asks() -> None:
    code = "from genenv.benchmarks.bfcl.worker import worker; worker().check(); print(worker()._process.pid)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr == ""
    assert not Path(f"/proc/{done.stdout.strip()}").exists()


def test_more_than_five_hundred_answers_are_graded_a_second(tmp_path: Any) -> None:
    benchmark = Bfcl()
    items = benchmark.load(DataFolder(tmp_path), "live_simple")
    benchmark.grade(items[0], {"text": "[f()]"})
    started = time.monotonic()
    for item in items:
        benchmark.grade(item, {"text": "[f(a=1)]"})
    assert len(items) / (time.monotonic() - started) > 500
