"""Facts about a run, read from its store and settings: for its report, and as six lines of text."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from statistics import fmean
from typing import cast

from genenv.config.run import load_config
from genenv.errors import DataError, UsageError
from genenv.runs.folder import RunFolder
from genenv.runs.metrics import late_p_hats, late_values, target_band
from genenv.runs.store.records import RoundOverview
from genenv.runs.store.store import PoolStore
from genenv.statistics import wilson
from genenv.types import Origin
from genenv.untrusted.documents import Unreadable, read_toml

_FEW = 0.25
"""A share of tasks with mixed outcomes below this is called few: more than three of four rollouts then carry
no signal.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Success on held-out tasks after a round."""

    rate: float
    low: float
    high: float
    """Bounds of the 95% Wilson interval; equal to the rate if the number of tasks is unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """The facts that a run's report shows; the charts take them."""

    name: str
    model: str | None
    seed: int | None
    planned_rounds: int | None
    """The number of training rounds in the settings."""
    target_band: tuple[float, float] | None
    """The desired range of a round's mean p_hat."""
    filter_band: tuple[float, float] | None
    """The range of p_hat that the simulator trains on: alpha plus and minus k_min; None without
    `band_filter`.
    """
    rounds: tuple[RoundOverview, ...]
    """The committed rounds; round 0 is the state before training."""

    def series(self, metric: str) -> dict[int, float]:
        """Return a metric by round, for the rounds that recorded it."""
        return {facts.number: facts.metrics[metric] for facts in self.rounds if metric in facts.metrics}

    def held_out(self) -> dict[int, HeldOut]:
        """Return success on held-out tasks by round, for the rounds that measured it."""
        found = ((facts.number, _held_out(facts)) for facts in self.rounds)
        return {number: held_out for number, held_out in found if held_out is not None}


def read_facts(folder: RunFolder, store: PoolStore) -> RunFacts:
    """Read the facts of a run.

    Raises:
        DataError: the store or the settings are damaged.
    """
    config = _read_config(folder)
    alpha = _number(config, "curriculum.alpha")
    k = _number(config, "curriculum.k_min") if _setting(config, "curriculum.band_filter") is True else None
    seed, planned = _number(config, "run.seed"), _number(config, "run.rounds")
    scripted = _setting(config, "policy.backend") == "scripted"
    model = "scripts, no model" if scripted else _setting(config, "policy.model")
    return RunFacts(
        name=folder.path.resolve().name,
        model=model if isinstance(model, str) else None,
        seed=None if seed is None else int(seed),
        planned_rounds=None if planned is None else int(planned),
        target_band=None if alpha is None else target_band(alpha),
        filter_band=None if alpha is None or k is None else (max(0.0, alpha - k), min(1.0, alpha + k)),
        rounds=store.overview(),
    )


def _held_out(found: RoundOverview) -> HeldOut | None:
    if found.held_out is not None:
        solved, tried = found.held_out
        low, high = wilson(solved, tried)
        return HeldOut(rate=solved / tried, low=low, high=high)
    rate = found.metrics.get("agent/eval_success")
    return None if rate is None else HeldOut(rate=rate, low=rate, high=rate)


def _read_config(folder: RunFolder) -> Mapping[str, object]:
    try:
        return read_toml(folder.config.read_text(encoding="utf-8"), str(folder.config))
    except (Unreadable, ValueError) as err:
        raise DataError(
            f"{folder.config} is damaged ({err}); restore a copy of it, or start a new run"
        ) from err


def _setting(config: Mapping[str, object], name: str) -> object:
    """Return a setting by its dotted name; None if it is missing."""
    section, _, key = name.partition(".")
    table = config.get(section)
    return cast("Mapping[str, object]", table).get(key) if isinstance(table, dict) else None


def _number(config: Mapping[str, object], name: str) -> float | None:
    value = _setting(config, name)
    return value if isinstance(value, int | float) else None


def summarise(run: Path) -> list[str]:
    """Return six lines: held-out success, valid rate, p_hat, mixed outcomes, tasks, time.

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
    played = [values for number, values in metrics.items() if number > 0]
    valid = [values.get("simulator/valid_rate", 0.0) for values in played]
    p_hats = late_p_hats(metrics)
    low, high = target_band(load_config(folder.config).curriculum.alpha)
    seconds = sum(values.get("time/round_s", 0.0) for values in metrics.values())
    tokens = sum(values.get("tokens/sampled", 0.0) for values in metrics.values())
    return [
        f"held-out success: {_held_out_change(metrics) or 'not measured'}",
        "valid tasks of the simulator: " + (_from_to(valid) or "no round played"),
        "mean p_hat in the last third of the rounds: "
        + (f"{fmean(p_hats):.2f} (target band {low:g} to {high:g})" if p_hats else "none"),
        "new tasks with mixed outcomes, the only ones with a GRPO signal: " + _mixed(metrics),
        f"rounds: {len(played)}, new tasks: {new}, tokens sampled: {tokens:,.0f}",
        f"time: {seconds / 60:.1f} minutes",
    ]


def _mixed(metrics: Mapping[int, Mapping[str, float]]) -> str:
    """Return the share of mixed outcomes in the last third of the rounds, with advice if it is low."""
    late = late_values(metrics, "tasks/mixed")
    if not late:
        return "none"
    few = " (few: docs/guides/experiments.md says what finds more, and when)" if fmean(late) < _FEW else ""
    return f"{fmean(late):.0%} in the last third of the rounds{few}"


def _held_out_change(metrics: Mapping[int, Mapping[str, float]]) -> str:
    """Return the change from first to last measurement, in each environment if there was a shift."""
    taken = {number: m["agent/eval_success"] for number, m in metrics.items() if "agent/eval_success" in m}
    shift = next((number for number, m in metrics.items() if "agent/eval_at_shift" in m), None)
    if shift is None:
        return _from_to(list(taken.values()))
    first, there = ([rate for n, rate in taken.items() if (n >= shift) is later] for later in (False, True))
    return (
        f"{_from_to(first)}, in the other world {_from_to([metrics[shift]['agent/eval_at_shift'], *there])}"
    )


def _from_to(rates: list[float]) -> str:
    return f"{rates[0]:.1%} -> {rates[-1]:.1%}" if rates else ""
