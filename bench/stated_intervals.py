"""Published differences computed again from the values of each seed that the pages state.

python bench/stated_intervals.py [PAGE]

Reads the code block of docs/results/appendix/intervals.md: lines `experiment | variant | values of seeds`,
then `experiment | A : B | published interval`; `*` after the interval leaves a contrast out of Holm's family.
The stores are gone, so the part of the variance that held-out tasks have in common is unknown. These are
intervals by seeds alone, s^2 / S, a variance that the crossed form of `genenv.statistics` never undercuts.
"""

from __future__ import annotations

import argparse
import math
import re
from pathlib import Path

from genenv.statistics import holm, mean_interval, p_value

PAGE = Path(__file__).parents[1] / "docs" / "results" / "appendix" / "intervals.md"


def main() -> None:
    """Print a row for each contrast."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("page", nargs="?", type=Path, default=PAGE)
    args = parser.parse_args()
    block = re.findall(r"```text\n(.*?)```", args.page.read_text(encoding="utf-8"), re.DOTALL)
    lines = [[part.strip() for part in line.split("|")] for line in "".join(block).splitlines() if line]
    values = {
        (lab, name): [float(one) for one in last.split()] for lab, name, last in lines if ":" not in name
    }
    contrasts = [(lab, *name.split(" : "), last) for lab, name, last in lines if ":" in name]
    print("| experiment | contrast | seeds | published | by seeds alone | p | p (Holm) |")
    print("|---|---|---|---|---|---|---|")
    for experiment in dict.fromkeys(lab for lab, *_ in contrasts):
        own = [one for one in contrasts if one[0] == experiment]
        found = [_by_seeds(values[experiment, a], values[experiment, b]) for _, a, b, _ in own]
        named = [not published.endswith("*") for *_, published in own]
        adjusted = holm([p if is_named else math.nan for (*_, p), is_named in zip(found, named, strict=True)])
        for (_, a, b, published), (seeds, mean, low, high, p), after in zip(
            own, found, adjusted, strict=True
        ):
            interval = f"{mean:+.1f} ({low:+.1f} to {high:+.1f})"
            words = (
                f"{published.rstrip(' *')} | {interval} | {_p(p)} | {'–' if math.isnan(after) else _p(after)}"
            )
            print(re.sub(r"-(?=[0-9])", "−", f"| {experiment} | {a} : {b} | {seeds} | {words} |"))


def _by_seeds(one: list[float], other: list[float]) -> tuple[int, float, float, float, float]:
    """Return seeds, mean, interval and p of the differences over the seeds that both have."""
    differences = [a - b for a, b in zip(one, other, strict=False)]
    mean, low, high = mean_interval(differences)
    spread = math.sqrt(
        sum((value - mean) ** 2 for value in differences) / (len(differences) - 1) / len(differences)
    )
    return len(differences), mean, low, high, p_value(mean, spread, len(differences) - 1)


def _p(value: float) -> str:
    return "< 0.001" if value < 0.001 else f"{value:.3f}"


if __name__ == "__main__":
    main()
