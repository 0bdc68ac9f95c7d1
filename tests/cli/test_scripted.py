"""`policy.backend = "scripted"`: a whole run of any environment in seconds, without model or torch."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from genenv.runs.store.store import PoolStore
from test_layers import HEAVY
from typed import refused, stopped_in_round_two, succeeds

CONFIGS = Path(__file__).parents[2] / "configs"
SCRIPTED = ["--set", "policy.backend=scripted", "--set", "run.rounds=2"]


def digest(path: Path) -> str:
    with PoolStore.open(path / "pool.db", create=False) as store:
        return store.digest()


@pytest.mark.long
@pytest.mark.parametrize(
    "name", ["quickstart", "household", "multihop_qa", "tiny", pytest.param("travel", marks=pytest.mark.slow)]
)
def test_scripts_play_a_whole_run_which_goes_on_where_it_was_stopped(name: str, tmp_path: Path) -> None:
    words = ["train", CONFIGS / f"{name}.toml", *SCRIPTED, "--out"]
    succeeds(*words, tmp_path / "whole")
    stopped_in_round_two(*words, tmp_path / "stopped")
    with PoolStore.open(tmp_path / "stopped" / "pool.db", create=False) as store:
        assert store.rounds() == (0, 1)
    told = succeeds("train", "--resume", "--out", tmp_path / "stopped").stderr
    assert "loading scripted players" in told
    assert digest(tmp_path / "stopped") == digest(tmp_path / "whole")
    with PoolStore.open(tmp_path / "whole" / "pool.db", create=False) as store:
        first, second = store.metrics(1), store.metrics(2)
    assert first["simulator/valid_rate"] > 0.5
    assert 0.1 < first["agent/success_rate"] < 0.6
    assert second["agent/eval_success"] > 0


def test_a_run_names_settings_without_effect_at_its_start(tmp_path: Path) -> None:
    idle = ("run.rounds=0", "run.eval_every=0", "agent.algorithm=rft", "agent.importance_cap=2")
    words = [word for one in idle for word in ("--set", one)]
    told = succeeds("train", CONFIGS / "tiny.toml", *SCRIPTED, *words, "--out", tmp_path / "run").stderr
    assert 'note: agent.importance_cap = 2.0 has no effect, as agent.algorithm is "rft"' in told


@pytest.mark.long
def test_a_run_that_is_made_longer_says_that_alpha_moves_anew(tmp_path: Path) -> None:
    small = ("run.rounds=1", "run.eval_every=0", "curriculum.alpha_last=0.7", "simulator.contexts=2")
    words = [word for one in small for word in ("--set", one)]
    out = tmp_path / "run"
    succeeds("train", CONFIGS / "tiny.toml", *SCRIPTED, *words, "--out", out)
    told = succeeds("train", "--resume", "--set", "run.rounds=2", "--out", out).stderr
    assert f"alpha of {out} moves over 1 rounds; with 2 it goes on from where it would be" in told


@pytest.mark.long
def test_neither_starting_nor_resuming_a_run_of_scripts_loads_a_heavy_library(tmp_path: Path) -> None:
    def loaded(*words: object) -> list[str]:
        code = (
            "import sys; from genenv.cli.app import app; app(sys.argv[1:], standalone_mode=False); "
            f"print(*sorted({HEAVY!r} & set(sys.modules)))"
        )
        asked = [sys.executable, "-c", code, *map(str, words)]
        done = subprocess.run(asked, capture_output=True, text=True, check=True)
        assert "rounds: " in done.stdout
        return done.stdout.splitlines()[-1].split()

    out = tmp_path / "run"
    assert (
        loaded("train", CONFIGS / "quickstart.toml", *SCRIPTED, "--set", "run.rounds=1", "--out", out) == []
    )
    assert loaded("train", "--resume", "--set", "run.rounds=2", "--out", out) == []


@pytest.mark.long
def test_a_run_of_scripts_asks_for_no_model(tmp_path: Path) -> None:
    words = ["generate", CONFIGS / "quickstart.toml", "--set", "policy.model=./nowhere"]
    assert "there is no model folder" in refused(*words)
    assert succeeds(*words, *SCRIPTED, "--n", "2").stdout.count("\n") == 2


def test_a_backend_that_there_is_not_is_refused_in_a_sentence(tmp_path: Path) -> None:
    sentence = refused(
        "train", CONFIGS / "quickstart.toml", "--set", "policy.backend=sglang", "--out", tmp_path / "run"
    )
    assert "policy.backend" in sentence
    assert "unknown backend 'sglang'; known: local, ppo, scripted, tinker, vllm" in sentence
    assert not (tmp_path / "run").exists()
