# pyright: standard
"""Confidence intervals and tests for rates, reweighted items, and differences between paired runs.

A run is a noisy measurement of its variant: another seed or other held-out tasks give another result. All
seeds share the held-out tasks, so `difference` takes paired differences as two-way crossed random effects:

    d[seed, task] = mean + seed effect + task effect + error

    Var(mean of d) = s^2 / S + max(0, MS_task - MS_error) / (S N)

s^2 is the unbiased variance of the seeds' means. It contains the variance of seeds and that of the error of N
tasks, E[s^2] = Var(seed) + Var(error) / N, so the error is not added again. The second part is what s^2
cannot see, because all seeds share it: E[MS_task - MS_error] = S Var(task). Degrees of freedom are
Satterthwaite's (`Spread.freedom`). docs/results/statistics.md has the simulated size of the test.

Shapes: N = items or held-out tasks, C = clusters of items, R = bootstrap draws, S = seeds of both variants.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import ClassVar, TypeVar

import numpy as np
from numpy.typing import NDArray

ROUNDING = 1e-9
"""The mean of three times 0.8 is more than 0.8."""
ONE_SEED, WITHIN_NOISE = "one seed", "within noise"
LEVEL = 0.05
"""Significance level of all tests; intervals cover 95%."""
POWER = 0.8
RESAMPLES = 2000
_CHUNK = 4_000_000
"""Bootstrap weights drawn at a time, to bound memory."""
_MOST_SEEDS = 10_000
_Z = 1.959963984540054
"""The 97.5% quantile of the normal distribution, for two-sided 95% intervals."""

Scores = NDArray[np.float64]
"""[S, N] score in [0, 1] of each task in the run of each seed."""


def wilson(successes: float, trials: int) -> tuple[float, float]:
    """Return Wilson's 95% score interval of a success rate (Wilson 1927, without continuity correction).

    (p + z^2/2n ± z sqrt(p (1 - p)/n + z^2/4n^2)) / (1 + z^2/n), with p = successes/n and z = 1.96. Unlike the
    normal approximation it is valid at 0 and 1 and for few trials. Both ends are NaN without trials.
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
    """Lower end of the 95% interval; NaN if there is no interval."""
    high: float
    items: int
    """Number of items that the statistic covers."""
    group: str = ""
    """The subset of the items, e.g. `category=simple_python`. Empty: all items."""
    percent: bool = True
    """Whether the value is a share, displayed in percent."""


@dataclass(frozen=True, slots=True)
class Part:
    """One part of a weighted mean: items that a bootstrap reweights together.

    Each item has a numerator and a denominator. Items of one cluster, such as the steps of one game, are not
    independent, so they share one bootstrap weight.
    """

    over: Sequence[float]  # [N] numerators
    under: Sequence[float] | None = None  # [N] denominators; None: all 1, for a mean
    weight: float = 1.0
    clusters: Sequence[str] | None = None  # [N] cluster of each item; None: all independent
    bounds: tuple[float, float] | None = (0.0, 1.0)
    """Smallest and largest possible ratio of one item. None if the ratio is unbounded, as for lengths."""


def rate(
    name: str, scores: Sequence[float], *, group: str = "", clusters: Sequence[str] | None = None
) -> Figure:
    """Return the mean of scores in [0, 1], with an interval.

    The interval is Wilson's if all scores are 0 or 1 and independent, otherwise that of `weighted`.
    """
    alone = clusters is None or len(set(clusters)) == len(clusters)
    if not alone or any(score not in (0.0, 1.0) for score in scores):
        return weighted(name, [Part(scores, clusters=clusters)], group=group)
    value = math.fsum(scores) / len(scores) if scores else math.nan
    low, high = wilson(math.fsum(scores), len(scores))
    return Figure(name=name, value=value, low=low, high=high, items=len(scores), group=group)


