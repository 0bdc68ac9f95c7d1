"""Runs all arms of `genenv lab` over the same seeds in parallel, and writes its page and CSV files.

Results do not depend on `jobs`.

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
from pathlib import Path
from statistics import fmean

import numpy as np

from genenv.config.tables import apply_override, check_keys, validated
from genenv.errors import UsageError
from genenv.files import write_csv, write_whole
from genenv.research.simulation.learner import Floats, LabConfig
from genenv.research.simulation.simulated_run import ARMS, Curve, SimulatedRun, chosen
from genenv.statistics import mean_interval
from genenv.types import Json, JsonObject

_CHUNK = 20
"""Seeds per work item of a process, which simulates all arms of these seeds."""


@dataclass(frozen=True, slots=True)
class ArmRuns:
    """The runs of one arm over all seeds."""

    arm: str
    seeds: Sequence[int]
    """The seeds, [n]."""
    held_out: Floats
    """True success after each round, as in `Curve`, [n, R + 1]."""
    mixed: Floats
    """The share of tasks with mixed outcomes in each round, [n, R]."""
    attempts: int
    """Rollouts per round."""

    def final(self) -> Floats:
        """Return held-out success after the last round, [n]."""
        return self.held_out[:, -1]

    def attempts_to(self, goal: float) -> float | None:
        """Return the median over seeds of the rollouts until held-out success first reached `goal`.

        Success is interpolated linearly between rounds. If half of the seeds reached the goal, it is the last
        of these; None if fewer did.
        """
        needed = sorted(_first_reached(curve, goal) * self.attempts for curve in self.held_out)
        middle = needed[(len(needed) - 1) // 2 : len(needed) // 2 + 1]
        reached = [one for one in middle if math.isfinite(one)]
        return fmean(reached) if reached else None


def lab_config(overrides: Sequence[str], **said: Json) -> LabConfig:
    """Return the settings of the simulation.

    Args:
        overrides: settings of the form `key=value`.
        said: settings given by command-line options; `overrides` take precedence.

    Raises:
        UsageError: a setting is unknown, a value is not allowed, or there are more contexts than seeds.
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
    seeds: Sequence[int],
    jobs: int = 1,
    advance: Callable[[int], None] = lambda seeds: None,
) -> dict[str, ArmRuns]:
    """Simulate every arm with every seed, and return the runs by arm.

    Args:
        names: the arms; empty: all.
        config: the settings of the simulation.
        seeds: the seeds.
        jobs: the number of processes.
        advance: called with the number of seeds just completed.

    Raises:
        UsageError: there is no such arm, or a process was killed.
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
            seeds,
            np.array([curve.held_out for curve in curves]),
            np.array([curve.mixed for curve in curves]),
            config.tasks * config.rollouts,
        )
        for name, curves in found.items()
    }


def standard_error(values: Floats) -> float:
    """Return the standard error of the mean; NaN for a single value."""
    return float(values.std(ddof=1) / math.sqrt(len(values))) if len(values) > 1 else math.nan


def _parts(
    arms: Sequence[str], config: LabConfig, seeds: Sequence[int], jobs: int
) -> Iterator[Mapping[str, list[Curve]]]:
    """Yield the curves of all arms for one chunk of seeds after the other, in order."""
    chunks = [seeds[first : first + _CHUNK] for first in range(0, len(seeds), _CHUNK)]
    if jobs == 1:
        yield from (_runs(arms, config, chunk) for chunk in chunks)
        return
    spawn = multiprocessing.get_context("spawn")  # forking a process with threads may hang
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


def _runs(arms: Sequence[str], config: LabConfig, seeds: Sequence[int]) -> dict[str, list[Curve]]:
    return {name: [SimulatedRun(ARMS[name], config, seed).run() for seed in seeds] for name in arms}


def _first_reached(curve: Floats, goal: float) -> float:
    """Return the interpolated round at which a curve first reaches `goal`; infinity if it never does."""
    above = np.flatnonzero(curve >= goal)
    if not len(above):
        return math.inf
    after = int(above[0])
    if after == 0:
        return 0.0
    before = float(curve[after - 1])
    return after - 1 + (goal - before) / (float(curve[after]) - before)


REFERENCE = "random"
"""The arm that all others are compared with."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The results of one arm: a row of the table."""

    arm: str
    about: str
    held_out: float
    """Held-out success after the last round, the mean over seeds."""
    error: float
    """The standard error of `held_out`."""
    gain: float | None
    """The mean over seeds of held-out success minus the reference's; None without the reference."""
    gain_error: float | None
    """The standard error of `gain`, from differences paired by seed."""
    attempts: float | None
    """Rollouts until the goal was reached, the median over seeds; None if fewer than half of the seeds
    reached it.
    """
    mixed: float
    """The share of rolled-out tasks with mixed outcomes, over all rounds."""


