"""Several runs side by side: curves over seeds, settings that differ, paired differences, and cost."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import takewhile
from math import isnan
from pathlib import Path
from statistics import fmean

import numpy as np

from genenv.errors import DataError
from genenv.runs.folder import RunFolder
from genenv.runs.metrics import METRICS, held_out_rates, late_values
from genenv.runs.store.reader import LEADING_AGENT
from genenv.statistics import Contrast, Difference, counted, difference, mean_interval, with_holm
from genenv.types import Json, JsonObject
from genenv.viewer.curves import described, short
from genenv.viewer.folders import Run, reading, state_of
from genenv.viewer.lists import last_evaluations

_NOT_COMPARED = frozenset({"run.name", "run.seed", "policy.threads"})
"""Settings in which runs of one configuration may differ."""
_NOT_TASKS = frozenset({"environment.name", "environment.seats"})
"""Settings of an environment that do not change its held-out tasks."""
_NAMED = 5
"""Runs that a sentence names."""
_MOST_COLUMNS = 100
"""Points of a curve: neighboring rounds beyond share one."""
ALONG: Mapping[str, tuple[str, str]] = {
    "rounds": ("", "round"),
    "rollouts": ("agent/attempts", "rollouts so far"),
    "tokens": ("tokens/sampled", "tokens sampled so far"),
    "seconds": ("time/round_s", "seconds so far"),
}
"""What curves run along -> the metric that is added up, and the name of the axis."""
_KEY = (
    "agent/eval_success",
    "agent/success_rate",
    "curriculum/p_hat_mean",
    "tasks/mixed",
    "simulator/valid_rate",
    "agent/reward",
    "agent/response_tokens",
    "agent/kl",
    "simulator/kl",
    "agent/entropy",
    "time/round_s",
    "tokens/sampled",
)
"""The metrics that are shown first."""
SHOWN = ("key", *dict.fromkeys(name.partition("/")[0] for name in METRICS))
"""Choices of metrics: the key metrics, or those of a family."""
_PAIRED = _KEY[1:10]
"""Metrics whose late means are compared in pairs, after held-out success."""
_DIGITS = 9
"""Settings with more digits are rounded."""
_MOST_KEPT = 256
"""Evaluations that are kept in memory."""
_COSTS: Mapping[str, str] = {
    "agent/attempts": "rollouts",
    "tokens/sampled": "tokens sampled",
    "tokens/trained": "tokens trained",
    "tasks/checked": "gate checks",
    "time/round_s": "seconds",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Runs of one configuration, which differ in the seed alone."""

    name: str
    runs: Sequence[Run]
    """One a seed."""
    repeated: Sequence[Run] = ()
    """Runs whose seed another one has that is further on; they are left out."""

    @property
    def seeds(self) -> Mapping[str, Run]:
        """The run of each seed."""
        return {run.text("run.seed"): run for run in self.runs}


def groups(runs: Sequence[Run]) -> list[Group]:
    """Return runs by configuration, in the order of their names, one run a seed.

    A branch is of another configuration than the run that it goes on from, even if no setting differs.
    """
    found: dict[str, list[Run]] = {}
    for run in sorted(runs, key=lambda one: one.name):
        kept: dict[str, object] = {
            name: value for name, value in run.settings.items() if name not in _NOT_COMPARED
        }
        if kept and (branch := run.branch_of) is not None:
            # branches of the seeds of a sweep belong together
            kept["branch"] = (branch[0].rpartition("/")[0], branch[1])
        # Without settings nothing says that two runs belong together.
        found.setdefault(json.dumps(kept, sort_keys=True, default=str) if kept else run.name, []).append(run)
    several = [_by_seed(runs) for runs in found.values()]
    names = _names([runs for runs, _ in several])
    return [
        Group(name=name, runs=runs, repeated=repeated)
        for name, (runs, repeated) in zip(names, several, strict=True)
    ]


def _by_seed(runs: Sequence[Run]) -> tuple[list[Run], list[Run]]:
    """Return the run of each seed that is furthest on, the first of equal ones, and the other runs."""
    found = dict[str, Run]()
    for run in runs:
        seed = run.text("run.seed")
        if seed not in found or run.done > found[seed].done:
            found[seed] = run
    kept = [run for run in runs if found[run.text("run.seed")] is run]
    return kept, [run for run in runs if found[run.text("run.seed")] is not run]


