"""Evaluates a policy on benchmarks and writes the results to disk (`genenv eval`).

`regrade` grades stored answers again with the current code and rules, without a model. Settings, policy,
sampling and prompt version stay as stored. The version of genenv, the rules and the hashes of data files are
updated. The old results are kept as `.before-1` files.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import shutil
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast

from pydantic import BaseModel

from genenv import config as release
from genenv.chat.assistant import Assistant
from genenv.config.tables import validated
from genenv.errors import DataError, UsageError, spelled
from genenv.evaluation.base import Answered, Benchmark, Exports, HasLeaderboard, Item, Judged, Prices
from genenv.evaluation.config import ALL, BENCHMARKS, OTHERS, EvaluationConfig, benchmark_class, section
from genenv.evaluation.data import DataFolder
from genenv.evaluation.models import ENDPOINT, assistant
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
from genenv.evaluation.runner import Prerequisites, Runner, choose, closing, graded
from genenv.files import check_writable, write_whole
from genenv.progress import Reporter, staged
from genenv.texts import masked
from genenv.types import JsonObject

_LONGEST_NAME = 150

_Costs = Mapping[str, float]
"""What assistants have spent, by kind (`Assistant.spending`)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The arguments of an evaluation: benchmarks, policy and options of `genenv eval`."""

    names: Sequence[str]
    policy: str
    split: str | None = None
    limit: int | None = None
    data: Path | None = None
    changed_data: bool = False
    out: Path | None = None
    resume: bool = False
    judge: str | None = None
    """The model that judges answers in benchmarks with free-form answers."""
    export: Path | None = None
    """The folder in which to write the answers as files for the authors' scorers."""


@dataclass(frozen=True, slots=True)
class _Prepared:
    """A benchmark with its loaded items and result files, before rollouts start."""

    benchmark: Benchmark
    split: str
    items: Sequence[Item]
    hashes: JsonObject
    results: Results
    of: int
    """The number of items in the split; `--limit` selects fewer."""


@dataclass(frozen=True, slots=True)
class _Begun:
    """A benchmark whose result files are open for appending."""

    prepared: _Prepared
    identity: Mapping[str, Any]
    records: dict[str, Record]
    before: Mapping[str, Any]
    """The summary of an earlier run with the same identity; empty if there was none."""


def evaluate(request: Request, config: EvaluationConfig, reporter: Reporter) -> Iterator[Outcome]:
    """Evaluate a policy on benchmarks, one after the other, and yield each outcome.

    Names, files and earlier results are checked before the first rollout.

    Raises:
        GenenvError: a name, a file, an earlier result or the model is unusable; the user can fix it.
    """
    names = check(request)
    settled = {name: benchmark_class(name).settled(config.benchmarks[name], request.policy) for name in names}
    config = replace(config, benchmarks={**config.benchmarks, **settled})
    export = None if request.export is None else Export(request.export, request.policy)
    folder = DataFolder.from_environment(request.data, allow_changed=request.changed_data)
    prepared = [_prepare(name, request, config, folder, len(names)) for name in names]
    judged = [one.benchmark for one in prepared if request.judge and isinstance(one.benchmark, Judged)]
    with contextlib.ExitStack() as claims:
        for one in prepared:
            claims.enter_context(one.results.claimed(resume=request.resume))
        with reporter.stage(f"loading {masked(request.policy)}", items=None, unit=""):
            model = assistant(request.policy, config.policy, config.endpoint, config.sampling)
        if request.judge and judged:
            with reporter.stage(f"loading the judge, {masked(request.judge)}", items=None, unit=""):
                judge = assistant(request.judge, config.policy, config.endpoint, config.sampling, model)
            for benchmark in judged:
                benchmark.judge = judge
        identities = [_identity(one, model, request, config) for one in prepared]
        opened = [one.results.open(identity) for one, identity in zip(prepared, identities, strict=True)]
        for one, identity, found in zip(prepared, identities, opened, strict=True):
            outcome = _measure(_Begun(one, identity, *found), model, request, config, reporter)
            if export is not None:
                answered = list(zip(one.items, outcome.records, strict=True))
                files = export.write(one.benchmark, answered, slug(request.policy))
                outcome = replace(outcome, exported=files)
            yield outcome


def check(request: Request) -> list[str]:
    """Check all names of a request, without reading benchmark files or loading a model.

    Returns:
        The names of the benchmarks, each once.

    Raises:
        UsageError: a benchmark or split is unknown, or none of the benchmarks supports an option.
    """
    typed = [spelled(name, [*BENCHMARKS, *OTHERS, ALL]) for name in request.names]
    names = list(dict.fromkeys(one for name in typed for one in (BENCHMARKS if name == ALL else [name])))
    kinds = [benchmark_class(name) for name in names]
    known = {name: kind.splits for name, kind in zip(names, kinds, strict=True)}
    if request.split is not None and not any(
        spelled(request.split, of_one) in of_one for of_one in known.values()
    ):
        listed = "; ".join(f"{name} has {', '.join(of_one)}" for name, of_one in known.items())
        raise UsageError(f"there is no split {request.split!r}: {listed}")
    if request.judge and not any(isinstance(kind(), Judged) for kind in kinds):
        raise UsageError("none of these benchmarks takes a judge; bamboogle does")
    if request.export and not any(isinstance(kind(), Exports) for kind in kinds):
        raise UsageError("none of these benchmarks has an export; bfcl and travelplanner have")
    if request.out is not None and request.out.suffix == ".jsonl" and len(names) > 1:
        raise UsageError(f"{request.out} is one file for {len(names)} benchmarks; give --out a folder")
    return names


