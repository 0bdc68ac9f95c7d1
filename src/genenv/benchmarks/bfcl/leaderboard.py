"""The row that the official leaderboard would have for a policy, and what of it was not measured.

Source: `generate_leaderboard_csv`, `record_cost_latency` and `get_cost_latency_info` of bfcl-eval's
`eval_runner_helper.py`, with its names of columns and its rounding. Three things differ. A mean over
categories of which one was not measured is "N/A"; the official table counts what is missing as 0. Costs are
those of the prices that the user gives; the official table has its own, and for models on one's own hardware
it estimates the rent of eight H100s from latencies. The columns on who the policy is are left out.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass

import numpy as np

from genenv.benchmarks.bfcl.categories import (
    ALL,
    FORMAT_SENSITIVITY,
    IRRELEVANCE,
    LIVE,
    MISSING,
    MULTI_TURN,
    PARALLEL,
    SIMPLE,
    WEIGHTS,
)
from genenv.benchmarks.bfcl.figures import MISSING_AS_ZERO, V3, complete_parts, figures
from genenv.evaluation.base import Answered, Grade, Graded, Prices
from genenv.statistics import Figure
from genenv.types import JsonObject

NOT_MEASURED = "N/A"
_WEB_SEARCH = ("web_search_base", "web_search_no_snippet")
_MEMORIES = ("memory_kv", "memory_vector", "memory_rec_sum")


@dataclass(frozen=True, slots=True)
class _Accuracy:
    """Of a category, or of several together."""

    value: float
    count: int

    def cell(self) -> str:
        return f"{self.value * 100:.2f}%"


def table(answered: Sequence[Answered], prices: Prices | None) -> tuple[JsonObject, Sequence[str]]:
    """The row, and sentences on what it lacks.

    Args:
        answered: items and what became of them.
        prices: of the policy's tokens; None: unknown.
    """
    graded: list[Graded] = [
        (item, Grade(score=record.score, explanation=record.explanation)) for item, record in answered
    ]
    if not graded:
        return {}, ()
    found = {figure.name: figure for figure in figures(graded) if not figure.group}
    complete = complete_parts(graded)
    measured = sum(WEIGHTS[group] for group in complete) / 100
    asked = {item.groups["category"] for item, _ in answered}
    lost = {name: "it was not asked" for name in ALL if name not in asked} | dict(MISSING)
    columns = {**_costs(answered, prices), **_accuracies(graded), **_sensitivity(found)}
    row: JsonObject = {
        "columns": {"Overall Acc": NOT_MEASURED, **columns},
        "not_measured": lost,
        "weight_measured": round(measured, 4),
        "overall_of_measured": _value(next(iter(found.values())) if len(complete) > 1 else None),
        MISSING_AS_ZERO: _value(found.get(MISSING_AS_ZERO)),
        V3: _value(found.get(V3)),
    }
    if prices is not None:
        row = {**row, "prices": asdict(prices)}
    return row, _sentences(complete, measured, lost, columns)


def _value(figure: Figure | None) -> float | None:
    return None if figure is None or math.isnan(figure.value) else figure.value


def _sentences(
    complete: Sequence[str], measured: float, lost: Mapping[str, str], columns: Mapping[str, str]
) -> list[str]:
    said: list[str] = []
    if len(complete) > 1:
        said.append(
            f"no overall here is the leaderboard's: {1 - measured:.1%} of its weights were not measured "
            f"({', '.join(lost)})"
        )
    mean, deviation, tail = (columns[name] for name in _LATENCIES)
    if mean != NOT_MEASURED:
        spread = "" if deviation == NOT_MEASURED else f", standard deviation {deviation} s"
        said.append(f"latency of a reply: mean {mean} s{spread}, 95th percentile {tail} s")
    cost = columns[_COST]
    said.append(
        "total cost: N/A, as no prices are known (endpoint.price_in, endpoint.price_out)"
        if cost == NOT_MEASURED
        else f"total cost: {cost}, in the currency of the prices"
    )
    return said


# Accuracies.


def _accuracies(graded: Sequence[Graded]) -> dict[str, str]:
    """The columns of accuracies, in the official order."""
    by_name: dict[str, list[float]] = {}
    for item, grade in graded:
        by_name.setdefault(item.groups["category"], []).append(grade.score)
    one = {name: _Accuracy(sum(scores) / len(scores), len(scores)) for name, scores in by_name.items()}
    simple = _mean(one.get(name) for name in SIMPLE)
    return {
        "Non-Live AST Acc": _cell(_mean([simple, *(one.get(name) for name in PARALLEL)])),
        "Non-Live Simple AST": _cell(simple),
        "Non-Live Multiple AST": _cell(one.get("multiple")),
        "Non-Live Parallel AST": _cell(one.get("parallel")),
        "Non-Live Parallel Multiple AST": _cell(one.get("parallel_multiple")),
        "Live Acc": _cell(_pooled(one.get(name) for name in LIVE)),
        "Live Simple AST": _cell(one.get("live_simple")),
        "Live Multiple AST": _cell(one.get("live_multiple")),
        "Live Parallel AST": _cell(one.get("live_parallel")),
        "Live Parallel Multiple AST": _cell(one.get("live_parallel_multiple")),
        "Multi Turn Acc": _cell(_mean(one.get(name) for name in MULTI_TURN)),
        "Multi Turn Base": _cell(one.get("multi_turn_base")),
        "Multi Turn Miss Func": _cell(one.get("multi_turn_miss_func")),
        "Multi Turn Miss Param": _cell(one.get("multi_turn_miss_param")),
        "Multi Turn Long Context": _cell(one.get("multi_turn_long_context")),
        "Web Search Acc": _cell(_mean(one.get(name) for name in _WEB_SEARCH)),
        "Web Search Base": _cell(one.get("web_search_base")),
        "Web Search No Snippet": _cell(one.get("web_search_no_snippet")),
        "Memory Acc": _cell(_mean(one.get(name) for name in _MEMORIES)),
        "Memory KV": _cell(one.get("memory_kv")),
        "Memory Vector": _cell(one.get("memory_vector")),
        "Memory Recursive Summarization": _cell(one.get("memory_rec_sum")),
        "Relevance Detection": _cell(one.get("live_relevance")),
        "Irrelevance Detection": _cell(_mean(one.get(name) for name in IRRELEVANCE)),
    }


def _cell(accuracy: _Accuracy | None) -> str:
    return NOT_MEASURED if accuracy is None else accuracy.cell()


def _mean(accuracies: Iterable[_Accuracy | None]) -> _Accuracy | None:
    """The mean of accuracies; None where one is missing."""
    whole = _whole(accuracies)
    if whole is None:
        return None
    return _Accuracy(sum(one.value for one in whole) / len(whole), sum(one.count for one in whole))


def _pooled(accuracies: Iterable[_Accuracy | None]) -> _Accuracy | None:
    """The accuracy over all items; None where a category is missing."""
    whole = _whole(accuracies)
    if whole is None:
        return None
    count = sum(one.count for one in whole)
    return _Accuracy(sum(one.value * one.count for one in whole) / count, count)


def _whole(accuracies: Iterable[_Accuracy | None]) -> list[_Accuracy] | None:
    found = list(accuracies)
    known = [one for one in found if one is not None]
    return known if len(known) == len(found) else None


def _sensitivity(found: Mapping[str, Figure]) -> dict[str, str]:
    """In percentage points."""
    names = {"Max Delta": "max_delta", "Standard Deviation": "std"}
    figures = {name: found.get(f"{FORMAT_SENSITIVITY}_{own}") for name, own in names.items()}
    return {
        f"Format Sensitivity {name}": NOT_MEASURED if figure is None else str(round(figure.value * 100, 2))
        for name, figure in figures.items()
    }


# Cost and latency.

_COST = "Total Cost ($)"
_LATENCIES = ("Latency Mean (s)", "Latency Standard Deviation (s)", "Latency 95th Percentile (s)")


def _costs(answered: Sequence[Answered], prices: Prices | None) -> dict[str, str]:
    """What the tokens of all items cost, and how long replies took; prerequisites do not count."""
    records = [record for _, record in answered]
    latencies = [latency for record in records for latency in record.latencies_s if latency]
    prompt = sum(record.tokens.get("prompt", 0) for record in records)
    sampled = sum(record.tokens.get("sampled", 0) for record in records)
    cost = mean = deviation = tail = NOT_MEASURED
    if prices is not None and prompt and sampled:
        cost = str(round(prompt * prices.prompt / 1_000_000 + sampled * prices.sampled / 1_000_000, 2))
    if latencies:
        mean = str(round(statistics.mean(latencies), 2))
        tail = str(round(float(np.percentile(latencies, 95)), 2))
    if len(latencies) > 1:
        deviation = str(round(statistics.stdev(latencies), 2))
    return {_COST: cost, **dict(zip(_LATENCIES, (mean, deviation, tail), strict=True))}
