# pyright: standard
"""Learning curves of many arms in one picture, each named at its end."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np
from markupsafe import Markup
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator

from genenv.report.svg import INK, SERIES, chart_style, to_svg
from genenv.research.simulation.run import Lives

_WIDTH_IN, _HEIGHT_IN = 7.0, 4.6
_APART = 0.045
"""Smallest distance between names, as a share of the axis."""
_DASHES = ("-", "--", ":")


def curves_chart(lives: Mapping[str, Lives], name: str, label: str) -> Markup:
    """Mean held-out success by round with its 95% interval.

    Args:
        lives: the arms to show.
        name: unique on the page.
        label: what the picture shows, for people who do not see it.
    """
    with chart_style(name):
        figure = Figure(figsize=(_WIDTH_IN, _HEIGHT_IN), layout="constrained")
        ax = figure.subplots()
        means = {arm: own.held_out.mean(axis=0) for arm, own in lives.items()}
        low, high = _limits(means)
        ends = sorted(lives, key=lambda arm: means[arm][-1])
        heights = _apart([means[arm][-1] for arm in ends], _APART * (high - low))
        for place, (arm, height) in enumerate(zip(ends, heights, strict=True)):
            color, dashes = SERIES[place % len(SERIES)], _DASHES[place // len(SERIES) % len(_DASHES)]
            held_out, rounds = lives[arm].held_out, np.arange(len(means[arm]))
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
        ax.xaxis.set_major_locator(MaxNLocator(8, integer=True, min_n_ticks=1))
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
