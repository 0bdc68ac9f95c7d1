"""`genenv reproduce`: the rows of the paper's comparison, trained on one configuration, as one table.

The rows are variants (`genenv.config.variants`) that share warm-ups, base share, size of rounds and number of
rounds. The runs are sweeps, so a reproduction is resumed and extended as they are:

OUT/rows/            the sweep of all rows
OUT/parameters/      that of rows whose simulator sets parameters, if CONFIG lets it write whole specs
OUT/offline.jsonl    tasks that one model wrote once
OUT/benchmarks/      results of the rows' agents on benchmarks (`genenv.evaluation`), if any are named
OUT/reproduce.md     the page; reproduce.html has the figures too
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from statistics import fmean

from genenv.backends.settings import PolicyConfig
from genenv.cli.generate import generate
from genenv.config.run import RunConfig, load_config
from genenv.environments import mixture, shown_name
from genenv.errors import UsageError, spelled, unknown_name
from genenv.evaluation.config import OTHERS, EvaluationConfig, load_evaluation_config
from genenv.evaluation.evaluate import Request, evaluate, read_files, without_kept
from genenv.evaluation.results import SUMMARY, figures_of, read_summary
from genenv.progress import Reporter
from genenv.research.sweeps.grid import FILE, Grid
from genenv.research.sweeps.readings import MeasuredRun, Measurement, read_all
from genenv.research.sweeps.sweep import is_done, play, warm_up
from genenv.simulator.source import read_specs
from genenv.statistics import Figure, counted

OFFLINE = "offline"
_FILE_TASKS = "simulator.file_tasks"
PARAMETERS = "parameters"
_OFFLINE_FILE = "offline.jsonl"


@dataclass(frozen=True, slots=True)
class Row:
    """One row of the table: a variant."""

    about: str
    """One line about it."""
    variant: str
    paper: str = ""
    """The paper's name; empty for what the paper does not have."""
    sets_parameters: bool = False
    """Whether its simulator sets parameters, so that it needs the warm-up of one that does."""


ROWS: Mapping[str, Row] = {
    "base": Row("base tasks only", "paper+base"),
    "supervised": Row("SFT on demonstrations of base tasks, no rollouts are learned from", "paper+base+sft"),
    "random": Row("an untrained simulator varies seeds", "paper+random", "GenEnv-Random"),
    "static": Row(
        "five specs a seed, written once by an untrained simulator", "paper+static", "GenEnv-Static"
    ),
    OFFLINE: Row("N tasks, written once by one model", f"paper+offline+{_FILE_TASKS}=", "Gemini-Offline"),
    "paper": Row("the simulator learns by the printed rule", "paper", "GenEnv"),
    "aim": Row(
        "the simulator sets parameters and is paid by predicted success", "matched+aim", sets_parameters=True
    ),
    "bandit": Row(
        "one of eight random variations, by earlier rollouts on the same skills; no model calls",
        "matched+variation+history",
    ),
    "scored": Row(
        "one of eight random variations, by the likelihood of its demonstration",
        "matched+variation+probe",
    ),
}
"""The rows by name. `offline` stands for one row for each number of tasks."""

ALL_ROWS = ",".join(ROWS)

BEFORE = "before training"
"""The row of agents after their warm-up."""

PAPER_FORMS = ("bfcl.protocol=genenv", "alfworld.form=step")
"""Settings of evaluations with which benchmarks are scored as in the paper."""

AGAINST = ("paper+random", "paper+base")
"""The variants that every other row is held against, the first of them that is there."""


def rows_of(names: Sequence[str], offline: Sequence[int]) -> dict[str, Row]:
    """Return the rows by name, `offline` as one for each number of tasks: `offline-957`.

    Raises:
        UsageError: there is no such row, or one is named twice.
    """
    found: dict[str, Row] = {}
    for name in names:
        if name not in ROWS:
            raise unknown_name("row", name, ROWS)
        row = ROWS[name]
        each = {f"{name}-{n}": _of_file(row, n) for n in offline} if name == OFFLINE else {name: row}
        if twice := found.keys() & each.keys():
            raise UsageError(f"row {min(twice)!r} is named twice; name it once")
        found |= each
    return found


