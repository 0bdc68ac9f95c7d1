"""A user's own environment, and a run on it whose tiny agent has learned to answer with one word."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from genenv.cli.app import app

SOURCE = '''
import random
from typing import Literal

from pydantic import BaseModel, Field

from genenv import Lineage, Message, Seed, Task, Verdict
from genenv.environments.base import OutOfTurns
from genenv.environments.common import QuestionEnvironment, held_out_tasks
from genenv.settings import Settings


class Spec(BaseModel, extra="forbid"):
    turns: int = Field(ge=1, le=3)
    start: int = Field(ge=0, le=9)
    word: Literal["a", "b"]


class Steps:
    def __init__(self, task, turns):
        self.task, self.max_turns = task, turns

    async def run(self, ask):
        await ask(self.task.messages)
        for turn in range(1, self.task.payload["turns"]):
            await ask((Message(role="tool", content=f"more {turn}"),))
        if self.task.payload["turns"] == 3:
            raise OutOfTurns


class WordsSettings(Settings, frozen=True):
    held: int = Field(default=8, ge=0, le=50)
    """How many held-out tasks."""
    first: int = Field(default=5, ge=0, le=9)
    """Number of the first."""


class Words(QuestionEnvironment):
    name = "words"
    spec = Spec
    config = WordsSettings
    job = "Write a question."

    def seeds(self):
        return [
            Seed(
                id=f"s-{i}",
                environment="words",
                spec={"turns": 1 + i % 2, "start": i, "word": "a"},
                skills=("w",),
            )
            for i in range(4)
        ]

    def held_out(self):
        specs = [
            Spec(turns=1 + i % 3, start=(self.settings.first + i) % 10, word="ab"[i % 4 == 3])
            for i in range(self.settings.held)
        ]
        return held_out_tasks(self, [(f"held-{i}", spec) for i, spec in enumerate(specs)])

    def variation(self, seed, rng):
        return {"turns": 1, "start": rng.randrange(10), "word": "a"}

    def build(self, spec, *, task_id, lineage, rng):
        return Task(
            id=task_id,
            environment="words",
            skills=("w",),
            lineage=lineage,
            messages=(
                Message(role="system", content="Short."),
                Message(role="user", content=f"{spec.start}?"),
            ),
            spec=spec.model_dump(),
            payload={"turns": spec.turns, "word": spec.word},
            oracle=(spec.word,) * spec.turns,
        )

    def episode(self, task):
        return Steps(task, 3)

    def steps(self, task):
        return task.payload["turns"]

    def check(self, task, replies):
        right = sum(reply == task.payload["word"] for reply in replies) / task.payload["turns"]
        full = right == 1 and len(replies) == task.payload["turns"]
        return Verdict(reward=min(right, 1.0), success=full, explanation=f"{right:.0%} are right.")

    def random_replies(self, task, rng):
        return ("c",)
'''

CONFIG = """
[run]
rounds = 1
eval_every = 1
eval_tasks = 50

[environment]
name = "own_words:Words"

[simulator]
contexts = 1
variations = 1
max_new_tokens = 4

[agent]
rollouts = 2
max_new_tokens = 3

[agent.warmup]
steps = 20
batch = 4
lr = 0.02
check_every = 20
check_tasks = 2
target_low = 1.0
target_high = 1.0

[policy]
model = "{model}"
device = "cpu"
dtype = "float32"
threads = 1
lora_rank = 4
context_tokens = 256
"""


@pytest.fixture
def own_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The name of the environment, whose module lies in a folder of its own."""
    (tmp_path / "own_words.py").write_text(SOURCE, encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GENENV_DATA", raising=False)
    importlib.invalidate_caches()
    yield "own_words:Words"
    sys.modules.pop("own_words", None)


@pytest.fixture
def toml(own_environment: str, tiny: Any, tmp_path: Path) -> Path:
    """A configuration with the environment and a tiny model."""
    path = tmp_path / "words.toml"
    path.write_text(CONFIG.format(model=tiny.folder()), encoding="utf-8")
    return path


@pytest.fixture
def train(toml: Path, tmp_path: Path) -> Callable[..., Path]:
    """Trains for one round, with other settings where they are given."""

    def run(*settings: str, name: str = "words") -> Path:
        more = [word for setting in settings for word in ("--set", setting)]
        done = CliRunner().invoke(app, ["train", str(toml), "--out", f"runs/{name}", *more])
        assert done.exit_code == 0, (done.exception, done.stderr)
        return tmp_path / "runs" / name

    return run
