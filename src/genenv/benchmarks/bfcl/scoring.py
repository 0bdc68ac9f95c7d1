"""BFCL's figures, the row of the official leaderboard, and official result files for `--export`.

Figures: the overall scores of v4 and of v3, their parts, every category, and format sensitivity.

The row has the columns and the rounding of `generate_leaderboard_csv`, `record_cost_latency` and
`get_cost_latency_info` of bfcl-eval's `eval_runner_helper.py`. There are three differences. A mean over
categories is "N/A" if one of them was not measured; the official table counts missing categories as 0. Costs
use the user's prices; the official table has its own prices, and estimates rent for local models. Columns
about the policy itself are left out.

Result files follow `BaseHandler.write`, `get_directory_structure_by_id`, and the handlers' `decode_ast` and
`decode_execute`. `bfcl evaluate` accepts only models of its leaderboard. So the files carry the names of
models whose handlers parse replies without changes: text after the official prompt, or calls as JSON. These
models did not produce the replies. Lone surrogates are replaced, as `bfcl evaluate` stops at them.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, cast

import numpy as np

from genenv.benchmarks.bfcl.data import (
    ALL,
    FORMAT_SENSITIVITY,
    GROUPS,
    IRRELEVANCE,
    LIVE,
    LIVE_FILES,
    MEMORY,
    MISSING,
    MULTI_TURN,
    PARALLEL,
    SIMPLE,
    WEIGHTS,
)
from genenv.benchmarks.bfcl.official import NATIVE, TEXT
from genenv.benchmarks.bfcl.single_turn import as_sent
from genenv.evaluation.base import Answered, Grade, Graded, Item, Prices, clusters_of
from genenv.evaluation.results import Record
from genenv.statistics import Figure, Part, rate, weighted
from genenv.texts import clean
from genenv.types import Json, JsonObject

WITHOUT_MISSING = "overall_without_web_search_and_memory_vector"
MISSING_AS_ZERO = "overall_missing_as_zero"
V3 = "overall_v3"


@dataclass(slots=True)
class Column:
    """The scores of a category's items."""

    scores: list[float] = field(default_factory=list[float])
    clusters: list[str] = field(default_factory=list[str])
    """The cluster of each item."""

    def part(self, weight: float) -> Part:
        """Return the category as a weighted part of a figure."""
        return Part(self.scores, weight=weight, clusters=self.clusters)


Scores = Mapping[str, Column]
"""The scores of each category."""


def figures(graded: Sequence[Graded]) -> list[Figure]:
    """Return the headline, then the official parts, then the categories.

    The headline combines the official parts whose categories were all measured, with their official weights;
    its name lists them. If no part is complete, it is the mean over all items. If every included category was
    measured, there is also the official overall, which counts missing categories as 0. The overall of v3
    needs only included categories. Format sensitivity is part of neither.
    """
    scores, complete = by_category(graded), complete_parts(graded)
    found = _overall(complete, scores)
    scored = Column()
    for column in scores.values():
        scored.scores += column.scores
        scored.clusters += column.clusters
    only_formats = graded and not scores
    if len(complete) != 1 and not only_formats:
        found.append(rate("accuracy_over_items", scored.scores, clusters=scored.clusters))
    found += [_combined(group, [group], scores) for group in complete]
    if all(name in scores for name in SIMPLE):
        found.append(weighted("simple", _means(SIMPLE, scores, 1.0)))
    found += [
        rate("accuracy", column.scores, group=f"category={name}", clusters=column.clusters)
        for name, column in scores.items()
    ]
    return found + _format_sensitivity(graded)


def complete_parts(graded: Sequence[Graded]) -> list[str]:
    """Return the official parts whose categories were all measured."""
    measured = {item.groups["category"] for item, _ in graded}
    return [group for group, categories in GROUPS.items() if measured.issuperset(categories)]


def by_category(graded: Sequence[Graded]) -> dict[str, Column]:
    """Return the scores by category, in the official order, without format sensitivity."""
    scores: dict[str, Column] = {}
    for (item, grade), cluster in zip(graded, clusters_of(item for item, _ in graded), strict=True):
        column = scores.setdefault(item.groups["category"], Column())
        column.scores.append(grade.score)
        column.clusters.append(cluster)
    return {name: scores[name] for name in ALL if name in scores}


def _overall(complete: Sequence[str], scores: Scores) -> list[Figure]:
    found: list[Figure] = []
    core = [group for group in complete if group != "memory_kv_and_rec_sum"]
    if len(core) < len(GROUPS) - 1:
        name = f"overall_of_{'_and_'.join(complete)}"
        return [_combined(name, complete, scores)] if len(complete) > 1 else []
    if len(complete) == len(GROUPS):
        found.append(_combined(WITHOUT_MISSING, complete, scores))
        found.append(_combined(MISSING_AS_ZERO, [*complete, "missing"], scores))
    found.append(_combined("overall_without_agentic", core, scores))
    if len(complete) < len(GROUPS):
        found.append(_combined("overall_agentic_as_zero", [*core, "agentic"], scores))
    if "live_relevance" in scores:
        found.append(weighted(V3, _v3_parts(scores)))
    return found