def _row_of(variant: str) -> tuple[str, Row] | None:
    """Return the name and the row of a variant of a reproduction; None if it is no row's."""
    begin, _, n = variant.rpartition("=")
    if f"{begin}=" == ROWS[OFFLINE].variant:
        return f"{OFFLINE}-{n}", _of_file(ROWS[OFFLINE], int(n))
    return next(((name, row) for name, row in ROWS.items() if row.variant == variant), None)


def _of_file(row: Row, n: int) -> Row:
    about = row.about.replace("N tasks", f"{n:,} tasks")
    return Row(about, f"{row.variant}{n}", f"{row.paper}, {n:,}")


@dataclass(frozen=True, slots=True)
class Measured:
    """Which benchmarks the agents are measured on, and how."""

    names: Sequence[str]
    config: EvaluationConfig
    limit: int | None = None
    """At most so many items of each."""
    data: Path | None = None
    """The folder of the benchmarks' files."""

    @classmethod
    def checked(
        cls, names: Sequence[str], policy: PolicyConfig, *, limit: int | None, data: Path | None
    ) -> Measured:
        """Find the benchmarks and read their files, before anything is trained.

        Args:
            names: the benchmarks.
            policy: settings of the runs, from which device and threads are taken.
            limit: at most so many items of each.
            data: the folder of the benchmarks' files; None: GENENV_DATA.

        Raises:
            UsageError: there is no such benchmark, or the weights of these runs are elsewhere.
            GenenvError: a file is missing or damaged.
        """
        if not policy.learns_here:
            raise UsageError(
                f"--benchmarks needs weights in the folders of runs, but policy.backend is {policy.backend!r}"
            )
        if strange := next((name for name in names if spelled(name, OTHERS) in OTHERS), None):
            raise UsageError(f"--benchmarks names {strange!r}, which our table has as columns already")
        words = [*PAPER_FORMS, f'policy.device="{policy.device}"', f"policy.threads={policy.threads}"]
        config = load_evaluation_config(words)
        asked = cls(names, config, limit, data)
        return replace(asked, names=read_files(asked.request(names, policy="", out=None), config))

    def request(self, names: Sequence[str], *, policy: str, out: Path | None) -> Request:
        """Return the request that measures one agent."""
        return Request(names=names, policy=policy, limit=self.limit, data=self.data, out=out, resume=True)


def headline(folder: Path, benchmark: str, limit: int | None) -> Figure | None:
    """Return the main figure of a complete evaluation in a folder; None if there is none.

    Args:
        folder: the results of one agent.
        benchmark: name of the benchmark.
        limit: number of items that were asked for; None: all.

    Raises:
        DataError: a summary is damaged.
    """
    for file in without_kept(folder.glob(f"*{SUMMARY}")):
        summary = read_summary(file)
        if summary["benchmark"] == benchmark and summary.get("complete") and summary.get("limit") == limit:
            return figures_of(summary)[0]
    return None


