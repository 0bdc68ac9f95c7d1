"""What the report says about a run, read from its store and its settings."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import cast

from genenv.errors import DataError
from genenv.runs.folder import RunFolder
from genenv.runs.metrics import target_band
from genenv.runs.store.records import RoundOverview
from genenv.runs.store.store import PoolStore
from genenv.statistics import wilson
from genenv.untrusted.documents import Unreadable, read_toml


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Success on held-out tasks after a round."""

    rate: float
    low: float
    high: float
    """95% Wilson interval; equal to the rate where the number of tasks is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RunFacts:
    """A run."""

    name: str
    model: str | None
    seed: int | None
    planned_rounds: int | None
    """How many rounds of training the settings ask for."""
    target_band: tuple[float, float] | None
    """Where the mean p_hat of a round should lie."""
    filter_band: tuple[float, float] | None
    """What the simulator trains on: alpha plus and minus k_min; None without `band_filter`."""
    rounds: tuple[RoundOverview, ...]
    """What is committed; round 0 is the state before training."""

    def series(self, metric: str) -> dict[int, float]:
        """A metric by round, where it was recorded."""
        return {facts.number: facts.metrics[metric] for facts in self.rounds if metric in facts.metrics}

    def held_out(self) -> dict[int, HeldOut]:
        """Success on held-out tasks by round, where it was measured."""
        found = ((facts.number, _held_out(facts)) for facts in self.rounds)
        return {number: held_out for number, held_out in found if held_out is not None}


def read_facts(folder: RunFolder, store: PoolStore) -> RunFacts:
    """Read a run.

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
    """A setting by its dotted name; None when it is not there."""
    section, _, key = name.partition(".")
    table = config.get(section)
    return cast("Mapping[str, object]", table).get(key) if isinstance(table, dict) else None


def _number(config: Mapping[str, object], name: str) -> float | None:
    value = _setting(config, name)
    return value if isinstance(value, int | float) else None
