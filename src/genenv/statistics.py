# pyright: standard
"""Confidence intervals and tests: of rates, of reweighted items, of differences between paired runs.

A run is a noisy measurement of its variant: another seed gives another result, and so would other held-out
tasks. So `difference` draws seeds again, and tasks within each of them: a hierarchical bootstrap, whose limit
of many draws has a closed form,

    Var = s^2 / S + mean over seeds of v / (S N),

s^2 the (unbiased) variance of the seeds' means, v the variance of a seed's tasks. Interval and p-value are
those of Student's t with S - 1 degrees of freedom.

Shapes: N = items or held-out tasks, C = clusters of items, R = bootstrap draws, S = seeds of both variants.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

LEVEL = 0.05
"""Significance level of all tests; intervals cover 95%."""
POWER = 0.8
RESAMPLES = 2000
_CHUNK = 4_000_000
"""Bootstrap weights drawn at a time: bounds memory."""
_MOST_SEEDS = 10_000
_Z = 1.959963984540054
"""Quantile of the normal distribution of a two-sided 95% interval."""

Scores = NDArray[np.float64]
"""[S, N] score in [0, 1] of each task in each seed's run."""


def wilson(successes: float, trials: int) -> tuple[float, float]:
    """Wilson's 95% score interval of a success rate (Wilson 1927, without continuity correction).

    (p + z^2/2n ± z sqrt(p (1 - p)/n + z^2/4n^2)) / (1 + z^2/n), with p = successes/n and z = 1.96. Unlike the
    normal approximation it is valid at 0 and 1 and for few trials; NaN without any.
    """
    if trials == 0:
        return math.nan, math.nan
    p, z2 = successes / trials, _Z * _Z
    center = p + z2 / (2 * trials)
    spread = _Z * math.sqrt(p * (1 - p) / trials + z2 / (4 * trials * trials))
    scale = 1 + z2 / trials
    return max(0.0, (center - spread) / scale), min(1.0, (center + spread) / scale)


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """A statistic over many items, with its 95% interval."""

    name: str
    value: float
    low: float
    """Lower end of the 95% interval; NaN where there is none."""
    high: float
    items: int
    """Over how many items."""
    group: str = ""
    """Which of the items, e.g. `category=simple_python`; empty: all."""
    percent: bool = True
    """Whether it is a share, shown in percent."""


@dataclass(frozen=True, slots=True)
class Part:
    """Items that a bootstrap draws together: numerators over denominators, both per item.

    Items of a cluster, such as the steps of one game, are one piece of evidence and get one weight.
    """

    over: Sequence[float]  # [N]
    under: Sequence[float] | None = None  # [N]; None: 1 each, a mean
    weight: float = 1.0
    clusters: Sequence[str] | None = None  # [N] cluster of each item; None: all independent
    bounds: tuple[float, float] | None = (0.0, 1.0)
    """Smallest and largest ratio that one item can have; None where there are no bounds, as for lengths."""


def rate(
    name: str, scores: Sequence[float], *, group: str = "", clusters: Sequence[str] | None = None
) -> Figure:
    """The mean of scores in [0, 1]: Wilson's interval if all are 0 or 1 and independent, else `weighted`."""
    alone = clusters is None or len(set(clusters)) == len(clusters)
    if not alone or any(score not in (0.0, 1.0) for score in scores):
        return weighted(name, [Part(scores, clusters=clusters)], group=group)
    value = math.fsum(scores) / len(scores) if scores else math.nan
    low, high = wilson(math.fsum(scores), len(scores))
    return Figure(name=name, value=value, low=low, high=high, items=len(scores), group=group)


def weighted(name: str, parts: Sequence[Part], *, group: str = "", percent: bool = True) -> Figure:
    """A weighted mean of ratios, with a Bayesian bootstrap interval.

    sum over parts of weight x (sum of numerators / sum of denominators), divided by the sum of weights.

    The interval is the middle 95% of the values under random exponential weights of the clusters, from a
    fixed seed (Rubin 1981). Half a pseudo-item at each bound of an item's score keeps it from vanishing where
    all items agree. A mean of zeros and ones so has Jeffreys' posterior, Beta(right + 1/2, wrong + 1/2).

    Parts are drawn independently and must not share items. A part without items, or with denominators
    that sum to 0, counts as 0 with its weight. The interval is NaN for unbounded numbers that all agree, or
    for one alone.
    """
    total = math.fsum(part.weight for part in parts)
    value, drawn_R = 0.0, np.zeros(RESAMPLES)
    rng = np.random.default_rng(0)
    for part in parts:
        over_C, under_C = _clustered(part)
        if not len(over_C):
            continue
        share = part.weight / total
        value += share * _ratio(float(over_C.sum()), float(under_C.sum()))
        drawn_R += share * _drawn(over_C, under_C, part, rng)
    items = sum(len(part.over) for part in parts)
    low, high = (float(q) for q in np.quantile(drawn_R, [0.025, 0.975])) if items else (math.nan,) * 2
    value = value if items else math.nan
    low, high = min(low, value), max(high, value)
    return Figure(name=name, value=value, low=low, high=high, items=items, group=group, percent=percent)


