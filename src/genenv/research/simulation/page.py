# pyright: standard
"""The output folder of `genenv lab`: a page with charts and a table, and two CSV files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from markupsafe import Markup

from genenv.errors import UsageError
from genenv.files import write_whole
from genenv.research import parts
from genenv.research.parts import (
    INK,
    Picture,
    chart_style,
    csv_text,
    line_styles,
    new_figure,
    round_ticks,
    to_svg,
)
from genenv.research.simulation.learner import LabConfig
from genenv.research.simulation.run import REFERENCE, ArmRuns, standard_error, summary

_ENDS = (REFERENCE, "oracle")
"""Arms that every chart shows."""
_READING = (
    "The mean over seeds, with its 95% interval. All arms of a seed have the same learner and the same luck."
)


def write_page(folder: Path, results: Mapping[str, ArmRuns], config: LabConfig) -> Path:
    """Write `lab.html`, `curves.csv` (a row per arm and round) and `lives.csv` (a row per seed).

    Equal results give equal bytes.

    Args:
        folder: the output folder, created if missing.
        results: the runs of every arm, by its name.
        config: the settings of all runs.

    Returns:
        The page.

    Raises:
        UsageError: the path is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; name a folder with --out")
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "curves.csv", curves_csv(results))
    write_whole(folder / "lives.csv", lives_csv(results))
    write_whole(folder / "lab.html", render(results, config))
    return folder / "lab.html"


def render(results: Mapping[str, ArmRuns], config: LabConfig) -> str:
    """Return the page as HTML."""
    return parts.render(
        "lab.html",
        title="Simulated learners",
        maker="genenv lab",
        config=config,
        seeds=len(next(iter(results.values())).held_out),
        attempts=config.tasks * config.rollouts,
        reference=REFERENCE,
        rows=summary(results, config.goal),
        pictures=_pictures(results),
    )


def _pictures(results: Mapping[str, ArmRuns]) -> list[Picture]:
    """Return a chart of the curricula and, if there are several, a chart of the simulator's rewards."""
    paid = {name for name in results if name.startswith("state") or name == "shuffled"}
    curricula = {name: own for name, own in results.items() if name not in paid or name == "state"}
    rewards = {name: own for name, own in results.items() if name in paid or name in _ENDS}
    charts = [("Curricula", curves_chart(curricula, "curricula", "Held-out success of each curriculum"))]
    if len(paid) > 1:
        charts.append(("Rewards", curves_chart(rewards, "rewards", "Held-out success under each reward")))
    return [Picture(title, svg, _READING) for title, svg in charts]


def curves_csv(results: Mapping[str, ArmRuns]) -> str:
    """Return held-out success by arm and round as CSV: means over seeds and their standard errors."""
    rows = [["arm", "round", "attempts", "held_out", "standard_error", "mixed"]]
    for name, own in results.items():
        for number in range(own.held_out.shape[1]):
            values = own.held_out[:, number]
            mixed = f"{own.mixed[:, number - 1].mean():.6f}" if number else ""
            mean, error = f"{values.mean():.6f}", f"{standard_error(values):.6f}"
            rows.append([name, str(number), str(number * own.attempts), mean, error, mixed])
    return csv_text(rows)


def lives_csv(results: Mapping[str, ArmRuns]) -> str:
    """Return held-out success after the last round as CSV, with a row per seed and a column per arm."""
    columns = [own.final() for own in results.values()]
    numbers = [
        [str(seed), *(f"{value:.6f}" for value in row)] for seed, row in enumerate(zip(*columns, strict=True))
    ]
    return csv_text([["seed", *results], *numbers])


_WIDTH_IN, _HEIGHT_IN = 7.0, 4.6
_APART = 0.045
"""The smallest distance between labels, as a share of the axis."""


def curves_chart(results: Mapping[str, ArmRuns], name: str, label: str) -> Markup:
    """Draw mean held-out success by round with its 95% interval, and return it as SVG.

    Args:
        results: the runs of the arms to show.
        name: the chart's id, unique on the page.
        label: a description for screen readers.
    """
    with chart_style(name):
        figure, ax = new_figure(_WIDTH_IN, _HEIGHT_IN)
        means = {arm: own.held_out.mean(axis=0) for arm, own in results.items()}
        low, high = _limits(means)
        ends = sorted(results, key=lambda arm: means[arm][-1])
        heights = _apart([means[arm][-1] for arm in ends], _APART * (high - low))
        for arm, height, (color, dashes) in zip(ends, heights, line_styles(len(ends)), strict=True):
            held_out, rounds = results[arm].held_out, np.arange(len(means[arm]))
            if len(held_out) > 1:
                half = 1.96 * held_out.std(axis=0, ddof=1) / np.sqrt(len(held_out))
                ax.fill_between(rounds, means[arm] - half, means[arm] + half, color=color, alpha=0.22, lw=0)
            ax.plot(rounds, means[arm], color=color, ls=dashes, lw=1.5)
            ax.annotate(
                f"{arm} {means[arm][-1]:.3f}", (rounds[-1], means[arm][-1]), (1.05, height),
                textcoords=("axes fraction", "data"), va="center", color=INK, fontsize=9,
                arrowprops={"arrowstyle": "-", "color": color, "lw": 1, "relpos": (0, 0.5), "shrinkB": 0},
                annotation_clip=False,
            )  # fmt: skip
        ax.set_ylim(low, high)
        ax.set_xlim(0, len(next(iter(means.values()))) - 1)
        round_ticks(ax)
        ax.set_xlabel("round")
        ax.set_ylabel("held-out success (true, mean)")
        return to_svg(figure, name, label)


def _limits(means: Mapping[str, np.ndarray]) -> tuple[float, float]:
    values = np.concatenate(list(means.values()))
    margin = 0.05 * (float(values.max() - values.min()) or 1.0)
    return float(values.min()) - margin, float(values.max()) + margin


def _apart(heights: Sequence[float], gap: float) -> list[float]:
    """Shift ascending heights as little as possible so that neighbors are at least `gap` apart.

    Labels that are too near each other are spread evenly around the mean of their values.
    """
    blocks: list[list[float]] = []  # [sum of (height - place x gap), number of places]
    for height in heights:
        blocks.append([height, 1])
        while len(blocks) > 1 and _start(blocks[-1], gap) < _start(blocks[-2], gap) + blocks[-2][1] * gap:
            total, places = blocks.pop()
            blocks[-1] = [blocks[-1][0] + total, blocks[-1][1] + places]
    return [_start(block, gap) + place * gap for block in blocks for place in range(int(block[1]))]


def _start(block: Sequence[float], gap: float) -> float:
    total, places = block
    return total / places - (places - 1) / 2 * gap
