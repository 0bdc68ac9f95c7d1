"""`genenv eval --regrade`: grades stored answers again with the current code and rules, without a model.

Settings, policy, sampling and prompt version stay as stored. The version of genenv, the rules and the hashes
of data files are updated. The old results are kept as `.before-1` files.
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from genenv.config import __version__
from genenv.config.tables import validated
from genenv.errors import DataError, UsageError
from genenv.evaluation.base import Benchmark, Item, Prices
from genenv.evaluation.config import benchmark_class, section
from genenv.evaluation.data import DataFolder
from genenv.evaluation.evaluate import Export, leaderboard_of, slug
from genenv.evaluation.results import (
    FAILED,
    IDENTITY,
    OVERFLOW,
    SUMMARY,
    Outcome,
    Record,
    Results,
    read_records,
    read_summary,
    records_beside,
)
from genenv.evaluation.runner import Prerequisites, graded
from genenv.types import JsonObject

KEPT = ".before-"
"""The part of a file name that marks results from before a regrading: `bfcl-all.before-1.jsonl`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """A stored evaluation with its items, ready to be graded again."""

    results: Results
    summary: Mapping[str, Any]
    benchmark: Benchmark
    items: Sequence[Item]
    """The items that have a record, in order."""
    of: int
    """The number of items in the split; `--limit` evaluates fewer."""
    records: Mapping[str, Record]
    hashes: Mapping[str, str]
    settings: JsonObject
    """The benchmark's settings, completed with this version's defaults."""

    @property
    def policy(self) -> str:
        """Return the policy's name, as given to `--policy`."""
        return str(self.summary.get("policy", {}).get("name", ""))


def regrade(
    paths: Sequence[Path], data: Path | None, *, changed_data: bool = False, export: Path | None = None
) -> Iterator[Outcome]:
    """Grade stored answers again, one evaluation after the other, and yield each outcome.

    Args:
        paths: `.summary.json` or `.jsonl` files of evaluations, or folders of them.
        data: the folder of the benchmarks' files; None: `GENENV_DATA`.
        changed_data: accept files whose hash differs from the known one.
        export: a folder in which to write the answers as files for the authors' scorers.

    Raises:
        UsageError: there are no results, or they were made with other data.
        DataError: a file is damaged.
    """
    folder = DataFolder.from_environment(data, allow_changed=changed_data)
    with ExitStack() as locks:
        stored: list[Stored] = []
        for path in [path for named in paths for path in _items_paths(named)]:
            results = Results(path)
            read_summary(results.summary)
            locks.enter_context(results.lock())
            stored.append(read_stored(results, folder))
        exports = [Export(export, one.policy) if export else None for one in stored]
        for one, to in zip(stored, exports, strict=True):
            yield _regraded(one, to)


def _items_paths(path: Path) -> list[Path]:
    """Return the JSONL files that a path refers to.

    Raises:
        UsageError: the folder holds no results.
    """
    if not path.is_dir():
        return [records_beside(path) if path.name.endswith(SUMMARY) else path]
    found = sorted(summary for summary in path.rglob(f"*{SUMMARY}") if KEPT not in summary.name)
    if not found:
        raise UsageError(f"{path} holds no results of genenv eval; name a folder or a file of them")
    return [records_beside(summary) for summary in found]


def read_stored(results: Results, folder: DataFolder) -> Stored:
    """Load a stored evaluation with its items.

    Raises:
        UsageError: it was made with other data, or has settings that this version does not know.
        DataError: a file is damaged, or an item is unknown.
    """
    summary = read_summary(results.summary)
    records = read_records(results.path, cut_off_is_fine=True)
    name = str(summary["benchmark"])
    kind = benchmark_class(name)
    settings = validated(kind.config, summary.get("settings", {}), f"{section(name)}.")
    benchmark = kind(settings)
    fresh = folder.fresh()
    items = benchmark.load(fresh, str(summary.get("split", next(iter(kind.splits)))))
    before: Mapping[str, str] = summary.get("data", {})
    if other := [file for file, known in before.items() if fresh.hashes.get(file, known) != known]:
        raise UsageError(f"{results.path} was asked on other data than there is now: {', '.join(other)}")
    if lost := records.keys() - {item.id for item in items}:
        raise DataError(f"{results.path} has item {min(lost)!r}, which is not in {name}; ask anew")
    return Stored(
        results=results,
        summary=summary,
        benchmark=benchmark,
        items=[item for item in items if item.id in records],
        of=len(items),
        records=records,
        settings=settings.model_dump(mode="json"),
        hashes={**before, **dict(sorted(fresh.hashes.items()))},
    )


