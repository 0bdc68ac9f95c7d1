"""Evaluates a policy on benchmarks and writes the results to disk (`genenv eval`)."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from genenv import config as release
from genenv.chat.assistant import Assistant
from genenv.errors import UsageError, spelled
from genenv.evaluation.base import Answered, Benchmark, Exports, HasLeaderboard, Item, Judged, Prices
from genenv.evaluation.config import ALL, BENCHMARKS, OTHERS, EvaluationConfig, benchmark_class
from genenv.evaluation.data import DataFolder
from genenv.evaluation.models import ENDPOINT, assistant
from genenv.evaluation.results import FAILED, Outcome, Record, Results
from genenv.evaluation.runner import Prerequisites, Runner, choose, graded
from genenv.files import check_writable, write_whole
from genenv.progress import Reporter, staged
from genenv.texts import masked
from genenv.types import JsonObject

_LONGEST_NAME = 150


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
                judge = assistant(request.judge, config.policy, config.endpoint, config.sampling)
            for benchmark in judged:
                benchmark.judge = judge
        begun = [_begin(one, model, request, config) for one in prepared]
        for one in begun:
            outcome = _measure(one, model, request, config, reporter)
            yield outcome if export is None else _exported(outcome, one.prepared, request, export)


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
        benchmark = benchmark_class(name)(config.benchmarks[name])
        benchmark.load(folder.fresh(), _split(benchmark, request.split))
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
    return plain(policy.rpartition("#")[2] if policy.startswith(ENDPOINT) else policy) or "policy"


def plain(text: str) -> str:
    """Return a text in a form that is safe within a file name."""
    return re.sub(r"[^A-Za-z0-9.@_=-]+", "-", text).strip("-.")


def _begin(prepared: _Prepared, model: Assistant, request: Request, config: EvaluationConfig) -> _Begun:
    identity = _identity(prepared, model, request, config)
    return _Begun(prepared, identity, *prepared.results.open(identity))


def _measure(
    begun: _Begun, model: Assistant, request: Request, config: EvaluationConfig, reporter: Reporter
) -> Outcome:
    prepared, records, seed = begun.prepared, begun.records, config.sampling.seed
    benchmark, results, items = prepared.benchmark, prepared.results, prepared.items
    done = [records[item.id] for item in items if item.id in records and records[item.id].status != FAILED]
    answered = {record.id for record in done}
    asked = [item for item in items if item.id not in answered]

    def keep(record: Record) -> None:
        results.append(record)
        records[record.id] = record

    began = time.monotonic()
    before = Prerequisites(results.path, resume=bool(begun.before))
    if asked:
        before.hold(benchmark, model, asked, seed=seed, reporter=reporter)
        with staged(reporter, f"{benchmark.name} ({prepared.split})", items=len(asked), unit="items"):
            asyncio.run(Runner(benchmark, model, seed=seed, keep=keep).items(asked, done))
    results.rewrite({**{item.id: records[item.id] for item in items}, **records}.values())
    pairs = graded(items, records)
    table, notes = leaderboard_of(benchmark, items, records, _prices(request, config))
    outcome = Outcome(
        name=benchmark.name,
        results=results,
        figures=benchmark.figures(pairs) if pairs else [],
        records=[records[item.id] for item in items],
        seconds=float(begun.before.get("seconds", 0.0)) + time.monotonic() - began,
        spending=model.spending(),
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


def _exported(outcome: Outcome, prepared: _Prepared, request: Request, export: Export) -> Outcome:
    answered = list(zip(prepared.items, outcome.records, strict=True))
    return replace(outcome, exported=export.write(prepared.benchmark, answered, slug(request.policy)))


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
            policy: the policy's name, as given to `--policy`.

        Raises:
            UsageError: the path is a file, or the folder holds other files.
        """
        self.folder, self._policy = folder, policy
        if folder.exists() and not folder.is_dir():
            raise UsageError(f"{folder} is a file; give --export a folder")
        manifest = folder / MANIFEST
        if manifest.is_file():
            theirs = _policy_in(manifest)
            if theirs != policy:
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
