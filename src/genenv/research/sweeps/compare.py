"""`genenv compare` for runs: variants held against each other at equal budgets, paired by seed and task."""

from __future__ import annotations

import difflib
import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from statistics import fmean
from typing import ClassVar

import numpy as np

from genenv.errors import UsageError
from genenv.research.sweeps.contrasts import (
    CELLS,
    ROUNDING,
    WITHIN_NOISE,
    Contrast,
    Pair,
    counted,
    p_word,
    with_holm,
)
from genenv.research.sweeps.readings import BUDGETS, MeasuredRun, read_all
from genenv.research.sweeps.recovery import (
    Recovery,
    RecoveryContrast,
    recoveries,
    recovery_contrast_text,
    recovery_contrasts,
    recovery_text,
)
from genenv.statistics import difference, ratio

AT_THE_END = "the end"


@dataclass(frozen=True, slots=True)
class BudgetContrast(Contrast):
    """Two variants by held-out success at one budget, paired by seed and task."""

    budget: str
    """`the end`, or a key of `BUDGETS`."""
    amount: float
    """Of the budget, the mean over seeds; NaN at the end."""
    means: tuple[float, float]
    """Held-out success of both, over the seeds that both have."""
    named: bool
    """Whether the pair was named before the runs began, or asked for."""

    more_less: ClassVar[tuple[str, str]] = ("better", "worse")


@dataclass(frozen=True, slots=True)
class SampleEfficiency:
    """How many attempts two variants took to a level."""

    one: str
    other: str
    level: float
    ratio: tuple[float, float, float] | None
    """Of one to the other with its interval, over seeds in which both reached it; None without two."""
    missing: tuple[int, int]
    """Seeds in which one, and the other, never reached it."""
    seeds: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """Everything that runs say together."""

    environment: str
    variants: Mapping[str, Sequence[MeasuredRun]]
    """By name, in the order in which they came; runs by seed."""
    contrasts: Sequence[BudgetContrast]
    sample_efficiency: Sequence[SampleEfficiency]
    recoveries: Sequence[Recovery] = ()
    """Where the world has changed: how each variant has got over it."""
    recovery_contrasts: Sequence[RecoveryContrast] = ()
    """And how the pairs differ in that."""
    notes: Sequence[str] = field(default_factory=tuple[str, ...])
    """What is missing or odd."""


def compare(paths: Sequence[Path], asked: Sequence[tuple[str, str]] = ()) -> Comparison:
    """Compare runs.

    Args:
        paths: folders of runs and sweeps.
        asked: pairs to compare; left out, those that the sweeps named, or all variants against the first.

    Raises:
        UsageError: fewer than two variants, different environments or held-out tasks, no seed in common, or a
            pair names what is not there.
        DataError: a run is damaged.
    """
    readings, contrasts, notes = read_all(paths)
    env = _shared_environment(readings)
    variants = _by_variant(readings)
    if len(variants) < 2:
        raise UsageError(
            f"these are runs of {', '.join(variants) or 'nothing'}: name runs of two variants or more, or a "
            "sweep that has them"
        )
    pairs = list(asked) or list(dict.fromkeys(contrasts))
    named = bool(pairs)
    first, *others = variants
    pairs = pairs or [(other, first) for other in others]
    for name in (name for pair in pairs for name in pair):
        if name not in variants:
            raise UsageError(f"there is no run of variant {name!r}; there are {', '.join(variants)}")
    if not named:
        notes.append(f"no comparison was named beforehand: every variant is held against {first}")
    found: list[BudgetContrast] = []
    for budget in (AT_THE_END, *BUDGETS):
        rows = [_contrast(variants, pair, budget, named=named) for pair in pairs]
        found += with_holm([row for row in rows if row is not None])
    if not found:
        raise UsageError("no two of these runs have the same seed (run.seed): nothing is paired")
    notes += _unpaired(variants, pairs)
    notes += _unfinished(readings)
    return Comparison(
        env,
        variants,
        found,
        [_reached(variants, pair) for pair in pairs],
        recoveries(variants),
        recovery_contrasts({pair: paired(variants, pair) for pair in pairs}),
        notes,
    )


def paired(variants: Mapping[str, Sequence[MeasuredRun]], pair: tuple[str, str]) -> list[Pair]:
    """The runs of two variants that have a seed in common, by seed."""
    one, other = ({run.seed: run for run in variants[name]} for name in pair)
    return [(one[seed], other[seed]) for seed in sorted(one.keys() & other.keys())]


def _finished(runs: Sequence[Pair]) -> list[Pair]:
    """Those of which both have come to their end."""
    return [(one, other) for one, other in runs if one.finished and other.finished]


