"""BFCL's numbers: overall of v4 and of v3, their parts, every category, and format sensitivity."""

from __future__ import annotations

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from genenv.benchmarks.bfcl.categories import (
    ALL,
    FORMAT_SENSITIVITY,
    GROUPS,
    IRRELEVANCE,
    LIVE,
    LIVE_FILES,
    MULTI_TURN,
    PARALLEL,
    SIMPLE,
    WEIGHTS,
)
from genenv.evaluation.base import Graded, clusters_of
from genenv.statistics import Figure, Part, rate, weighted

WITHOUT_MISSING = "overall_without_web_search_and_memory_vector"
MISSING_AS_ZERO = "overall_missing_as_zero"
V3 = "overall_v3"


@dataclass(slots=True)
class Column:
    """The items of a category."""

    scores: list[float] = field(default_factory=list[float])
    clusters: list[str] = field(default_factory=list[str])
    """What each hangs together with."""

    def part(self, weight: float) -> Part:
        """The category with its weight."""
        return Part(self.scores, weight=weight, clusters=self.clusters)


Scores = Mapping[str, Column]
"""By category."""


def figures(graded: Sequence[Graded]) -> list[Figure]:
    """The headline, then the official parts, then the categories.

    The headline is over those official parts of which every category was measured, each with its official
    weight, and its name says which; the mean over all items where no part is complete. With all parts that
    can be measured here there is also the official overall, in which what is missing counts as 0. The overall
    of v3 is over categories that are all here. Format sensitivity is no part of either.
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
    """The official parts of which every category was measured."""
    measured = {item.groups["category"] for item, _ in graded}
    return [group for group, categories in GROUPS.items() if measured.issuperset(categories)]


def by_category(graded: Sequence[Graded]) -> dict[str, Column]:
    """The items by category, in the official order; format sensitivity left out."""
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
    """Version 3: a third each for non-live, live and multi-turn; (ir)relevance is a part of the first two.

    Source: `generate_leaderboard_csv` of bfcl-eval 2025.8.5, which was version 3. Non-live is
    the mean of simple, multiple, parallel, parallel_multiple and irrelevance; live is over its items.
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
    """A group's categories with the weights by which they make up its share of the overall score."""
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
    """How much the accuracy depends on the format of the prompt, and the accuracy under each.

    Source: `format_sensitivity_runner` of bfcl-eval's `eval_runner.py`: the largest difference between two
    formats, and the standard deviation (of a sample) over formats; 0 where there is only one.
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
