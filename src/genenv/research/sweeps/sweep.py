"""`genenv sweep`: runs every variant of a configuration with every seed; resumable.

The cells of a grid run in parallel, each in its own process, so that a failure ends only one run.
"""

from __future__ import annotations

import os
import re
import runpy
import shlex
import signal
import sys
import threading
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from multiprocessing import get_all_start_methods, get_context, parent_process
from multiprocessing.connection import wait
from multiprocessing.process import BaseProcess
from pathlib import Path
from statistics import fmean
from typing import TYPE_CHECKING, Annotated

import typer

from genenv.cli.console import Overrides, begin, pair_of, seeds_of
from genenv.config.run import RunConfig, load_config
from genenv.errors import GenenvError
from genenv.files import locked
from genenv.research.sweeps.grid import WARM_UP, Cell, Grid, rounds_done
from genenv.texts import inert, masked
from genenv.threads import cores

if TYPE_CHECKING:
    from multiprocessing.context import ForkServerContext, SpawnContext

KEPT = "finished runs and committed rounds are kept, and the same command goes on"
"""The outcome to report if the command is interrupted."""

_OWN = ["genenv.cli.train"]
_LIBRARIES = ["genenv.backends.local.backend", "transformers.models.llama.modeling_llama"]
_NOT_IN_NAMES = re.compile(r"[^A-Za-z0-9._-]+")
_LONGEST_NAME = 80
"""The most characters of a variant's name in a run's name, which may have 100."""
_END_S = 20.0
"""Seconds that an interrupted run may take to end before it is killed."""


@dataclass(slots=True)
class Outcome:
    """The finished and failed cells of a grid."""

    done: list[Cell] = field(default_factory=list[Cell])
    failed: dict[str, str] = field(default_factory=dict[str, str])
    """The last line of output of each failed cell, by the cell's name."""


@dataclass(slots=True)
class _Running:
    cell: Cell
    process: BaseProcess
    began: float
    said_before: int = 0
    """Bytes of the log that an earlier process wrote."""


def play(grid: Grid, *, jobs: int, say: Callable[[str], None]) -> Outcome:
    """Run all cells that are not finished; the shared warm-ups were run before (`warm_up`).

    Args:
        grid: the grid; cells that were started are resumed.
        jobs: the number of parallel runs.
        say: called with a line whenever a cell ends, which includes the remaining time.

    Returns:
        The outcome of each cell. A failed cell is left as it is, and run again by the next call.
    """
    return _play(list(grid.cells()), "runs", grid, jobs, say)


def warm_up(grid: Grid, *, jobs: int, say: Callable[[str], None]) -> Outcome:
    """Run the shared warm-ups that are not finished; see `play`."""
    return _play(list(grid.warm_ups()), "warm-ups", grid, jobs, say)


def _play(cells: Sequence[Cell], kind: str, grid: Grid, jobs: int, say: Callable[[str], None]) -> Outcome:
    outcome, waiting = Outcome(), list[Cell]()
    for cell in cells:
        (outcome.done if is_done(cell) else waiting).append(cell)
    total, took = len(cells), list[float]()
    if outcome.done:
        say(f"{len(outcome.done)} of {total} {kind} are finished already")
    running: list[_Running] = []
    with _ended(running):
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(_begun(grid, waiting.pop(0), jobs))
            wait([one.process.sentinel for one in running])
            for one in [one for one in running if not one.process.is_alive()]:
                running.remove(one)
                seconds = time.monotonic() - one.began
                if is_done(one.cell):
                    took.append(seconds)
                    outcome.done.append(one.cell)
                    news = f"{one.cell.name} took {_time(seconds)}"
                else:
                    outcome.failed[one.cell.name] = _last_words(one)
                    news = f"{one.cell.name} failed: {outcome.failed[one.cell.name]}"
                ended = len(outcome.done) + len(outcome.failed)
                say(f"{ended} of {total} {kind}: {news}{_left(took, len(waiting) + len(running), jobs)}")
    return outcome


