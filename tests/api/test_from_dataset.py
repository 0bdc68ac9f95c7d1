"""`Environment.from_dataset`: rows and functions of a program become files that a run names."""

from __future__ import annotations

import datetime
import functools
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import genenv
from genenv.api.environment import Environment
from genenv.config.run import load_config
from genenv.errors import UsageError

ROWS = [{"prompt": f"Say {n}", "answer": str(n), "level": n % 2} for n in range(20)]
WEIGHT = 1.0
SHORT: dict[str, Any] = {
    "policy.backend": "scripted",
    "run.rounds": 1,
    "simulator.contexts": 4,
    "agent.rollouts": 2,
}


def score(completion: str, answer: str) -> float:
    return WEIGHT * (completion == answer)


async def half(completion: str) -> float:
    return 0.5


def add(left: int, right: int) -> int:
    """Add two numbers."""
    return left + right


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)


class Rows:
    """Iterates over rows, as a `datasets.Dataset` does."""

    def __iter__(self) -> Iterator[dict[str, Any]]:
        return iter(ROWS)


@pytest.mark.long
def test_a_dataset_of_a_program_is_trained_on_and_the_run_goes_on_without_the_program(tmp_path: Path) -> None:
    env = Environment.from_dataset(
        Rows(), score, columns=["level"], settings={"demonstration": "answer", "success_at": 0.5}
    )
    assert len(env.tasks) + len(env.held_out) == 20
    assert env.grade(env.tasks[0], env.tasks[0].oracle).success
    assert {task.skills for task in env.tasks} == {("level=0",), ("level=1",)}
    run = genenv.train(env, "run", settings=SHORT, reporter=genenv.Silent())
    config = load_config(tmp_path / "run/config.toml")
    (code,) = (tmp_path / "dataset").glob("reward-*.py")
    assert config.environment.settings.model_dump()["reward"] == f"{code}:score"
    assert (config.curriculum.candidates, config.simulator.source) == (8, "none")
    assert run.environment.held_out == env.held_out
    again = Environment.from_dataset(ROWS, score, columns=["level"], settings={"demonstration": "answer"})
    assert again.tasks == env.tasks, "the same rows and function may be written again"


def test_other_rows_and_functions_are_written_beside_and_old_ones_stay(tmp_path: Path) -> None:
    first = Environment.from_dataset(ROWS, score)
    second = Environment.from_dataset(ROWS[1:], half)
    for env, rows, reward in ((first, 20, 0.0), (second, 19, 0.5)):
        again = Environment(env.name, env.world.settings.model_dump(mode="json"))  # pyright: ignore
        assert len(again.tasks) + len(again.held_out) == rows
        assert again.grade(again.tasks[0], ["x"]).reward == reward
    assert len(list((tmp_path / "dataset").iterdir())) == 4


def test_rows_and_functions_may_be_in_files_and_held_out_rows_given(tmp_path: Path) -> None:
    Environment.from_dataset(ROWS, half)
    file, code = sorted((tmp_path / "dataset").iterdir(), reverse=True)
    env = Environment.from_dataset(file, f"{code}:half", "apart", eval_rows=ROWS[:5])
    assert [task.messages[0].content for task in env.held_out] == [f"Say {n}" for n in range(5)]
    assert env.grade(env.held_out[0], ["x"]).reward == 0.5


@pytest.mark.long
def test_tools_are_functions_of_the_program() -> None:
    with Environment.from_dataset(ROWS, half, tools=[add]) as env:
        rollout = env.attempt(env.tasks[0])
        assert [tool["function"]["name"] for tool in rollout.tools] == ["add"]  # pyright: ignore
        call = '<tool_call>\n{"name": "add", "arguments": {"left": 2, "right": 3}}\n</tool_call>'
        assert [one.content for one in rollout.reply(call)] == ["5"]


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        (["Say 1"], "row 1 is str, not a mapping of columns to values"),
        (
            [ROWS[0], {"prompt": "x", "when": datetime.date(2026, 1, 2)}],
            "row 2 cannot be written as JSON: column 'when' has date; make it text or a number, or leave it",
        ),
        ([{"prompt": "x", "answer": float("inf")}], "row 1 cannot be written as JSON: Out of range"),
        ({"train": ROWS}, "rows are a mapping (train); give a sequence of rows, such as one split"),
        (None, "rows are NoneType; give a file, or mappings of columns to values"),
        ([{"question": "x"}], ".jsonl, line 1 is no row: it needs a prompt"),
        ([], "has no rows"),
    ],
)
def test_rows_that_are_none_are_one_sentence(rows: Any, words: str) -> None:
    with pytest.raises(UsageError) as told:
        Environment.from_dataset(rows, score)
    assert words in str(told.value)


def test_values_of_numpy_and_missing_values_are_written_as_json(tmp_path: Path) -> None:
    row = {
        "prompt": np.str_("Say 1"),
        "answer": np.int64(1),
        "weights": np.array([[0.5, float("nan")]], dtype=np.float32),
        "flag": np.bool_(True),
        "missing": float("nan"),
        "pair": (1, None),
        1: {2: "x"},
    }
    Environment.from_dataset([row, *ROWS], score)
    (file,) = (tmp_path / "dataset").glob("tasks-*.jsonl")
    written = json.loads(file.read_text(encoding="utf-8").splitlines()[0])
    assert written == {
        "prompt": "Say 1",
        "answer": 1,
        "weights": [[0.5, None]],
        "flag": True,
        "missing": None,
        "pair": [1, None],
        "1": {"2": "x"},
    }


@pytest.mark.long
def test_rows_of_a_hugging_face_dataset_are_rows() -> None:
    datasets = pytest.importorskip("datasets")
    of_lines = datasets.Dataset.from_list(ROWS)
    for rows in (of_lines, of_lines.to_iterable_dataset(), of_lines.with_format("numpy")):
        env = Environment.from_dataset(rows, score)
        assert len(env.tasks) + len(env.held_out) == 20
    with pytest.raises(UsageError, match=r"rows are a mapping \(train, test\); give a sequence of rows"):
        Environment.from_dataset(datasets.DatasetDict({"train": of_lines, "test": of_lines}), score)


@pytest.mark.parametrize("reward", [[score], None, functools.partial(score, answer="x"), len, Rows])
def test_what_is_no_function_is_no_reward(reward: Any) -> None:
    with pytest.raises(UsageError, match=r"give a function that is written with def, or FILE\.py:NAME"):
        Environment.from_dataset(ROWS, reward)


def test_a_lambda_is_no_reward_function() -> None:
    with pytest.raises(UsageError, match="is a lambda; write it as a function"):
        Environment.from_dataset(ROWS, lambda completion: 1.0)
