"""What tests of evaluation share: a small benchmark of questions, and an assistant that follows a script."""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from genenv.chat.assistant import ChatMessage, Reply
from genenv.evaluation import config
from genenv.evaluation.base import Benchmark, Grade, Item
from genenv.evaluation.data import DataFolder
from genenv.plugins import load
from genenv.settings import Settings
from genenv.types import Json, JsonObject


class SumSettings(Settings, frozen=True):
    """Of sums."""

    strict: bool = False
    """Whether words beside the number are wrong."""


class Sums(Benchmark):
    """Sums out of a JSONL file."""

    name = "sums"
    config = SumSettings
    prompt_version = "1"
    splits = {"test": "All sums.", "hard": "Sums of large numbers."}  # noqa: RUF012 - as a benchmark has it

    def load(self, data: DataFolder, split: str) -> Sequence[Item]:
        items = [
            Item(id=f"s{number}", groups={"size": line["size"]}, data=(line["a"], line["b"]))
            for number, line in data.json_lines("sums/test.jsonl")
        ]
        return items if split == "test" else [item for item in items if item.groups["size"] == "large"]

    async def attempt(self, item: Item, talk: Any) -> Json:
        a, b = item.data
        return (await talk([{"role": "user", "content": f"{a} + {b}"}], max_tokens=8)).text

    def grade(self, item: Item, answer: Json) -> Grade:
        right = answer == str(sum(item.data))
        return Grade(
            score=float(right),
            explanation="Right." if right else "Wrong.",
            measures={"length": len(str(answer))},
        )


class Scripted:
    """An assistant that a function answers for; a reply that is an error is raised."""

    name = "scripted"
    native_tools = False

    def __init__(self, answer: Callable[[str], str | Exception], workers: int = 4) -> None:
        self.answer, self.workers = answer, workers
        self.progress: Callable[[int], None] | None = None
        self.asked: list[str] = []

    def concurrency(self, *, many_turns: bool) -> int:
        return self.workers

    def talk(self, seed: int, *, many_turns: bool) -> Any:
        return self

    async def __call__(
        self,
        messages: Sequence[ChatMessage],
        *,
        tools: Sequence[JsonObject] = (),
        choices: Sequence[str] = (),
        max_tokens: int | None = None,
    ) -> Reply:
        await asyncio.sleep(0)
        text = messages[-1]["content"]
        self.asked.append(text)
        said = self.answer(text)
        if isinstance(said, Exception):
            raise said
        if self.progress is not None:
            self.progress(1)
        return Reply(text=said, prompt_tokens=3, tokens=1)

    def describe(self) -> JsonObject:
        return {"kind": "scripted"}

    def spending(self) -> JsonObject:
        return {"cost": 0.1 * len(self.asked)}


@pytest.fixture
def sums_data(tmp_path: Path) -> Path:
    """A data folder with twelve sums, eight small and four large."""
    folder = tmp_path / "data" / "sums"
    folder.mkdir(parents=True)
    lines = [
        {"a": 10**k if size == "large" else k, "b": k, "size": size}
        for size, count in (("small", 8), ("large", 4))
        for k in range(1, count + 1)
    ]
    (folder / "test.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines), encoding="utf-8")
    return tmp_path / "data"


@pytest.fixture
def sums(monkeypatch: pytest.MonkeyPatch) -> type[Sums]:
    """The benchmark, known by its name to the commands."""
    real, others = config.benchmark_class, config.BENCHMARKS

    def known(name: str) -> Any:
        if name == "sums":
            return Sums
        return load(others[name]) if name in others else real(name)

    for module in ("genenv.evaluation.evaluate", "genenv.evaluation.config"):
        monkeypatch.setattr(f"{module}.BENCHMARKS", {"sums": "tests:Sums"})
        monkeypatch.setattr(f"{module}.benchmark_class", known)
    return Sums


@pytest.fixture(scope="session")
def data_folder() -> DataFolder:
    """The benchmarks' real data."""
    if not os.environ.get("GENENV_DATA"):
        pytest.skip("set GENENV_DATA to the folder of the benchmarks' data to test on it")
    return DataFolder.from_environment()


OFFICIAL = ["official"] if os.environ.get("GENENV_DATA") else []
"""What tests are run on besides what we wrote ourselves, where it is here."""


@pytest.fixture(params=["ours", *OFFICIAL])
def whose(request: pytest.FixtureRequest) -> str:
    """Whose data a test reads: a little of our own in the same layout, always, and the real files."""
    return request.param


@pytest.fixture
def scripted() -> type[Scripted]:
    return Scripted