@dataclass(frozen=True, slots=True)
class Reproduction:
    """The folder of a reproduction, and what is trained in it."""

    path: Path
    rows: Mapping[str, Row]
    """Those of this call."""
    grids: Sequence[Grid]
    """The sweeps that are there, those without a row of this call too."""
    writer: str = ""
    """The endpoint that writes the offline tasks; "" for the warmed-up simulator."""

    @property
    def offline(self) -> Path:
        """The tasks that one model wrote once."""
        return self.path / _OFFLINE_FILE

    @property
    def config(self) -> RunConfig:
        """The settings that the rows share."""
        return load_config(self.grids[0].config)

    @classmethod
    def begin(
        cls,
        path: Path,
        config: Path,
        overrides: Sequence[str],
        *,
        rows: Mapping[str, Row],
        seeds: Sequence[int],
        writer: str = "",
    ) -> Reproduction:
        """Plan the sweeps of all rows, or extend those that are there. A sweep of earlier rows is read too.

        Args:
            path: the folder of the reproduction.
            config: the settings that the rows share, TOML.
            overrides: settings as `key=value`.
            rows: the rows by name.
            seeds: the seeds of each row.
            writer: the endpoint that writes the offline tasks; "" for the warmed-up simulator.

        Raises:
            UsageError: a setting is wrong, the simulator is no model, or the folder holds another
                reproduction.
        """
        settings = load_config(config, overrides)
        if settings.simulator.source != "model":
            raise UsageError(
                f"simulator.source is {settings.simulator.source!r}, but a model writes in several rows; set "
                "it to 'model'"
            )
        if not settings.run.eval_every:
            raise UsageError("run.eval_every is 0, so nothing would be measured; set it to run.rounds")
        writes_specs = settings.simulator.writes != PARAMETERS
        if not (writes_specs or writer or (path / _OFFLINE_FILE).exists()) and any(
            _FILE_TASKS in row.variant for row in rows.values()
        ):
            raise UsageError(
                "the tasks of `offline` are whole specs, and the simulator is warmed up on parameters: name "
                f"an endpoint with --writer, put them into {path / _OFFLINE_FILE}, or leave `offline` out"
            )
        shared = [*overrides, f"simulator.file={(path / _OFFLINE_FILE).resolve()}"]
        plans = {
            "rows": (
                [row.variant for row in rows.values() if not (row.sets_parameters and writes_specs)],
                shared,
            ),
            PARAMETERS: (
                [row.variant for row in rows.values() if row.sets_parameters and writes_specs],
                [*overrides, f'simulator.writes="{PARAMETERS}"'],
            ),
        }
        grids = list[Grid]()
        for name, (variants, words) in plans.items():
            names, numbers = variants, seeds
            if not variants and (path / name / FILE).is_file():
                there = Grid.open(path / name)
                names, numbers = there.variants, there.seeds
            if names:
                grids.append(
                    Grid.begin(path / name, config, words, variants=names, seeds=numbers, shared_warmup=True)
                )
        return cls(path, rows, grids, writer)

    @property
    def trained(self) -> Sequence[Grid]:
        """The sweeps with a row of this call."""
        own = {row.variant for row in self.rows.values()}
        return [grid for grid in self.grids if not own.isdisjoint(grid.variants)]

    @property
    def known_rows(self) -> Mapping[str, Row]:
        """The rows by name, those of earlier calls too, in the order of `ROWS`."""
        variants = [variant for grid in self.grids for variant in grid.variants]
        there = dict(found for variant in variants if (found := _row_of(variant)) is not None) | dict(
            self.rows
        )
        order = list(ROWS)
        return dict(sorted(there.items(), key=lambda item: order.index(item[0].partition("-")[0])))

    def train(self, *, jobs: int, say: Callable[[str], None]) -> dict[str, str]:
        """Train all rows; return the last line of output of each run that failed, by its name.

        Raises:
            UsageError: there are too few offline tasks.
        """
        failed: dict[str, str] = {}
        sizes = [int(row.variant.partition(f"{_FILE_TASKS}=")[2] or 0) for row in self.rows.values()]
        self._check_offline(max(sizes))
        first = next(self.trained[0].warm_ups())
        for grid in self.trained:
            failed |= warm_up(grid, jobs=jobs, say=say).failed
            if max(sizes) and not self.offline.exists() and is_done(first):
                self._write(first.path, max(sizes))
                self._check_offline(max(sizes))
            failed |= play(grid, jobs=jobs, say=say).failed
        return failed

    def agents(self, rows: Mapping[str, Row] | None = None) -> Iterator[tuple[str, int, Path]]:
        """Yield (row, seed, run) of each agent that is there, first those before training (row `BEFORE`).

        Args:
            rows: the rows by name; None: those of this call.
        """
        by_variant = {row.variant: name for name, row in (self.rows if rows is None else rows).items()}
        warm_ups = {cell.seed: cell for grid in reversed(self.grids) for cell in grid.warm_ups()}
        for seed, cell in sorted(warm_ups.items()):
            if is_done(cell):
                yield BEFORE, seed, cell.path
        for grid in self.grids:
            for cell in grid.cells():
                if cell.variant in by_variant and is_done(cell):
                    yield by_variant[cell.variant], cell.seed, cell.path

    def measure(self, asked: Measured, reporter: Reporter) -> int:
        """Measure the agents on benchmarks; what is measured already is kept.

        Returns:
            How many items have no answer.

        Raises:
            GenenvError: a file, an earlier result or a model is unusable; so is a result of other weights,
                data or rules.
        """
        everyone, failed = list(self.agents()), 0
        for number, (name, seed, run) in enumerate(everyone, start=1):
            folder = self.measured(name, seed)
            if left := [one for one in asked.names if headline(folder, one, asked.limit) is None]:
                reporter.note(f"agent {number} of {len(everyone)}: {name}, seed {seed}, on {', '.join(left)}")
            request = asked.request(asked.names, policy=run.as_posix(), out=folder)
            for outcome in evaluate(request, asked.config, reporter):
                failed += len(outcome.failed)
        return failed

    def measured(self, row: str, seed: int) -> Path:
        """Return the folder with an agent's results on benchmarks."""
        return self.path / "benchmarks" / row.replace(" ", "-") / f"seed-{seed}"

    def _write(self, origin: Path, n: int) -> None:
        """Let a model write the tasks of the offline rows: an endpoint, or the warmed-up simulator."""
        endpoint = ["simulator.source=endpoint", f"simulator.address={self.writer}"] if self.writer else []
        settings = ['simulator.writes="spec"', 'curriculum.gate="full"', *endpoint]
        generate(n=n, run=origin, out=self.offline, overrides=settings)

    def _check_offline(self, n: int) -> None:
        """Check that the offline tasks, if they are written, are as many as the largest row has.

        Raises:
            UsageError: there are fewer.
        """
        there = len(read_specs(self.offline)) if n and self.offline.exists() else n
        if there < n:
            raise UsageError(
                f"{self.offline} has {there} tasks, and the row offline-{n} needs {n}: add lines to it, or "
                "choose fewer with --offline; to have them written anew, choose another --out"
            )