def weighted(name: str, parts: Sequence[Part], *, group: str = "", percent: bool = True) -> Figure:
    """Return a weighted mean of ratios, with a Bayesian bootstrap interval.

    The value is the sum over parts of weight x (sum of numerators / sum of denominators), divided by the sum
    of weights.

    The interval is the middle 95% of the values under random exponential weights of the clusters, from a
    fixed seed (Rubin 1981). Half a pseudo-item at each bound of an item's score keeps the interval from
    vanishing if all items agree. So a mean of zeros and ones has Jeffreys' posterior, Beta(right + 1/2, wrong
    + 1/2).

    Parts are drawn independently and must not share items. A part without items, or with denominators that
    sum to 0, counts as 0 with its weight. The interval is NaN for unbounded numbers that all agree, and for a
    single unbounded number.
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
    """Return [C] numerators and [C] denominators, summed over the items of each cluster."""
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
    """Return [R] draws of the ratio from its posterior."""
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
    """Return one figure per value of a key, such as one per category, in order of first appearance.

    Args:
        groups: [N] the keys and values of each item.
        key: the key to group by.
        figure: computes the figure from the indices of a group's items and the group's label.
    """
    found: dict[str, list[int]] = {}
    for index, group in enumerate(groups):
        if key in group:
            found.setdefault(group[key], []).append(index)
    return [figure(indices, f"{key}={value}") for value, indices in found.items()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Variances of paired differences d[seed, task], from which the error of their mean follows for any S."""

    seed: float
    """s^2, the variance of a seed's mean over the N tasks, including the part of `error` in it."""
    task: float = 0.0
    """Variance of the task effect, which all seeds share; 0 if the estimate is negative."""
    error: float = 0.0
    """MS_error, the variance of a single difference around the effects of its seed and its task."""
    tasks: int = 1
    """N."""

    def variance(self, seeds: int) -> float:
        """Return the variance of the mean over this many seeds: s^2 / S + Var(task) / N."""
        return self.seed / seeds + self.task / self.tasks

    def freedom(self, seeds: int) -> float:
        """Return the degrees of freedom of `variance` (Satterthwaite 1946).

        The variance is the sum of three mean squares over S N, MS_seed + MS_task - MS_error. Its degrees of
        freedom are its square over the sum of each part's square over its own: S - 1, N - 1 and (S - 1)(N -
        1). Without a task effect only MS_seed is left: S - 1. At least the smaller of S - 1 and N - 1.
        """
        if not self.task:
            return seeds - 1.0
        error = self.error / (seeds * self.tasks)
        parts = (
            (self.seed / seeds, seeds - 1),
            (self.task / self.tasks + error, self.tasks - 1),
            (error, (seeds - 1) * (self.tasks - 1)),
        )
        found = self.variance(seeds) ** 2 / sum(part**2 / freedom for part, freedom in parts)
        return max(found, min(seeds, self.tasks) - 1.0)

    @classmethod
    def of(cls, apart_SN: Scores) -> Spread:
        """Return the variances of differences of two seeds or more, from their mean squares."""
        seeds, tasks = apart_SN.shape
        means_S1, means_1N = apart_SN.mean(axis=1, keepdims=True), apart_SN.mean(axis=0, keepdims=True)
        seed, same = float(means_S1.var(ddof=1)), (ROUNDING * float(np.abs(apart_SN).max())) ** 2
        if tasks < 2:
            return cls(seed=0.0 if seed <= same else seed)
        rest_SN = apart_SN - means_S1 - means_1N + apart_SN.mean()
        error = float((rest_SN**2).sum()) / ((seeds - 1) * (tasks - 1))
        task = max(0.0, float(means_1N.var(ddof=1)) - error / seeds)
        if seed <= same:  # seeds whose means agree exactly: a chance of few tasks, and no certainty
            seed = error / tasks
        return cls(seed=seed, task=task, error=error, tasks=tasks)


