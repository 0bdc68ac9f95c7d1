"""The output of `genenv compare` for runs: a page with charts, and CSV files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean
from types import MappingProxyType

import numpy as np

from genenv.files import write_csv, write_whole
from genenv.research.sweeps.compare import (
    AT_THE_END,
    COLUMNS,
    COST_COLUMNS,
    Comparison,
    costs,
    findings,
    rows,
)
from genenv.research.sweeps.readings import BUDGETS, OUTCOMES, MeasuredRun
from genenv.research.sweeps.recovery import recovery_rows, shifted_run
from genenv.statistics import NUMBERS, mean_interval
from genenv.types import JsonObject
from genenv.viewer.frozen import chart_page, line_chart


def write_page(comparison: Comparison, folder: Path, *, title: str) -> Path:
    """Write `compare.html`, `contrasts.csv`, `curves.csv` and, for runs with a shift, `shift.csv`.

    Returns:
        The path of the page.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "compare.html"
    page = chart_page(
        "genenv.research",
        "compare.html",
        [chart for draw in CHARTS if (chart := draw(comparison.variants)) is not None],
        title=title,
        maker="genenv compare",
        comparison=comparison,
        runs=sum(map(len, comparison.variants.values())),
        findings=findings(comparison),
        at_the_end=AT_THE_END,
        outcomes=OUTCOMES,
        cost_columns=COST_COLUMNS,
        costs=list(costs(comparison)),
        columns=COLUMNS,
        rows=list(rows(comparison)),
        ends=final_rows(comparison.variants),
    )
    write_whole(path, page)
    write_csv(folder / "contrasts.csv", _contrasts(comparison))
    write_csv(folder / "curves.csv", _curves(comparison))
    if comparison.recoveries:
        write_csv(folder / "shift.csv", recovery_rows(comparison.recoveries))
    return path


def _contrasts(comparison: Comparison) -> Iterator[Sequence[object]]:
    """Yield the contrasts as numbers: shares, not points; the amount is empty at the end."""
    yield ("budget", "amount", "variant", "against", "success", "success of against", *NUMBERS)
    for one in comparison.contrasts:
        amount = "" if one.budget == AT_THE_END else one.amount
        yield (one.budget, amount, one.one, one.other, *one.means, *one.numbers())


def _curves(comparison: Comparison) -> Iterator[Sequence[object]]:
    budgets = list(BUDGETS)
    yield ("variant", "seed", "round", *budgets, "held-out success", "tasks", "world")
    for name, runs in comparison.variants.items():
        for run in runs:
            first = run.measured[0].scores.keys()
            for measured in run.measured:
                spent = (measured.spent[budget] for budget in budgets)
                world = 1 if measured.scores.keys() == first else 2
                yield (name, run.seed, measured.round, *spent, measured.mean, len(measured.scores), world)


Runs = Mapping[str, Sequence[MeasuredRun]]
Line = dict[float, tuple[float, float, float]]
"""Place -> mean over seeds, with its 95% interval."""

PAPERS_BAND = (0.4, 0.6)
"""The desired range of the success rate on generated tasks, from the paper's Figure 5."""
_POINTS = 60


def learning_curves(variants: Runs, budget: str, note: str) -> JsonObject | None:
    """Return held-out success along the spent budget: the mean over seeds and its 95% t-interval."""
    if not any(run.measured[-1].spent[budget] for runs in variants.values() for run in runs):
        return None
    lines = dict[str, Line]()
    for name, runs in variants.items():
        start = max(run.measured[0].spent[budget] for run in runs)
        end = min(run.measured[-1].spent[budget] for run in runs)
        amounts = np.linspace(start, end, _POINTS if start <= end else 0)
        lines[f"{name} ({len(runs)})"] = {
            float(x): mean_interval([fmean(run.at(budget, x).values()) for run in runs]) for x in amounts
        }
    return line_chart(f"Held-out success along {budget}", note, lines, axis=budget)


