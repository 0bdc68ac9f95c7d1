"""Whether tasks differ by the agent for whom they were written: mutual information of agent and kind.

python bench/agents.py SWEEP [--rounds 10]

I(agent; kind) = H(agent) + H(kind) - H(agent, kind), in bits, over the new tasks of the last rounds that were
rolled out, with the correction of Miller and Madow for its bias. The kind of a tiny program is its first
operation. Prints the mean over seeds with its 95% interval for each variant.
"""

from __future__ import annotations

import argparse
import math
from collections import Counter
from collections.abc import Hashable, Iterable
from pathlib import Path

from genenv.research.sweeps.readings import read_all
from genenv.runs.store.store import PoolStore
from genenv.statistics import mean_interval


def entropy(values: Iterable[Hashable]) -> float:
    """Return the entropy of a sample in bits, by Miller and Madow: plus (kinds - 1) / (2 N ln 2)."""
    counts = Counter(values)
    n = counts.total()
    plain = -math.fsum(count / n * math.log2(count / n) for count in counts.values())
    return plain + (len(counts) - 1) / (2 * n * math.log(2))


def information(run: Path, rounds: int) -> float:
    """Return I(agent; first operation) of the tasks of a run's last rounds, in bits."""
    with PoolStore.open(run / "pool.db", create=False) as store:
        last = store.last_round() or 0
        pairs = [
            (group.agent, str(group.task.spec["p"]).partition(">")[2][0])
            for number in range(last - rounds + 1, last + 1)
            for batch in store.batches(number)
            for group in batch.groups
        ]
    agents, kinds = zip(*pairs, strict=True)
    return entropy(agents) + entropy(kinds) - entropy(pairs)


def main() -> None:
    """Print a table with a row for each variant."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("sweeps", nargs="+", type=Path)
    parser.add_argument("--rounds", type=int, default=10)
    arguments = parser.parse_args()
    runs, _, _ = read_all(arguments.sweeps)
    variants: dict[str, list[float]] = {}
    for run in runs:
        variants.setdefault(run.variant, []).append(information(run.path, arguments.rounds))
    print("| variant | seeds | bits (95% CI) |\n|---|---|---|")
    for name, bits in variants.items():
        mean, low, high = mean_interval(bits)
        print(f"| {name} | {len(bits)} | {mean:.3f} ({low:.3f} to {high:.3f}) |")


if __name__ == "__main__":
    main()