Columns = Mapping[str, float]
"""Success by column: a member of a mixture, or the one environment."""


@dataclass(frozen=True, slots=True)
class Result:
    """What came of one row."""

    name: str
    row: Row
    ends: Sequence[Columns] = ()
    """Held-out success at the end, by seed."""
    runs: Sequence[MeasuredRun] = ()
    """The finished runs, by seed."""

    def spent(self, budget: str) -> float:
        """Return what a run has spent of a budget (`readings.BUDGETS`) or `seconds` after its warm-up.

        The mean over seeds.
        """
        if not self.runs:
            return math.nan
        if budget == "seconds":
            return fmean(
                sum(one.get("time/round_s", 0.0) for number, one in run.metrics.items() if number)
                for run in self.runs
            )
        return fmean(run.measured[-1].spent[budget] - run.measured[0].spent[budget] for run in self.runs)


@dataclass(frozen=True, slots=True)
class Results:
    """All rows of a reproduction, as far as they are trained."""

    config: RunConfig
    columns: Mapping[str, int]
    """The number of held-out tasks of each column."""
    before: Sequence[Columns]
    """Held-out success after the warm-up, by seed."""
    rows: Sequence[Result]
    notes: Sequence[str] = field(default_factory=tuple[str, ...])
    benchmarks: Mapping[str, Sequence[Mapping[str, Figure]]] = field(
        default_factory=dict[str, Sequence[Mapping[str, Figure]]]
    )
    """Main figure of each benchmark, by row and seed; empty if none was measured."""

    @property
    def variants(self) -> Mapping[str, Sequence[MeasuredRun]]:
        """The finished runs by row."""
        return {one.name: one.runs for one in self.rows if one.runs}


def collect(reproduction: Reproduction, asked: Measured | None = None) -> Results:
    """Read the results of all rows that are trained.

    Args:
        reproduction: the rows.
        asked: the benchmarks on which their agents were measured; None: on none.

    Raises:
        UsageError: no run is finished.
    """
    runs, _, notes = read_all([grid.path for grid in reproduction.grids])
    rows = reproduction.known_rows
    is_offline = any(name.startswith(OFFLINE) for name in rows) and reproduction.offline.exists()
    if is_offline and not any(tokens for _, tokens in read_specs(reproduction.offline)):
        notes.append(f"{_OFFLINE_FILE} states no tokens, so those that wrote these tasks are in no budget")
    found = collect_runs(reproduction.config, rows, runs, place=reproduction.path, notes=notes)
    if asked is None:
        return found
    benchmarks, missing = _on_benchmarks(reproduction, asked)
    return replace(found, benchmarks=benchmarks, notes=[*found.notes, *missing])


