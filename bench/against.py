"""Is this checkout as fast as another source tree? Both play the same side of a bench, in turns.

    python bench/against.py --tree ../old -- bench/update.py --groups 8 --rollouts 8
    python bench/against.py --tree ../old --repeats 9 -- bench/generate.py --prompts 64
    python bench/against.py --tree ../old -- bench/round.py

Each tree runs its own copy of the script, genenv's side alone (`--side ours`), in a process of its own. A
repetition starts both processes anew, lets each warm up, and then takes `--turns` turns of each, in an order
that is drawn every time. Prints a JSON line for each figure that the sides tell, and for their peak memory:
the medians over all repetitions, and this checkout's over the other's. `least` and `most` are that ratio
within a repetition: where they lie on both sides of 1, nothing is shown to differ.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import tempfile
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path

from trees import HERE, environment
from turns import Contender, alternate, machine, parser_of, say, settle

Figures = Mapping[str, float]
ATTEMPTS = 5


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tree", type=Path, required=True, help="the other one, which has bench and src")
    parser.add_argument("--repeats", type=int, default=5, help="of both processes")
    parser.add_argument("--turns", type=int, default=3, help="of each, in a repetition")
    parser.add_argument("command", nargs="+", help="after `--`: the script, and options of its own")
    options = parser.parse_args(arguments)
    script, *words = options.command
    words = settled(words)
    trees = {"old": options.tree.resolve(), "new": HERE}
    python = {name: environment(tree) for name, tree in trees.items()}
    found: dict[str, list[Figures]] = {name: [] for name in trees}
    for number in range(options.repeats):
        with tempfile.TemporaryDirectory(prefix="genenv-bench-") as folder:
            sides = both({name: tree / script for name, tree in trees.items()}, words, python, Path(folder))
            alternate(sides, options.turns, seed=number)
            for side in sides:
                found[side.name].append(figures(side))
                side.end()
    asked = {"bench": "against", "command": " ".join(map(str, options.command))}
    for name in found["new"][0]:
        if name in found["old"][0]:
            say(**asked, figure=name, **compared(*([one[name] for one in found[tree]] for tree in trees)))
    say(**asked, repeats=options.repeats, turns=options.turns, **machine())


def settled(words: Sequence[str]) -> list[str]:
    """Options with model and number format decided, which a side does not do."""
    known, rest = parser_of(None, ["ours"]).parse_known_args(words)
    settle(known)
    return [*rest, "--model", str(known.model), "--dtype", known.dtype, "--side", "ours"]


def both(
    scripts: Mapping[str, Path], words: Sequence[str], python: Mapping[str, Mapping[str, str]], folder: Path
) -> list[Contender]:
    """The sides of both trees; each measures how many threads are fastest, and both must come to the same."""
    for attempt in range(ATTEMPTS):
        sides: list[Contender] = []
        for name, script in scripts.items():
            own = folder / f"{name}-{attempt}"
            own.mkdir()
            # a side that learns leaves files behind
            learns = "learning_parser_of" in script.read_text(encoding="utf-8")
            told = [str(script), *words, *(["--folder", str(own)] if learns else [])]
            sides.append(Contender(name, [sys.executable, *told], own / "log", python[name]))
        if len({side.about["threads"] for side in sides}) == 1:
            return sides
        for side in sides:
            side.end()
    sys.exit("the trees choose different numbers of threads; set OMP_NUM_THREADS=1 for both")


def figures(side: Contender) -> Figures:
    """What one process told: medians over its turns."""
    told: defaultdict[str, list[float]] = defaultdict(list)
    for answer in [side.about, *side.answers]:
        for name, value in answer.items():
            told[name].append(value)
    if side.peak_gib is not None:
        told["peak_gib"].append(side.peak_gib)
    return {name: statistics.median(values) for name, values in told.items()}


def compared(old: Sequence[float], new: Sequence[float]) -> dict[str, float | None]:
    """Medians of a figure's values in every repetition, and how they compare."""
    medians = statistics.median(old), statistics.median(new)
    ratios = [after / before if before else None for before, after in zip(old, new, strict=True)]
    known = [ratio for ratio in ratios if ratio is not None]
    return {
        "old": medians[0],
        "new": medians[1],
        "ratio": medians[1] / medians[0] if medians[0] else None,
        "least": min(known, default=None),
        "most": max(known, default=None),
    }


if __name__ == "__main__":
    main()
