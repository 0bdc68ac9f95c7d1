"""The picture of a reproduction: our rows with intervals, and the paper's values beside those that both have.

python bench/rows_picture.py runs/tiny-paper/reproduce.md --out docs/images/paper-rows.svg
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from pathlib import Path

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt

from genenv.research.reproduce import PAPER_VALIDATION

BLUE, ORANGE, GRAY = "#0072b2", "#d55e00", "#777777"


def main() -> None:
    """Draw two panels: held-out success of all our rows; ours against the paper's."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("page", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    rows = read_rows(args.page.read_text(encoding="utf-8"))
    mpl.rcParams.update({"svg.hashsalt": "genenv", "font.size": 9})
    figure, (left, right) = plt.subplots(1, 2, figsize=(9, 3.4), layout="constrained", width_ratios=(3, 2))
    for place, (name, (mean, half)) in enumerate(reversed(rows.items())):
        color = ORANGE if name == "paper" else GRAY if name == "before training" else BLUE
        left.errorbar(mean, place, xerr=half, fmt="o", color=color, capsize=3)
    left.set_yticks(range(len(rows)), list(reversed(rows)))
    left.set_xlabel("held-out success, % (mean of three environments, 95% interval over seeds)")
    left.grid(axis="x", alpha=0.3)
    for name, theirs in PAPER_VALIDATION.items():
        if name in rows:
            mean, half = rows[name]
            right.errorbar(
                theirs, mean, yerr=half, fmt="o", color=ORANGE if name == "paper" else BLUE, capsize=3
            )
            side, gap = ("right", -4) if name == "offline-957" else ("left", 4)
            right.annotate(name, (theirs, mean), xytext=(gap, -9), textcoords="offset points", ha=side)
    right.set_xlabel("the paper: validation on BFCL, %")
    right.set_ylabel("ours, %")
    right.margins(x=0.25)
    right.grid(alpha=0.3)
    figure.savefig(args.out, metadata={"Date": None})


def read_rows(page: str) -> dict[str, tuple[float, float]]:
    """Return mean and half interval of each row of the table "Ours", in its order."""
    table = page.partition("## Ours")[2].partition("\n## ")[0]
    lines = [_cells(line) for line in table.splitlines() if line.startswith("|")]
    place = lines[0].index("mean")
    found: dict[str, tuple[float, float]] = {}
    for cells in lines[2:]:
        mean, _, half = cells[place].partition(" ± ")
        found[cells[0]] = (float(mean), float(half or 0))
    return found


def _cells(line: str) -> Sequence[str]:
    return [cell.strip() for cell in line.strip().strip("|").split("|")]


if __name__ == "__main__":
    main()
