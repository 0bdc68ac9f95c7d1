# pyright: standard
"""The pictures of a comparison: each takes the runs of several variants and gives an SVG, or None."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from statistics import fmean

import numpy as np
from markupsafe import Markup
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from genenv.report.svg import MUTED, SERIES, chart_style, to_svg
from genenv.research.sweeps.readings import Reading
from genenv.research.sweeps.recovery import fall_of
from genenv.statistics import mean_interval

Runs = Mapping[str, Sequence[Reading]]

PAPERS_BAND = (0.4, 0.6)
"""Where the success rate of generated tasks should lie, by the paper's Figure 5."""
_POINTS = 60
_DASHES = ("-", "--", ":", "-.")


def learning_curves(variants: Runs, budget: str) -> Markup | None:
    """Held-out success along what was spent: the mean over seeds, and its 95% band by t."""
    if not any(run.measured[-1].spent[budget] for runs in variants.values() for run in runs):
        return None
    with chart_style(f"curves-{budget}"):
        figure, ax = _figure()
        for (color, dashes), (name, runs) in zip(_looks(variants), variants.items(), strict=True):
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
    """Held-out success at the end: each seed, their mean and its 95% interval."""
    with chart_style("final"):
        figure, ax = _figure()
        for place, ((color, _), runs) in enumerate(zip(_looks(variants), variants.values(), strict=True)):
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
    """Held-out success by rounds since the world changed, of the runs in which it did: mean and 95% band."""
    lines = {name: _falls(runs) for name, runs in variants.items()}
    if not any(lines.values()):
        return None
    with chart_style("shift"):
        figure, ax = _figure()
        ax.axvline(-0.5, color=MUTED, lw=0.8, ls=":")
        for (color, dashes), (name, line) in zip(_looks(variants), lines.items(), strict=True):
            if line:
                places, rows = [place for place, _ in line], [row for _, row in line]
                ax.plot(places, [row[0] for row in rows], color=color, ls=dashes, label=name)
                bounds = [row[1] for row in rows], [row[2] for row in rows]
                ax.fill_between(places, *bounds, color=color, alpha=0.15, lw=0)
        ax.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
        ax.set_xlabel("rounds in the other world")
        ax.set_ylabel("held-out success")
        return _done(figure, ax, "shift", "Held-out success around the shift, by variant")


def _falls(runs: Sequence[Reading]) -> list[tuple[int, tuple[float, float, float]]]:
    """Rounds in the other world, and the mean over seeds with its interval; at -1 the level before it."""
    falls = [fall for fall in map(fall_of, runs) if fall is not None]
    if not falls:
        return []
    shared = set.intersection(*({taken[0] for taken in fall.after} for fall in falls))
    found = [(-1, mean_interval([fall.before for fall in falls]))]
    for place in sorted(shared):
        values = [taken[2] for fall in falls for taken in fall.after if taken[0] == place]
        found.append((place, mean_interval(values)))
    return found


def along_rounds(
    variants: Runs, metric: str, label: str, *, band: tuple[float, float] | None = None
) -> Markup | None:
    """A metric of the rounds, the mean over seeds."""
    lines = {name: _mean_line(runs, metric) for name, runs in variants.items()}
    if not any(lines.values()):
        return None
    with chart_style(metric):
        figure, ax = _figure()
        if band is not None:
            ax.axhspan(*band, color=SERIES[2], alpha=0.18, lw=0, label=f"{band[0]:g} to {band[1]:g}")
        for (color, dashes), (name, line) in zip(_looks(variants), lines.items(), strict=True):
            if line:
                ax.plot(list(line), list(line.values()), color=color, ls=dashes, label=name)
        ax.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
        ax.set_xlabel("round")
        ax.set_ylabel(label)
        return _done(figure, ax, metric.replace("/", "-"), f"{label} along the rounds, by variant")


def _mean_line(runs: Sequence[Reading], metric: str) -> dict[int, float]:
    numbers = sorted({number for run in runs for number, values in run.metrics.items() if metric in values})
    return {
        number: fmean(run.metrics[number][metric] for run in runs if metric in run.metrics.get(number, {}))
        for number in numbers
    }


def _looks(variants: Runs) -> list[tuple[str, str]]:
    """A color and a line style for each, different for all while there are enough."""
    return [
        (SERIES[place % len(SERIES)], _DASHES[place // len(SERIES) % len(_DASHES)])
        for place in range(len(variants))
    ]


def _figure() -> tuple[Figure, Axes]:
    figure = Figure(figsize=(5.2, 3.6), layout="constrained")
    return figure, figure.subplots()


def _done(figure: Figure, ax: Axes, name: str, label: str) -> Markup:
    handles, labels = ax.get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8, handlelength=1.4)
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
"""Title, how to read it, and what draws it."""