def collect_runs(
    config: RunConfig,
    of_rows: Mapping[str, Row],
    runs: Sequence[MeasuredRun],
    *,
    place: Path,
    notes: Sequence[str] = (),
) -> Results:
    """Return the results of rows from runs that are read.

    Args:
        config: the settings that the runs share.
        of_rows: the rows by name.
        runs: the runs; those that are not finished are named in a note.
        place: where they were read, for the message.
        notes: notes from reading, which come first.

    Raises:
        UsageError: no run is finished.
    """
    unfinished = (f"{run.variant}, seed {run.seed} is not finished" for run in runs if not run.finished)
    notes = [*notes, *unfinished]
    finished = [run for run in runs if run.finished]
    if not finished:
        raise UsageError(f"no run in {place} is finished; {'; '.join(notes) or 'train some'}")
    by_column = [(run, columns(run, run.measured[-1])) for run in finished]
    begun = {run.seed: run for run in reversed(finished)}
    before = {seed: columns(run, run.measured[0]) for seed, run in begun.items()}
    notes += _other_beginnings(finished, begun)
    rows = [
        Result(
            name,
            row,
            [ends for run, ends in by_column if run.variant == row.variant],
            [run for run in finished if run.variant == row.variant],
        )
        for name, row in of_rows.items()
    ]
    last = finished[0].measured[-1].scores
    tasks = Counter(column_of(finished[0], name) for name in last)
    return Results(config, tasks, [before[seed] for seed in sorted(before)], rows, notes)


def _other_beginnings(runs: Sequence[MeasuredRun], begun: Mapping[int, MeasuredRun]) -> list[str]:
    """Return a sentence for each seed whose runs did not all begin with the same agent.

    Args:
        runs: all runs.
        begun: by seed, the run whose first measurement is the row before training.
    """
    notes: list[str] = []
    for seed, shown in sorted(begun.items()):
        own = [run for run in runs if run.seed == seed]
        other = [run.variant for run in own if run.measured[0].scores != shown.measured[0].scores]
        if other:
            notes.append(
                f"seed {seed} began otherwise in {', '.join(other)}: {BEFORE} is that of {shown.variant}"
            )
    return notes


def _on_benchmarks(
    reproduction: Reproduction, asked: Measured
) -> tuple[dict[str, list[Mapping[str, Figure]]], list[str]]:
    """Return the main figures by row and seed, and a sentence for each that is missing."""
    found: dict[str, list[Mapping[str, Figure]]] = {}
    notes: list[str] = []
    for name, seed, _ in reproduction.agents(reproduction.known_rows):
        folder = reproduction.measured(name, seed)
        figures = {one: headline(folder, one, asked.limit) for one in asked.names}
        found.setdefault(name, []).append({one: own for one, own in figures.items() if own is not None})
        lost = [_why_missing(folder, one) for one, own in figures.items() if own is None]
        notes += [f"{name}, seed {seed}: {', '.join(lost)}"] if lost else []
    return found, notes


def _why_missing(folder: Path, benchmark: str) -> str:
    summaries = map(read_summary, without_kept(folder.glob(f"*{SUMMARY}")))
    failed = [one.get("failed") for one in summaries if one["benchmark"] == benchmark]
    if n := next(filter(None, failed), 0):
        return f"{counted(n, 'item')} of {benchmark} without an answer"
    return f"{benchmark} is not measured"


def columns(run: MeasuredRun, measurement: Measurement) -> Columns:
    """Return held-out success by member of a mixture; of another environment, in one column."""
    found: dict[str, list[float]] = {}
    for task_id, score in measurement.scores.items():
        found.setdefault(column_of(run, task_id), []).append(score)
    return {name: fmean(scores) for name, scores in found.items()}


def column_of(run: MeasuredRun, task_id: str) -> str:
    """Return the column of a held-out task: its member of a mixture, or the environment."""
    env = shown_name(run.config.environment.name)
    return task_id.partition(":")[0] if env == mixture.NAME else env