def _v3_parts(scores: Scores) -> list[Part]:
    """Return the parts of version 3's overall score: a third each for non-live, live and multi-turn.

    Source: `generate_leaderboard_csv` of bfcl-eval 2025.8.5, which was version 3. Non-live is the mean of
    simple, multiple, parallel, parallel_multiple and irrelevance; live, including (ir)relevance, is the mean
    over its items.
    """
    return [
        *_means(SIMPLE, scores, 1 / 3 / 5),
        *_means((*PARALLEL, "irrelevance"), scores, 1 / 3 * 4 / 5),
        _pooled(LIVE_FILES, scores, 1 / 3),
        *_means(MULTI_TURN, scores, 1 / 3),
    ]


def _combined(name: str, groups: Sequence[str], scores: Scores) -> Figure:
    return weighted(name, [part for group in groups for part in _parts(group, scores)])


def _parts(group: str, scores: Scores) -> list[Part]:
    """Return a group's categories with their weights in the overall score."""
    weight = WEIGHTS[group]
    match group:
        case "non_live":
            return _means(SIMPLE, scores, weight / 4) + _means(PARALLEL, scores, weight * 3 / 4)
        case "live":
            return [_pooled(LIVE, scores, weight)]
        case "irrelevance":
            return _means(IRRELEVANCE, scores, weight)
        case "missing" | "agentic":
            return [Part([], weight=weight)]
        case _:
            return _means(GROUPS[group], scores, weight)


def _means(names: Sequence[str], scores: Scores, weight: float) -> list[Part]:
    return [scores.get(name, Column()).part(weight / len(names)) for name in names]


def _pooled(names: Sequence[str], scores: Scores, weight: float) -> Part:
    return Part(
        [score for name in names for score in scores[name].scores],
        weight=weight,
        clusters=[cluster for name in names for cluster in scores[name].clusters],
    )


def _format_sensitivity(graded: Sequence[Graded]) -> list[Figure]:
    """Return how much accuracy varies with the prompt format, and the accuracy under each format.

    Source: `format_sensitivity_runner` of bfcl-eval's `eval_runner.py`: the largest difference between two
    formats, and the sample standard deviation over formats; 0 if there is only one format.
    """
    asked = [(item, grade) for item, grade in graded if item.groups["category"] == FORMAT_SENSITIVITY]
    by_format: dict[str, list[float]] = {}
    for item, grade in asked:
        by_format.setdefault(item.groups["format"], []).append(grade.score)
    if not asked:
        return []
    accuracies = [math.fsum(scores) / len(scores) for scores in by_format.values()]
    spread = {
        "format_sensitivity_max_delta": max(accuracies) - min(accuracies),
        "format_sensitivity_std": statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0,
    }
    nothing = math.nan
    return [
        *(
            Figure(name=name, value=value, low=nothing, high=nothing, items=len(asked))
            for name, value in spread.items()
        ),
        rate(
            "format_sensitivity_accuracy",
            [grade.score for _, grade in asked],
            clusters=clusters_of(item for item, _ in asked),
        ),
        *(rate("accuracy", scores, group=f"format={name}") for name, scores in by_format.items()),
    ]


NOT_MEASURED = "N/A"


def table(answered: Sequence[Answered], prices: Prices | None) -> tuple[JsonObject, Sequence[str]]:
    """Return the leaderboard's row, and notes on the columns that it lacks.

    Args:
        answered: the items and their records.
        prices: the prices of the policy's tokens; None: unknown.
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


_ACCURACIES: Mapping[str, tuple[str, ...]] = {
    "Non-Live AST Acc": ("simple", *PARALLEL),
    "Non-Live Simple AST": ("simple",),
    "Non-Live Multiple AST": ("multiple",),
    "Non-Live Parallel AST": ("parallel",),
    "Non-Live Parallel Multiple AST": ("parallel_multiple",),
    "Live Acc": ("live",),
    "Live Simple AST": ("live_simple",),
    "Live Multiple AST": ("live_multiple",),
    "Live Parallel AST": ("live_parallel",),
    "Live Parallel Multiple AST": ("live_parallel_multiple",),
    "Multi Turn Acc": MULTI_TURN,
    "Multi Turn Base": ("multi_turn_base",),
    "Multi Turn Miss Func": ("multi_turn_miss_func",),
    "Multi Turn Miss Param": ("multi_turn_miss_param",),
    "Multi Turn Long Context": ("multi_turn_long_context",),
    "Web Search Acc": ("web_search_base", "web_search_no_snippet"),
    "Web Search Base": ("web_search_base",),
    "Web Search No Snippet": ("web_search_no_snippet",),
    "Memory Acc": ("memory_kv", "memory_vector", "memory_rec_sum"),
    "Memory KV": ("memory_kv",),
    "Memory Vector": ("memory_vector",),
    "Memory Recursive Summarization": ("memory_rec_sum",),
    "Relevance Detection": ("live_relevance",),
    "Irrelevance Detection": IRRELEVANCE,
}
"""Columns in the official order, and the categories that each is the mean of. `simple` is the mean of three,
`live` is over the items of four."""


def _accuracies(graded: Sequence[Graded]) -> dict[str, str]:
    """The columns of accuracies; a column is not measured where one of its categories is not."""
    scores = {name: column.scores for name, column in by_category(graded).items()}
    found = {name: sum(own) / len(own) for name, own in scores.items()}
    if found.keys() >= set(SIMPLE):
        found["simple"] = sum(found[name] for name in SIMPLE) / len(SIMPLE)
    if found.keys() >= set(LIVE):
        right = sum(found[name] * len(scores[name]) for name in LIVE)
        found["live"] = right / sum(len(scores[name]) for name in LIVE)
    return {
        column: f"{sum(found[name] for name in names) / len(names) * 100:.2f}%"
        if found.keys() >= set(names)
        else NOT_MEASURED
        for column, names in _ACCURACIES.items()
    }


def _sensitivity(found: Mapping[str, Figure]) -> dict[str, str]:
    """Return the columns of format sensitivity, in percentage points."""
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
    """Return the cost of all items' tokens, and latencies of replies; prerequisites do not count."""
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


