# pyright: standard
"""The output of `genenv compare` for runs: a page with charts, and CSV files."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from statistics import fmean

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from genenv.files import write_whole
from genenv.research.parts import (
    MUTED,
    SERIES,
    Picture,
    chart_style,
    csv_text,
    legend_below,
    line_styles,
    new_figure,
    render,
    round_ticks,
    to_svg,
)
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
from genenv.statistics import mean_interval


def write_page(comparison: Comparison, folder: Path, *, title: str) -> Path:
    """Write `compare.html`, `contrasts.csv`, `curves.csv` and, for runs with a shift, `shift.csv`.

    Returns:
        The path of the page.
    """
    folder.mkdir(parents=True, exist_ok=True)
    drawn = [Picture(title, draw(comparison.variants), reading) for title, reading, draw in PICTURES]
    page = render(
        "compare.html",
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
        pictures=[picture for picture in drawn if picture.svg is not None],
    )
    path = folder / "compare.html"
    write_whole(path, page)
    write_whole(folder / "contrasts.csv", csv_text([COLUMNS, *rows(comparison)]))
    write_whole(folder / "curves.csv", csv_text(_curves(comparison)))
    if comparison.recoveries:
        write_whole(folder / "shift.csv", csv_text(recovery_rows(comparison.recoveries)))
    return path


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

PAPERS_BAND = (0.4, 0.6)
"""The desired range of the success rate on generated tasks, from the paper's Figure 5."""
_POINTS = 60


def learning_curves(variants: Runs, budget: str) -> Markup | None:
    """Draw held-out success over the spent budget: the mean over seeds and its 95% t-interval."""
    if not any(run.measured[-1].spent[budget] for runs in variants.values() for run in runs):
        return None
    with chart_style(f"curves-{budget}"):
        figure, ax = new_figure(5.2, 3.6)
        for (color, dashes), (name, runs) in zip(line_styles(len(variants)), variants.items(), strict=True):
            most = min(run.measured[-1].spent[budget] for run in runs)
            amounts = np.linspace(0, most, _POINTS)
            rows = [mean_interval([fmean(run.at(budget, x).values()) for run in runs]) for x in amounts]
            ax.plot(amounts, [row[0] for row in rows], color=color, ls=dashes, label=f"{name} ({len(runs)})")
            if len(runs) > 1:
                bounds = [row[1] for row in rows], [row[2] for row in rows]
                ax.fill_between(amounts, *bounds, color=color, alpha=0.15, lw=0)
        ax.set_xlabel(budget)
        ax.set_ylabel("held-out success")
        return _done(figure, ax, f"curves-{budget}", f"Held-out success along {budget}, by variant")


def final_bars(variants: Runs) -> Markup:
    """Draw held-out success at the end: each seed, their mean and its 95% interval."""
    with chart_style("final"):
        figure, ax = new_figure(5.2, 3.6)
        for place, ((color, _), runs) in enumerate(
            zip(line_styles(len(variants)), variants.values(), strict=True)
        ):
            ends = [run.measured[-1].mean for run in runs]
            mean, low, high = mean_interval(ends)
            ax.bar(place, mean, color=color, alpha=0.35, width=0.7)
            ax.scatter([place] * len(ends), ends, s=14, color=color)
            if len(ends) > 1:
                ax.errorbar(place, mean, yerr=[[mean - low], [high - mean]], color=color, capsize=3)
        ax.set_xticks(range(len(variants)), list(variants), rotation=30, ha="right")
        ax.set_ylabel("held-out success")
        return to_svg(figure, "final", "Held-out success at the end, by variant")


def around_shift(variants: Runs) -> Markup | None:
    """Draw held-out success by rounds since the shift of the environment: mean and 95% interval."""
    lines = {name: _falls(runs) for name, runs in variants.items()}
    if not any(lines.values()):
        return None
    with chart_style("shift"):
        figure, ax = new_figure(5.2, 3.6)
        ax.axvline(-0.5, color=MUTED, lw=0.8, ls=":")
        for (color, dashes), (name, line) in zip(line_styles(len(variants)), lines.items(), strict=True):
            if line:
                places, rows = [place for place, _ in line], [row for _, row in line]
                ax.plot(places, [row[0] for row in rows], color=color, ls=dashes, label=name)
                bounds = [row[1] for row in rows], [row[2] for row in rows]
                ax.fill_between(places, *bounds, color=color, alpha=0.15, lw=0)
        round_ticks(ax)
        ax.set_xlabel("rounds in the other world")
        ax.set_ylabel("held-out success")
        return _done(figure, ax, "shift", "Held-out success around the shift, by variant")