def limited(several: Sequence[Group], most: int) -> tuple[list[Group], list[str]]:
    """Return groups with at most so many runs, and sentences about those that are left out.

    All groups keep the same seeds, so that they can be paired. Seeds that most groups have come first.
    """
    notes = [
        f"{group.name}: left out, as another run has the same settings and seed: "
        f"{', '.join(run.name for run in group.repeated[:_NAMED])}{' ...' * (len(group.repeated) > _NAMED)}."
        for group in several
        if group.repeated
    ]
    having = Counter(seed for group in several for seed in group.seeds)
    if having.total() <= most:
        return list(several), notes
    kept, count = set[str](), 0
    for seed in sorted(having, key=lambda one: (-having[one], len(one), one)):
        if kept and count + having[seed] > most:
            break
        kept, count = kept | {seed}, count + having[seed]
    found = [
        replace(group, runs=[group.seeds[seed] for seed in group.seeds if seed in kept]) for group in several
    ]
    found = [group for group in found if group.runs][:most]
    shown = sum(len(group.runs) for group in found)
    notes.append(
        f"{having.total() - shown} of {having.total()} runs are left out, as at most {most} are compared at "
        f"once: shown are {counted(len(kept), 'seed')} of {len(having)}, the same of all configurations. "
        "Choose fewer runs to see others."
    )
    return found, notes


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A folder of two or more runs, which can be compared at once."""

    name: str
    runs: Sequence[Run]
    configurations: int

    @property
    def held_out(self) -> tuple[float, float] | None:
        """Mean held-out success over its runs, at first and at last; None of several configurations."""
        if self.configurations > 1:
            return None
        (group,) = groups(self.runs)
        rates = [held_out_rates(run.rounds) for run in group.runs]
        # after a shift, the tasks are others: the rates of one environment are compared
        lines = [after for _, after, _ in rates]
        lines = lines if all(lines) else [before for before, *_ in rates]
        if not all(lines):
            return None
        return fmean(line[0] for line in lines), fmean(line[-1] for line in lines)


def folders(shown: Sequence[Run], known: Sequence[Run]) -> list[Folder]:
    """Return the folders of two or more runs, all of which are shown.

    Args:
        shown: the runs that fit a filter.
        known: all runs.
    """
    found: dict[str, list[Run]] = {}
    for run in known:
        parts = run.name.split("/")[:-1]
        for deep in range(1, len(parts) + 1):
            found.setdefault("/".join(parts[:deep]), []).append(run)
    kept = {run.name for run in shown}
    return [
        Folder(name=name, runs=runs, configurations=len(groups(runs)))
        for name, runs in sorted(found.items())
        if len(runs) > 1 and all(run.name in kept for run in runs)
    ]


def _names(several: Sequence[Sequence[Run]]) -> list[str]:
    """Return a name for each group of runs: the variant if that tells them apart, else the path in common."""
    variants = [_variant(runs[0]) for runs in several]
    if all(variants) and len(set(variants)) == len(variants):
        return variants
    found, above = list[str](), _above([run for runs in several for run in runs])
    for runs in several:
        shared = runs[0].name.split("/")
        if len(runs) > 1:
            parts = [run.name.split("/") for run in runs]
            shared = [one[0] for one in zip(*parts, strict=False) if len(set(one)) == 1]
        name = "/".join(shared[above:] or shared) or runs[0].name
        found.append(name if name not in found else f"{name} ({len(found) + 1})")
    return found


def _variant(run: Run) -> str:
    """Return the variant of a run, or its preset, with the round after which a branch begins."""
    name, branch = run.text("variant", "preset"), run.branch_of
    return f"{name} (branch of round {branch[1]})" if name and branch is not None else name


def _above(runs: Sequence[Run]) -> int:
    """Return how many folders all runs are in: these distinguish no runs."""
    parts = [run.name.split("/")[:-1] for run in runs]
    return sum(1 for _ in takewhile(lambda one: len(set(one)) == 1, zip(*parts, strict=False)))


def differing(several: Sequence[Group]) -> list[tuple[str, list[str]]]:
    """Return the settings in which groups differ, with the value of each group; "–" if it has none."""
    names = sorted({name for group in several for name in group.runs[0].settings} - _NOT_COMPARED)
    rows = [
        (name, [_setting(group.runs[0], name) for group in several])
        for name in names
        if len({json.dumps(group.runs[0].settings.get(name), default=str) for group in several}) > 1
    ]
    return [(name, values) for name, values in rows if name not in ("variant", "preset")]


def _setting(run: Run, name: str) -> str:
    value, text = run.settings.get(name), run.text(name)
    return f"{value:.6g}" if isinstance(value, float) and len(text) > _DIGITS else text or "–"


def charts(several: Sequence[Group], shown: str, along: str, *, drawn: bool = True) -> list[JsonObject]:
    """Return a chart for each metric: per group the mean over its runs, and its 95% interval.

    Args:
        several: the groups.
        shown: a choice of `SHOWN`.
        along: a key of `ALONG`.
        drawn: with the curves.
    """
    runs = [run for group in several for run in group.runs]
    known = {name for run in runs for name, line in run.metrics.items() if name in _KEY or any(line.values())}
    names = _KEY if shown == "key" else sorted(name for name in known if name.startswith(f"{shown}/"))
    spent, axis = ALONG[along]
    shifts = sorted({number for run in runs if (number := run.shift) is not None})
    places = [[_spent(run, spent) for run in group.runs] for group in several] if drawn else []
    found = list[JsonObject]()
    for name in (name for name in names if name in known):
        unit, about = described(name)
        if shifts and name.startswith("agent/eval_"):
            about += f" From round {' or '.join(map(str, shifts))} on in another environment."
        curves: list[Json] = [
            {"name": f"{group.name} (n = {len(group.runs)})", **_line(group, name, of_runs)}
            for group, of_runs in zip(several, places, strict=False)
        ]
        last = {group.name: [run.series(name) for run in group.runs if run.series(name)] for group in several}
        found.append(
            {
                "title": name,
                "unit": unit,
                "note": about,
                "axis": axis,
                "share": unit == "share",
                "groups": curves,
                "said": "; ".join(
                    f"{group}: {short(fmean(list(one.values())[-1] for one in lines))} at last"
                    for group, lines in last.items()
                    if lines
                ),
            }
        )
    return found


def _line(group: Group, metric: str, places: Sequence[Mapping[int, float]]) -> dict[str, Json]:
    """Return `x`, `mean`, and `low` and `high` (None for one run) of a metric over the runs of a group."""
    series = [run.series(metric) for run in group.runs]
    numbers = sorted(set[int]().union(*series))
    size = -(-len(numbers) // _MOST_COLUMNS) or 1
    rows = list[tuple[float, ...]]()
    for start in range(0, len(numbers), size):
        column = numbers[start : start + size]
        values, xs = list[float](), list[float]()
        for one, place in zip(series, places, strict=True):
            if measured := [number for number in column if number in one]:
                values.append(sum(one[number] for number in measured) / len(measured))
                xs.append(sum(place[number] for number in measured) / len(measured))
        rows.append((sum(xs) / len(xs), *mean_interval(values)))
    names, kept = ("x", "mean", "low", "high"), zip(*rows, strict=True) if rows else ((),) * 4
    return {
        name: [None if isnan(value) else float(f"{value:.5g}") for value in column]
        for name, column in zip(names, kept, strict=True)
    }


def _spent(run: Run, metric: str) -> Mapping[int, float]:
    """Return how much of a metric was spent until each round; the round itself if `metric` is empty."""
    found, total = dict[int, float](), 0.0
    for number, values in run.rounds.items():
        total = total + values.get(metric, 0.0) if metric else float(number)
        found[number] = total
    return found


@dataclass(frozen=True, slots=True)
class Paired(Contrast):
    """Two groups in one metric, paired by seed."""

    metric: str
    means: tuple[float, float]
    when: str
    """The rounds of which the values are."""

    @property
    def cell(self) -> tuple[str, ...]:
        """Difference, interval, p, outcome, and number of seeds, as text."""
        digits = ".3f" if described(self.metric)[0] == "share" else ".3g"
        value, interval, p, seeds, outcome = self.cells(digits)
        found = self.difference
        if found.value == found.low == found.high == 0 and found.seeds > 1:
            return "0", "–", "–", "the same in all seeds", seeds
        return value, interval, p, outcome.removeprefix(f"{self.one} is "), seeds


def paired(several: Sequence[Group], base: Group) -> tuple[list[Paired], list[str]]:
    """Return each group against `base`, by seed, and sentences about what could not be compared.

    Held-out success is that of the last evaluation which all paired runs have, paired by task too. Other
    metrics are means over the last third of the rounds until then.
    """
    rows, notes = list[Paired](), list[str]()
    for group in several:
        shared = [(run, base.seeds[seed]) for seed, run in group.seeds.items() if seed in base.seeds]
        if group is base:
            continue
        ended = [both for both in shared if all(run.state == "finished" for run in both)]
        if not shared:
            notes.append(f"{group.name} and {base.name} have no seed in common, so nothing is paired.")
            continue
        if 0 < len(ended) < len(shared):
            left = counted(len(shared) - len(ended), "seed")
            notes.append(f"{group.name} against {base.name}: {left} left out, whose runs are not finished.")
        rows += _contrasts(group, base, ended or shared, notes)
    ordered = {name: [row for row in rows if row.metric == name] for name in (_KEY[0], *_PAIRED)}
    return [row for name in ordered for row in with_holm(ordered[name])], notes


def _contrasts(
    group: Group, base: Group, shared: Sequence[tuple[Run, Run]], notes: list[str]
) -> list[Paired]:
    runs = [run for both in shared for run in both]
    evaluated = set[int].intersection(*(set(run.series(_KEY[0])) for run in runs))
    last = max(evaluated) if evaluated else min(run.done for run in runs)
    found = list[Paired]()
    if evaluated:
        try:
            scores = _held_out(shared, last)
            notes += _other_tasks(group, base)
        except DataError as error:
            notes.append(f"{group.name} and {base.name}: {error}. Held-out tasks are not paired.")
            scores = [[[run.rounds[last][_KEY[0]]] for run in side] for side in zip(*shared, strict=True)]
        found.append(_contrast(group, base, _KEY[0], scores, f"round {last}"))
    for name in _PAIRED:
        late = [
            [late_values({n: v for n, v in run.rounds.items() if n <= last}, name) for run in both]
            for both in shared
        ]
        known = [[fmean(values) for values in both] for both in late if all(both)]
        if known:
            sides = [[[value] for value in side] for side in zip(*known, strict=True)]
            found.append(_contrast(group, base, name, sides, f"last third of {last} rounds"))
    return found


def _contrast(
    group: Group, base: Group, name: str, scores: Sequence[Sequence[Sequence[float]]], when: str
) -> Paired:
    one, other = (np.array(side, dtype=np.float64) for side in scores)
    found: Difference = difference(one, other)
    means = (float(one.mean()), float(other.mean()))
    return Paired(group.name, base.name, found, found.p, name, means, when)


def _held_out(shared: Sequence[tuple[Run, Run]], number: int) -> list[list[list[float]]]:
    """Return the scores [side][seed][task] of the tasks that all runs were evaluated on in a round.

    Raises:
        DataError: a store cannot be read, or there is no such task.
    """
    environments = dict.fromkeys(run.environment for both in shared for run in both)
    if len(environments) > 1:
        raise DataError(f"these are runs of {' and '.join(name or 'none' for name in environments)}")
    found = [[_scores(run, number) for run in both] for both in shared]
    tasks = sorted(set[str].intersection(*(set(one) for both in found for one in both)))
    if not tasks:
        raise DataError("the runs share no held-out task")
    return [[[both[side][task] for task in tasks] for both in found] for side in (0, 1)]


def _other_tasks(group: Group, base: Group) -> list[str]:
    """Return a sentence if held-out tasks of two groups may differ though their ids are the same."""
    one, other = (
        {
            name: value
            for name, value in of.runs[0].settings.items()
            if name.startswith("environment.") and name not in _NOT_TASKS
        }
        for of in (group, base)
    )
    differing = sorted(name for name in one.keys() | other.keys() if one.get(name) != other.get(name))
    if not differing:
        return []
    return [
        f"{group.name} and {base.name} differ in {', '.join(differing)}: if held-out tasks of one id are "
        "other tasks with that, the difference is one of tasks too."
    ]


_KEPT: dict[tuple[Path, int], tuple[object, Mapping[str, float]]] = {}
"""Run and round -> the state of its store, and the scores of its evaluation: each page asks for many."""


def _scores(run: Run, number: int) -> Mapping[str, float]:
    """Return the score of each held-out task in the evaluation of a round.

    With seats it is that of the leading agent; with a regret that of the weak one if it is trained; of other
    agents it is the mean. So it is in `genenv compare`.
    """
    state, key = state_of(RunFolder(run.path).pool), (run.path, number)
    known, scores = _KEPT.get(key, (None, {}))
    if known != state or not state:
        weak = run.weak_agent
        whose = f"agent = ({LEADING_AGENT})" if run.has_seats else "agent = ?" if weak else "1"
        given = (number, weak) if weak and not run.has_seats else (number,)
        of_round = last_evaluations(whose)
        sql = f"SELECT task_id, avg(success) FROM {of_round} GROUP BY task_id ORDER BY min(place)"  # noqa: S608
        scores = reading(run, lambda db: {str(row[0]): float(row[1]) for row in db.rows(sql, given)})
        if len(_KEPT) >= _MOST_KEPT:
            _KEPT.clear()
        _KEPT[key] = (state, scores)
    return scores


def costs(several: Sequence[Group]) -> list[tuple[str, list[str]]]:
    """Return what a run cost: per measure, its mean over the runs of each group, with its range."""
    rows = [("rounds", [_ranged([float(run.done) for run in group.runs]) for group in several])]
    for name, label in _COSTS.items():
        sums = [[sum(run.series(name).values()) for run in group.runs] for group in several]
        if any(map(any, sums)):
            rows.append((label, [_ranged(values) for values in sums]))
    return rows


def _ranged(values: Sequence[float]) -> str:
    low, high = min(values), max(values)
    mean = f"{fmean(values):,.0f}"
    return mean if f"{low:.0f}" == f"{high:.0f}" else f"{mean} ({low:,.0f} to {high:,.0f})"