def _clustered(part: Part) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """[C] numerators and denominators, summed over the items of each cluster."""
    over_N = np.asarray(part.over, dtype=float)
    under_N = np.ones_like(over_N) if part.under is None else np.asarray(part.under, dtype=float)
    if part.clusters is None:
        return over_N, under_N
    places = {name: place for place, name in enumerate(dict.fromkeys(part.clusters))}
    of_N = np.array([places[name] for name in part.clusters], dtype=int)
    return tuple(np.bincount(of_N, each, len(places)) for each in (over_N, under_N))  # pyright: ignore[reportReturnType]


def _drawn(
    over_C: NDArray[np.float64], under_C: NDArray[np.float64], part: Part, rng: np.random.Generator
) -> NDArray[np.float64]:
    """[R] draws of the ratio from its posterior."""
    if part.bounds == (0.0, 1.0) and bool((under_C == 1).all()) and bool(np.isin(over_C, (0.0, 1.0)).all()):
        right = float(over_C.sum())
        return rng.beta(right + 0.5, len(over_C) - right + 0.5, size=RESAMPLES)
    if part.bounds is None and (len(over_C) < 2 or bool((over_C * under_C[0] == over_C[0] * under_C).all())):
        return np.full(RESAMPLES, math.nan)
    rows, out = max(1, _CHUNK // len(over_C)), np.empty(RESAMPLES)
    usual = float(under_C.mean())
    for start in range(0, RESAMPLES, rows):
        weights = rng.standard_exponential((min(rows, RESAMPLES - start), len(over_C)))
        above, below = weights @ over_C, weights @ under_C
        if part.bounds is not None:
            lowest, highest = rng.standard_gamma(0.5, (2, len(weights))) * usual
            above += lowest * part.bounds[0] + highest * part.bounds[1]
            below += lowest + highest
        out[start : start + len(weights)] = np.divide(
            above, below, out=np.zeros_like(above), where=below != 0
        )
    return out


def _ratio(over: float, under: float) -> float:
    return over / under if under else 0.0


def by_group(
    groups: Sequence[Mapping[str, str]], key: str, figure: Callable[[list[int], str], Figure]
) -> list[Figure]:
    """A figure for each value of a key, such as each category, in order of first appearance.

    Args:
        groups: [N] the keys and values of each item.
        key: which key.
        figure: makes one from the indices of items and the group's label.
    """
    found: dict[str, list[int]] = {}
    for index, group in enumerate(groups):
        if key in group:
            found.setdefault(group[key], []).append(index)
    return [figure(indices, f"{key}={value}") for value, indices in found.items()]


@dataclass(frozen=True, slots=True)
class Difference:
    """The mean of one variant minus that of another, with its uncertainty."""

    value: float
    low: float
    """Of the 95% interval."""
    high: float
    p: float
    """Two-sided, of the hypothesis of no difference; NaN with one seed, which has no variance."""
    seeds: int
    spread: float
    """Standard deviation of the difference between one pair of runs, variance of tasks included; NaN with
    one."""

    @property
    def needed(self) -> int | None:
        """Seeds at which a true difference of this size is found with power 0.8; None if unknown."""
        return seeds_needed(self.value, self.spread)


def difference(one: Scores, other: Scores) -> Difference:
    """The mean of one minus the other, paired by seed and task: a t interval and t test over seeds.

    Args:
        one: [S, N].
        other: [S, N], the same seeds and tasks.

    Raises:
        ValueError: they are not of one shape, or empty.
    """
    from scipy import stats  # takes a while to load

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
    """Two-sided p-value of a mean over S seeds: P(|t| > |value / error|), S - 1 degrees of freedom."""
    from scipy import stats  # takes a while to load

    if not value:
        return 1.0
    return float(2 * stats.t.sf(abs(value) / error, seeds - 1)) if error else 0.0


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values adjusted for m comparisons (Holm 1979): highest so far of (m - rank) p; NaNs are left out."""
    known = sorted((p, place) for place, p in enumerate(p_values) if not math.isnan(p))
    adjusted, highest = list(p_values), 0.0
    for rank, (p, place) in enumerate(known):
        highest = max(highest, min(1.0, (len(known) - rank) * p))
        adjusted[place] = highest
    return adjusted


def seeds_needed(effect: float, spread: float) -> int | None:
    """The fewest pairs of runs at which the paired t test has power 0.8 at the 5% level (noncentral t).

    Args:
        effect: the true difference.
        spread: standard deviation of the difference between one pair of runs.

    Returns:
        At least 2; None without a spread or an effect, or beyond 10,000.
    """
    from scipy import stats  # takes a while to load

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
    """Mean over seeds and its 95% t interval, mean ± t(0.975, S - 1) s / sqrt(S); NaN for one seed."""
    from scipy import stats  # takes a while to load

    mean = float(np.mean(values))
    if len(values) < 2:
        return mean, math.nan, math.nan
    half = float(stats.t.ppf(0.975, len(values) - 1)) * float(stats.sem(values))
    return mean, mean - half, mean + half


def ratio(one: Sequence[float], other: Sequence[float]) -> tuple[float, float, float]:
    """Geometric mean of the paired ratios one / other, and the 95% t interval of its logarithm."""
    mean, low, high = mean_interval([math.log(a / b) for a, b in zip(one, other, strict=True)])
    return math.exp(mean), math.exp(low), math.exp(high)