def _contrast(
    variants: Mapping[str, Sequence[MeasuredRun]], pair: tuple[str, str], budget: str, *, named: bool
) -> BudgetContrast | None:
    """A pair at a budget; None where no seeds are paired, or nothing of it was spent.

    At the end are runs that have come to it: one that is not finished says nothing of where it will end.
    """
    runs = paired(variants, pair)
    if budget == AT_THE_END:
        runs = _finished(runs)
    if not runs:
        return None
    tasks = sorted(_shared_tasks([run for both in runs for run in both]))
    amounts: list[float] = []
    scores: tuple[list[list[float]], list[list[float]]] = ([], [])
    for both in runs:
        amount = min(run.measured[-1].spent.get(budget, math.nan) for run in both)
        if budget != AT_THE_END and amount <= 0:
            return None
        found = [run.measured[-1].scores if budget == AT_THE_END else run.at(budget, amount) for run in both]
        if any(tasks[0] not in of_run for of_run in found):
            return None  # one has spent as much in the world before the shift already
        for side, of_run in zip(scores, found, strict=True):
            side.append([of_run[name] for name in tasks])
        amounts.append(amount)
    one, other = (np.array(side, dtype=np.float64) for side in scores)
    apart = difference(one, other)
    means = (float(one.mean()), float(other.mean()))
    return BudgetContrast(*pair, apart, apart.p, budget, fmean(amounts), means, named)


def _reached(variants: Mapping[str, Sequence[MeasuredRun]], pair: tuple[str, str]) -> SampleEfficiency:
    """Attempts to the mean level at which the other variant ends, or stands where no run has ended."""
    runs = paired(variants, pair)
    ends = [other.measured[-1].mean for _, other in _finished(runs) or runs]
    level = fmean(ends) - ROUNDING if ends else math.nan
    took = [(one.spent_to_reach(level), other.spent_to_reach(level)) for one, other in runs]
    both = [(a, b) for a, b in took if a and b]
    value = ratio([a for a, _ in both], [b for _, b in both]) if len(both) > 1 else None
    missing = sum(a is None for a, _ in took), sum(b is None for _, b in took)
    return SampleEfficiency(*pair, level, value, missing, len(runs))


def _by_variant(readings: Sequence[MeasuredRun]) -> dict[str, list[MeasuredRun]]:
    """Runs by variant and seed.

    Raises:
        UsageError: two runs of one variant have the same seed.
    """
    found: defaultdict[str, list[MeasuredRun]] = defaultdict(list)
    for reading in readings:
        for other in found[reading.variant]:
            if other.seed == reading.seed:
                raise UsageError(
                    f"{other.path} and {reading.path} are both of variant {reading.variant} with seed "
                    f"{reading.seed}; give one another run.seed, or name one of them"
                )
        found[reading.variant].append(reading)
    return {name: sorted(runs, key=lambda run: run.seed) for name, runs in found.items()}


def _shared_environment(readings: Sequence[MeasuredRun]) -> str:
    """The one environment of all runs, which measure on the same tasks.

    Raises:
        UsageError: there are several, or no task is measured by all.
    """
    if not readings:
        raise UsageError("none of these runs can be compared: no held-out task was measured in any")
    environments = list(dict.fromkeys(reading.config.environment.name for reading in readings))
    if len(environments) > 1:
        raise UsageError(f"these are runs of {' and '.join(environments)}; compare runs of one environment")
    if not _shared_tasks(readings):
        raise UsageError(
            "these runs measured no held-out task in common; give them the same run.eval_tasks and [shift]"
        )
    worlds = [reading.config.later_environment() for reading in readings if reading.config.shift.round]
    if any(world != worlds[0] for world in worlds):
        raise UsageError("these runs shift into different worlds; compare runs of one [shift.environment]")
    return environments[0]


def _shared_tasks(readings: Sequence[MeasuredRun]) -> set[str]:
    tasks = set(readings[0].measured[-1].scores)
    for reading in readings[1:]:
        tasks &= reading.measured[-1].scores.keys()
    return tasks


def _unpaired(variants: Mapping[str, Sequence[MeasuredRun]], pairs: Sequence[tuple[str, str]]) -> list[str]:
    notes: list[str] = []
    for pair in pairs:
        one, other = ({run.seed for run in variants[name]} for name in pair)
        if alone := sorted(one ^ other):
            notes.append(
                f"{pair[0]} and {pair[1]}: seeds {', '.join(map(str, alone))} have a run of one of them only"
            )
    return notes


