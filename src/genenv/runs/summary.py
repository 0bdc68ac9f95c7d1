"""What a run came to, as a few lines of text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from genenv.config.run import load_config
from genenv.errors import UsageError
from genenv.runs.folder import RunFolder
from genenv.runs.metrics import held_out_rates, late_p_hats, late_values, target_band
from genenv.runs.store.store import PoolStore
from genenv.types import Origin

_FEW = 0.25
"""A share of tasks with mixed outcomes below this is called few: more than three of four rollouts then carry
no signal.
"""


def summarise(run: Path) -> list[str]:
    """Return six lines: held-out success, valid rate, p_hat, mixed outcomes, tasks, time.

    A run without a simulator has five: held-out success, success in training, mixed rewards, rollouts, time.
    The run's store must have been checked before.

    Raises:
        GenenvError: there is no run, or it has no committed round.
    """
    folder = RunFolder.open(run)
    with PoolStore.open(folder.pool, create=False, check=False) as store:
        metrics = store.metrics_by_round()
        new = store.task_count(Origin.GENERATED)
    if not metrics:
        raise UsageError(f"{run} has no committed round yet; continue it with --resume")
    played, config = [values for number, values in metrics.items() if number > 0], load_config(folder.config)
    held_out = f"held-out success: {_held_out_change(metrics) or 'not measured'}"
    time = f"time: {_total(metrics, 'time/round_s') / 60:.1f} minutes"
    tokens = f"tokens sampled: {_total(metrics, 'tokens/sampled'):,.0f}"
    if not config.simulator.writes_tasks:
        success = [values["agent/success_rate"] for values in played if "agent/success_rate" in values]
        return [
            held_out,
            f"success in training: {_from_to(success) or 'no round played'}",
            "tasks whose rollouts differ in reward, the only ones with a GRPO signal: "
            + _share([1 - agree for agree in late_values(metrics, "agent/zero_advantage_rate")]),
            f"rounds: {len(played)}, rollouts: {_total(metrics, 'agent/attempts'):,.0f}, {tokens}",
            time,
        ]
    valid = [values.get("simulator/valid_rate", 0.0) for values in played]
    p_hats = late_p_hats(metrics)
    low, high = target_band(config.curriculum.alpha)
    return [
        held_out,
        "valid tasks of the simulator: " + (_from_to(valid) or "no round played"),
        "mean p_hat in the last third of the rounds: "
        + (f"{fmean(p_hats):.2f} (target band {low:g} to {high:g})" if p_hats else "none"),
        "new tasks with mixed outcomes, the only ones with a GRPO signal: "
        + _share(late_values(metrics, "tasks/mixed")),
        f"rounds: {len(played)}, new tasks: {new}, {tokens}",
        time,
    ]


def _total(metrics: Mapping[int, Mapping[str, float]], name: str) -> float:
    return sum(values.get(name, 0.0) for values in metrics.values())


def _share(late: Sequence[float]) -> str:
    """Return the share of tasks with a signal in the last third of the rounds, with advice if it is low."""
    if not late:
        return "none"
    few = " (few: docs/guides/experiments.md says what finds more, and when)" if fmean(late) < _FEW else ""
    return f"{fmean(late):.0%} in the last third of the rounds{few}"


def _held_out_change(metrics: Mapping[int, Mapping[str, float]]) -> str:
    """Return the change from first to last measurement, in each environment if there was a shift."""
    before, after, shift = held_out_rates(metrics)
    return _from_to(before) + (f", in the other world {_from_to(after)}" if shift is not None else "")


def _from_to(rates: list[float]) -> str:
    return f"{rates[0]:.1%} -> {rates[-1]:.1%}" if rates else ""