def _falls(runs: Sequence[MeasuredRun]) -> list[tuple[int, tuple[float, float, float]]]:
    """Return rounds since the shift with the mean over seeds and its interval; -1 is the level before."""
    shifted = [run for run in map(shifted_run, runs) if run is not None]
    if not shifted:
        return []
    shared = set.intersection(*({taken[0] for taken in run.after} for run in shifted))
    found = [(-1, mean_interval([run.before for run in shifted]))]
    for place in sorted(shared):
        values = [taken[2] for run in shifted for taken in run.after if taken[0] == place]
        found.append((place, mean_interval(values)))
    return found


def along_rounds(
    variants: Runs, metric: str, label: str, *, band: tuple[float, float] | None = None
) -> Markup | None:
    """Draw a metric by round, as the mean over seeds."""
    lines = {name: _mean_line(runs, metric) for name, runs in variants.items()}
    if not any(lines.values()):
        return None
    with chart_style(metric):
        figure, ax = new_figure(5.2, 3.6)
        if band is not None:
            ax.axhspan(*band, color=SERIES[2], alpha=0.18, lw=0, label=f"{band[0]:g} to {band[1]:g}")
        for (color, dashes), (name, line) in zip(line_styles(len(variants)), lines.items(), strict=True):
            if line:
                ax.plot(list(line), list(line.values()), color=color, ls=dashes, label=name)
        round_ticks(ax)
        ax.set_xlabel("round")
        ax.set_ylabel(label)
        return _done(figure, ax, metric.replace("/", "-"), f"{label} along the rounds, by variant")


def _mean_line(runs: Sequence[MeasuredRun], metric: str) -> dict[int, float]:
    numbers = sorted({number for run in runs for number, values in run.metrics.items() if metric in values})
    return {
        number: fmean(run.metrics[number][metric] for run in runs if metric in run.metrics.get(number, {}))
        for number in numbers
    }


def _done(figure: Figure, ax: Axes, name: str, label: str) -> Markup:
    legend_below(figure, ax, columns=3, size=8)
    ax.tick_params(colors=MUTED)
    return to_svg(figure, name.replace(" ", "-"), label)


PICTURES: Sequence[tuple[str, str, Callable[[Runs], Markup | None]]] = (
    (
        "Held-out success along attempts",
        "Mean over seeds (how many: in brackets) and its 95% band. The paper's Figure 4, by what it cost.",
        lambda runs: learning_curves(runs, "attempts"),
    ),
    (
        "Held-out success along all tokens",
        "Sampled and trained, by both players, rejected specs included.",
        lambda runs: learning_curves(runs, "all tokens"),
    ),
    (
        "At the end",
        "A point is a seed. The paper's Figures 6 and 8: variants side by side.",
        final_bars,
    ),
    (
        "Around the shift",
        "At -1 the level before; at 0 the world has changed. Mean over seeds and its 95% band.",
        around_shift,
    ),
    (
        "Success on generated tasks",
        "The paper's Figure 7. The mean says little: always and never solved tasks give one half too.",
        lambda runs: along_rounds(runs, "agent/new_success", "success rate", band=PAPERS_BAND),
    ),
    (
        "Generated tasks with mixed outcomes",
        "The share that some attempts solve and some do not: only these teach GRPO anything.",
        lambda runs: along_rounds(runs, "tasks/mixed", "share of new tasks"),
    ),
    (
        "Length of what tasks ask",
        "The paper's Figure 5a.",
        lambda runs: along_rounds(runs, "tasks/text_tokens", "tokens"),
    ),
    (
        "Length of the required reply",
        "The paper's Figure 5b.",
        lambda runs: along_rounds(runs, "tasks/required_response_tokens", "tokens"),
    ),
)
"""The title, explanation and drawing function of each chart."""
