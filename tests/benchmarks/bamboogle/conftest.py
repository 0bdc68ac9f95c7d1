from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from genenv.chat.assistant import Talk
from genenv.evaluation.data import DataFolder
from genenv.types import JsonObject
from recited import Recited

QUESTIONS = [
    ("q_1", "Which river runs through the capital of Arvonia?", ["the Tarn"]),
    ("q_2", "When was the founder of Delta Mills born?", ["3 May 1871", "May 3, 1871"]),
]


class Reciter:
    """An assistant whose every conversation says the same."""

    name = "reciter"
    native_tools = False
    concurrency = 1

    def __init__(self, reply: str) -> None:
        self.reply = reply
        self.talks: list[Recited] = []

    def talk(self, seed: int) -> Talk:
        self.talks.append(Recited(self.reply))
        return self.talks[-1]

    def describe(self) -> JsonObject:
        return {"model": self.name}


@pytest.fixture(scope="session")
def reciter() -> type[Reciter]:
    return Reciter


def _written(root: Path, name: str, value: Any) -> None:
    path = root / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(value, indent=1), encoding="utf-8")


@pytest.fixture
def questions(whose: str, request: pytest.FixtureRequest) -> DataFolder:
    """The real questions, or ours."""
    return request.getfixturevalue("data_folder" if whose == "official" else "folder")


@pytest.fixture
def folder(tmp_path: Path) -> DataFolder:
    """Two questions of our own in the three layouts."""
    main = [
        {"Question": text, "source": "own", "id": name, "answer": right} for name, text, right in QUESTIONS
    ]
    _written(tmp_path, "bamboogle/bamboogle.json", main)
    _written(
        tmp_path,
        "bamboogle/bamboogle_test_questions_and_answers.json",
        [{"question": text, "answer": right[0]} for _, text, right in QUESTIONS],
    )
    _written(
        tmp_path,
        "bamboogle/data.json",
        [{"Question": text, "Answer": right[0]} for _, text, right in QUESTIONS],
    )
    return DataFolder(tmp_path, known={})