@dataclass(frozen=True, slots=True)
class Difference:
    """The mean of one variant minus the mean of another, with its uncertainty."""

    value: float
    low: float
    """Lower end of the 95% interval."""
    high: float
    p: float
    """Two-sided p-value for the hypothesis of no difference. NaN with one seed, which has no variance. If all
    seeds differ by exactly the same, it is that of the sign test, 2^(1 - S): an estimated variance of 0 is no
    certainty."""
    seeds: int
    spread: Spread | None
    """The variances of seeds and tasks. None with one seed."""

    @property
    def has_no_variance(self) -> bool:
        """Whether nothing is known of the variance: all differences are the same, or there is one."""
        return self.low == self.high

    def interval(self, digits: str, *, scale: float = 1.0) -> str:
        """Return the 95% interval times `scale` as text, with digits such as `.1f`.

        A dash if it `has_no_variance`.
        """
        if self.has_no_variance:
            return "–"
        return f"{scale * self.low:+{digits}} to {scale * self.high:+{digits}}"

    def needed(self, tests: int = 1) -> int | None:
        """Return the seeds that find a true difference of this size with power 0.8; None if there are none.

        Args:
            tests: how many differences are tested together. Holm's method tests each at least at the 5% level
                over their number.
        """
        return None if self.spread is None else seeds_needed(self.value, self.spread, LEVEL / tests)


def difference(one: Scores, other: Scores) -> Difference:
    """Return the mean of `one` minus `other`, paired by seed and task, with t interval and t test.

    The interval covers other seeds and other held-out tasks of the same kind (`Spread`). With one seed it
    covers other tasks alone.

    Args:
        one: [S, N] scores of a variant.
        other: [S, N] scores of the other variant, for the same seeds and tasks.

    Raises:
        ValueError: the arrays have different shapes or are empty.
    """
    from scipy import special  # takes a while to load

    if one.shape != other.shape or not one.size:
        raise ValueError(f"scores of shapes {one.shape} and {other.shape} are not paired")
    apart_SN = one - other
    seeds, value = len(apart_SN), float(apart_SN.mean())
    if seeds < 2:
        half = float(special.ndtri(1 - LEVEL / 2)) * math.sqrt(float(apart_SN.var()) / apart_SN.size)
        return Difference(value, value - half, value + half, math.nan, seeds, None)
    spread = Spread.of(apart_SN)
    error, freedom = math.sqrt(spread.variance(seeds)), spread.freedom(seeds)
    half = _quantile(freedom) * error
    p = 2.0 ** (1 - seeds) if value and not error else p_value(value, error, freedom)
    return Difference(value, value - half, value + half, p, seeds, spread)


def p_value(value: float, error: float, freedom: float) -> float:
    """Return the two-sided p-value of a mean: P(|t| > |value / error|), by Student's t."""
    from scipy import special  # takes a while to load

    if not value:
        return 1.0
    return float(2 * special.stdtr(freedom, -abs(value) / error)) if error else 0.0


def holm(p_values: Sequence[float]) -> list[float]:
    """Return p-values adjusted for m comparisons (Holm 1979).

    Each becomes the highest so far of (m - rank) p. NaNs stay NaN and do not count as comparisons.
    """
    known = sorted((p, place) for place, p in enumerate(p_values) if not math.isnan(p))
    adjusted, highest = list(p_values), 0.0
    for rank, (p, place) in enumerate(known):
        highest = max(highest, min(1.0, (len(known) - rank) * p))
        adjusted[place] = highest
    return adjusted


def seeds_needed(effect: float, spread: Spread, level: float = LEVEL) -> int | None:
    """Return the fewest pairs of runs for which the test of `difference` has power 0.8.

    Args:
        effect: the true difference.
        spread: the variances of seeds and tasks. The number of tasks stays as it is.
        level: the significance level.

    Returns:
        At least 2, by the noncentral t distribution. None if `effect` is 0, or 10,000 pairs are not enough,
        for example because the variance of tasks, which more seeds do not reduce, is too large.
    """
    if not effect:
        return None
    if not spread.variance(2):
        return 2
    if _power(effect, spread, _MOST_SEEDS, level) < POWER:
        return None
    low, high = 1, _MOST_SEEDS  # power grows with seeds: it is enough at `high`, and not yet at `low`
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if _power(effect, spread, middle, level) >= POWER else (middle, high)
    return high


