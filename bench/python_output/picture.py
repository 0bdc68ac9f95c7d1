"""Table and picture of the grid: success on doctests by source, and which tasks had mixed outcomes.

PYTHONPATH=bench python -m python_output.picture runs/sessions --out docs/images/open-text.svg
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

from genenv.research.sweeps.grid import Grid, folder_of

NAMES = {
    "grammar+parameters": "grammar",
    "grammar+parameters+history+curriculum.candidates=8": "grammar, bandit over 8",
    "accel+simulator.writes=spec+curriculum.novelty_threshold=0": "ACCEL",
    "frozen": "frozen SmolLM2",
    "frozen+text+curriculum.candidates=8": "frozen, best of 8 by text",
    "simulator.train=true": "trained on p (1 - p)",
    "curriculum.env_reward=progress": "trained on progress",
    "curriculum.shuffle_rewards=true": "trained on shuffled rewards",
}
"""The sources of the grid in a few words."""
BLUE, ORANGE = "#0072b2", "#d55e00"
_LATE = 3
"""Number of rounds at the end whose mean is shown."""

Rounds = Sequence[dict[str, float]]
"""The metrics of a run by round, 0 first."""


def main() -> None:
    """Print the table, and draw success at the end and mixed outcomes of the last rounds, a dot per seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("sweep", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    grid = Grid.open(args.sweep)
    runs = {
        variant: [_rounds(args.sweep / folder_of(variant) / f"seed-{seed}") for seed in grid.seeds]
        for variant in grid.variants
    }
    mpl.rcParams.update({"svg.hashsalt": "genenv", "font.size": 9})
    figure, axes = plt.subplots(1, 2, figsize=(9, 3), layout="constrained", sharey=True)
    print("| source | held-out, % (seeds) | mixed | accepted, first and last | new tasks a round |")
    print("|---|---|---|---|---|")
    for place, (variant, of) in enumerate(reversed(runs.items())):
        color = ORANGE if "trained" in NAMES[variant] else BLUE
        panels = [[100 * one[-1]["agent/eval_success"] for one in of], [_late(one) for one in of]]
        for axis, values in zip(axes, panels, strict=True):
            axis.plot(values, [place] * len(values), "o", color=color, alpha=0.35, markersize=4)
            axis.plot(fmean(values), place, "|", color=color, markersize=16, markeredgewidth=2)
    for variant, of in runs.items():
        ends = [100 * one[-1]["agent/eval_success"] for one in of]
        valid = [100 * fmean(one[n]["simulator/valid_rate"] for one in of) for n in (1, -1)]
        new = fmean(row["tasks/new"] for one in of for row in one[1:])
        print(
            f"| {NAMES[variant]} | {fmean(ends):.1f} ({'; '.join(f'{one:.1f}' for one in ends)}) "
            f"| {fmean(map(_late, of)):.0f}% | {valid[0]:.0f}%, {valid[1]:.0f}% | {new:.0f} |"
        )
    before = [100 * one[0]["agent/eval_success"] for one in next(iter(runs.values()))]
    print(f"\nbefore the first round: {fmean(before):.1f} ({'; '.join(f'{one:.1f}' for one in before)})")
    axes[0].axvline(fmean(before), color="#777777", linestyle=":", linewidth=1)
    axes[0].set_yticks(range(len(runs)), [NAMES[one] for one in reversed(runs)])
    axes[0].set_xlabel("success on held-out doctests after 8 rounds, % (dotted: before)")
    axes[1].set_xlabel("tasks with mixed outcomes, last three rounds, %")
    for axis in axes:
        axis.grid(axis="x", alpha=0.3)
    figure.savefig(args.out, metadata={"Date": None})


def _rounds(run: Path) -> Rounds:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text(encoding="utf-8").splitlines()]


def _late(rounds: Rounds) -> float:
    """Return the percentage of new tasks with mixed outcomes in the last rounds."""
    return 100 * fmean(one.get("tasks/mixed", 0.0) for one in rounds[-_LATE:])


if __name__ == "__main__":
    main()
