"""`genenv compare` for runs: compares variants at equal budgets, paired by seed and held-out task."""

from __future__ import annotations

import difflib
import math
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean
from typing import ClassVar

import numpy as np

from genenv.environments import shown_name
from genenv.errors import UsageError
from genenv.research.sweeps.notes import notes_of
from genenv.research.sweeps.readings import (
    AT_THE_END,
    BUDGETS,
    MOST_ROUNDS,
    OUTCOMES,
    MeasuredRun,
    Pair,
    amount_of,
    finished,
    paired,
    read_all,
    shared_past,
    unmeasured,
    usable,
)
from genenv.research.sweeps.recovery import (
    Recovery,
    RecoveryContrast,
    recoveries,
    recovery_contrast_text,
    recovery_contrasts,
    recovery_text,
)
from genenv.statistics import (
    CELLS,
    NUMBERS,
    ROUNDING,
    WITHIN_NOISE,
    Contrast,
    counted,
    difference,
    p_word,
    ratio,
    with_holm,
)


@dataclass(frozen=True, slots=True)
class BudgetContrast(Contrast):
    """Two variants by held-out success at one budget, paired by seed and task."""

    budget: str
    """`the end`, or a key of `BUDGETS`."""
    amount: float
    """Of the budget, the mean over seeds; NaN at the end."""
    means: tuple[float, float]
    """Held-out success of both, over the seeds that both have."""
    rounds_around: int = 0
    """The most rounds between two measurements between which a run was read; 0 if all were measured there."""

    more_less: ClassVar[tuple[str, str]] = ("better", "worse")

    @property
    def is_tested(self) -> bool:
        """Whether the difference has a p-value: not at `OUTCOMES`, nor far from a measurement."""
        return self.budget not in OUTCOMES and self.rounds_around <= MOST_ROUNDS

    def outcome(self) -> str:
        """What is shown; a difference that is not tested is neither better nor worse."""
        if self.is_tested:
            return super(BudgetContrast, self).outcome()
        return "an outcome, no test" if self.budget in OUTCOMES else "between measurements, no test"


@dataclass(frozen=True, slots=True)
class SampleEfficiency:
    """The ratio of rollouts that two variants need to reach a level of held-out success.

    Rollouts that both runs of a seed share do not count.
    """

    one: str
    other: str
    level: float
    ratio: tuple[float, float, float] | None
    """The ratio of `one` to `other` with its 95% interval, over seeds in which both reached the level; None
    if there are fewer than two.
    """
    missing: tuple[int, int]
    """The numbers of seeds in which `one`, and `other`, never reached the level."""
    begun: tuple[int, int]
    """The numbers of seeds in which `one`, and `other`, began at it, before any rollout of their own."""
    far: tuple[int, int]
    """The numbers of seeds in which `one`, and `other`, first reached it between measurements far apart."""
    seeds: int


@dataclass(frozen=True, slots=True)
class Comparison:
    """The complete comparison of a set of runs, for the table and the page."""

    environment: str
    variants: Mapping[str, Sequence[MeasuredRun]]
    """The runs of each variant, ordered by seed; variants are in order of appearance."""
    contrasts: Sequence[BudgetContrast]
    sample_efficiency: Sequence[SampleEfficiency]
    recoveries: Sequence[Recovery] = ()
    """How each variant recovered after a shift of the environment; empty if there was none."""
    recovery_contrasts: Sequence[RecoveryContrast] = ()
    """The differences in recovery between the pairs of variants."""
    notes: Sequence[str] = field(default_factory=tuple[str, ...])
    """Notes about missing or unusual data."""


def compare(
    paths: Sequence[Path], asked: Sequence[tuple[str, str]] = (), *, at: Mapping[str, float] | None = None
) -> Comparison:
    """Compare runs in pairs of variants.

    Args:
        paths: folders of runs and sweeps.
        asked: pairs to compare; if empty, those that the sweeps named, or all variants with the first.
        at: amounts of budgets at which all runs are read; of other budgets, what the cheaper run of a pair
            spent. A pair of which a run spent less is left out, which a note says.

    Raises:
        UsageError: there are fewer than two variants, different environments or held-out tasks, no seed in
            common, or a pair names an unknown variant.
        DataError: a run is damaged.
    """
    readings, contrasts, notes = read_all(paths)
    return compare_runs(readings, list(asked) or contrasts, at=at, notes=notes, must=bool(asked))


