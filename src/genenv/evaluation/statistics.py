"""Figures with their uncertainty: Wilson's interval for rates, reweighted items for everything else.

Items that hang together, such as the steps of one game, are one piece of evidence: they are weighted as one.

Shapes: N = items, C = clusters of items, R = draws.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from genenv.runs.intervals import wilson

RESAMPLES = 2000
_CHUNK = 4_000_000
"""Weights drawn at a time: bounds memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """One number over many items."""

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
    """Items that are weighted together: numerators over denominators, both per item."""

    over: Sequence[float]  # [N]
    under: Sequence[float] | None = None  # [N]; None: 1 each, a mean
    weight: float = 1.0
    clusters: Sequence[str] | None = None  # [N] what each hangs together with; None: all stand alone
    bounds: tuple[float, float] | None = (0.0, 1.0)
    """Smallest and largest ratio that one item can have; None where there are no bounds, as for lengths."""


def rate(
    name: str, scores: Sequence[float], *, group: str = "", clusters: Sequence[str] | None = None
) -> Figure:
    """The mean of scores in [0, 1]: Wilson's interval where all are 0 or 1 and alone, else `weighted`."""
    alone = clusters is None or len(set(clusters)) == len(clusters)
    if not alone or any(score not in (0.0, 1.0) for score in scores):
        return weighted(name, [Part(scores, clusters=clusters)], group=group)
    value = math.fsum(scores) / len(scores) if scores else math.nan
    low, high = wilson(math.fsum(scores), len(scores))
    return Figure(name=name, value=value, low=low, high=high, items=len(scores), group=group)


def weighted(name: str, parts: Sequence[Part], *, group: str = "", percent: bool = True) -> Figure:
    """Sum over parts of weight x (sum of numerators / sum of denominators), divided by the sum of weights.

    Its interval holds the middle 95% of values under random weights of the clusters, always the same ones:
    the Bayesian bootstrap (Rubin 1981), with half an item at each bound of what an item can score. Where all
    items agree a bootstrap would claim certainty; so drawn, a mean of rights and wrongs is distributed as
    Jeffreys' posterior, Beta(right + 1/2, wrong + 1/2). Parts are drawn apart: they must not share items. A
    part of no items, or with nothing in its denominators, counts as 0, with its weight. Of numbers without
    bounds that all agree, or of one alone, nothing is known: NaN.
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
    """[C] numerators and denominators, summed over the items that hang together."""
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
    """[R] ratios that fit what was seen."""
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
    """A figure for each value of a group, in the order in which the values come.

    Args:
        groups: [N] of the items.
        key: which of their groups.
        figure: makes one from the indices of items and the group's label.
    """
    found: dict[str, list[int]] = {}
    for index, group in enumerate(groups):
        if key in group:
            found.setdefault(group[key], []).append(index)
    return [figure(indices, f"{key}={value}") for value, indices in found.items()]
