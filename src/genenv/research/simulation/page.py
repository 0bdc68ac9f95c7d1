"""The output folder of `genenv lab`: a page with charts and a table, and two CSV files."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from genenv.errors import UsageError
from genenv.files import write_csv, write_whole
from genenv.research.simulation.learner import LabConfig
from genenv.research.simulation.run import REFERENCE, ArmRuns, standard_error, summary
from genenv.types import JsonObject
from genenv.viewer.frozen import chart_page, line_chart

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
    lines = dict[str, dict[float, tuple[float, float, float]]]()
    for arm in sorted(results, key=lambda name: -float(results[name].final().mean())):
        own = results[arm]
        points = dict[float, tuple[float, float, float]]()
        for number in range(own.held_out.shape[1]):
            values = own.held_out[:, number]
            mean, half = float(values.mean()), 1.96 * float(standard_error(values))
            points[number] = (mean, mean - half, mean + half)
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
    columns = [own.final() for own in results.values()]
    numbers = [
        [str(seed), *(f"{value:.6f}" for value in row)] for seed, row in enumerate(zip(*columns, strict=True))
    ]
    return [["seed", *results], *numbers]
