"""The curriculum in physics space: where tasks of the environment control lie, by thirds of the rounds.

python bench/physics_picture.py --run RUN=LABEL [--run ...] --x lift --y hold --out docs/images/physics.svg

One row for each run. A square is one pair of values: its area is the share of the tasks, its color the share
of their rollouts that succeeded. The easiest values are at the lower left.
"""

from __future__ import annotations

import argparse
from collections import defaultdict
from pathlib import Path
from statistics import fmean

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.collections import PathCollection

from genenv.runs.store.store import PoolStore

PARTS = ("first", "second", "last")


def tasks(run: Path, x: str, y: str) -> list[list[tuple[float, float, float]]]:
    """Return x, y and success of each new task that was rolled out, by thirds of the rounds."""
    found: list[list[tuple[float, float, float]]] = [[], [], []]
    with PoolStore.open(run / "pool.db", create=False) as store:
        last = store.last_round() or 0
        for number in range(1, last + 1):
            for batch in store.batches(number):
                for group in batch.groups:
                    if group.valid:
                        spec, rate = group.task.spec, group.successes / len(group.valid)
                        place = float(str(spec[x])), float(str(spec[y]))
                        found[3 * (number - 1) // last].append((*place, rate))
    return found


def main() -> None:
    """Draw the picture."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--run", action="append", required=True, metavar="RUN=LABEL")
    parser.add_argument("--x", default="lift")
    parser.add_argument("--y", default="hold")
    parser.add_argument("--out", type=Path, required=True)
    given = parser.parse_args()
    mpl.rcParams.update({"svg.hashsalt": "genenv", "font.size": 9})
    named = [one.rpartition("=") for one in given.run]
    rows = [(label, tasks(Path(run), given.x, given.y)) for run, _, label in named]
    values = [one for _, thirds in rows for third in thirds for one in third]
    ticks_x = sorted({x for x, _, _ in values}, reverse=given.x == "lift")
    ticks_y = sorted({y for _, y, _ in values})
    size = 2.5, 2.4
    figure, panels = plt.subplots(
        len(rows), 3, figsize=(3 * size[0] + 0.8, len(rows) * size[1]), layout="constrained",
        sharex=True, sharey=True, squeeze=False,
    )  # fmt: skip
    drawn = None
    for line, (label, thirds) in zip(panels, rows, strict=True):
        for panel, part, third in zip(line, PARTS, thirds, strict=True):
            drawn = squares(panel, third, ticks_x, ticks_y)
            if line[0] is panels[0][0]:
                panel.set_title(f"{part} third of the rounds")
        line[0].set_ylabel(f"{label}\n{given.y}")
    for panel in panels[-1]:
        panel.set_xlabel(given.x)
    if drawn is not None:
        figure.colorbar(drawn, ax=panels, label="rollouts solved", shrink=0.6)
    given.out.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(given.out, metadata={"Date": None}, facecolor="white")


def squares(
    panel: Axes, found: list[tuple[float, float, float]], ticks_x: list[float], ticks_y: list[float]
) -> PathCollection:
    """Draw one third of a run."""
    rates: dict[tuple[int, int], list[float]] = defaultdict(list)
    for x, y, rate in found:
        rates[ticks_x.index(x), ticks_y.index(y)].append(rate)
    most = max(map(len, rates.values()), default=1)
    places = list(rates)
    panel.set(xlim=(-0.5, len(ticks_x) - 0.5), ylim=(-0.5, len(ticks_y) - 0.5), aspect="equal")
    panel.set_xticks(range(len(ticks_x)), [f"{one:g}" for one in ticks_x], rotation=90, fontsize=7)
    panel.set_yticks(range(len(ticks_y)), [f"{one:g}" for one in ticks_y], fontsize=7)
    return panel.scatter(
        [x for x, _ in places],
        [y for _, y in places],
        s=[170 * len(rates[one]) / most for one in places],
        c=[fmean(rates[one]) for one in places],
        cmap="viridis",
        vmin=0,
        vmax=1,
        marker="s",
    )


if __name__ == "__main__":
    main()