def compare_runs(
    readings: Sequence[MeasuredRun],
    asked: Sequence[tuple[str, str]] = (),
    *,
    at: Mapping[str, float] | None = None,
    notes: Sequence[str] = (),
    must: bool = True,
) -> Comparison:
    """Compare runs that are read; see `compare`.

    Args:
        readings: the runs.
        asked: pairs to compare; if empty, all variants with the first.
        at: amounts of budgets at which all runs are read.
        notes: notes from reading, which come first.
        must: whether every variant of `asked` must have a run; if not, its contrasts are left out.
    """
    readings, notes = _in_one_world(readings, list(notes))
    env = _shared_environment(readings)
    readings, notes = _on_shared_tasks(readings, notes)
    variants = _by_variant(readings)
    if len(variants) < 2:
        raise UsageError(
            f"these are runs of {', '.join(variants) or 'nothing'}: name runs of two variants or more, or a "
            "sweep that has them"
        )
    if same := next((one for one, other in asked if one == other), None):
        raise UsageError(f"--contrast {same}:{same} compares a variant with itself; name two")
    once = dict[frozenset[str], tuple[str, str]]()
    for pair in asked:
        once.setdefault(frozenset(pair), pair)  # A:B and B:A are one test
    pairs = list(once.values())
    first, *others = variants
    if not pairs:
        notes.append(f"no comparison was named beforehand: every variant is held against {first}")
        pairs = [(other, first) for other in others]
    absent = dict.fromkeys(name for pair in pairs for name in pair if name not in variants)
    pairs = [pair for pair in pairs if absent.keys().isdisjoint(pair)]
    if absent and (must or not pairs):
        raise UsageError(f"there is no run of variant {min(absent)!r}; there are {', '.join(variants)}")
    notes += [f"contrasts with {name} are left out: no run of it can be read" for name in absent]
    found: list[BudgetContrast] = []
    for budget in (AT_THE_END, *BUDGETS):
        fixed = (at or {}).get(budget)
        rows = [_contrast(variants, pair, budget, fixed) for pair in pairs]
        found += with_holm([row for row in rows if row is not None])
    if not found:
        raise UsageError("no two of these runs have the same seed (run.seed): nothing is paired")
    notes += [*notes_of(readings, variants, pairs, at or {}), *_not_tested(found)]
    return Comparison(
        env,
        variants,
        found,
        [_reached(variants, pair) for pair in pairs],
        recoveries({name: [run for run in runs if run.finished] or runs for name, runs in variants.items()}),
        recovery_contrasts({pair: usable(paired(variants, pair)) for pair in pairs}),
        notes,
    )


def _contrast(
    variants: Mapping[str, Sequence[MeasuredRun]],
    pair: tuple[str, str],
    budget: str,
    fixed: float | None = None,
) -> BudgetContrast | None:
    """Return the contrast of a pair at a budget; None if no seeds are paired or the budget was not spent.

    Only finished runs count at the end, as the last result of an unfinished run is unknown, and at equal
    budgets where there are any. `fixed` is the amount at which both are read; None: what the cheaper run of
    each pair spent.
    """
    runs = paired(variants, pair)
    runs = finished(runs) if budget == AT_THE_END else usable(runs)
    if not runs:
        return None
    tasks = sorted(_shared_tasks([run for both in runs for run in both]))
    amounts, around = list[float](), list[int]()
    scores: tuple[list[list[float]], list[list[float]]] = ([], [])
    for both in runs:
        amount = amount_of(both, budget, fixed)
        if budget != AT_THE_END and (amount <= 0 or unmeasured(both, budget, amount)):
            continue  # one is only measured at its beginning, or was first measured later, or spent less
        found = [run.measured[-1].scores if budget == AT_THE_END else run.at(budget, amount) for run in both]
        if any(tasks[0] not in of_run for of_run in found):
            return None  # one has spent as much in the world before the shift already
        for side, of_run in zip(scores, found, strict=True):
            side.append([of_run[name] for name in tasks])
        amounts.append(amount)
        around += [0 if budget == AT_THE_END else run.rounds_around(budget, amount) for run in both]
    if not amounts:
        return None
    one, other = (np.array(side, dtype=np.float64) for side in scores)
    estimate = difference(one, other)
    means = (float(one.mean()), float(other.mean()))
    row = BudgetContrast(*pair, estimate, estimate.p, budget, fmean(amounts), means, max(around))
    return row if row.is_tested else replace(row, difference=replace(estimate, p=math.nan), adjusted=math.nan)


