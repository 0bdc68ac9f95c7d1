"""Plays the runs of a grid, some at a time, each in a process of its own: one that fails ends no other."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import fmean

from genenv.config.run import load_config
from genenv.errors import GenenvError
from genenv.experiments.grid import Cell, Grid, rounds_done

_LOOK_EVERY_S = 0.2
_END_S = 20.0
"""How long an interrupted run may take to end before it is killed."""


@dataclass(slots=True)
class Outcome:
    """What became of the cells of a grid."""

    done: list[Cell] = field(default_factory=list[Cell])
    failed: dict[str, str] = field(default_factory=dict[str, str])
    """By the cell's name: the last thing it said."""


@dataclass(slots=True)
class _Running:
    cell: Cell
    process: subprocess.Popen[bytes]
    began: float


def play(grid: Grid, *, jobs: int, say: Callable[[str], None]) -> Outcome:
    """Play all cells that are not finished.

    Args:
        grid: the grid; cells that were begun go on where they stopped.
        jobs: how many at a time.
        say: is told a line whenever a cell ends, with the time that is left.

    Returns:
        What became of each cell. A cell that fails is left as it is, and tried again by the next call.
    """
    outcome, waiting = Outcome(), list[Cell]()
    for cell in grid.cells():
        (outcome.done if _is_done(cell, outcome) else waiting).append(cell)
    total, took = len(outcome.done) + len(waiting), list[float]()
    if outcome.done:
        say(f"{len(outcome.done)} of {total} runs are finished already")
    running: list[_Running] = []
    with _ended(running):
        while waiting or running:
            while waiting and len(running) < jobs:
                running.append(_begun(grid, waiting.pop(0), jobs))
            time.sleep(_LOOK_EVERY_S)
            for one in [one for one in running if one.process.poll() is not None]:
                running.remove(one)
                seconds = time.monotonic() - one.began
                if _is_done(one.cell, outcome):
                    took.append(seconds)
                    outcome.done.append(one.cell)
                    outcome.failed.pop(one.cell.name, None)
                    news = f"{one.cell.name} took {_time(seconds)}"
                else:
                    outcome.failed[one.cell.name] = _last_words(one.cell)
                    news = f"{one.cell.name} failed: {outcome.failed[one.cell.name]}"
                ended = len(outcome.done) + len(outcome.failed)
                say(f"{ended} of {total} runs: {news}{_left(took, len(waiting) + len(running), jobs)}")
    return outcome


def threads_of(jobs: int) -> int:
    """How many threads each of some runs at a time gets, so that together they have the cores once."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(1, cores // jobs)


def _begun(grid: Grid, cell: Cell, jobs: int) -> _Running:
    cell.path.parent.mkdir(parents=True, exist_ok=True)
    threads = threads_of(jobs)
    with cell.log.open("ab") as log:
        process = subprocess.Popen(  # noqa: S603 - our own program, with paths and numbers
            [sys.executable, "-m", "genenv", "train", *_words(grid, cell, threads), "--out", str(cell.path)],
            stdout=log,
            stderr=log,
            stdin=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": str(threads)},
            start_new_session=True,  # an interrupt by hand comes to us, and we tell them
        )
    return _Running(cell, process, time.monotonic())


def _words(grid: Grid, cell: Cell, threads: int) -> Sequence[str]:
    """What is typed after `genenv train`."""
    if (cell.path / "config.toml").is_file():
        return ["--resume"]
    settings = [f"run.seed={cell.seed}", f"run.name={cell.variant.replace('+', '-')}-{cell.seed}"]
    if load_config(grid.config).policy.threads == 0:  # measured beside other runs, each would differ
        settings.append(f"policy.threads={threads}")
    said = [word for setting in settings for word in ("--set", setting)]
    origin = [] if grid.origin is None else ["--from", grid.origin]
    return [str(grid.config), "--variant", cell.variant, *said, *origin]


def _is_done(cell: Cell, outcome: Outcome) -> bool:
    try:
        found = rounds_done(cell)
    except GenenvError as error:
        outcome.failed[cell.name] = str(error)
        return False
    return found is not None and found[0] >= found[1] > 0


def _last_words(cell: Cell) -> str:
    lines = cell.log.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    said = lines[-1].removeprefix("genenv: ") if lines else "it said nothing"
    return f"{said[:300]} (see {cell.log})"


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
    """Whatever ends the block ends the runs: by an interrupt, so that each keeps its committed rounds."""
    try:
        yield
    finally:
        for one in running:
            one.process.send_signal(signal.SIGINT)
        for one in running:
            try:
                one.process.wait(_END_S)
            except subprocess.TimeoutExpired:
                one.process.kill()
                one.process.wait()
