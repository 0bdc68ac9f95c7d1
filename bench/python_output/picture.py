"""Table and picture of the grid: success on doctests by source, and which tasks had mixed outcomes.

PYTHONPATH=bench python -m python_output.picture open-text.jsonl --out docs/images/open-text.svg

The file is that of `bench/paper_rows.py keep`.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from pathlib import Path
from statistics import fmean
from typing import Any

import matplotlib as mpl

mpl.use("svg")
import matplotlib.pyplot as plt
from paper_rows import lines

from genenv.statistics import mean_interval

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


_BUDGETS = ("attempts", "sampled tokens")


def main() -> None:
    """Print the tables, and draw success at the end and mixed outcomes of the last rounds, a dot per seed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    runs: dict[str, list[Mapping[str, Any]]] = {variant: [] for variant in NAMES}
    for line in sorted(lines(args.file), key=lambda line: line["seed"]):
        runs[line["variant"]].append(line)
    runs = {variant: of for variant, of in runs.items() if of}
    mpl.rcParams.update({"svg.hashsalt": "genenv", "font.size": 9})
    figure, axes = plt.subplots(1, 2, figsize=(9, 3), layout="constrained", sharey=True)
    print("| source | held-out, % (seeds) | mixed | accepted, first and last | rollouts | sampled tokens |")
    print("|---|---|---|---|---|---|")
    for place, (variant, of) in enumerate(reversed(runs.items())):
        color = ORANGE if "trained" in NAMES[variant] else BLUE
        panels = [[_success(one, -1) for one in of], [_late(one) for one in of]]
        for axis, values in zip(axes, panels, strict=True):
            axis.plot(values, [place] * len(values), "o", color=color, alpha=0.35, markersize=4)
            axis.plot(fmean(values), place, "|", color=color, markersize=16, markeredgewidth=2)
    for variant, of in runs.items():
        ends = [_success(one, -1) for one in of]
        valid = [100 * fmean(_rounds(one)[n]["simulator/valid_rate"] for one in of) for n in (0, -1)]
        spent = [fmean(one["measured"][-1]["spent"][budget] for one in of) for budget in _BUDGETS]
        print(
            f"| {NAMES[variant]} | {fmean(ends):.1f} ({'; '.join(f'{one:.1f}' for one in ends)}) "
            f"| {fmean(map(_late, of)):.0f}% | {valid[0]:.0f}%, {valid[1]:.0f}% "
            f"| {spent[0]:,.0f} | {spent[1]:,.0f} |"
        )
    print("\nsessions that are tasks, mean of all rounds, % (points over the frozen one, t over seeds):")
    for variant, of in runs.items():
        shares = [_accepted(one) for one in of]
        over = [a - b for a, b in zip(shares, map(_accepted, runs["frozen"]), strict=True)]
        mean, low, high = mean_interval(over)
        print(f"{NAMES[variant]}: {fmean(shares):.1f} ({mean:+.1f}; {low:.1f} to {high:.1f})")
    before = [_success(one, 0) for one in next(iter(runs.values()))]
    print(f"\nbefore the first round: {fmean(before):.1f} ({'; '.join(f'{one:.1f}' for one in before)})")
    axes[0].axvline(fmean(before), color="#777777", linestyle=":", linewidth=1)
    axes[0].set_yticks(range(len(runs)), [NAMES[one] for one in reversed(runs)])
    axes[0].set_xlabel("held-out success after 8 rounds, % (dotted: before)")
    axes[1].set_xlabel("mixed outcomes in the last 3 rounds, % of tasks")
    for axis in axes:
        axis.grid(axis="x", alpha=0.3)
    figure.savefig(args.out, metadata={"Date": None})


def _success(run: Mapping[str, Any], place: int) -> float:
    """Return held-out success of a measurement, in percent."""
    return 100 * fmean(map(int, run["measured"][place]["scores"]))


def _rounds(run: Mapping[str, Any]) -> list[Mapping[str, float]]:
    """Return the metrics of the rounds, from the first on."""
    return [
        one for number, one in sorted(run["metrics"].items(), key=lambda pair: int(pair[0])) if int(number)
    ]


def _accepted(run: Mapping[str, Any]) -> float:
    """Return the percentage of sessions that are tasks, over all rounds."""
    return 100 * fmean(row["simulator/valid_rate"] for row in _rounds(run))


def _late(run: Mapping[str, Any]) -> float:
    """Return the percentage of new tasks with mixed outcomes in the last rounds."""
    return 100 * fmean(one.get("tasks/mixed", 0.0) for one in _rounds(run)[-_LATE:])


if __name__ == "__main__":
    main()
