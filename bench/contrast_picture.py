"""A results page's picture, from the stores of sweeps: success along attempts, mixed outcomes along rounds.

python bench/contrast_picture.py SWEEP --arm VARIANT=LABEL [--arm ...] --out docs/images/coevolution.svg
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes

from genenv.research.sweeps.compare import compare
from genenv.research.sweeps.readings import MeasuredRun
from genenv.statistics import mean_interval

COLORS = ("#d55e00", "#0072b2", "#009e73", "#cc79a7", "#56b4e9", "#777777")
MIXED = "tasks/mixed"


def main() -> None:
    """Draw two panels, one line with its 95% band per variant."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sweeps", nargs="+", type=Path)
    parser.add_argument("--arm", action="append", required=True, metavar="VARIANT=LABEL")
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    mpl.rcParams.update(
        {"svg.hashsalt": "genenv", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    )
    variants = compare(arguments.sweeps).variants
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained")
    for color, arm in zip(COLORS, arguments.arm, strict=False):
        name, _, label = arm.rpartition("=")
        runs = variants[name]
        amounts = np.linspace(0, min(run.measured[-1].spent["attempts"] for run in runs), 60)
        held_out = [[100 * fmean(run.at("attempts", x).values()) for run in runs] for x in amounts]
        _band(left, amounts / 1000, held_out, color, label)
        rounds = [number for number in sorted(runs[0].metrics) if MIXED in runs[0].metrics[number]]
        if rounds:
            _band(right, np.array(rounds), _mixed(runs, rounds), color, label)
    left.set(title="held-out success, %", xlabel="thousand attempts")
    right.set(title="generated tasks with mixed outcomes, %", xlabel="round", ylim=(0, 102))
    left.legend(frameon=False, fontsize=8)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(arguments.out, metadata={"Date": None}, facecolor="white")


def _mixed(runs: Sequence[MeasuredRun], rounds: Sequence[int]) -> list[list[float]]:
    """By round, of each run."""
    return [[100 * run.metrics[i][MIXED] for run in runs if MIXED in run.metrics[i]] for i in rounds]


def _band(ax: Axes, x: np.ndarray, rows: Sequence[Sequence[float]], color: str, label: str) -> None:
    mean, low, high = zip(*(mean_interval(row) for row in rows), strict=True)
    ax.plot(x, mean, color=color, label=f"{label} ({len(rows[0])} seeds)")
    ax.fill_between(x, low, high, color=color, alpha=0.15, lw=0)


if __name__ == "__main__":
    main()
