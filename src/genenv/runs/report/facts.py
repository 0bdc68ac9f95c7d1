"""What the report says about a run, read from its store and its settings."""

from __future__ import annotations

import math
import tomllib
from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import cast

from genenv.errors import DataError
from genenv.runs.folder import RunFolder
from genenv.runs.intervals import wilson
from genenv.runs.metrics import target_band
from genenv.runs.store.records import BatchRate, RoundOverview
from genenv.runs.store.store import PoolStore
from genenv.types import RejectReason


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """Success on held-out tasks after a round."""

    rate: float
    low: float
    high: float
    """95% Wilson interval; equal to the rate where the number of tasks is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundFacts:
    """One round."""

    number: int
    batches: tuple[BatchRate, ...]
    generated: int
    """Generations of the simulator."""
    rejected: Counter[RejectReason]
    held_out: HeldOut | None
    task_skills: tuple[frozenset[str], ...]
    """What each of the round's generated tasks exercises."""
    metrics: Mapping[str, float]

    @property
    def accepted(self) -> int:
        """Generations that became tasks."""
        return self.generated - self.rejected.total()

    @property
    def valid_rate(self) -> float | None:
        """Share of generations that became tasks; None when there were none."""
        return self.accepted / self.generated if self.generated else None

    def skill_share(self, skills: Set[str]) -> float:
        """Share of the round's generated tasks that exercise any of these skills."""
        hits = sum(not own.isdisjoint(skills) for own in self.task_skills)
        return hits / len(self.task_skills) if hits else 0.0

    @property
    def wall_s(self) -> float:
        """Seconds spent: the round's own clock, or the sum of its parts."""
        parts = math.fsum(value for name, value in self.metrics.items() if name.startswith("time/"))
        return self.metrics.get("time/round_s", parts)


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
    rounds: tuple[RoundFacts, ...]
    """What is committed; round 0 is the state before training."""

    def series(self, metric: str) -> dict[int, float]:
        """A metric by round, where it was recorded."""
        return {facts.number: facts.metrics[metric] for facts in self.rounds if metric in facts.metrics}


def read_facts(folder: RunFolder, store: PoolStore) -> RunFacts:
    """Read a run.

    Raises:
        DataError: the store or the settings are damaged.
    """
    config = _read_config(folder)
    alpha = _number(config, "curriculum.alpha")
    k = _number(config, "curriculum.k_min") if _setting(config, "curriculum.band_filter") is True else None
    seed, planned = _number(config, "run.seed"), _number(config, "run.rounds")
    model = _setting(config, "policy.model")
    return RunFacts(
        name=folder.path.resolve().name,
        model=model if isinstance(model, str) else None,
        seed=None if seed is None else int(seed),
        planned_rounds=None if planned is None else int(planned),
        target_band=None if alpha is None else target_band(alpha),
        filter_band=None if alpha is None or k is None else (max(0.0, alpha - k), min(1.0, alpha + k)),
        rounds=tuple(_round_facts(found) for found in store.overview()),
    )


def _round_facts(found: RoundOverview) -> RoundFacts:
    return RoundFacts(
        number=found.number,
        batches=found.batches,
        generated=found.generated,
        rejected=found.rejected,
        held_out=_held_out(found),
        task_skills=found.task_skills,
        metrics=found.metrics,
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
        return tomllib.loads(folder.config.read_text(encoding="utf-8"))
    except ValueError as err:
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
