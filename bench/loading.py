"""How long all benchmarks' files take to load, and how much memory: `python bench/loading.py`.

Needs GENENV_DATA. Every split of every benchmark is loaded in one process, hashes and checks included.
Prints one JSON object.
"""

from __future__ import annotations

import json
import resource
import time

from genenv.evaluation.config import BENCHMARKS, benchmark_class
from genenv.evaluation.data import DataFolder

WHOLE = {"travelplanner": ("validation", "train"), "alfworld": ("all",)}
"""Splits that together are everything; of the others, the first one is."""


def main() -> None:
    data = DataFolder.from_environment()
    began = time.perf_counter()
    classes = {name: benchmark_class(name) for name in BENCHMARKS}
    imported = time.perf_counter()
    seconds: dict[str, float] = {}
    kept, items = [], {}
    for name, kind in classes.items():
        start = time.perf_counter()
        loaded = [kind().load(data.fresh(), split) for split in WHOLE.get(name, tuple(kind.splits)[:1])]
        seconds[name] = round(time.perf_counter() - start, 3)
        items[name] = sum(map(len, loaded))
        kept.append(loaded)
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(
        json.dumps(
            {
                "bench": "loading",
                "import_s": round(imported - began, 3),
                "load_s": round(sum(seconds.values()), 3),
                "of_each_s": seconds,
                "items": items,
                "peak_mib": round(peak_mib),
            },
            indent=1,
        )
    )


if __name__ == "__main__":
    main()
