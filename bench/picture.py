"""The README's picture, from the stores of real runs: held-out success, p_hat and valid rate per round.

python bench/picture.py RUN [RUN ...] --out docs/images/quickstart.svg
"""

from __future__ import annotations

import argparse
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

from genenv.runs.metrics import target_band
from genenv.runs.store.store import PoolStore

PANELS = (
    ("agent/eval_success", "held-out success (greedy)"),
    ("curriculum/p_hat_mean", "success on the simulator's tasks, p̂"),
    ("simulator/valid_rate", "valid share of the simulator's specs"),
)
COLORS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#56b4e9")


def main() -> None:
    """Draw one panel per metric, one line per run."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("runs", nargs="+", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    arguments = parser.parse_args()
    mpl.rcParams.update(
        {"svg.hashsalt": "genenv", "font.size": 9, "axes.spines.top": False, "axes.spines.right": False}
    )
    figure, axes = plt.subplots(1, len(PANELS), figsize=(10, 3), layout="constrained")
    for color, run in zip(COLORS, arguments.runs, strict=False):
        with PoolStore.open(run / "pool.db", create=False) as store:
            metrics = {number: store.metrics(number) for number in store.rounds()}
        for axis, (name, _) in zip(axes, PANELS, strict=True):
            points = [(number, values[name]) for number, values in metrics.items() if name in values]
            style = {"marker": "o", "markersize": 4, "color": color, "clip_on": False}
            axis.plot(*zip(*points, strict=True), label=run.name, **style)
    for axis, (_, title) in zip(axes, PANELS, strict=True):
        axis.set(title=title, xlabel="round", ylim=(0, 1))
    axes[1].axhspan(*target_band(0.5), color="#0072b2", alpha=0.08, linewidth=0)
    axes[1].text(
        0.02, 0.66, "target band", transform=axes[1].get_yaxis_transform(), fontsize=8, color="#555555"
    )
    if len(arguments.runs) > 1:
        axes[0].legend(frameon=False, fontsize=8)
    arguments.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(arguments.out, metadata={"Date": None}, facecolor="white")


if __name__ == "__main__":
    main()
