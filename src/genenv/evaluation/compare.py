"""`genenv compare`: tables of figures of several evaluations, and paired differences between evaluations.

Differences are computed item by item, since all policies answered the same items. The interval is that of
the mean paired difference, which is narrower than two separate intervals suggest.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from genenv.errors import DataError, UsageError
from genenv.evaluation.results import (
    FAILED,
    Record,
    Results,
    differences,
    figures_of,
    read_records,
    read_summary,
    records_beside,
)
from genenv.statistics import Figure, Part, weighted

_POLICY_IDENTITY = {"name", "model", "files", "run", "round", "player", "base_url", "kind", "tuning"}
"""Fields of a summary's policy that say which policy it is. All others may cause a difference."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One figure in all evaluations: a row of the table."""

    name: str
    group: str
    cells: tuple[Figure | None, ...]
    """The figure of each evaluation; None if the evaluation lacks it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A comparison of evaluations of one benchmark."""

    benchmark: str
    names: tuple[str, ...]
    rows: tuple[Row, ...]
    gains: tuple[Figure | None, ...]
    """The mean paired difference of scores between each further evaluation and the first."""
    warnings: tuple[str, ...]


def compare(paths: Sequence[Path], *, gains: bool = True) -> Comparison:
    """Compare evaluations with the first of them.

    Args:
        paths: the summaries, or the files of the items.
        gains: compute the paired differences, for which all items are read.

    Raises:
        UsageError: there are fewer than two paths, a summary is missing, or the benchmarks differ.
        DataError: a file is damaged.
    """
    if len(paths) < 2:
        raise UsageError("name at least two summaries to compare")
    files = [Results(path).summary if path.suffix == ".jsonl" else path for path in paths]
    found = [read_summary(path) for path in files]
    kinds = list(dict.fromkeys(str(summary["benchmark"]) for summary in found))
    if len(kinds) > 1:
        raise UsageError(f"these are results of {' and '.join(kinds)}; compare results of one benchmark")
    first = found[0]
    warnings: list[str] = []
    for path, summary in zip(files, found, strict=True):
        if not summary.get("complete"):
            warnings.append(f"{path} is not complete; continue it with --resume")
        if summary.get("items", 0) < summary.get("of", 0):
            warnings.append(f"{path} has {summary['items']} of the {summary['of']} items")
        differing = differences(first, summary, but=("policy",)) + _notable(first, summary)
        if differing:
            warnings.append(f"{path} differs from {files[0]} in {', '.join(differing)}")
    gained = tuple(_gains(files, warnings)) if gains else ()
    return Comparison(
        benchmark=kinds[0],
        names=_names(found, paths),
        rows=tuple(_rows(found)),
        gains=gained,
        warnings=tuple(warnings),
    )


def _notable(first: Mapping[str, Any], other: Mapping[str, Any]) -> list[str]:
    """Return other settings that may cause a difference: the limit on items and the policy's settings."""
    both = (first.get("policy", {}), other.get("policy", {}))
    names = [name for name in dict.fromkeys([*both[0], *both[1]]) if name not in _POLICY_IDENTITY]
    settings = [name for name in names if (both[0].get(name) or None) != (both[1].get(name) or None)]
    whole = bool(first.get("complete") and other.get("complete"))  # else the limit may change
    limits = ["limit"] if whole and first.get("limit") != other.get("limit") else []
    return [*limits, *(f"policy.{name}" for name in settings)]


def _names(found: Sequence[Mapping[str, Any]], paths: Sequence[Path]) -> tuple[str, ...]:
    """Return column names: the policies' names, or the paths if policies repeat."""
    names = [str(summary.get("policy", {}).get("name", "")) for summary in found]
    return tuple(names) if len(set(names)) == len(names) and all(names) else tuple(map(str, paths))


def _rows(found: Sequence[Mapping[str, Any]]) -> list[Row]:
    tables = [{(one.name, one.group): one for one in figures_of(summary)} for summary in found]
    keys = dict.fromkeys(key for table in tables for key in table)
    return [
        Row(name=name, group=group, cells=tuple(table.get((name, group)) for table in tables))
        for name, group in keys
    ]


def _gains(files: Sequence[Path], warnings: list[str]) -> Iterator[Figure | None]:
    """Yield the mean difference of each further evaluation's scores and the first's, over the items of both.

    None if they share no item, or the items of one cannot be read, which is a warning.
    """
    first: Mapping[str, Record] | None = None
    for file in files if len(files) > 1 else ():
        records: Mapping[str, Record] = {}
        try:
            records = read_records(records_beside(file))
        except DataError as error:
            warnings.append(f"without differences: {error}")
        if first is None:
            first = records
        else:
            yield paired(first, records)


class Scored(Protocol):
    """An item with its score, such as `Record`."""

    @property
    def status(self) -> str:
        """`FAILED` if it counts in no figure."""
        ...

    @property
    def score(self) -> float:
        """In [0, 1]."""
        ...

    @property
    def cluster(self) -> str:
        """Items of one cluster are not independent; "" if it is by itself."""
        ...


def paired(left: Mapping[str, Scored], right: Mapping[str, Scored]) -> Figure | None:
    """Return the mean of `right` minus `left` over the items that both have; None if they share none."""
    both = [id_ for id_ in left if id_ in right and FAILED not in (left[id_].status, right[id_].status)]
    gains = [right[id_].score - left[id_].score for id_ in both]
    clusters = [left[id_].cluster or id_ for id_ in both]
    return weighted("gain", [Part(gains, clusters=clusters, bounds=(-1.0, 1.0))]) if both else None
