"""Is this checkout as fast as another source tree? Both play the same side of a bench, in turns.

    python bench/against.py --tree ../old -- bench/update.py --groups 8 --rollouts 8
    python bench/against.py --tree ../old --repeats 9 -- bench/generate.py --prompts 64
    python bench/against.py --tree ../old -- bench/round.py

Each tree runs its own copy of the script, genenv's side alone (`--side ours`), in a process of its own, both
on as many threads. A repetition starts both anew, lets each warm up, and then takes `--turns` turns of each,
in an order that is drawn every time. Prints a JSON line for each figure that the sides tell, and for their
peak memory: the medians over all repetitions, and this checkout's over the other's. `least` and `most` are
that ratio within a repetition: where they lie on both sides of 1, nothing is shown to differ.
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
SIDE = """
import importlib, os, runpy, sys
for name in ("genenv.backends.local.hardware", "genenv.policies.models"):  # here, and at commit 565fb63
    try:
        importlib.import_module(name).choose_threads = lambda *_: int(os.environ["BENCH_THREADS"])
    except ImportError:
        pass
del sys.argv[0]
sys.path[0] = os.path.dirname(sys.argv[0])
runpy.run_path(sys.argv[0], run_name="__main__")
"""
"""Runs a script on a given number of threads, which it would measure."""


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--tree", type=Path, required=True, help="the other one, which has bench and src")
    parser.add_argument("--repeats", type=int, default=5, help="of both processes")
    parser.add_argument("--turns", type=int, default=3, help="of each, in a repetition")
    parser.add_argument("--threads", type=int, help="of both; measured once unless given")
    parser.add_argument("command", nargs="+", help="after `--`: the script, and options of its own")
    options = parser.parse_args(arguments)
    from genenv.backends.local.hardware import choose_threads

    script, *words = options.command
    words = settled(words)
    trees = {"old": options.tree.resolve(), "new": HERE}
    pinned = {"BENCH_THREADS": str(options.threads or choose_threads())}
    python = {name: environment(tree) | pinned for name, tree in trees.items()}
    found: dict[str, list[Figures]] = {name: [] for name in trees}
    for number in range(options.repeats):
        with tempfile.TemporaryDirectory(prefix="genenv-bench-") as folder:
            sides = [
                started(name, tree / script, words, python[name], Path(folder, name))
                for name, tree in trees.items()
            ]
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


def started(
    name: str, script: Path, words: Sequence[str], python: Mapping[str, str], folder: Path
) -> Contender:
    """One tree's side of a bench."""
    folder.mkdir()
    if "learning_parser_of" in script.read_text(encoding="utf-8"):  # a side that learns leaves files behind
        words = [*words, "--folder", str(folder)]
    return Contender(name, [sys.executable, "-c", SIDE, str(script), *words], folder / "log", python)


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