def threads_of(jobs: int) -> int:
    """Return the threads for each of `jobs` parallel runs, so that together they use each core once."""
    return max(1, cores() // jobs)


def _begun(grid: Grid, cell: Cell, jobs: int) -> _Running:
    cell.path.parent.mkdir(parents=True, exist_ok=True)
    config = load_config(grid.config)
    words = [*_words(grid, cell, config, threads_of(jobs)), "--out", str(cell.path)]
    said = cell.log.stat().st_size if cell.log.is_file() else 0
    environment = {**os.environ, "OMP_NUM_THREADS": str(threads_of(jobs))}
    process = _processes(config).Process(target=_train, args=(words, str(cell.log), environment, os.getcwd()))
    with _threads(environment["OMP_NUM_THREADS"]):
        process.start()
    return _Running(cell, process, time.monotonic(), said)


@contextmanager
def _threads(number: str) -> Generator[None]:
    """Set OMP_NUM_THREADS, which numpy reads when the forking process loads it; restore it at the end."""
    before = os.environ.get("OMP_NUM_THREADS")
    os.environ["OMP_NUM_THREADS"] = number
    try:
        yield
    finally:
        os.environ.pop("OMP_NUM_THREADS")
        if before is not None:
            os.environ["OMP_NUM_THREADS"] = before


def _processes(config: RunConfig) -> ForkServerContext | SpawnContext:
    """Return the multiprocessing context of runs: fork from a server process that has loaded the libraries.

    Loading them takes seconds, which is much for a small run. Spawn if forking from a server is unavailable.
    """
    if "forkserver" not in get_all_start_methods():
        return get_context("spawn")
    context = get_context("forkserver")
    context.set_forkserver_preload(_OWN + _LIBRARIES if config.policy.backend == "local" else _OWN)
    return context


def _train(words: Sequence[str], log: str, environment: Mapping[str, str], folder: str) -> None:
    """Run `genenv train` in this process; Ctrl+C reaches only the sweep, which interrupts its runs."""
    if hasattr(os, "setsid"):
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # the sweep may ignore SIGINT
    threading.Thread(target=_end_with_the_sweep, daemon=True).start()
    os.environ.clear()
    os.environ.update(environment)
    os.chdir(folder)
    with Path(log).open("ab") as said, Path(os.devnull).open("rb") as nothing:
        sys.stdout.flush()
        for theirs, ours in ((nothing, 0), (said, 1), (said, 2)):
            os.dup2(theirs.fileno(), ours)
    sys.argv = ["genenv", "train", *words]
    runpy.run_module("genenv", run_name="__main__")


def _end_with_the_sweep() -> None:
    """Interrupt this run when the sweep's process ends, since a killed sweep cannot interrupt its runs."""
    sweep = parent_process()
    if sweep is not None:
        wait([sweep.sentinel])
        os.kill(os.getpid(), signal.SIGINT)


def _words(grid: Grid, cell: Cell, config: RunConfig, threads: int) -> Sequence[str]:
    """Return the arguments of `genenv train` for a cell."""
    if (cell.path / "config.toml").is_file():
        return ["--resume"]
    settings = [
        f"run.seed={cell.seed}",
        f"run.name={_run_name(cell)}",
    ]
    if not cell.variant:
        settings.append("run.rounds=0")
    if config.policy.threads == 0:  # a measurement during other runs would vary
        settings.append(f"policy.threads={threads}")
    words = [str(grid.config), *(word for setting in settings for word in ("--set", setting))]
    if cell.variant:
        words += ["--variant", cell.variant]
    return words if cell.origin is None else [*words, "--from", cell.origin]


def _run_name(cell: Cell) -> str:
    """Return a run's name in charts: its variant, shortened if too long, and its seed."""
    return f"{_NOT_IN_NAMES.sub('-', cell.variant or WARM_UP)[:_LONGEST_NAME]}-{cell.seed}"


def is_done(cell: Cell) -> bool:
    """Return whether a run is finished and not damaged."""
    try:
        found = rounds_done(cell)
    except GenenvError:
        return False
    return found is not None and found[0] >= found[1]


def _last_words(ended: _Running) -> str:
    """Return why a run failed: the signal that killed it, or else the last line that it wrote."""
    log, code, lines = ended.cell.log, ended.process.exitcode or 0, list[str]()
    if code < 0:
        names = {one.value: one.name for one in signal.Signals}
        return f"it was killed by {names.get(-code, f'signal {-code}')} (see {log})"
    with suppress(OSError):  # it may have ended before it opened the log
        said = log.read_bytes()[ended.said_before :]
        lines = said.decode("utf-8", errors="replace").strip().splitlines()
    if not lines:
        return f"it said nothing (exit code {code})"
    return f"{lines[-1].removeprefix('genenv: ')[:300]} (see {log})"


def _left(took: Sequence[float], runs: int, jobs: int) -> str:
    if not took or not runs:
        return ""
    return f"; about {_time(fmean(took) * -(-runs // jobs))} left"


def _time(seconds: float) -> str:
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = seconds / 60
    return f"{minutes:.0f} min" if minutes < 100 else f"{minutes / 60:.1f} h"


@contextmanager
def _ended(running: Sequence[_Running]) -> Generator[None]:
    """Interrupt all runs when the block ends, so that each keeps its committed rounds."""
    try:
        yield
    finally:
        for one in running:
            if one.process.is_alive() and one.process.pid is not None:
                os.kill(one.process.pid, signal.SIGINT)
        for one in running:
            one.process.join(_END_S)
            if one.process.is_alive():
                one.process.kill()
                one.process.join()


SweepConfig = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="A TOML file that all runs share.", show_default=False)
]
Variants = Annotated[
    str, typer.Option(help="Names separated by commas; several joined by + are laid over each other.")
]
Seeds = Annotated[
    str,
    typer.Option(
        metavar="N|FROM-TO", help="Runs of each variant: 3 for seeds 0, 1, 2; or 100-109; or 0,2,10-12."
    ),
]
Jobs = Annotated[int, typer.Option(min=1, max=1024, help="Runs at a time; they share the cores.")]
Out = Annotated[Path | None, typer.Option(help="Folder of the sweep; runs/CONFIG-sweep when left out.")]
Contrasts = Annotated[
    list[str],
    typer.Option(
        "--contrast",
        metavar="A:B",
        help="A comparison named beforehand, for genenv compare; A is held against B. Repeatable.",
    ),
]
From = Annotated[
    str | None,
    typer.Option("--from", metavar="RUN@ROUND", help="All runs go on from there, e.g. from one warm-up."),
]
SharedWarmup = Annotated[
    bool,
    typer.Option(
        "--shared-warmup", help="One warm-up a seed, that of CONFIG; all its variants go on from there."
    ),
]