def read_files(request: Request, config: EvaluationConfig) -> list[str]:
    """Check a request and read the files of its benchmarks, without writing anything or loading a model.

    Returns:
        The names of the benchmarks, each once.

    Raises:
        GenenvError: a name is unknown, or a file is missing or damaged.
    """
    names = check(request)
    folder = DataFolder.from_environment(request.data, allow_changed=request.changed_data)
    for name in names:
        _prepare(name, request, config, folder, len(names))
    return names


def _prepare(
    name: str, request: Request, config: EvaluationConfig, folder: DataFolder, count: int
) -> _Prepared:
    kind = benchmark_class(name)
    benchmark = kind(config.benchmarks[name])
    split = _split(benchmark, request.split)
    fresh = folder.fresh()
    everything = benchmark.load(fresh, split)
    items = choose(everything, request.limit)
    out = _out(request, name, split, count, config.benchmarks[name])
    hashes = dict(sorted(fresh.hashes.items()))
    return _Prepared(benchmark, split, items, hashes, Results(out), len(everything))


def _split(benchmark: Benchmark, asked: str | None) -> str:
    """Return the requested split, or the default split if the benchmark does not have it."""
    named = None if asked is None else spelled(asked, benchmark.splits)
    return named if named is not None and named in benchmark.splits else next(iter(benchmark.splits))


def _out(request: Request, name: str, split: str, count: int, settings: BaseModel) -> Path:
    if request.out is not None and (count == 1 and request.out.suffix == ".jsonl"):
        return request.out
    folder = request.out or Path("evaluations") / slug(request.policy)
    chosen = settings.model_dump(mode="json", exclude_defaults=True)
    parts = [name, split, *(plain(f"{key}={value}") for key, value in chosen.items())]
    return folder / f"{'-'.join(parts)[:_LONGEST_NAME]}.jsonl"


def slug(policy: str) -> str:
    """Return a policy's name in a form that is safe for a folder name."""
    return plain(policy.partition("#")[2] if policy.startswith(ENDPOINT) else policy) or "policy"


def plain(text: str) -> str:
    """Return a text in a form that is safe within a file name."""
    return re.sub(r"[^A-Za-z0-9.@_=-]+", "-", text).strip("-.")


def _measure(
    begun: _Begun, model: Assistant, request: Request, config: EvaluationConfig, reporter: Reporter
) -> Outcome:
    prepared, records, seed = begun.prepared, begun.records, config.sampling.seed
    benchmark, results, items = prepared.benchmark, prepared.results, prepared.items
    done = [records[item.id] for item in items if item.id in records and records[item.id].status != FAILED]
    answered = {record.id for record in done}
    asked = [item for item in items if item.id not in answered]
    asked.sort(key=lambda item: item.id in records and len(records[item.id].conversation) > 0)  # failed: last

    def keep(record: Record) -> None:
        results.append(record)
        records[record.id] = record

    judge = benchmark.judge if isinstance(benchmark, Judged) else None
    began, others = time.monotonic(), _spending(model, judge)

    def costs() -> dict[str, Any]:
        """Return the cost of this benchmark, with that of the commands that this one goes on from."""
        known: _Costs = begun.before.get("spending", {})
        spent = _spending(model, judge)
        return {
            "seconds": round(float(begun.before.get("seconds", 0.0)) + time.monotonic() - began, 1),
            "spending": {
                key: round(known.get(key, 0) + value - others.get(key, 0), 6) for key, value in spent.items()
            },
        }

    before = Prerequisites(results.path, resume=bool(begun.before))
    try:
        if asked:
            results.write_summary({**read_summary(results.summary), "complete": False})
            before.hold(benchmark, model, asked, seed=seed, reporter=reporter)
            with staged(reporter, f"{benchmark.name} ({prepared.split})", items=len(asked), unit="items"):
                run = Runner(benchmark, model, seed=seed, keep=keep)
                asyncio.run(closing(run.items(asked, done), model, judge))
    except BaseException:
        results.write_summary({**read_summary(results.summary), **costs()})
        raise
    results.rewrite({**{item.id: records[item.id] for item in items}, **records}.values())
    pairs = graded(items, records)
    table, notes = leaderboard_of(benchmark, items, records, _prices(request, config))
    outcome = Outcome(
        name=benchmark.name,
        results=results,
        figures=benchmark.figures(pairs) if pairs else [],
        records=[records[item.id] for item in items],
        **costs(),
        of=prepared.of,
        notes=notes,
        leaderboard=table,
        prerequisites=before.records(),
    )
    regraded = {"regraded": regraded} if (regraded := begun.before.get("regraded")) else {}
    results.write_summary(
        {
            "complete": not outcome.failed,
            **begun.identity,
            "limit": request.limit,
            **regraded,
            **outcome.summary(),
        }
    )
    return outcome


