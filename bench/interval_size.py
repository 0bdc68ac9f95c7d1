"""How often the test of `genenv compare` calls a variant different from itself, and what it finds.

python bench/interval_size.py [--draws 20000] [--only SETTING] [--out FILE.svg]

Each setting imitates a laboratory: runs of two variants on the same held-out tasks, solved or not, by a
logistic model. Tasks differ in difficulty and in how well they suit each variant, runs in ability. Prints the
size (nominal 5%) of three tests: the crossed form of `genenv.statistics.difference`, the form before it, that
counted the error of tasks twice, and seeds alone, s^2 / S. Then their power at one true difference, and the
number of seeds that `seeds_needed` asks for, with the power that it has there.
"""

from __future__ import annotations

import argparse
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from genenv.statistics import LEVEL, Spread, difference, p_value, seeds_needed

Scores = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """A laboratory: sizes, and standard deviations on the logit scale."""

    about: str
    seeds: int
    tasks: int
    level: float = 0.0
    """Logit of the success on a task of mean difficulty."""
    difficulty: float = 1.2
    """Of tasks, shared by both variants: their effects cancel in differences."""
    suits: float = 0.0
    """Of tasks, in each variant by itself: the task effect of differences."""
    ability: float = 0.25
    """Of runs."""


SETTINGS: Mapping[str, Setting] = {
    "few seeds": Setting(about="few seeds, many tasks", seeds=3, tasks=300),
    "few tasks": Setting(about="many seeds, few tasks", seeds=30, tasks=20, suits=0.5),
    "near zero": Setting(about="success of 5%, most tasks never solved", seeds=10, tasks=200, level=-3.5),
    "unequal": Setting(
        about="unequal tasks, most always or never solved", seeds=10, tasks=200, difficulty=3.0
    ),
    "correlated": Setting(
        about="task effects correlated 0.85 between variants", seeds=10, tasks=300, suits=0.5
    ),
}
LIMIT = Setting(
    about="beyond: three seeds, task effects correlated 0.6", seeds=3, tasks=300, suits=1.0, ability=0.1
)


def draws(setting: Setting, seed: int, gain: float = 0.0) -> Iterator[tuple[Scores, Scores]]:
    """Yield scores of two variants without end; `gain` is the first one's lead in ability, logits."""
    rng = np.random.default_rng(seed)
    shape = (setting.seeds, setting.tasks)
    while True:
        hard_N = rng.normal(0, setting.difficulty, setting.tasks)

        def group(ahead: float, hard_N: Scores = hard_N) -> Scores:
            suits_N = rng.normal(0, setting.suits, setting.tasks) if setting.suits else 0.0
            able_S1 = rng.normal(setting.level + ahead, setting.ability, (setting.seeds, 1))
            return (rng.random(shape) < 1 / (1 + np.exp(hard_N + suits_N - able_S1))).astype(float)

        yield group(gain), group(0.0)


def p_values(one: Scores, other: Scores) -> tuple[float, float, float]:
    """Return p by the crossed form, by the form before it, and by seeds alone."""
    apart_SN = one - other
    seeds, value = len(apart_SN), float(apart_SN.mean())
    alone = float(apart_SN.mean(axis=1).var(ddof=1)) / seeds
    twice = alone + float(apart_SN.var(axis=1).mean()) / apart_SN.size
    before, by_seeds = (p_value(value, math.sqrt(variance), seeds - 1) for variance in (twice, alone))
    return difference(one, other).p, before, by_seeds


def rejected(setting: Setting, seed: int, number: int, gain: float = 0.0) -> tuple[float, float, float]:
    """Return the share of draws that each of the three tests calls different."""
    found = np.array([p_values(*pair) for pair in islice(draws(setting, seed, gain), number)])
    crossed, before, alone = (found < LEVEL).mean(axis=0)
    return float(crossed), float(before), float(alone)


def truth(setting: Setting, gain: float, number: int) -> tuple[float, Spread]:
    """Return the true difference in success, and the variances, as means over many draws."""
    found = [difference(*pair) for pair in islice(draws(setting, 7, gain), number)]
    spreads = [one.spread for one in found if one.spread is not None]
    seed, task, error = (
        float(np.mean([getattr(s, part) for s in spreads])) for part in ("seed", "task", "error")
    )
    value = float(np.mean([one.value for one in found]))
    return value, Spread(seed=seed, task=task, error=error, tasks=setting.tasks)


def main() -> None:
    """Print the two tables of docs/results/statistics.md, and draw the first."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--draws", type=int, default=20_000)
    parser.add_argument("--only", choices=SETTINGS)
    parser.add_argument("--gain", type=float, default=0.3, help="true difference for power, logits")
    parser.add_argument("--out", type=Path, help="draw the sizes into this SVG file")
    args = parser.parse_args()
    chosen = {args.only: SETTINGS[args.only]} if args.only else dict(SETTINGS)
    sizes = dict[str, tuple[float, float, float]]()
    print("| setting | seeds | tasks | crossed form | form before | seeds alone |\n|---|---|---|---|---|---|")
    for name, setting in chosen.items() if args.only else [*chosen.items(), ("", LIMIT)]:
        found = rejected(setting, 1, args.draws)
        print(f"| {setting.about} | {setting.seeds} | {setting.tasks} | {_shares(found)} |", flush=True)
        if name:
            sizes[setting.about] = found
    print("\n| setting | true difference | power, crossed | power before | seeds needed | power there |")
    print("|---|---|---|---|---|---|")
    fewer = max(1, args.draws // 4)
    for setting in chosen.values():
        value, spread = truth(setting, args.gain, fewer)
        crossed, before, _ = rejected(setting, 2, fewer, args.gain)
        needed = seeds_needed(value, spread)
        there = "–"
        if needed is not None:
            there = f"{rejected(replace(setting, seeds=needed), 3, fewer, args.gain)[0]:.0%}"
        words = f"{100 * value:+.1f} points | {crossed:.0%} | {before:.0%} | {needed or 'none'} | {there}"
        print(f"| {setting.about} | {words} |", flush=True)
    if args.out is not None:
        _draw(sizes, args.out)


def _shares(values: tuple[float, ...]) -> str:
    return " | ".join(f"{100 * value:.1f}%" for value in values)


def _draw(sizes: Mapping[str, tuple[float, float, float]], path: Path) -> None:
    import matplotlib as mpl

    mpl.use("svg")
    import matplotlib.pyplot as plt

    mpl.rcParams["svg.hashsalt"] = "genenv"
    figure, axes = plt.subplots(figsize=(8, 2.8), layout="constrained")
    rows = np.arange(len(sizes))[::-1]
    axes.axvspan(3.5, 6.5, color="#dddddd", label="3.5 to 6.5%")
    for place, (label, marker) in enumerate(
        (("crossed form", "o"), ("form before", "s"), ("seeds alone", "^"))
    ):
        axes.plot([100 * found[place] for found in sizes.values()], rows, marker, label=label)
    axes.set_yticks(rows, list(sizes))
    axes.set_xlabel("times that a variant is called different from itself, %; nominal 5")
    axes.set_xlim(left=0)
    axes.legend(loc="center right", frameon=False)
    figure.savefig(path, metadata={"Date": None})


if __name__ == "__main__":
    main()