def final_rows(variants: Runs) -> list[tuple[str, float, str, list[float]]]:
    """Return held-out success at the end: variant, mean, 95% interval, and the value of each seed.

    Only finished runs count; a variant without any is left out.
    """
    found = list[tuple[str, float, str, list[float]]]()
    for name, runs in variants.items():
        ends = [run.measured[-1].mean for run in runs if run.finished]
        if not ends:
            continue
        mean, low, high = mean_interval(ends)
        found.append((name, mean, f"{low:.3f} to {high:.3f}" if len(ends) > 1 else "–", ends))
    return found


def around_shift(variants: Runs) -> JsonObject | None:
    """Return held-out success by rounds since the shift of the environment: mean and 95% interval."""
    return line_chart(
        "Around the shift",
        "At -1 the level before; at 0 the environment has changed. Mean over seeds and its 95% interval.",
        {name: _falls(runs) for name, runs in variants.items()},
        axis="rounds in the other environment",
    )


def _falls(runs: Sequence[MeasuredRun]) -> Line:
    """Return rounds since the shift with the mean over seeds and its interval; -1 is the level before."""
    shifted = [run for run in map(shifted_run, runs) if run is not None]
    if not shifted:
        return {}
    shared = set[int].intersection(*({taken[0] for taken in run.after} for run in shifted))
    found: Line = {-1: mean_interval([run.before for run in shifted])}
    for place in sorted(shared):
        values = [taken[2] for run in shifted for taken in run.after if taken[0] == place]
        found[place] = mean_interval(values)
    return found


def along_rounds(  # noqa: PLR0913 - what a chart is
    variants: Runs,
    metric: str,
    title: str,
    note: str,
    *,
    unit: str = "share",
    band: tuple[float, float] | None = None,
    marks: Mapping[str, float] = MappingProxyType({}),
) -> JsonObject | None:
    """Return a metric by round, as the mean over seeds with its 95% interval.

    Args:
        variants: their runs.
        metric: its name.
        title: of the chart.
        note: how to read it.
        unit: of the metric.
        band: shaded values.
        marks: values of others, by name, drawn as horizontal lines.
    """
    lines = {name: _mean_line(runs, metric) for name, runs in variants.items()}
    rounds = sorted({number for line in lines.values() for number in line})
    if rounds:
        for name, value in marks.items():
            lines[name] = {float(number): (value, value, value) for number in (rounds[0], rounds[-1])}
    return line_chart(title, note, lines, axis="round", unit=unit, band=band)


def _mean_line(runs: Sequence[MeasuredRun], metric: str) -> Line:
    numbers = sorted({number for run in runs for number, values in run.metrics.items() if metric in values})
    return {
        number: mean_interval(
            [run.metrics[number][metric] for run in runs if metric in run.metrics.get(number, {})]
        )
        for number in numbers
    }


CHARTS: Sequence[Callable[[Runs], JsonObject | None]] = (
    lambda runs: learning_curves(
        runs,
        "attempts",
        "Mean over seeds (in brackets: how many) and its 95% interval. The paper's Figure 4, by cost.",
    ),
    lambda runs: learning_curves(
        runs, "all tokens", "Sampled and trained, by both policies, rejected specs included."
    ),
    around_shift,
    lambda runs: along_rounds(
        runs,
        "agent/new_success",
        "Success on generated tasks",
        "The paper's Figure 7. The mean says little: always and never solved tasks give one half too.",
        band=PAPERS_BAND,
    ),
    lambda runs: along_rounds(
        runs,
        "tasks/mixed",
        "Generated tasks with mixed outcomes",
        "The share that some rollouts solve and some do not: only these have a GRPO signal.",
    ),
    lambda runs: along_rounds(
        runs, "tasks/text_tokens", "Length of what tasks ask", "The paper's Figure 5a.", unit="tokens"
    ),
    lambda runs: along_rounds(
        runs,
        "tasks/required_response_tokens",
        "Length of the required reply",
        "The paper's Figure 5b.",
        unit="tokens",
    ),
)
"""The charts; each is None without data."""
