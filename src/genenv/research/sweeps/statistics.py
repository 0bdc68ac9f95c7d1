# pyright: standard
"""What paired runs say of two variants: differences, intervals, p-values, and how many seeds it takes.

A run is a noisy measurement of its variant: another seed gives another result, and so would other held-out
tasks. So the variance of a difference is that of its means when seeds are drawn again, and tasks within each
of them: a hierarchical bootstrap, whose limit of many draws has a closed form,

    Var = s^2 / S + mean over seeds of v / (S N),

s^2 the (unbiased) variance of the seeds' means, v the variance of a seed's tasks. Interval and p-value are
those of t with S - 1 degrees of freedom: few seeds say little of their own spread.

Shapes: S = seeds that both variants have, N = held-out tasks.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import stats

LEVEL = 0.05
POWER = 0.8
_MOST_SEEDS = 10_000

Scores = NDArray[np.float64]
"""[S, N] score in [0, 1] of each task in each seed's run."""


@dataclass(frozen=True, slots=True)
class Difference:
    """One variant's mean minus another's."""

    value: float
    low: float
    """Of the 95% interval."""
    high: float
    p: float
    """That there is no difference, two-sided; NaN with one seed, which says nothing of seeds."""
    seeds: int
    spread: float
    """Standard deviation of what one pair of runs says, its tasks included; NaN with one."""

    @property
    def needed(self) -> int | None:
        """Seeds with which a true difference of this size is found in 80 of 100 times; None if unknown."""
        return seeds_needed(self.value, self.spread)


def difference(one: Scores, other: Scores) -> Difference:
    """One minus the other, paired by seed and task.

    Args:
        one: [S, N].
        other: [S, N], the same seeds and tasks.

    Raises:
        ValueError: they are not of one shape, or empty.
    """
    if one.shape != other.shape or not one.size:
        raise ValueError(f"scores of shapes {one.shape} and {other.shape} are not paired")
    apart_SN = one - other
    seeds, value = len(apart_SN), float(apart_SN.mean())
    tasks = float(apart_SN.var(axis=1).mean()) / apart_SN.size
    if seeds < 2:
        half = float(stats.norm.ppf(1 - LEVEL / 2)) * math.sqrt(tasks)
        return Difference(value, value - half, value + half, math.nan, seeds, math.nan)
    error = math.sqrt(float(apart_SN.mean(axis=1).var(ddof=1)) / seeds + tasks)
    half = float(stats.t.ppf(1 - LEVEL / 2, seeds - 1)) * error
    p = p_value(value, error, seeds)
    return Difference(value, value - half, value + half, p, seeds, error * math.sqrt(seeds))


def p_value(value: float, error: float, seeds: int) -> float:
    """Two-sided, of a mean over seeds and its standard error, by t with S - 1 degrees of freedom."""
    if not value:
        return 1.0
    return float(2 * stats.t.sf(abs(value) / error, seeds - 1)) if error else 0.0


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values adjusted for how many comparisons there are (Holm 1979); NaN stays, and does not count."""
    known = sorted((p, place) for place, p in enumerate(p_values) if not math.isnan(p))
    adjusted, highest = list(p_values), 0.0
    for rank, (p, place) in enumerate(known):
        highest = max(highest, min(1.0, (len(known) - rank) * p))
        adjusted[place] = highest
    return adjusted


def seeds_needed(effect: float, spread: float) -> int | None:
    """Pairs of runs with which the paired t-test finds an effect in 80 of 100 times, at the 5% level.

    Args:
        effect: the true difference.
        spread: standard deviation of what one pair of runs says.

    Returns:
        At least 2; None without a spread or an effect, or beyond 10,000.
    """
    if not effect or math.isnan(spread):
        return None
    if not spread:
        return 2
    for seeds in range(2, _MOST_SEEDS):
        critical = stats.t.ppf(1 - LEVEL / 2, seeds - 1)
        shift = abs(effect) / spread * math.sqrt(seeds)
        if stats.nct.sf(critical, seeds - 1, shift) >= POWER:
            return seeds
    return None


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Mean over seeds, and its 95% interval by t; the interval is NaN with one."""
    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, math.nan, math.nan
    half = float(stats.t.ppf(0.975, len(values) - 1)) * float(stats.sem(values))
    return mean, mean - half, mean + half


def ratio(one: Sequence[float], other: Sequence[float]) -> tuple[float, float, float]:
    """The geometric mean of paired ratios one / other, and its 95% interval by t on the logarithm."""
    mean, low, high = mean_interval([math.log(a / b) for a, b in zip(one, other, strict=True)])
    return math.exp(mean), math.exp(low), math.exp(high)
