"""A sweep: a grid of real runs with scripted players, each in a process of its own."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from functools import partial
from multiprocessing import get_context
from pathlib import Path

import pytest

from genenv.config.run import load_config
from genenv.errors import DataError, UsageError
from genenv.research.sweeps.grid import Cell, Grid, rounds_done
from genenv.research.sweeps.sweep import _last_words, _Running, threads_of
from genenv.runs.store.store import PoolStore
from typed import refused, run, succeeds

CONFIG = Path(__file__).parents[3] / "configs" / "tiny.toml"
SMALL = [
    *("--set", "policy.backend=scripted", "--set", "run.rounds=1", "--set", "run.eval_tasks=4"),
    *("--set", "simulator.contexts=2", "--set", "simulator.variations=2", "--set", "agent.rollouts=2"),
    *("--set", "run.keep_checkpoints=5"),
]


def words(out: Path, variants: str = "base,variation", seeds: int = 2) -> list[object]:
    return ["sweep", CONFIG, *SMALL, "--variants", variants, "--seeds", seeds, "--jobs", 2, "--out", out]


@pytest.mark.long
def test_a_sweep_plays_every_variant_with_every_seed_and_goes_on_where_it_stopped(tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    first = succeeds(*words(out, seeds=1), "--contrast", "variation:base")
    assert "2 of 2 runs are finished" in first.stdout
    assert "2 runs, 2 at a time" in first.stderr
    moved = shutil.move(out, tmp_path / "moved")
    again = succeeds(*words(moved, seeds=2))
    assert "2 of 4 runs are finished already" in again.stderr
    grid = Grid.open(moved)
    assert (grid.variants, grid.seeds) == (["base", "variation"], [0, 1])
    assert grid.contrasts == [("variation", "base")]
    assert [cell.name for cell in grid.cells()] == [
        *("base, seed 0", "variation, seed 0", "base, seed 1", "variation, seed 1")
    ]
    assert all(rounds_done(cell) == (1, 1) for cell in grid.cells())
    assert "seed = 1" in (moved / "base" / "seed-1" / "config.toml").read_text()


@pytest.mark.long
def test_a_variant_may_name_a_function_of_ones_own_and_one_that_a_variant_replaces_is_named(
    tmp_path: Path,
) -> None:
    (tmp_path / "mine.py").write_text(
        "def half(rewards):\n    return [reward - 0.5 for reward in rewards]\n\n\n"
        "def paid(successes, rollouts, rewards, config):\n    return successes / rollouts\n"
    )
    half, out = f"variation+agent.advantage={tmp_path}/mine.py:half", tmp_path / "sweep"
    paid = ("--set", f"curriculum.env_reward={tmp_path}/mine.py:paid")
    done = succeeds(*words(out, f"bandit,variation,{half}", 1), *paid, "--contrast", f"{half}:variation")
    assert "3 of 3 runs are finished" in done.stdout
    assert f"bandit sets curriculum.env_reward to 'learnability' instead of '{tmp_path}/mine.py:paid'" in (
        done.stderr
    )
    assert "variation sets" not in done.stderr
    (cell,) = [cell for cell in Grid.open(out).cells() if cell.variant == half]
    assert load_config(cell.path / "config.toml").agent.advantage == f"{tmp_path}/mine.py:half"
    assert cell.path.parent.parent == out, "a slash in its name makes no folder"
    assert f"{half} against variation, " in succeeds("compare", out).stdout
    of_one = succeeds("compare", cell.path.parent, out / "variation", "--contrast", f"{half}:variation")
    assert f"{half} against variation, " in of_one.stdout, "the folder of a variant holds its runs"


@pytest.mark.long
def test_a_variant_of_many_settings_has_a_name_that_a_run_can_have(tmp_path: Path) -> None:
    settings = ("foretold_attempts=0", "p_hat_scope=batch", "env_reward=alpha", "alpha=0.4")
    long = "+".join(["variation", *(f"curriculum.{setting}" for setting in settings)])
    assert len(long) > 100
    assert "1 of 1 runs are finished" in succeeds(*words(tmp_path / "sweep", long, seeds=1)).stdout


@pytest.mark.long
def test_a_run_that_fails_ends_no_other_and_is_tried_again(tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    (out / "base").mkdir(parents=True)
    Grid.begin(tmp_path / "plan", CONFIG, SMALL[1::2], variants=["base", "variation"], seeds=[0])
    for file in ("sweep.json", "config.toml"):
        shutil.copy(tmp_path / "plan" / file, out)
    (out / "base" / "seed-0.log").mkdir()
    unheard = run(*words(out, seeds=1))
    assert "1 of 2 runs are finished" in unheard.stdout
    assert "failed: base, seed 0: it said nothing (exit code 1)" in unheard.stdout
    (out / "base" / "seed-0.log").rmdir()
    (out / "base" / "seed-0").write_text("in the way")
    failed = run(*words(out, seeds=1))
    assert failed.exit_code == 1
    assert "1 of 2 runs are finished" in failed.stdout
    assert "failed: base, seed 0: " in failed.stdout
    assert "is a file; choose another --out" in failed.stdout
    (out / "base" / "seed-0").unlink()
    assert "2 of 2 runs are finished" in succeeds(*words(out, seeds=1)).stdout


def playing(out: Path, rounds: int) -> tuple[subprocess.Popen[bytes], Cell]:
    """A sweep of one run, of which a round is committed."""
    longer = [*words(out, "variation", 1), "--set", f"run.rounds={rounds}"]
    command = [sys.executable, "-m", "genenv", *map(str, longer)]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, stdout=subprocess.PIPE)
    cell = Cell("variation", 0, out / "variation" / "seed-0")
    end = time.monotonic() + 30
    while time.monotonic() < end and (rounds_done(cell) or (0, 0))[0] < 1:
        time.sleep(0.1)
    return process, cell


def test_a_run_that_is_killed_is_not_blamed_on_what_an_earlier_process_said(tmp_path: Path) -> None:
    cell = Cell("base", 0, tmp_path / "seed-0")
    cell.log.write_text("genenv: an error of yesterday\n")
    yesterday = cell.log.stat().st_size

    def ended(code: str) -> str:
        process = get_context("spawn").Process(target=exec, args=(code,))
        process.start()
        process.join()
        return _last_words(_Running(cell, process, 0.0, yesterday))

    assert ended("import os; os.kill(os.getpid(), 9)") == f"it was killed by SIGKILL (see {cell.log})"
    assert ended("raise SystemExit(3)") == "it said nothing (exit code 3)"
    with cell.log.open("a") as said:
        said.write("genenv: an error of today\n")
    assert ended("raise SystemExit(2)") == f"an error of today (see {cell.log})"


@pytest.mark.long
def test_an_interrupt_stops_the_runs_and_keeps_what_they_have(tmp_path: Path) -> None:
    process, cell = playing(tmp_path / "sweep", rounds=400)
    process.send_signal(signal.SIGINT)
    _, said = process.communicate(timeout=30)
    assert process.returncode == 130
    assert b"genenv: stopped" in said
    assert b"Traceback" not in said
    found = rounds_done(cell)
    assert found is not None
    assert 1 <= found[0] < 400
    assert "stopped; committed rounds are kept" in cell.log.read_text()


@pytest.mark.skipif(not hasattr(signal, "SIGKILL"), reason="the system kills in another way")
@pytest.mark.long
def test_the_runs_of_a_sweep_that_is_killed_end_too(tmp_path: Path) -> None:
    process, cell = playing(tmp_path / "sweep", rounds=4000)
    process.kill()
    process.communicate()
    end = time.monotonic() + 30
    while time.monotonic() < end and "stopped; committed rounds are kept" not in cell.log.read_text():
        time.sleep(0.1)
    assert "stopped; committed rounds are kept" in cell.log.read_text()


def test_a_sweep_is_extended_by_contrasts_with_what_it_has_and_names_a_variant_once(tmp_path: Path) -> None:
    settings = [*SMALL[1::2]]
    begin = partial(Grid.begin, tmp_path / "sweep", CONFIG, settings, seeds=[0])
    assert begin(variants=["base", "base", "variation"]).variants == ["base", "variation"]
    more = begin(variants=["grammar"], contrasts=[("grammar", "base")])
    assert (more.variants, more.contrasts) == (["base", "variation", "grammar"], [("grammar", "base")])
    assert more.later == []
    next(more.cells()).path.mkdir(parents=True)  # a run has begun
    late = begin(variants=["grammar"], seeds=[0, 7], contrasts=[("grammar", "variation")])
    assert late.later == ["seed 7", "contrast grammar:variation"]
    assert Grid.open(late.path).later == late.later
    with pytest.raises(UsageError, match="'random', which is no variant of this sweep"):
        begin(variants=["grammar"], contrasts=[("grammar", "random")])


@pytest.mark.long
def test_other_settings_in_a_sweeps_folder_are_refused(tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    succeeds(*words(out, "base", 1))
    assert "is a sweep of other settings" in refused(*words(out, "base", 1), "--set", "agent.lr=1e-5")
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "file").touch()
    assert "holds no sweep" in refused(*words(tmp_path / "other"))


@pytest.mark.parametrize(
    ("more", "sentence"),
    [
        (["--variants", "base,statik"], "did you mean 'static'"),
        (["--variants", "aim+simulator.variations=1"], "'grpo' compares what was written for one context"),
        (["--contrast", "base"], "is not of the form A:B"),
        (["--contrast", "base:random"], "'random', which is no variant of this sweep"),
        (["--set", "agent.lrr=1"], "did you mean 'agent.lr'"),
        (["--variants", "rl+run.name=a b"], "no folder can be called 'rl+run.name=a b'"),
        (["--variants", "rl+agent.lr=0"], "agent.lr"),
        (["--from", "nowhere@0"], "nowhere is not a folder"),
        (["--variants", "rl,RL"], "'RL' is written 'rl'"),
        (["--variants", ","], "--variants names no variant"),
        (["--set", "run.seed=7"], "'run.seed=7' sets run.seed, which --seeds gives each run"),
        (["--variants", "rl+run.seed=5"], "'rl+run.seed=5' sets run.seed"),
    ],
)
def test_what_is_wrong_is_said_before_the_first_run(more: list[str], sentence: str, tmp_path: Path) -> None:
    assert sentence in refused(*words(tmp_path / "sweep"), *more)
    assert not (tmp_path / "sweep").exists()


@pytest.mark.long
def test_all_runs_go_on_from_one_warm_up(tmp_path: Path) -> None:
    parent = tmp_path / "parent"
    succeeds("train", CONFIG, *SMALL, "--out", parent)
    out = tmp_path / "sweep"
    succeeds(*words(out, "variation,rl+agent.lr=3e-5"), "--from", f"{parent}@0")
    assert Grid.open(out).origin == f"{parent}@0"
    for cell in Grid.open(out).cells():
        assert (cell.path / "config.toml").read_text().startswith(f"# goes on from {parent}@0")
    assert load_config(out / "rl+agent.lr=3e-5" / "seed-1" / "config.toml").agent.lr == 3e-5


@pytest.mark.long
def test_the_variants_of_a_seed_go_on_from_one_warm_up(tmp_path: Path) -> None:
    out = tmp_path / "sweep"
    said = succeeds(*words(out, "variation,rl"), "--shared-warmup").stderr
    assert "warm-up, seed 1 took" in said
    grid = Grid.open(out)
    warm_ups = {cell.seed: cell for cell in grid.warm_ups()}
    assert all(rounds_done(cell) == (0, 0) for cell in warm_ups.values())
    for cell in grid.cells():
        warm_up = warm_ups[cell.seed]
        assert (cell.path / "config.toml").read_text().startswith(f"# goes on from {warm_up.path}@0")
        runs = [cell.path / "pool.db", warm_up.path / "pool.db"]
        with PoolStore.open(runs[0], create=False) as own, PoolStore.open(runs[1], create=False) as first:
            assert list(own.rounds()) == [0, 1]
            assert own.evaluations(0) == first.evaluations(0)
    assert "is a sweep from one warm-up a seed" in refused(*words(out, "variation,rl"))
    assert "names a warm-up already" in refused(
        *words(out), "--shared-warmup", "--from", f"{out}/rl/seed-0@0"
    )


def test_a_shared_warm_up_says_which_settings_it_ignores_and_teaches_no_other_form(tmp_path: Path) -> None:
    grid = Grid.begin(tmp_path / "one", CONFIG, (), variants=["genenv", "rl"], seeds=[0], shared_warmup=True)
    assert list(grid.unused_warmups()) == [
        "agent.warmup.kept_moments, simulator.warmup.kept_moments of genenv have no effect: all variants "
        "share the warm-up of CONFIG"
    ]
    separate = Grid.begin(tmp_path / "separate", CONFIG, (), variants=["genenv"], seeds=[0])
    assert not list(separate.unused_warmups())
    with pytest.raises(UsageError, match=r"on the wrong format; run it in a sweep of its own, with --set"):
        Grid.begin(
            tmp_path / "two",
            CONFIG,
            (),
            variants=["genenv+simulator.writes=parameters"],
            seeds=[0],
            shared_warmup=True,
        )


def test_a_damaged_plan_is_one_sentence(tmp_path: Path) -> None:
    (tmp_path / "sweep.json").write_text(json.dumps({"format": 2}))
    with pytest.raises(DataError, match=r"sweep\.json is damaged"):
        Grid.open(tmp_path)
    with pytest.raises(UsageError, match="holds no sweep"):
        Grid.open(tmp_path / "nowhere")


def test_runs_at_a_time_share_the_cores() -> None:
    cores = len(os.sched_getaffinity(0))
    assert threads_of(1) == cores
    assert threads_of(10 * cores) == 1
