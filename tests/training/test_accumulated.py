"""D_env: with `simulator.accumulate` a round's update has the selected generations of all rounds so far."""

from __future__ import annotations

import itertools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from genenv.environments.base import Environment
from genenv.simulator.policy import Simulator
from genenv.types import Feedback
from typed import succeeds

SMALL = (
    *("policy.backend=scripted", "environment.name=programs", "run.eval_every=0", "simulator.contexts=8"),
    *("curriculum.band_filter=false", "curriculum.seed_trim=0"),
)


@pytest.fixture
def updates(monkeypatch: pytest.MonkeyPatch) -> dict[int, list[tuple[tuple[int, ...], float]]]:
    """By round, the tokens of each generation in the simulator's update, and its weight."""
    found: dict[int, list[tuple[tuple[int, ...], float]]] = {}
    learn = Simulator.learn

    async def noted(
        self: Simulator, env: Environment, feedback: Feedback, *, round_: int, rounds: int
    ) -> Mapping[str, float]:
        found[round_] = [(one.generation.token_ids, one.weight) for one in feedback.samples]
        return await learn(self, env, feedback, round_=round_, rounds=rounds)

    monkeypatch.setattr(Simulator, "learn", noted)
    return found


def train(out: Path, rounds: int, *more: str) -> None:
    file = out.parent / "small.toml"
    file.write_text("")
    words = [word for one in (*SMALL, f"run.rounds={rounds}", *more) for word in ("--set", one)]
    succeeds("train", file, "--variant", "paper", *words, "--out", out)


def selected(out: Path) -> list[int]:
    lines: list[dict[str, Any]] = [
        json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()
    ]
    return [int(line["simulator/selected"]) for line in lines if line["round"]]


@pytest.mark.long
def test_selected_generations_accumulate_and_a_resumed_run_has_the_same(
    tmp_path: Path, updates: dict[int, list[tuple[tuple[int, ...], float]]]
) -> None:
    train(tmp_path / "whole", 3)
    counts = selected(tmp_path / "whole")
    assert min(counts) > 0
    assert [len(updates[number]) for number in (1, 2, 3)] == list(itertools.accumulate(counts))
    assert [ids for ids, _ in updates[3]][: counts[0]] == [ids for ids, _ in updates[1]]
    whole = dict(updates)
    updates.clear()
    train(tmp_path / "parts", 2)
    succeeds("train", "--resume", "--out", tmp_path / "parts", "--set", "run.rounds=3")
    assert updates == whole


@pytest.mark.long
def test_without_the_setting_an_update_has_those_of_its_round(
    tmp_path: Path, updates: dict[int, list[tuple[tuple[int, ...], float]]]
) -> None:
    train(tmp_path / "run", 2, "simulator.accumulate=false")
    assert [len(updates[number]) for number in (1, 2)] == selected(tmp_path / "run")