def _not_tested(contrasts: Sequence[BudgetContrast]) -> list[str]:
    """Return a sentence if differences are read too far from measurements to be tested."""
    far = [one for one in contrasts if one.rounds_around > MOST_ROUNDS and one.budget not in OUTCOMES]
    if not far:
        return []
    budgets = ", ".join(dict.fromkeys(one.budget for one in far))
    return [
        f"measurements are up to {max(one.rounds_around for one in far)} rounds apart: success at equal "
        f"{budgets} that is read on a straight line between them is shown and not tested; run.eval_every=1 "
        "measures every round"
    ]


def _reached(variants: Mapping[str, Sequence[MeasuredRun]], pair: tuple[str, str]) -> SampleEfficiency:
    """Compare rollouts to the level at which `other` ends, or is now if no pair of runs is finished."""
    runs = usable(paired(variants, pair))
    shared = [(*both, shared_past(both)) for both in runs]
    ends = [other.measured[-1].mean for _, other in runs]
    level = fmean(ends) - ROUNDING if ends else math.nan
    took = [(one.spent_to_reach(level, n), other.spent_to_reach(level, n)) for one, other, n in shared]
    far = (
        sum(a is not None and math.isnan(a) for a, _ in took),
        sum(b is not None and math.isnan(b) for _, b in took),
    )
    both = [(a, b) for a, b in took if a and b and not math.isnan(a + b)]
    value = ratio([a for a, _ in both], [b for _, b in both]) if len(both) > 1 else None
    missing = sum(a is None for a, _ in took), sum(b is None for _, b in took)
    begun = sum(a == 0 for a, _ in took), sum(b == 0 for _, b in took)
    return SampleEfficiency(*pair, level, value, missing, begun, far, len(runs))


def _by_variant(readings: Sequence[MeasuredRun]) -> dict[str, list[MeasuredRun]]:
    """Return the runs by variant, ordered by seed.

    Raises:
        UsageError: two runs of one variant have the same seed.
    """
    found: defaultdict[str, list[MeasuredRun]] = defaultdict(list)
    for reading in readings:
        for other in found[reading.variant]:
            if other.seed == reading.seed:
                raise UsageError(
                    f"{other.path} and {reading.path} are both of variant {reading.variant} with seed "
                    f"{reading.seed}; name one of them, compare them in genenv view, or train one with "
                    "another --variant or run.seed"
                )
        found[reading.variant].append(reading)
    return {name: sorted(runs, key=lambda run: run.seed) for name, runs in found.items()}


def _shared_environment(readings: Sequence[MeasuredRun]) -> str:
    """Return the name of the one environment of all runs, which share held-out tasks.

    Raises:
        UsageError: there are several environments, or no held-out task is measured by all runs.
    """
    if not readings:
        raise UsageError("none of these runs can be compared: no held-out task was measured in any")
    environments = list(dict.fromkeys(shown_name(one.config.environment.name) for one in readings))
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


def _in_one_world(
    readings: Sequence[MeasuredRun], notes: list[str]
) -> tuple[Sequence[MeasuredRun], list[str]]:
    """Leave out unfinished runs that have not come to their shift, if another run has."""
    early = [not run.finished and max(run.metrics) < run.config.shift.round for run in readings]
    if all(early):
        return readings, notes
    notes += [
        f"{run.path} is left out: it is at round {max(run.metrics)}, before its shift in round "
        f"{run.config.shift.round}"
        for run, is_early in zip(readings, early, strict=True)
        if is_early
    ]
    return [run for run, is_early in zip(readings, early, strict=True) if not is_early], notes