def _unfinished(readings: Sequence[MeasuredRun]) -> list[str]:
    return [
        f"{reading.path} is not finished: round {max(reading.metrics)} of {reading.config.run.rounds}; "
        f"its last measurement is of round {reading.measured[-1].round}, and it is no part of {AT_THE_END}"
        for reading in readings
        if not reading.finished
    ]


COLUMNS = ("budget", "each", "variant", "against", "success", "against it", *CELLS)


def rows(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    """The cells of each contrast, in the order of `COLUMNS`."""
    for one in comparison.contrasts:
        yield (
            one.budget,
            "" if one.budget == AT_THE_END else f"{one.amount:,.0f}",
            one.one,
            one.other,
            f"{one.means[0]:.1%}",
            f"{one.means[1]:.1%}",
            *one.cells(".1f", scale=100),
        )


def findings(comparison: Comparison) -> list[str]:
    """What is shown, in sentences: at equal attempts where they are known, else at the end."""
    budgets = [one.budget for one in comparison.contrasts]
    budget = "attempts" if "attempts" in budgets else AT_THE_END
    chosen = [one for one in comparison.contrasts if one.budget == budget]
    return [
        *map(_contrast_text, chosen),
        *(_reached_text(one) for one in comparison.sample_efficiency),
        *map(recovery_text, comparison.recoveries),
        *map(recovery_contrast_text, comparison.recovery_contrasts),
    ]


def _contrast_text(one: BudgetContrast) -> str:
    """What is shown at a budget; within noise also how many seeds would settle it."""
    where = "at the end" if one.budget == AT_THE_END else f"at {one.amount:,.0f} {one.budget} each"
    found = one.difference
    needed = found.needed if one.outcome() == WITHIN_NOISE else None
    settled = f"; if this is the true difference, {needed} seeds would show it" if needed else ""
    return (
        f"{one.one} against {one.other}, {where}: {one.means[0]:.1%} and {one.means[1]:.1%}, "
        f"{100 * found.value:+.1f} points ({100 * found.low:+.1f} to {100 * found.high:+.1f}, "
        f"p {p_word(one.adjusted)}, {counted(found.seeds, 'seed')}): {one.verdict()}{settled}."
    )


def _reached_text(one: SampleEfficiency) -> str:
    start = f"Attempts to {one.level:.1%}, where {one.other} ends"
    missing = [
        f"{name} never came there in {count} of {counted(one.seeds, 'seed')}"
        for name, count in zip((one.one, one.other), one.missing, strict=True)
        if count
    ]
    left_out = f"; {', '.join(missing)}, which are left out" if missing else ""
    if one.ratio is None:
        return f"{start}: too few seeds in which both came there{left_out}."
    value, low, high = one.ratio
    took = f"{one.one} took {value:.2f} times those of {one.other} ({low:.2f} to {high:.2f})"
    return f"{start}: {took}{left_out}."


METRIC_COLUMNS = ("metric", "variant", "against", "mean", "against it", *CELLS)


@dataclass(frozen=True, slots=True)
class MetricContrast(Contrast):
    """Two variants by one metric: of each run the mean of its last rounds, paired by seed."""

    metric: str
    means: tuple[float, float]


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
            row
            for pair in pairs
            if (row := _metric_contrast(comparison.variants, pair, name, last)) is not None
        ]
        if not rows:
            raise UsageError(_missing(name, comparison.variants))
        found += with_holm(rows)
    return found


def metric_rows(contrasts: Sequence[MetricContrast]) -> Iterator[tuple[str, ...]]:
    """The cells of each, in the order of `METRIC_COLUMNS`."""
    for one in contrasts:
        yield (one.metric, one.one, one.other, *(f"{mean:.4g}" for mean in one.means), *one.cells(".3g"))


def _metric_contrast(
    variants: Mapping[str, Sequence[MeasuredRun]], pair: tuple[str, str], name: str, last: int
) -> MetricContrast | None:
    both = [[_value(run, name, last) for run in runs] for runs in paired(variants, pair)]
    known = np.array([values for values in both if not any(map(math.isnan, values))], dtype=np.float64)
    if not known.size:
        return None
    one_S1, other_S1 = known[:, :1], known[:, 1:]
    apart = difference(one_S1, other_S1)
    return MetricContrast(*pair, apart, apart.p, name, (float(one_S1.mean()), float(other_S1.mean())))


def _value(run: MeasuredRun, name: str, last: int) -> float:
    rounds = sorted(run.metrics)[-last:]
    values = [run.metrics[number][name] for number in rounds if name in run.metrics[number]]
    return fmean(values) if values else math.nan


def _missing(name: str, variants: Mapping[str, Sequence[MeasuredRun]]) -> str:
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