NAMES: Mapping[str, str] = {TEXT: "gpt-4o-mini-2024-07-18", NATIVE: "gpt-4o-mini-2024-07-18-FC"}
"""Models in bfcl-eval's list whose handlers do not change replies."""
_SEVERAL_REPLIES = (*MULTI_TURN, *MEMORY)
"""Categories whose results are replies by turn and step."""


def result_files(answered: Sequence[Answered]) -> dict[str, str]:
    """Return files by path, such as `result/MODEL/live/BFCL_v4_live_simple_result.json`, a line per item."""
    files: dict[str, str] = {}
    for item, record in answered:
        try:
            form, result = _result(item, record)
        except (LookupError, TypeError, AttributeError):  # a record that genenv did not write
            continue
        category = item.groups["category"]
        path = f"result/{NAMES[form]}/{_group(category)}/BFCL_v4_{category}_result.json"
        files[path] = files.get(path, "") + json.dumps(_line(item, record, result)) + "\n"
    return files


def _group(category: str) -> str:
    if category in MULTI_TURN:
        return "multi_turn"
    if category in MEMORY:
        return f"agentic/memory/{category.removeprefix('memory_')}"
    if category == FORMAT_SENSITIVITY:
        return FORMAT_SENSITIVITY
    return "live" if category in LIVE_FILES else "non_live"


def _line(item: Item, record: Record, result: Json) -> JsonObject:
    several = item.groups["category"] in _SEVERAL_REPLIES
    return {
        "id": item.id,
        "result": result,
        "input_token_count": record.tokens.get("prompt", 0),
        "output_token_count": record.tokens.get("sampled", 0),
        "latency": _latencies(record, result) if several else _latency(record),
    }


def _latency(record: Record) -> float:
    """Return the latency of the only reply; 0, which officially does not count, if there is none."""
    if record.latencies_s:
        return record.latencies_s[0]
    return record.seconds if record.tokens.get("replies") else 0.0


def _latencies(record: Record, result: Json) -> list[list[float]]:
    """Return the latency of each reply, by turn and step."""
    taken = iter(record.latencies_s)
    turns = cast("list[list[Json]]", result) if isinstance(result, list) else []
    return [*([next(taken, 0.0) for _ in turn] for turn in turns), list(taken)]


def _result(item: Item, record: Record) -> tuple[str, Json]:
    """Return the form of the prompt, and the result; a failure is written as in the official run."""
    answer = cast("Mapping[str, Any]", record.answer) if isinstance(record.answer, Mapping) else None
    form = NATIVE if record.tools or (answer is not None and "calls" in answer) else TEXT
    if answer is None:
        return form, clean(f"Error during inference: {record.explanation}")
    if item.groups["category"] in _SEVERAL_REPLIES:
        return form, _turns(record, answer.get("turns"), form)
    if form == NATIVE:
        return form, _calls(answer.get("calls"))
    return form, clean(str(answer.get("text", "")))


def _turns(record: Record, turns: Any, form: str) -> Json:  # noqa: ANN401
    """Return the replies by turn and step: those with calls, and the final reply of the turn."""
    said = [message for message in record.conversation if message.get("role") == "assistant"]
    replies = iter([_reply(message, form) for message in said])
    counts = [len(steps) for steps in turns]
    if sum(counts) > len(said):
        raise LookupError("the conversation is not whole")
    return [[reply for _, reply in zip(range(count + 1), replies, strict=False)] for count in counts]


def _reply(message: Mapping[str, Any], form: str) -> Json:
    content = clean(str(message.get("content") or "")).rpartition("</think>")[2].lstrip("\n")
    if form == TEXT or not message.get("tool_calls"):
        return content
    return _calls([call["function"] for call in message["tool_calls"]])


def _calls(calls: Any) -> Json:  # noqa: ANN401
    return [{str(call["name"]): as_sent(call["arguments"])} for call in calls or ()]
