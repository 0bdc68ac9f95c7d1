# pyright: standard
"""A folder of what came out: a page with pictures and the table, and two CSV files."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
from markupsafe import Markup

from genenv.errors import UsageError
from genenv.files import write_whole
from genenv.report import parts
from genenv.report.parts import (
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
"""Arms that stand in every picture."""
_READING = (
    "The mean over seeds, with its 95% interval. All arms of a seed have the same learner and the same luck."
)


def write_page(folder: Path, results: Mapping[str, ArmRuns], config: LabConfig) -> Path:
    """Write `lab.html`, `curves.csv` (an arm and round a row) and `lives.csv` (a seed a row).

    The same results always give the same bytes.

    Args:
        folder: made where it is not there yet.
        results: of every arm.
        config: the settings of all runs.

    Returns:
        The page.

    Raises:
        UsageError: there is a file in the place of the folder.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; name a folder with --out")
    folder.mkdir(parents=True, exist_ok=True)
    write_whole(folder / "curves.csv", curves_csv(results))
    write_whole(folder / "lives.csv", lives_csv(results))
    write_whole(folder / "lab.html", render(results, config))
    return folder / "lab.html"


def render(results: Mapping[str, ArmRuns], config: LabConfig) -> str:
    """The page as HTML."""
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
    """Curricula in one, and what the simulator may be paid for in another."""
    paid = {name for name in results if name.startswith("state") or name == "shuffled"}
    curricula = {name: own for name, own in results.items() if name not in paid or name == "state"}
    rewards = {name: own for name, own in results.items() if name in paid or name in _ENDS}
    charts = [("Curricula", curves_chart(curricula, "curricula", "Held-out success of each curriculum"))]
    if len(paid) > 1:
        charts.append(("Rewards", curves_chart(rewards, "rewards", "Held-out success under each reward")))
    return [Picture(title, svg, _READING) for title, svg in charts]


def curves_csv(results: Mapping[str, ArmRuns]) -> str:
    """Held-out success of every arm and round: means over seeds and their standard errors."""
    rows = [["arm", "round", "attempts", "held_out", "standard_error", "mixed"]]
    for name, own in results.items():
        for number in range(own.held_out.shape[1]):
            values = own.held_out[:, number]
            mixed = f"{own.mixed[:, number - 1].mean():.6f}" if number else ""
            mean, error = f"{values.mean():.6f}", f"{standard_error(values):.6f}"
            rows.append([name, str(number), str(number * own.attempts), mean, error, mixed])
    return csv_text(rows)


def lives_csv(results: Mapping[str, ArmRuns]) -> str:
    """Held-out success after the last round, a seed a row and an arm a column."""
    columns = [own.final() for own in results.values()]
    numbers = [
        [str(seed), *(f"{value:.6f}" for value in row)] for seed, row in enumerate(zip(*columns, strict=True))
    ]
    return csv_text([["seed", *results], *numbers])


_WIDTH_IN, _HEIGHT_IN = 7.0, 4.6
_APART = 0.045
"""Smallest distance between names, as a share of the axis."""


def curves_chart(results: Mapping[str, ArmRuns], name: str, label: str) -> Markup:
    """Mean held-out success by round with its 95% interval.

    Args:
        results: of the arms to show.
        name: unique on the page.
        label: what the picture shows, for people who do not see it.
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
    """Heights, ascending, moved so that no two are nearer than the gap, and as little as need be.

    Runs that are too near are spread evenly around the mean of what they name.
    """
    blocks: list[list[float]] = []  # [sum of (height - place x gap), places]
    for height in heights:
        blocks.append([height, 1])
        while len(blocks) > 1 and _start(blocks[-1], gap) < _start(blocks[-2], gap) + blocks[-2][1] * gap:
            total, places = blocks.pop()
            blocks[-1] = [blocks[-1][0] + total, blocks[-1][1] + places]
    return [_start(block, gap) + place * gap for block in blocks for place in range(int(block[1]))]


def _start(block: Sequence[float], gap: float) -> float:
    total, places = block
    return total / places - (places - 1) / 2 * gap