def _spending(model: Assistant, judge: Assistant | None) -> _Costs:
    """Return what the policy has spent, and what the judge has, as `judge_tokens` and so on."""
    of_judge = {} if judge is None else {f"judge_{key}": one for key, one in judge.spending().items()}
    return cast(_Costs, {**model.spending(), **of_judge})


def _prices(request: Request, config: EvaluationConfig) -> Prices | None:
    """Return the prices of the policy's tokens, or None if the settings have none."""
    endpoint = config.endpoint
    if not request.policy.startswith(ENDPOINT) or not (endpoint.price_in or endpoint.price_out):
        return None
    return Prices(prompt=endpoint.price_in, sampled=endpoint.price_out)


def leaderboard_of(
    benchmark: Benchmark, items: Sequence[Item], records: Mapping[str, Record], prices: Prices | None
) -> tuple[JsonObject, Sequence[str]]:
    """Return the row of the authors' leaderboard and notes on it; both empty if there is no leaderboard."""
    if not isinstance(benchmark, HasLeaderboard):
        return {}, ()
    answered = [(item, records[item.id]) for item in items if records[item.id].status != FAILED]
    return benchmark.leaderboard(answered, prices)


def _identity(
    prepared: _Prepared, model: Assistant, request: Request, config: EvaluationConfig
) -> dict[str, Any]:
    """Return everything that identifies the measurement; `--resume` requires it to be equal."""
    benchmark = prepared.benchmark
    return {
        "genenv": release.__version__,
        "benchmark": benchmark.name,
        "split": prepared.split,
        "settings": config.benchmarks[benchmark.name].model_dump(mode="json"),
        "prompt_version": benchmark.prompt_version,
        "policy": {"name": masked(request.policy), **model.describe()},
        "sampling": config.sampling.model_dump(mode="json"),
        "data": prepared.hashes,
        "rules": benchmark.describe(),
    }


MANIFEST = "genenv-export.json"
"""The file in an export's folder that names its policy; other folders with files are refused."""


class Export:
    """The folder of one policy's exported answers, as files for the authors' scorers (`--export`)."""

    def __init__(self, folder: Path, policy: str) -> None:
        """Accept a new or empty folder, or the folder of an earlier export of the same policy.

        Args:
            folder: the folder.
            policy: the policy's name, as given to `--policy` or with its password masked.

        Raises:
            UsageError: the path is a file, or the folder holds other files.
        """
        self.folder, self._policy = folder, masked(policy)
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"{folder} is a file; give --export a folder")
        manifest = folder / MANIFEST
        if manifest.is_file():
            theirs = masked(_policy_in(manifest))
            if theirs != self._policy:
                raise UsageError(f"{folder} holds an export of {theirs}; give --export another folder")
        elif folder.exists() and any(folder.iterdir()):
            raise UsageError(f"{folder} holds other files; give --export a new folder")
        check_writable(folder, "--export")

    def write(self, benchmark: Benchmark, answered: Sequence[Answered], name: str) -> list[Path]:
        """Write a benchmark's files, replacing those of an earlier export.

        Args:
            benchmark: the benchmark; if it has no `export`, nothing is written.
            answered: its items and their records; failed ones are left out.
            name: the policy's name, safe for a file name.

        Returns:
            The paths of the written files.
        """
        if not isinstance(benchmark, Exports):
            return []
        asked = [(item, record) for item, record in answered if record.status != FAILED]
        files = benchmark.export(asked, name)
        if not files:
            return []
        self.folder.mkdir(parents=True, exist_ok=True)
        manifest = {"genenv": release.__version__, "policy": self._policy}
        write_whole(self.folder / MANIFEST, json.dumps(manifest, indent=2) + "\n")
        written: list[Path] = []
        for relative, text in files.items():
            path = self.folder / relative
            path.parent.mkdir(parents=True, exist_ok=True)
            write_whole(path, text)
            written.append(path)
        return written


def _policy_in(manifest: Path) -> str:
    try:
        found = json.loads(manifest.read_text(encoding="utf-8"))
        return str(found["policy"])
    except (ValueError, LookupError, TypeError, RecursionError) as error:
        raise UsageError(f"{manifest} is damaged; give --export another folder") from error


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
        """Return the policy's name, as given to `--policy`, with its password masked."""
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
    with contextlib.ExitStack() as locks:
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
    found = without_kept(path.rglob(f"*{SUMMARY}"))
    if not found:
        raise UsageError(f"{path} holds no results of genenv eval; name a folder or a file of them")
    return [records_beside(summary) for summary in found]


def without_kept(summaries: Iterable[Path]) -> list[Path]:
    """Return summaries without those from before a regrading, sorted."""
    return sorted(path for path in summaries if KEPT not in path.name)


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
    table, notes = leaderboard_of(stored.benchmark, stored.items, records, _stored_prices(stored.summary))
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


def _stored_prices(summary: Mapping[str, Any]) -> Prices | None:
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
        "genenv": release.__version__,
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