def _regraded(stored: Stored, export: Export | None) -> Outcome:
    records = {item.id: _again(stored.benchmark, item, stored.records[item.id]) for item in stored.items}
    changed = sum(records[id_].score != stored.records[id_].score for id_ in records)
    pairs = graded(stored.items, records)
    answered = [(item, records[item.id]) for item in stored.items]
    table, notes = leaderboard_of(stored.benchmark, stored.items, records, _prices(stored.summary))
    kept = _set_aside(stored.results)
    outcome = Outcome(
        name=stored.benchmark.name,
        results=stored.results,
        figures=stored.benchmark.figures(pairs) if pairs else [],
        records=list(records.values()),
        seconds=float(stored.summary.get("seconds", 0.0)),
        spending=stored.summary.get("spending", {}),
        of=stored.of,
        notes=(_note(changed, len(records), kept), *notes),
        leaderboard=table,
        prerequisites=Prerequisites(stored.results.path, resume=True).records(),
        exported=export.write(stored.benchmark, answered, slug(stored.policy)) if export else (),
    )
    stored.results.rewrite(records.values())
    stored.results.write_summary(_summary(stored, outcome, changed, kept))
    return outcome


def _prices(summary: Mapping[str, Any]) -> Prices | None:
    """Return the prices of the policy's tokens that the summary holds, or None."""
    match summary.get("leaderboard"):
        case {"prices": {"prompt": int() | float() as prompt, "sampled": int() | float() as sampled}}:
            return Prices(prompt=prompt, sampled=sampled)
        case _:
            return None


def _again(benchmark: Benchmark, item: Item, record: Record) -> Record:
    if record.status == FAILED:
        return record
    overflow = record.status == OVERFLOW
    grade = (
        benchmark.unanswered(item, record.explanation) if overflow else benchmark.grade(item, record.answer)
    )
    return replace(
        record,
        groups=item.groups,
        cluster=item.cluster,
        score=grade.score,
        measures=grade.measures,
        explanation=grade.explanation,
        unread=tuple(grade.unread),
    )


def _note(changed: int, count: int, kept: Path) -> str:
    return f"regraded: {changed} of {count} scores are other than before; those are kept in {kept}"


def _set_aside(results: Results) -> Path:
    """Copy the results to unused file names, and return the path of the copied records."""
    number = 1
    while (kept := results.path.with_name(f"{results.path.stem}{KEPT}{number}.jsonl")).exists():
        number += 1
    shutil.copyfile(results.summary, Results(kept).summary)
    shutil.copyfile(results.path, kept)
    return kept


def _summary(stored: Stored, outcome: Outcome, changed: int, kept: Path) -> JsonObject:
    before = stored.summary
    rules = dict(stored.benchmark.describe())
    if "judge" in before.get("rules", {}):
        rules["judge"] = before["rules"]["judge"]  # its replies are stored among the answers
    return {
        "complete": bool(before.get("complete")) and not outcome.failed,
        **{key: before.get(key) for key in IDENTITY},
        "genenv": __version__,
        "settings": stored.settings,
        "data": dict(stored.hashes),
        "rules": rules,
        "limit": before.get("limit"),
        "regraded": {
            "genenv_before": before.get("genenv"),
            "rules_before": before.get("rules"),
            "scores_changed": changed,
            "kept": kept.name,
        },
        **outcome.summary(),
    }