def sweep(  # noqa: PLR0913 - a command has the options it has
    config: SweepConfig,
    variants: Variants,
    seeds: Seeds = "3",
    jobs: Jobs = 1,
    out: Out = None,
    overrides: Overrides = [],  # noqa: B006 - Typer's form
    contrast: Contrasts = [],  # noqa: B006 - Typer's form
    origin: From = None,
    shared_warmup: SharedWarmup = False,
) -> None:
    """Play variants times seeds of one configuration; typed again, it goes on where it stopped."""
    from genenv.training.branching import Origin

    begin("looking at the sweep")
    if origin is not None:
        found = Origin.named(origin)
        origin = f"{found.folder.path.resolve()}@{found.round}"
    path = out or Path("runs") / f"{config.stem}-sweep"
    grid = Grid.begin(
        path,
        config,
        overrides,
        variants=[name.strip() for name in variants.split(",") if name.strip()],
        seeds=seeds_of(seeds),
        contrasts=[pair_of(text) for text in contrast],
        origin=origin,
        shared_warmup=shared_warmup,
    )
    total = len(grid.variants) * len(grid.seeds)
    typer.echo(
        f"{total} runs, {jobs} at a time with {threads_of(jobs)} threads each, in {path}; "
        "the first to end says how long the rest will take",
        err=True,
    )
    with locked(path, path / ".lock"):

        def say(line: str) -> None:
            typer.echo(masked(inert(line)), err=True)

        for line in (*grid.replaced_parts(), *grid.unused_warmups()):
            say(line)
        warm_up(grid, jobs=jobs, say=say)
        outcome = play(grid, jobs=jobs, say=say)
    typer.echo(f"{len(outcome.done)} of {total} runs are finished; compare them: genenv compare {path}")
    for name, why in outcome.failed.items():
        typer.echo(masked(inert(f"failed: {name}: {why}")))
    if outcome.failed:
        typer.echo(
            f"typed again, the command tries them again; their folders are in {shlex.quote(str(path))}"
        )
        raise typer.Exit(1)
