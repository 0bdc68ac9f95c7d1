"""The last lines of `genenv train`: what a run came to, read from its store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import fmean

from genenv.errors import UsageError
from genenv.runs.folder import RunFolder
from genenv.runs.metrics import (
    held_out_rates,
    late_p_hats,
    late_values,
    refusals,
    refusals_said,
    target_band,
)
from genenv.runs.store.records import Evaluation
from genenv.runs.store.store import PoolStore
from genenv.statistics import counted, wilson
from genenv.types import Origin

_FEW = 0.25
"""A share of tasks with mixed outcomes below this is called few: more than three of four rollouts then carry
no signal. So is a share of valid tasks: more than three of four generations were for nothing.
"""
_MOST_CUT = 0.5
"""A share of rollouts that are cut off above this is said to be why few tasks have mixed outcomes."""


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
        measured = [number for number, values in metrics.items() if "agent/eval_success" in values]
        last = store.evaluations(measured[-1]) if measured else ()
    if not metrics:
        raise UsageError(f"{run} has no committed round yet; continue it with --resume")
    played = [values for number, values in metrics.items() if number > 0]
    config = folder.settings()
    held_out = f"held-out success: {_held_out_change(metrics, last) or 'not measured'}"
    time = f"time: {_total(metrics, 'time/round_s') / 60:.1f} minutes"
    tokens = f"tokens sampled: {_total(metrics, 'tokens/sampled'):,.0f}"
    if not config.simulator.writes_tasks:
        success = [values["agent/success_rate"] for values in played if "agent/success_rate" in values]
        return [
            held_out,
            f"success in training: {_from_to(success) or 'no round played'}",
            "tasks whose rollouts differ in reward, the only ones with a GRPO signal: "
            + _share(
                [1 - agree for agree in late_values(metrics, "agent/zero_advantage_rate")],
                late_values(metrics, "agent/truncated_rate"),
            ),
            f"rounds: {len(played)}, rollouts: {_total(metrics, 'agent/attempts'):,.0f}, {tokens}",
            time,
        ]
    valid = [values.get("simulator/valid_rate", 0.0) for values in played]
    refused = refusals_said(refusals(played)) if played and fmean(valid) < _FEW else ""
    p_hats = late_p_hats(metrics)
    low, high = target_band(config.curriculum.alpha_last or config.curriculum.alpha)
    return [
        held_out,
        f"valid tasks of the simulator: {_from_to(valid) or 'no round played'}"
        + (f" (few; the gate refused the rest: {refused})" if refused else ""),
        "mean p_hat in the last third of the rounds: "
        + (f"{fmean(p_hats):.2f} (target band {low:g} to {high:g})" if p_hats else "none"),
        _mixed(config.agent.algorithm)
        + _share(late_values(metrics, "tasks/mixed"), late_values(metrics, "agent/truncated_rate")),
        f"rounds: {len(played)}, new tasks: {new}, {tokens}",
        time,
    ]


def _mixed(algorithm: str) -> str:
    told = "new tasks with mixed outcomes"
    return f"{told}: " if algorithm == "ppo" else f"{told}, the only ones with a GRPO signal: "


def _total(metrics: Mapping[int, Mapping[str, float]], name: str) -> float:
    return sum(values.get(name, 0.0) for values in metrics.values())


def _share(late: Sequence[float], cut: Sequence[float]) -> str:
    """Return the share of tasks with a signal in the last third of the rounds, with advice if it is low.

    Args:
        late: the share in each of these rounds.
        cut: the share of rollouts that were cut off, in each.
    """
    if not late:
        return "none"
    few = ""
    if fmean(late) < _FEW:
        few = " (few: docs/guides/experiments.md says what finds more, and when)"
        if cut and fmean(cut) > _MOST_CUT:
            few = (
                f" (few: {fmean(cut):.0%} of rollouts are cut off by a limit on tokens, context or turns: "
                "raise agent.max_new_tokens, policy.context_tokens or the environment's turns)"
            )
    return f"{fmean(late):.0%} in the last third of the rounds{few}"


def _held_out_change(metrics: Mapping[int, Mapping[str, float]], last: Sequence[Evaluation]) -> str:
    """Return the change from first to last measurement, in each environment if there was a shift.

    The interval is that of the last measurement over its tasks. The reward is named if it is not the success.

    Args:
        metrics: of each round.
        last: the held-out results of the last measurement.
    """
    before, after, shift = held_out_rates(metrics)
    change = _from_to(before) + (f", in the other world {_from_to(after)}" if shift is not None else "")
    tasks, agents = {one.task_id for one in last}, {one.agent for one in last}
    if shift is None and tasks and len(agents) == 1 and len(last) == len(tasks):
        low, high = wilson(sum(one.success for one in last), len(tasks))
        change += f" (95% CI {low:.0%} to {high:.0%}, {counted(len(tasks), 'task')})"
    if any(one.reward != one.success for one in last):
        name = "agent/eval_reward"
        rewards = [values[name] for values in metrics.values() if name in values]
        change += f", reward {rewards[0]:.2f} -> {rewards[-1]:.2f}"
    return change


def _from_to(rates: list[float]) -> str:
    return f"{rates[0]:.1%} -> {rates[-1]:.1%}" if rates else ""
