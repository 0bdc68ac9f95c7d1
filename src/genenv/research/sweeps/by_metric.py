"""Variants held against each other by what rounds measure, such as the share of tasks with mixed outcomes."""

from __future__ import annotations

import difflib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean

import numpy as np

from genenv.errors import UsageError
from genenv.research.sweeps.compare import Comparison, paired
from genenv.research.sweeps.readings import Reading
from genenv.research.sweeps.wording import p_word
from genenv.statistics import LEVEL, Difference, difference, holm

COLUMNS = (
    *("metric", "variant", "against", "mean", "against it"),
    *("difference", "95% interval", "p (Holm)", "seeds", "verdict"),
)


@dataclass(frozen=True, slots=True)
class MetricContrast:
    """Two variants by one metric: of each run the mean of its last rounds, paired by seed."""

    metric: str
    one: str
    other: str
    means: tuple[float, float]
    difference: Difference
    adjusted: float
    """Its p-value after Holm, over all pairs of this metric."""

    def outcome(self) -> str:
        """What is shown of the one against the other."""
        if self.difference.seeds < 2:
            return "one seed"
        if self.adjusted >= LEVEL:
            return "within noise"
        return "higher" if self.difference.value > 0 else "lower"


def by_metric(comparison: Comparison, names: Sequence[str], *, last: int) -> list[MetricContrast]:
    """The pairs of a comparison, by each of some metrics.

    Args:
        comparison: of runs.
        names: of metrics.
        last: how many rounds, the last ones of a run, its value is the mean of; those that lack it do not
            count.

    Raises:
        UsageError: no paired runs have a metric of this name.
    """
    pairs = list(dict.fromkeys((one.one, one.other) for one in comparison.contrasts))
    found: list[MetricContrast] = []
    for name in names:
        rows = [
            row for pair in pairs if (row := _contrast(comparison.variants, pair, name, last)) is not None
        ]
        if not rows:
            raise UsageError(_missing(name, comparison.variants))
        adjusted = holm([row.difference.p for row in rows])
        found += [replace(row, adjusted=p) for row, p in zip(rows, adjusted, strict=True)]
    return found


def rows(contrasts: Sequence[MetricContrast]) -> Iterator[tuple[str, ...]]:
    """The cells of each, in the order of `COLUMNS`."""
    for one in contrasts:
        found = one.difference
        yield (
            one.metric,
            one.one,
            one.other,
            *(f"{mean:.4g}" for mean in one.means),
            f"{found.value:+.3g}",
            f"{found.low:+.3g} to {found.high:+.3g}",
            p_word(one.adjusted),
            str(found.seeds),
            one.outcome(),
        )


def _contrast(
    variants: Mapping[str, Sequence[Reading]], pair: tuple[str, str], name: str, last: int
) -> MetricContrast | None:
    both = [[_value(run, name, last) for run in runs] for runs in paired(variants, pair)]
    known = np.array([values for values in both if not any(map(math.isnan, values))], dtype=np.float64)
    if not known.size:
        return None
    one_S1, other_S1 = known[:, :1], known[:, 1:]
    apart = difference(one_S1, other_S1)
    return MetricContrast(name, *pair, (float(one_S1.mean()), float(other_S1.mean())), apart, apart.p)


def _value(run: Reading, name: str, last: int) -> float:
    rounds = sorted(run.metrics)[-last:]
    values = [run.metrics[number][name] for number in rounds if name in run.metrics[number]]
    return fmean(values) if values else math.nan


def _missing(name: str, variants: Mapping[str, Sequence[Reading]]) -> str:
    known = {
        key
        for runs in variants.values()
        for run in runs
        for of_round in run.metrics.values()
        for key in of_round
    }
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"; did you mean {close[0]!r}?" if close else ""
    return f"no two paired runs have a metric {name!r} in their last rounds{hint}"
