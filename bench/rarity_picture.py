"""The picture of what aiming gains, by how rare tasks worth attempting are, from sweeps of several spaces.

python bench/rarity_picture.py WIDEST [SWEEP ...] --uniform VARIANT --arm VARIANT=LABEL ... --out FILE.svg

Left: held-out success along attempts in the first sweep. Right: at the end of each sweep, how far each arm is
ahead of uniform draws, over the share of these that are half solved in rounds 1 to 5 (by foretold rates; by
another metric with --rare). Prints that table, too.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt
import numpy as np
from contrast_picture import COLORS
from matplotlib.axes import Axes

from genenv.research.sweeps.compare import AT_THE_END, Comparison, compare
from genenv.research.sweeps.readings import MeasuredRun
from genenv.statistics import mean_interval


def main() -> None:
    """Draw two panels, and print what the right one shows."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sweeps", nargs="+", type=Path)
    parser.add_argument("--uniform", required=True, metavar="VARIANT")
    parser.add_argument("--arm", action="append", required=True, metavar="VARIANT=LABEL")
    parser.add_argument("--rare", default="probe/frontier", metavar="METRIC")
    parser.add_argument("--out", type=Path, required=True)
    chosen = parser.parse_args()
    arms = {name: label for name, _, label in (one.rpartition("=") for one in chosen.arm)}
    mpl.rcParams.update(
        {"svg.hashsalt": "genenv", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    )
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.6), layout="constrained")
    pairs = [(name, chosen.uniform) for name in arms if name != chosen.uniform]
    found = [compare([sweep], [pair for pair in pairs if _has(sweep, pair)]) for sweep in chosen.sweeps]
    rare = [_rare(one.variants[chosen.uniform], chosen.rare) for one in found]
    for color, (name, label) in zip(COLORS, arms.items(), strict=False):
        _curve(left, found[0].variants[name], color, label)
        if name != chosen.uniform:
            _gains(right, list(zip(found, rare, strict=True)), (name, chosen.uniform), color)
    left.set(title="held-out success, %", xlabel="thousand attempts")
    left.legend(frameon=False, fontsize=8)
    right.axhline(0, color="#777777", lw=0.8)
    right.set(
        title="points ahead of tasks drawn uniformly, at the end",
        xlabel="of tasks drawn uniformly half solved at first, %",
        xscale="log",
    )
    ticks = sorted(round(100 * share, 1) for share in rare)
    right.set_xticks(ticks, [f"{tick:g}" for tick in ticks])
    right.minorticks_off()
    chosen.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(chosen.out, metadata={"Date": None}, facecolor="white")


def _has(sweep: Path, pair: tuple[str, str]) -> bool:
    return all((sweep / name).is_dir() for name in pair)


def _rare(runs: Sequence[MeasuredRun], metric: str) -> float:
    """The share of tasks that are half solved at first."""
    first = [run.metrics[number] for run in runs for number in range(1, 6) if number in run.metrics]
    return fmean(values[metric] for values in first if metric in values)


def _curve(ax: Axes, runs: Sequence[MeasuredRun], color: str, label: str) -> None:
    amounts = np.linspace(0, min(run.measured[-1].spent["attempts"] for run in runs), 60)
    rows = [[100 * fmean(run.at("attempts", x).values()) for run in runs] for x in amounts]
    mean, low, high = zip(*(mean_interval(row) for row in rows), strict=True)
    ax.plot(amounts / 1000, mean, color=color, label=label)
    ax.fill_between(amounts / 1000, low, high, color=color, alpha=0.13, lw=0)


def _gains(ax: Axes, found: Sequence[tuple[Comparison, float]], pair: tuple[str, str], color: str) -> None:
    """An arm's lead in each sweep that has it."""
    place = COLORS.index(color) - len(COLORS) / 2
    x, y, below, above = list[float](), list[float](), list[float](), list[float]()
    for one, rare in found:
        for row in one.contrasts:
            if (row.one, row.other) == pair and row.budget == AT_THE_END:
                gain = row.difference
                x.append(100 * rare * 1.03**place)
                y.append(100 * gain.value)
                below.append(100 * (gain.value - gain.low))
                above.append(100 * (gain.high - gain.value))
                seen = {"arm": pair[0], "half_solved": round(rare, 4), "seeds": gain.seeds}
                points = {"points": y[-1], "low": 100 * gain.low, "high": 100 * gain.high}
                rounded = {name: round(value, 1) for name, value in points.items()}
                print(json.dumps({**seen, **rounded, "p_holm": round(row.adjusted, 4)}))
    ax.errorbar(x, y, yerr=(below, above), color=color, marker="o", ms=4, lw=1, capsize=2, ls="--")


if __name__ == "__main__":
    main()
