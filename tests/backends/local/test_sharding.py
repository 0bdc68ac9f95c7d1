"""Several processes that train all weights: each holds a shard of everything; results equal those of one."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import safetensors.torch

from genenv.backends.local.model import LocalModel
from genenv.backends.settings import PolicyConfig
from genenv.errors import UsageError
from policies_on_servers import lines_of
from several_processes import TORCHRUN, found, numbers, ran

CASES = Path(__file__).with_name("sharded_cases.py")
CONFIG = Path(__file__).parents[3] / "configs" / "tiny.toml"
WRITTEN = ["agent", "agent/reference", "continued", "simulator", "simulator/reference"]


def farthest(one: Path, other: Path, name: str) -> float:
    """The largest difference of two files with the same tensors."""
    mine, theirs = (safetensors.torch.load_file(folder / name) for folder in (one, other))
    assert {k: (v.shape, v.dtype) for k, v in mine.items()} == {
        k: (v.shape, v.dtype) for k, v in theirs.items()
    }
    return max(float((mine[k] - theirs[k]).abs().max()) for k in mine)


@pytest.mark.long
@pytest.mark.parametrize(("kind", "size"), [("llama", 2), ("qwen2", 3)])
def test_processes_learn_what_one_learns_and_go_on_with_its_checkpoint(
    tiny: Any, tmp_path: Path, kind: str, size: int
) -> None:
    model = tiny.folder(kind, tie_word_embeddings=kind == "qwen2")
    alone = found(CASES, tmp_path / "alone", model, "float32")
    several = found(*TORCHRUN, str(size), CASES, tmp_path / "several", model, "float32", tmp_path / "alone")
    for name in sorted(alone):
        if name.startswith("held"):
            assert alone[name] == 1
            assert several[name] == pytest.approx(1 / size, rel=0.02)
        elif name.startswith("sampled"):
            assert several[name] == alone[name]
        else:
            assert numbers(several[name]) == pytest.approx(numbers(alone[name]), rel=1e-5, abs=1e-5), name
    files = [
        sorted(p.relative_to(tmp_path / one) for p in (tmp_path / one).rglob("*"))
        for one in ("alone", "several")
    ]
    assert files[0] == files[1]
    for folder in WRITTEN:
        one, other = tmp_path / "alone" / folder, tmp_path / "several" / folder
        assert farthest(one, other, "model.safetensors") < 1e-6
    for folder in ("agent", "continued", "simulator"):
        one, other = tmp_path / "alone" / folder, tmp_path / "several" / folder
        assert farthest(one, other, "optimizer.safetensors") < 1e-6
        assert (one / "config.json").read_text() == (other / "config.json").read_text()
    again = found(CASES, tmp_path / "again", model, "float32", tmp_path / "several")
    assert numbers(again["loaded"]) == pytest.approx(numbers(alone["loaded"]), abs=1e-5)
    assert farthest(tmp_path / "again", tmp_path / "alone", "continued/model.safetensors") < 1e-6


@pytest.mark.long
def test_weights_stay_float32_where_computations_are_in_bfloat16(tmp_path: Path) -> None:
    alone = found(CASES, tmp_path / "alone", "tiny", "float32")
    two = found(*TORCHRUN, "2", CASES, tmp_path / "two", "tiny", "bfloat16")
    assert numbers(two["agent"]) == pytest.approx(numbers(alone["agent"]), abs=0.1)
    assert 0 < farthest(tmp_path / "alone", tmp_path / "two", "agent/model.safetensors") < 1e-3
    state = safetensors.torch.load_file(tmp_path / "two" / "agent" / "model.safetensors")
    assert any((value != value.bfloat16().float()).any() for value in state.values())  # finer than bfloat16


def settings(*more: str) -> list[str]:
    said = (
        *("run.rounds=2", "run.eval_tasks=8", "run.eval_every=1", "run.keep_checkpoints=3"),
        *("policy.compiled=false", "agent.rollouts=4", "agent.warmup.steps=60", "agent.warmup.check_tasks=8"),
        *("simulator.contexts=4", "simulator.variations=2", "simulator.warmup.steps=3"),
        *more,
    )
    return [word for one in said for word in ("--set", one)]


def same(one: Path, other: Path) -> None:
    """Check that two runs have the same rounds, but for times and last digits."""
    mine, theirs = lines_of(one), lines_of(other)
    assert [row["round"] for row in mine] == [row["round"] for row in theirs]
    for row, its in zip(mine, theirs, strict=True):
        assert row.keys() == its.keys()
        for name in row:
            if not name.startswith(("time/", "memory/")):
                assert its[name] == pytest.approx(row[name], rel=1e-4, abs=1e-5), name


@pytest.mark.long
def test_a_run_of_two_processes_is_as_one_of_one_and_each_goes_on_with_the_other(tmp_path: Path) -> None:
    two, train = [*TORCHRUN, "2"], ["-m", "genenv", "train"]
    for start, name in (([], "one"), (two, "two")):
        done = ran(*start, *train, CONFIG, *settings(), "--out", tmp_path / name)
        assert done.returncode == 0, done.stderr[-3000:]
    same(tmp_path / "one", tmp_path / "two")
    assert lines_of(tmp_path / "two")[-1]["agent/steps"] > 0
    for start, name in ((two, "one"), ([], "two")):
        words = ("--out", tmp_path / name, "--resume", "--set", "run.rounds=3")
        done = ran(*start, *train, *words)
        assert done.returncode == 0, done.stderr[-3000:]
    same(tmp_path / "one", tmp_path / "two")
    assert len(lines_of(tmp_path / "one")) == 4


@pytest.mark.long
def test_a_killed_run_goes_on_as_if_nothing_had_been(tmp_path: Path) -> None:
    straight, broken = tmp_path / "straight", tmp_path / "broken"
    launch, rounds = ["-m", "genenv.backends.local.launch_ranks", "2", "train"], settings("run.rounds=3")
    done = ran(*launch, CONFIG, *rounds, "--out", straight)
    assert done.returncode == 0, done.stderr[-3000:]
    killed = subprocess.Popen(
        [sys.executable, *launch, str(CONFIG), *rounds, "--out", str(broken)],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1"},
        start_new_session=True,
    )
    try:
        assert killed.stdout is not None
        while not (said := killed.stdout.readline()).lstrip().startswith("2/3"):
            assert said, "it has ended"
    finally:
        killed.kill()  # the kernel ends its processes with it
        killed.communicate()
    assert len(lines_of(broken)) < 4
    done = ran(*launch, "--out", broken, "--resume")
    assert done.returncode == 0, done.stderr[-3000:]
    assert len(lines_of(broken)) == 4
    same(straight, broken)


def test_one_process_keeps_to_float32() -> None:
    config = PolicyConfig(model="tiny", tuning="full", dtype="bfloat16", device="cpu", threads=1)
    with pytest.raises(UsageError, match=r"several processes \(torchrun\), which keep float32 weights"):
        LocalModel("tiny", config)
