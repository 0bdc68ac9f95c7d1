"""What Bamboogle's grading gives on its own answers and on answers near them.

Run by hand with `GENENV_DATA` set: `python bench/parity_bamboogle.py`. Prints one JSON object of counts.
Bamboogle's authors published questions and answers, and no scorer. With `--squad FOLDER`, a clone of
github.com/huggingface/evaluate, SQuAD's official script in it (version 1.1) is run beside the EM and F1 here.
"""

from __future__ import annotations

import argparse
import json
import runpy
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from official import checked_out, run_file

from genenv.benchmarks.bamboogle import Bamboogle, closeness, final_answer
from genenv.evaluation.base import Item
from genenv.evaluation.data import DataFolder

TABLES = Path(__file__).parents[1] / "tests/benchmarks/bamboogle"
SQUAD = "metrics/squad/compute_score.py"


def changes(right: str) -> Iterator[tuple[str, str]]:
    """Answers that are the right one, or miss it by a step: (kind, answer)."""
    words = right.split()
    yield "as it is", right
    yield "in capitals, with an article and a full stop", f"The {right.upper()}."
    yield "one word more", f"{right} indeed"
    yield "last word dropped", " ".join(words[:-1])
    yield "words reversed", " ".join(reversed(words))
    yield "another answer", "none of these"


def measured(bench: Bamboogle, items: list[Item]) -> dict[str, dict[str, float]]:
    found: dict[str, Counter[str]] = {}
    for item in items:
        for kind, answer in changes(item.data.right[0].strip()):
            grade = bench.grade(item, {"reply": f"Let me think.\nAnswer: {answer}"})
            counts = found.setdefault(kind, Counter())
            counts["answers"] += 1
            counts["exact_match"] += grade.score == 1
            counts["f1_is_1"] += grade.measures["f1"] == 1
            counts["sub_em"] += grade.measures["sub_em"] == 1
    return {kind: dict(counts) for kind, counts in found.items()}


def near_misses() -> dict[str, int]:
    rows: list[tuple[str, str, float, float, float]] = runpy.run_path(str(TABLES / "near_misses.py"))[
        "NEAR_MISSES"
    ]
    counts = Counter(rows=len(rows))
    for right, answer, em, f1, sub in rows:
        near = closeness(answer, [right])
        counts["as worked out by hand"] += (near.em, near.sub_em) == (em, sub) and abs(near.f1 - f1) < 1e-9
        counts["exact"] += em == 1
        counts["not exact"] += em == 0
    return dict(counts)


def boxed() -> dict[str, int]:
    """Replies with boxes, and how many give the answer that a reader takes from them."""
    rows: list[tuple[str, str]] = runpy.run_path(str(TABLES / "boxed.py"))["BOXED"]
    return {
        "rows": len(rows),
        "as read by hand": sum(final_answer(reply) == answer for reply, answer in rows),
    }


def against_squad(items: list[Item], clone: Path) -> dict[str, Any]:
    """EM and F1 here beside those of SQuAD's own script, over right answers, near misses and odd texts."""
    folder, which = checked_out(clone, [SQUAD])
    official = run_file(folder / SQUAD)
    tables = runpy.run_path(str(TABLES / "near_misses.py"))["NEAR_MISSES"]
    pairs = [(answer, item.data.right[0]) for item in items for _, answer in changes(item.data.right[0])]
    pairs += [(answer, right) for right, answer, *_ in tables]
    pairs += [(one.data.right[0], other.data.right[0]) for one in items for other in items]
    pairs += [
        (odd, right)
        for odd in ("", "the", "\u2014", "a\u00a0b", "1,000.50", "\u0130")
        for _, right in pairs[:200]
    ]
    differing = 0
    for answer, right in pairs:
        near = closeness(answer, [right])
        em = float(official["exact_match_score"](answer, right))
        differing += near.em != em or abs(near.f1 - official["f1_score"](answer, right)) > 1e-9
    return {"official": which, "pairs": len(pairs), "different": differing}


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--squad", type=Path, help="a clone of github.com/huggingface/evaluate")
    squad = parser.parse_args().squad
    bench, found = Bamboogle(), dict[str, Any]()
    start = time.perf_counter()
    items = list(bench.load(DataFolder.from_environment(), "all"))
    found["load_s"] = round(time.perf_counter() - start, 4)
    start = time.perf_counter()
    graded = [(item, bench.grade(item, {"reply": f"So.\nAnswer: {item.data.right[0]}"})) for item in items]
    found["grade_items_per_s"] = round(len(items) / (time.perf_counter() - start))
    found["gold"] = {figure.name: figure.value for figure in bench.figures(graded)}
    found["changes"] = measured(bench, items)
    found["near_misses"], found["boxed"] = near_misses(), boxed()
    if squad:
        found["squad"] = against_squad(items, squad)
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main()
