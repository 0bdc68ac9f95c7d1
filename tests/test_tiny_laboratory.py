"""Learning happens: in `configs/tiny.toml` an agent gets better by its attempts alone, and only by them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from genenv.runs.store.store import PoolStore
from genenv.types import Group
from typed import succeeds

CONFIG = Path(__file__).parents[1] / "configs" / "tiny.toml"


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GENENV_CACHE", str(tmp_path / "cache"))


@pytest.mark.long
def test_attempts_alone_make_an_agent_better_and_without_steps_that_matter_it_stays_as_it_was(
    tmp_path: Path,
) -> None:
    warm_up = tmp_path / "warm-up"
    play(warm_up, "run.rounds=0")
    gained, error = rise(tmp_path / "run", warm_up, "run.rounds=40")
    assert gained > 4 * error
    assert gained > 0.08
    gained, error = rise(tmp_path / "idle", warm_up, "run.rounds=6", "agent.lr=1e-12")
    assert abs(gained) <= 2 * error


@pytest.mark.long
def test_likelihoods_of_known_solutions_foretell_success(tmp_path: Path) -> None:
    """A rate found in eight attempts is off by .13 on average itself, where it is one half."""
    play(tmp_path / "run", "run.rounds=1", "run.eval_every=0", "agent.warmup.steps=100", probe=True)
    with PoolStore.open(tmp_path / "run" / "pool.db", create=False) as store:
        metrics = store.metrics(1)
    assert metrics["probe/candidates"] > 6 * metrics["agent/attempts"] / 8
    assert metrics["probe/error"] < 0.2
    assert metrics["tasks/mixed"] > 0.9 > 0.6 > metrics["probe/foretold"] > 0.4


def rise(folder: Path, origin: Path, *overrides: str) -> tuple[float, float]:
    """By how much held-out success has risen from the warm-up to the last round, and its standard error.

    Of n tasks b were won and c lost: the rise is (b - c) / n, its variance (b + c - (b - c)^2 / n) / n^2.
    """
    play(folder, *overrides, origin=f"{origin}@0")
    with PoolStore.open(folder / "pool.db", create=False) as store:
        last = store.rounds()[-1]
        before, after = ({e.task_id: e.success for e in store.evaluations(n)} for n in (0, last))
        for number in range(1, last + 1):
            costs_are_exact(store.metrics(number), store.groups(number))
    tasks = len(before)
    assert tasks == 500
    won = sum(after[name] and not before[name] for name in before)
    lost = sum(before[name] and not after[name] for name in before)
    return (won - lost) / tasks, math.sqrt(won + lost - (won - lost) ** 2 / tasks) / tasks


def costs_are_exact(metrics: Mapping[str, float], groups: Sequence[Group]) -> None:
    """A round costs what its attempts are long; groups whose rewards agree train nothing."""
    attempts = [trace.response_tokens for group in groups for trace in group.traces]
    live = [group for group in groups if len({trace.reward for trace in group.traces}) > 1]
    assert metrics["agent/imitated"] == 0
    assert metrics["agent/attempts"] == len(attempts)
    assert metrics["tokens/agent_sampled"] == sum(attempts)
    trained = sum(trace.response_tokens for group in live for trace in group.traces)
    assert metrics["tokens/agent_trained"] == trained
    assert metrics["tokens/simulator_sampled"] == 0
    assert "tokens/simulator_trained" not in metrics


def play(folder: Path, *overrides: str, origin: str = "", probe: bool = False) -> None:
    """Variations of base tasks, without a simulator to train; measured at the ends."""
    settings = [word for one in ("run.eval_every=1000", *overrides) for word in ("--set", one)]
    begun = ["--from", origin] if origin else []
    variant = "variation+probe" if probe else "variation"
    succeeds("train", CONFIG, "--variant", variant, "--out", folder, *settings, *begun)
