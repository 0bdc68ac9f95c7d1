"""The OpenEnv server of an exported environment. It needs openenv-core, which few environments have."""

from __future__ import annotations

import importlib
import random
from pathlib import Path

import pytest

from genenv.interop.exported import Exported
from genenv.interop.imported.environment import HELD_OUT_SEED
from interop.conftest import opened

pytest.importorskip("openenv.core", reason="the package openenv-core is not installed")


def test_seeds_of_held_out_tasks_are_held_out_rows(written: Path, tmp_path: Path) -> None:
    server = importlib.import_module("genenv.interop.openenv")
    exported = opened(written, "programs_env")
    train, held_out = ([row["id"] for row in exported.rows(split)] for split in ("train", "held_out"))
    made = server.TaskEnvironment(exported)
    assert [made.reset(seed=seed).task_id for seed in range(12)] == train
    found = {made.reset(seed=HELD_OUT_SEED + number).task_id for number in range(6)}
    assert found == set(held_out)
    assert made.reset(seed=HELD_OUT_SEED, split="train").task_id in train
    assert made.reset(task_id=train[1]).task_id == train[1]
    random.seed(0)
    assert made.reset().task_id in train
    (tmp_path / "data").mkdir()
    for file in exported.folder.glob("*.json*"):
        text = "" if file.name == "held_out.jsonl" else file.read_text(encoding="utf-8")
        (tmp_path / "data" / file.name).write_text(text, encoding="utf-8")
    alone = server.TaskEnvironment(Exported(tmp_path / "data"))
    assert alone.reset(seed=HELD_OUT_SEED).task_id in train
