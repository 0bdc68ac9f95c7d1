"""The benchmarks by name; their modules are imported when they are used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import cast

from genenv.errors import spelled, unknown_name
from genenv.evaluation.base import Benchmark
from genenv.plugins import load, parts

BENCHMARKS: Mapping[str, str] = parts("benchmarks")
OTHERS: Mapping[str, str] = {"held-out": "genenv.evaluation.held_out:HeldOut"}
"""What `all` leaves out: the tasks of a user's own environment are no benchmark of the field."""
ALL = "all"


def benchmark_class(name: str) -> type[Benchmark]:
    """The class of a benchmark.

    Raises:
        UsageError: there is none of that name.
    """
    known = {**BENCHMARKS, **OTHERS}
    found_name = spelled(name, known)
    if found_name not in known:
        raise unknown_name("benchmark", name, [*known, ALL])
    return cast(type[Benchmark], load(known[found_name]))


def section(name: str) -> str:
    """The name of a benchmark's section of the settings: `api_bank` of `api-bank`."""
    return name.replace("-", "_")