def _power(effect: float, spread: Spread, seeds: int, level: float) -> float:
    """Return the chance that the test finds a true difference, in its own direction."""
    from scipy import stats  # takes a while to load

    freedom = spread.freedom(seeds)
    shift = abs(effect) / math.sqrt(spread.variance(seeds))
    if not math.isfinite(shift):
        return 1.0
    return float(stats.nct.sf(_quantile(freedom, level), freedom, shift))


def mean_interval(values: Sequence[float]) -> tuple[float, float, float]:
    """Return the mean over seeds and its 95% t interval, mean ± t(0.975, S - 1) s / sqrt(S).

    The ends of the interval are NaN for one seed.
    """
    count = len(values)
    mean = math.fsum(values) / count
    if count < 2:
        return mean, math.nan, math.nan
    variance = math.fsum((value - mean) ** 2 for value in values) / (count - 1)
    half = _quantile(count - 1.0) * math.sqrt(variance / count)
    return mean, mean - half, mean + half


@lru_cache(maxsize=256)
def _quantile(freedom: float, level: float = LEVEL) -> float:
    """Return the quantile of Student's t above which a two-sided test at a level rejects."""
    from scipy import special  # takes a while to load

    return float(special.stdtrit(freedom, 1 - level / 2))


def ratio(one: Sequence[float], other: Sequence[float]) -> tuple[float, float, float]:
    """Return the geometric mean of the paired ratios one / other, and its 95% t interval.

    The interval is computed for the logarithm and transformed back.
    """
    mean, low, high = mean_interval([math.log(a / b) for a, b in zip(one, other, strict=True)])
    return math.exp(mean), math.exp(low), math.exp(high)


@dataclass(frozen=True, slots=True)
class Contrast:
    """Two variants, paired by seed."""

    one: str
    other: str
    difference: Difference
    """The one minus the other."""
    adjusted: float
    """Its p-value after Holm, over all pairs that are compared in the same way."""

    more_less: ClassVar[tuple[str, str]] = ("higher", "lower")
    """What the one is where the difference is above zero, and where it is below."""

    def outcome(self) -> str:
        """What is shown of the one against the other."""
        if self.difference.seeds < 2:
            return ONE_SEED
        if self.adjusted >= LEVEL:
            return WITHIN_NOISE
        more, less = self.more_less
        return more if self.difference.value > 0 else less

    def verdict(self) -> str:
        """The outcome in words."""
        outcome = self.outcome()
        if outcome == ONE_SEED:
            return "one seed: nothing can be said of seeds"
        return f"{self.one} is {outcome}" if outcome in self.more_less else outcome

    def cells(self, digits: str, *, scale: float = 1.0) -> tuple[str, ...]:
        """The cells of `CELLS`: the difference and its interval times `scale`, with digits such as `.1f`."""
        value, interval = self.difference.value, self.difference.interval(digits, scale=scale)
        p, seeds = p_word(self.adjusted), str(self.difference.seeds)
        return f"{scale * value:+{digits}}", interval, p, seeds, self.outcome()

    def numbers(self) -> tuple[object, ...]:
        """The cells of `NUMBERS`, to compute with: unrounded, in the unit of the scores; empty if unknown."""
        found = self.difference
        ends = (math.nan, math.nan) if found.has_no_variance else (found.low, found.high)
        values = (found.value, *ends, found.p, self.adjusted)
        return *("" if math.isnan(one) else one for one in values), found.seeds, self.outcome()


NUMBERS = ("difference", "low", "high", "p", "p (Holm)", "seeds", "verdict")
CELLS = ("difference", "95% interval", "p (Holm)", "seeds", "verdict")
_ContrastT = TypeVar("_ContrastT", bound=Contrast)


def with_holm(rows: Sequence[_ContrastT]) -> list[_ContrastT]:
    """Contrasts that are compared in the same way, with their p-values adjusted for how many they are."""
    adjusted = holm([row.difference.p for row in rows])
    return [replace(row, adjusted=p) for row, p in zip(rows, adjusted, strict=True)]


def p_word(value: float) -> str:
    """A p-value; a dash where there is none."""
    return "–" if math.isnan(value) else "< 0.001" if value < 0.001 else f"{value:.3f}"


def counted(number: int, noun: str) -> str:
    """A number of things: `1 seed`, `2 seeds`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
