"""Many simulated runs: every arm over the same seeds, in parallel; the result is the same for any `jobs`.

Shapes: n = seeds, R = rounds.
"""

from __future__ import annotations

import math
import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass

import numpy as np

from genenv.config.tables import apply_override, check_keys, validated
from genenv.errors import UsageError
from genenv.research.simulation.learner import Floats, LabConfig
from genenv.research.simulation.simulated_run import ARMS, Curve, SimulatedRun, chosen
from genenv.types import Json

_CHUNK = 20
"""Seeds that a process takes at once; all arms of a seed are lived in one process."""


@dataclass(frozen=True, slots=True)
class ArmRuns:
    """One arm over all seeds."""

    arm: str
    held_out: Floats
    """[n, R + 1] as in `Curve`."""
    mixed: Floats
    """[n, R]."""
    attempts: int
    """Of a round."""

    def final(self) -> Floats:
        """[n] held-out success after the last round."""
        return self.held_out[:, -1]

    def attempts_to(self, goal: float) -> float | None:
        """Attempts until held-out success first reached a level, the median over seeds.

        Between rounds the curve is taken as straight. None where fewer than half of the seeds got there.
        """
        needed = [_first_reached(curve, goal) * self.attempts for curve in self.held_out]
        median = float(np.median(needed))
        return median if math.isfinite(median) else None


def lab_config(overrides: Sequence[str], **said: Json) -> LabConfig:
    """Settings of the laboratory.

    Args:
        overrides: `key=value`.
        said: settings that have options of their own; an override wins.

    Raises:
        UsageError: an unknown setting, a value that is not allowed, or more contexts than seeds.
    """
    values: dict[str, Json] = dict(said)
    for override in overrides:
        apply_override(values, override)
    check_keys(values, list(LabConfig.model_fields))
    config = validated(LabConfig, values, "")
    if config.contexts > (seeds := config.skills * config.levels):
        raise UsageError(
            f"contexts is {config.contexts}, but skills x levels are {seeds} seeds; set it lower"
        )
    return config


def run_arms(
    names: Sequence[str],
    config: LabConfig,
    *,
    seeds: int,
    jobs: int = 1,
    advance: Callable[[int], None] = lambda seeds: None,
) -> dict[str, ArmRuns]:
    """Live every arm's every seed.

    Args:
        names: arms; all of them when empty.
        config: of the laboratory.
        seeds: how many, from 0 on.
        jobs: processes.
        advance: called with how many more seeds are done.

    Raises:
        UsageError: no such arm, or a process was killed.
    """
    arms = list(chosen(names))
    found: dict[str, list[Curve]] = {name: [] for name in arms}
    for part in _parts(arms, config, seeds, jobs):
        for name, curves in part.items():
            found[name] += curves
        advance(len(next(iter(part.values()))))
    return {
        name: ArmRuns(
            name,
            np.array([curve.held_out for curve in curves]),
            np.array([curve.mixed for curve in curves]),
            config.tasks * config.rollouts,
        )
        for name, curves in found.items()
    }


def standard_error(values: Floats) -> float:
    """Of the mean; nan for a single value."""
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


def _parts(
    arms: Sequence[str], config: LabConfig, seeds: int, jobs: int
) -> Iterator[Mapping[str, list[Curve]]]:
    """The curves of all arms, some seeds after the other, in order."""
    chunks = [range(first, min(first + _CHUNK, seeds)) for first in range(0, seeds, _CHUNK)]
    if jobs == 1:
        yield from (_runs(arms, config, chunk) for chunk in chunks)
        return
    spawn = multiprocessing.get_context("spawn")  # a fork of a process with threads may hang
    try:
        with ProcessPoolExecutor(jobs, mp_context=spawn, initializer=_leave_interrupts_to_the_parent) as pool:
            futures = [pool.submit(_runs, arms, config, chunk) for chunk in chunks]
            try:
                for future in futures:
                    yield future.result()
            finally:
                pool.shutdown(wait=False, cancel_futures=True)
    except BrokenProcessPool as error:
        raise UsageError("a process of the laboratory was killed; try again with --jobs 1") from error


def _leave_interrupts_to_the_parent() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)


def _runs(arms: Sequence[str], config: LabConfig, seeds: range) -> dict[str, list[Curve]]:
    return {name: [SimulatedRun(ARMS[name], config, seed).run() for seed in seeds] for name in arms}


def _first_reached(curve: Floats, goal: float) -> float:
    """Rounds until a curve reaches a level, not always a whole number; infinite where it does not."""
    above = np.flatnonzero(curve >= goal)
    if not len(above):
        return math.inf
    after = int(above[0])
    if after == 0:
        return 0.0
    before = float(curve[after - 1])
    return after - 1 + (goal - before) / (float(curve[after]) - before)


REFERENCE = "random"
"""The arm that the others are held against."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One arm."""

    arm: str
    about: str
    held_out: float
    """After the last round, the mean over seeds."""
    error: float
    """Its standard error."""
    gain: float | None
    """Held-out success minus that of the reference, the mean over seeds; None without the reference."""
    gain_error: float | None
    """The standard error of the paired differences, in which what a seed's arms share cancels."""
    attempts: float | None
    """Until the goal was reached, the median over seeds; None where fewer than half of them got there."""
    mixed: float
    """Share of attempted tasks with mixed outcomes, over all rounds."""


def summary(results: Mapping[str, ArmRuns], goal: float) -> list[Row]:
    """The rows of the table."""
    reference = results.get(REFERENCE)
    rows: list[Row] = []
    for name, own in results.items():
        gains = None if reference is None else own.final() - reference.final()
        rows.append(
            Row(
                arm=name,
                about=ARMS[name].about,
                held_out=float(own.final().mean()),
                error=standard_error(own.final()),
                gain=None if gains is None else float(gains.mean()),
                gain_error=None if gains is None else standard_error(gains),
                attempts=own.attempts_to(goal),
                mixed=float(own.mixed.mean()),
            )
        )
    return sorted(rows, key=lambda row: -row.held_out)
