"""How far to trust the gate of tool calling: its verdicts on 300 specs that people have labelled.

    python bench/gate_precision.py
    python bench/gate_precision.py --errors

The specs stand in `gate_precision.jsonl`. A spec is sound where a careful reader who gets its instruction
and its tools would make its calls, and no others. Half of the sound ones are paraphrases written by hand, in
words that the phrasings of the seeds do not use, half are variations of seeds. The unsound ones are all
written by hand: nearly all build, and most state every value. `first` was written before the gate read what
an instruction asks for; `second` after its first rules, which were then mended on it; `fresh` after the last,
and no rule has been changed on account of it. Write a new part before you change the rules again.
One JSON object a part is printed: precision is the share of the accepted specs that are sound, recall the
share of the sound ones that are accepted, each with a 95% Wilson interval.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from genenv.domains.tool_calling.domain import ToolCalling
from genenv.domains.tool_calling.spec import ToolSpec
from genenv.gate.gate import examined
from genenv.types import JsonObject, Lineage, Origin, Rejection

LABELLED = Path(__file__).with_suffix(".jsonl")


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--errors", action="store_true", help="also list each spec that was misjudged")
    options = parser.parse_args()
    rows = [(row, verdict(row)) for row in labelled()]
    for part in dict.fromkeys(row["part"] for row, _ in rows):
        print(json.dumps(measured([pair for pair in rows if pair[0]["part"] == part], part)))
    if options.errors:
        for row, found in rows:
            if row["sound"] is not (found is None):
                why = "accepted" if found is None else f"{found.reason.value}: {found.explanation}"
                words = f"{row['id']} {row['kind']}: {row['spec']['instruction']}\n    {why}"
                print(words, file=sys.stderr)


def labelled() -> Iterator[dict[str, Any]]:
    """The labelled specs, in order."""
    return map(json.loads, LABELLED.read_text(encoding="utf-8").splitlines())


def verdict(row: JsonObject) -> Rejection | None:
    """Why the gate refuses a spec; None if it does not."""
    domain = ToolCalling()
    task = domain.build(
        ToolSpec.model_validate(row["spec"]),
        task_id=str(row["id"]),
        lineage=Lineage(origin=Origin.GENERATED, seed_id=str(row["seed_id"])),
        rng=random.Random(0),
    )
    return task if isinstance(task, Rejection) else examined(domain, task, random.Random(0))


def measured(rows: list[tuple[dict[str, Any], Rejection | None]], part: str) -> dict[str, Any]:
    """Precision and recall of a part, and how many of each kind were accepted."""
    kinds = Counter(row["kind"] for row, _ in rows)
    accepted = Counter(row["kind"] for row, found in rows if found is None)
    sound = sum(row["sound"] for row, _ in rows)
    right = sum(row["sound"] for row, found in rows if found is None)
    return {
        "part": part,
        "specs": len(rows),
        "sound": sound,
        "accepted": accepted.total(),
        "precision": share(right, accepted.total()),
        "recall": share(right, sound),
        "accepted_by_kind": {kind: f"{accepted[kind]} of {n}" for kind, n in kinds.items()},
    }


def share(some: int, whole: int) -> dict[str, float]:
    """A share with its 95% Wilson interval."""
    z = 1.96
    rate = some / whole
    middle = (rate + z * z / (2 * whole)) / (1 + z * z / whole)
    reach = z / (1 + z * z / whole) * math.sqrt(rate * (1 - rate) / whole + z * z / (4 * whole * whole))
    return {"rate": round(rate, 3), "low": round(middle - reach, 3), "high": round(middle + reach, 3)}


if __name__ == "__main__":
    main()
