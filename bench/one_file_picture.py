"""The curves of `examples/one_file.py` beside those of a sweep of genenv; prints gains and mixed outcomes.

RUNS holds `uniform-SEED.json` and `bandit-SEED.json`; of SWEEP candidate_reward=constant is uniform, and
=learnability the bandit. Intervals, 95%: Wilson's of each run over held-out tasks, Student's over seeds.
"""

import argparse
import json
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt
from scipy import stats

from genenv.statistics import mean_interval


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name in ("runs", "sweep", "out"):
        parser.add_argument(name, type=Path)
    options = parser.parse_args()
    mpl.rcParams.update({"svg.hashsalt": "genenv", "axes.spines.top": False, "axes.spines.right": False})
    figure, axes = plt.subplots(1, 2, figsize=(8, 3), layout="constrained", sharey=True)
    gains: dict[str, list[float]] = {}
    for arm, reward, color in (("bandit", "learnability", "#0072b2"), ("uniform", "constant", "#d55e00")):
        sweep = sorted(options.sweep.glob(f"curriculum.candidate_reward={reward}/seed-*/metrics.jsonl"))
        ours = [json.loads(file.read_text())["curve"] for file in sorted(options.runs.glob(f"{arm}-*.json"))]
        theirs = [[json.loads(line) for line in file.read_text().splitlines()] for file in sweep]
        kinds = (
            ("one file", ours, "held_out", "mixed"),
            ("genenv", theirs, "agent/eval_success", "tasks/mixed"),
        )
        for axis, (title, runs, success, mixed) in zip(axes, kinds, strict=True):
            held = [{int(row["round"]): row[success] for row in run if success in row} for run in runs]
            mean = {number: sum(one[number] for one in held) / len(held) for number in held[0]}
            for one in held:
                axis.plot(list(one), list(one.values()), color=color, alpha=0.3, linewidth=1)
            axis.plot(list(mean), list(mean.values()), color=color, marker="o", label=arm)
            axis.set(title=title, xlabel="round", ylabel="held-out success, greedy", ylim=(0, 1))
            axis.legend(frameon=False, loc="lower right")
            gains[f"{title}, {arm}"] = [one[max(one)] - one[0] for one in held]
            shares = [row[mixed] for run in runs for row in run if mixed in row]
            print(f"{title}, {arm}: mixed outcomes {sum(shares) / len(shares):.1%}")
            for one in held:
                ends = stats.binomtest(round(60 * one[max(one)]), 60).proportion_ci(method="wilson")
                curve = " ".join(f"{value:.1%}" for value in one.values())
                print(f"    {curve} ({ends.low:.1%} to {ends.high:.1%})")
    pairs = [(one, other) for one in gains for other in gains if one > other and one[-6:] == other[-6:]]
    pairs += [(f"{title}, bandit", f"{title}, uniform") for title in ("one file", "genenv")]
    for one, other in [*pairs, *((name, "") for name in gains)]:
        less = gains.get(other, [0.0] * len(gains[one]))
        found = mean_interval([a - b for a, b in zip(gains[one], less, strict=False)])
        print(f"gain of {one} - {other}:", *(f"{100 * value:+.1f}" for value in found))
    figure.savefig(options.out, metadata={"Date": None}, facecolor="white")


if __name__ == "__main__":
    main()