def summary(results: Mapping[str, ArmRuns], goal: float) -> list[Row]:
    """Return the rows of the table, with the highest held-out success first."""
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


_ENDS = (REFERENCE, "oracle")
"""Arms that every chart shows."""
_READING = (
    "The mean over seeds, with its 95% interval. All arms of a seed have the same learner and the same luck."
)


def write_page(folder: Path, results: Mapping[str, ArmRuns], config: LabConfig) -> Path:
    """Write `lab.html`, `curves.csv` (a row per arm and round) and `lives.csv` (a row per seed).

    Equal results give equal bytes.

    Args:
        folder: the output folder, created if missing.
        results: the runs of every arm, by its name.
        config: the settings of all runs.

    Returns:
        The page.

    Raises:
        UsageError: the path is a file.
    """
    if folder.exists() and not folder.is_dir():
        raise UsageError(f"{folder} is a file; name a folder with --out")
    folder.mkdir(parents=True, exist_ok=True)
    write_csv(folder / "curves.csv", _curves(results))
    write_csv(folder / "lives.csv", _lives(results))
    write_whole(folder / "lab.html", render(results, config))
    return folder / "lab.html"


def render(results: Mapping[str, ArmRuns], config: LabConfig) -> str:
    """Return the page as HTML."""
    from genenv.viewer.frozen import chart_page  # takes a while to load

    return chart_page(
        "genenv.research",
        "lab.html",
        _charts(results),
        title="Simulated learners",
        maker="genenv lab",
        config=config,
        seeds=len(next(iter(results.values())).held_out),
        attempts=config.tasks * config.rollouts,
        reference=REFERENCE,
        rows=summary(results, config.goal),
    )


def _charts(results: Mapping[str, ArmRuns]) -> list[JsonObject]:
    """Return a chart of the curricula and, if there are several, a chart of the simulator's rewards."""
    paid = {name for name in results if name.startswith("state") or name == "shuffled"}
    curricula = {name: own for name, own in results.items() if name not in paid or name == "state"}
    rewards = {name: own for name, own in results.items() if name in paid or name in _ENDS}
    charts = [_chart("Held-out success of each curriculum", curricula)]
    if len(paid) > 1:
        charts.append(_chart("Held-out success under each reward", rewards))
    return [chart for chart in charts if chart is not None]


def _chart(title: str, results: Mapping[str, ArmRuns]) -> JsonObject | None:
    """Return mean held-out success by round with its 95% interval, the best arm first."""
    from genenv.viewer.frozen import line_chart  # takes a while to load

    lines = dict[str, dict[float, tuple[float, float, float]]]()
    for arm in sorted(results, key=lambda name: -float(results[name].final().mean())):
        own = results[arm]
        points = dict[float, tuple[float, float, float]]()
        for number in range(own.held_out.shape[1]):
            points[number] = mean_interval(own.held_out[:, number].tolist())
        lines[arm] = points
    return line_chart(title, _READING, lines, axis="round")


def _curves(results: Mapping[str, ArmRuns]) -> list[list[str]]:
    """Return held-out success by arm and round: means over seeds and their standard errors."""
    rows = [["arm", "round", "attempts", "held_out", "standard_error", "mixed"]]
    for name, own in results.items():
        for number in range(own.held_out.shape[1]):
            values = own.held_out[:, number]
            mixed = f"{own.mixed[:, number - 1].mean():.6f}" if number else ""
            mean, error = f"{values.mean():.6f}", f"{standard_error(values):.6f}"
            rows.append([name, str(number), str(number * own.attempts), mean, error, mixed])
    return rows


def _lives(results: Mapping[str, ArmRuns]) -> list[list[str]]:
    """Return held-out success after the last round, with a row per seed and a column per arm."""
    seeds = next(iter(results.values())).seeds
    columns = [own.final() for own in results.values()]
    numbers = [
        [str(seed), *(f"{value:.6f}" for value in row)] for seed, *row in zip(seeds, *columns, strict=True)
    ]
    return [["seed", *results], *numbers]