def _on_shared_tasks(
    readings: Sequence[MeasuredRun], notes: list[str]
) -> tuple[Sequence[MeasuredRun], list[str]]:
    """Leave out results on held-out tasks that not all runs measured, so that all figures are of one set."""
    measured = [{task for one in run.measured for task in one.scores} for run in readings]
    shared, everything = measured[0].intersection(*measured), measured[0].union(*measured)
    if shared == everything:
        return readings, notes
    more = f"only the {counted(len(shared), 'held-out task')} that all runs measured count"
    return [run.on(shared) for run in readings], [*notes, more]


def _shared_tasks(readings: Sequence[MeasuredRun]) -> set[str]:
    tasks = set(readings[0].measured[-1].scores)
    for reading in readings[1:]:
        tasks &= reading.measured[-1].scores.keys()
    return tasks


COST_COLUMNS = ("variant", "seeds", "rollouts", "tokens, agent", "tokens, both", "gate checks", "seconds")


def costs(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    """Yield what each variant cost, means over its runs, as `COST_COLUMNS` says; a dash if unknown."""
    for name, all_runs in comparison.variants.items():
        runs = [run for run in all_runs if run.finished] or all_runs
        spent = [run.measured[-1].spent for run in runs]
        values = [
            fmean(one[budget] for one in spent) for budget in ("attempts", "agent tokens", "all tokens")
        ]
        totals = [_total(runs, metric) for metric in ("tasks/checked", "time/round_s")]
        yield (name, str(len(runs)), *("–" if math.isnan(one) else f"{one:,.0f}" for one in values + totals))


def _total(runs: Sequence[MeasuredRun], metric: str) -> float:
    """Return the mean over runs of a metric's sum over rounds; NaN if a run has no such metric."""
    found = [[values[metric] for values in run.metrics.values() if metric in values] for run in runs]
    return fmean(map(sum, found)) if all(found) else math.nan


COLUMNS = ("budget", "each", "variant", "against", "success", "against it", *CELLS)


def rows(comparison: Comparison) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each contrast, in the order of `COLUMNS`."""
    for one in comparison.contrasts:
        yield (
            one.budget,
            "" if one.budget == AT_THE_END else f"{one.amount:,.0f}",
            one.one,
            one.other,
            f"{one.means[0]:z.1%}",
            f"{one.means[1]:z.1%}",
            *one.cells(".1f", scale=100),
        )


def findings(comparison: Comparison) -> list[str]:
    """Return the conclusions as sentences: of each pair at equal rollouts if tested, else at the end."""
    tests = Counter(one.budget for one in comparison.contrasts if one.is_tested)
    at_end = {(one.one, one.other) for one in comparison.contrasts if one.budget == AT_THE_END}
    chosen = {
        (one.one, one.other): one
        for budget in (AT_THE_END, "attempts")
        for one in comparison.contrasts
        if one.budget == budget and (one.is_tested or (one.one, one.other) not in at_end)
    }
    return [
        *(_contrast_text(one, tests[one.budget]) for one in chosen.values()),
        *(_reached_text(one) for one in comparison.sample_efficiency),
        *map(recovery_text, comparison.recoveries),
        *map(recovery_contrast_text, comparison.recovery_contrasts),
    ]


def _contrast_text(one: BudgetContrast, tests: int) -> str:
    """What is shown at a budget, of so many tests; within noise also how many seeds would settle it."""
    where = "at the end" if one.budget == AT_THE_END else f"at {one.amount:,.0f} {one.budget} each"
    found, settled = one.difference, ""
    if one.outcome() == WITHIN_NOISE and found.value and found.spread is not None:
        held_out = f"no number of seeds would show it on these {counted(found.spread.tasks, 'held-out task')}"
        needed = found.needed(tests)
        shown = f"about {needed} seeds would show it" if needed else held_out
        if found.seeds < _FEW_SEEDS:
            shown += f", as far as {counted(found.seeds, 'seed')} can say"
        settled = f"; if this is the true difference, {shown}"
    return (
        f"{one.one} against {one.other}, {where}: {one.means[0]:z.1%} and {one.means[1]:z.1%}, "
        f"{100 * found.value:+z.1f} points ({found.interval('z.1f', scale=100)}, "
        f"p {p_word(one.adjusted)}, {counted(found.seeds, 'seed')}): {one.verdict()}{settled}."
    )


_FEW_SEEDS = 5
"""Below so many seeds the number that would be needed is hardly known."""
_WIDEST_RATIO = 100.0
"""An interval of a ratio whose ends differ by a larger factor says nothing."""


def _reached_text(one: SampleEfficiency) -> str:
    start = f"Attempts of {one.one} to {one.level:z.1%}, where {one.other} ends"
    missing = [
        f"{name} {what} in {count} of {counted(one.seeds, 'seed')}"
        for what, counts in (
            ("never came there", one.missing),
            ("began there", one.begun),
            ("was not measured near there", one.far),
        )
        for name, count in zip((one.one, one.other), counts, strict=True)
        if count
    ]
    left_out = f"; {', '.join(missing)}, which are left out" if missing else ""
    if one.ratio is None:
        return f"{start}: too few seeds in which both came there{left_out}."
    value, low, high = one.ratio
    if high > _WIDEST_RATIO * low:
        return f"{start}: the seeds differ too much to say{left_out}."
    took = f"{value:.2f} times those of {one.other} ({low:.2f} to {high:.2f})"
    return f"{start}: {took}{left_out}."


METRIC_COLUMNS = ("metric", "variant", "against", "mean", "against it", *CELLS)


@dataclass(frozen=True, slots=True)
class MetricContrast(Contrast):
    """The difference in one metric between two variants: means over a run's last rounds, paired by seed."""

    metric: str
    means: tuple[float, float]


def by_metric(comparison: Comparison, names: Sequence[str], *, last: int) -> list[MetricContrast]:
    """Return the contrasts of a comparison's pairs in the given metrics.

    Args:
        comparison: the comparison of runs.
        names: the names of the metrics.
        last: the number of last rounds to average for a run's value; rounds without the metric, and round 0,
            do not count. If one run of a pair is unfinished, both are read up to where it is.

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


def metric_notes(contrasts: Sequence[MetricContrast], comparison: Comparison) -> list[str]:
    """Return a sentence for each metric and pair of variants that lacks seeds which the comparison has."""
    pairs = dict.fromkeys((one.one, one.other) for one in comparison.contrasts)
    known = {(one.metric, one.one, one.other): one.difference.seeds for one in contrasts}
    wanted = {pair: len(usable(paired(comparison.variants, pair))) for pair in pairs}
    return [
        f"{name}, {one} against {other}: {counted(lost, 'seed')} left out, where a run has no such metric"
        for name in dict.fromkeys(one.metric for one in contrasts)
        for (one, other), seeds in wanted.items()
        if (lost := seeds - known.get((name, one, other), 0))
    ]


def metric_rows(contrasts: Sequence[MetricContrast]) -> Iterator[tuple[str, ...]]:
    """Yield the cells of each contrast, in the order of `METRIC_COLUMNS`."""
    for one in contrasts:
        yield (one.metric, one.one, one.other, *(f"{mean:.4g}" for mean in one.means), *one.cells(".3g"))


def metric_numbers(contrasts: Sequence[MetricContrast]) -> Iterator[Sequence[object]]:
    """Yield a header and a row of numbers for each contrast."""
    yield ("metric", "variant", "against", "mean", "against it", *NUMBERS)
    for one in contrasts:
        yield (one.metric, one.one, one.other, *one.means, *one.numbers())


def _metric_contrast(
    variants: Mapping[str, Sequence[MeasuredRun]], pair: tuple[str, str], name: str, last: int
) -> MetricContrast | None:
    both = [[_value(run, name, last, _end(runs)) for run in runs] for runs in usable(paired(variants, pair))]
    known = np.array([values for values in both if not any(map(math.isnan, values))], dtype=np.float64)
    if not known.size:
        return None
    one_S1, other_S1 = known[:, :1], known[:, 1:]
    apart = difference(one_S1, other_S1)
    return MetricContrast(*pair, apart, apart.p, name, (float(one_S1.mean()), float(other_S1.mean())))


def _end(runs: Pair) -> float:
    """Return the round up to which both runs of a pair are read: the last one if both are finished."""
    finished = all(run.finished for run in runs)
    return math.inf if finished else min(max(run.metrics) for run in runs)


def _value(run: MeasuredRun, name: str, last: int, end: float) -> float:
    rounds = [number for number in sorted(run.metrics) if 0 < number <= end][-last:]
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
