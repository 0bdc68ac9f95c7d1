"""The commands `genenv compare` (evaluations or runs side by side) and `genenv lab` (simulated learners)."""

from __future__ import annotations

import math
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from genenv.cli.console import pair_of, seeds_of
from genenv.cli.progress import ConsoleReporter
from genenv.cli.tables import comparison_table, show
from genenv.errors import UsageError, registered
from genenv.evaluation import compare as comparing
from genenv.files import check_writable, write_csv
from genenv.texts import inert

if TYPE_CHECKING:
    from genenv.research.simulation.learner import LabConfig
    from genenv.research.simulation.run import Row


ResultFiles = Annotated[
    list[Path],
    typer.Argument(
        metavar="RESULTS...",
        help="Results of one benchmark (.summary.json or .jsonl files of genenv eval); "
        "or folders of runs and sweeps.",
        show_default=False,
    ),
]


Contrasts = Annotated[
    list[str],
    typer.Option(
        "--contrast",
        metavar="A:B",
        help="Of runs: hold variant A against B. Repeatable; else as a sweep says.",
    ),
]
Metrics = Annotated[
    list[str],
    typer.Option(
        "--metric",
        metavar="NAME",
        help="Of runs: compare them by this metric too, such as tasks/mixed. Repeatable.",
    ),
]
At = Annotated[
    list[str],
    typer.Option(
        metavar="BUDGET=AMOUNT",
        help="Of runs: read success where each has spent this much, such as 'sampled tokens=200000', and not "
        "what the cheaper run of a pair spent. Repeatable.",
    ),
]
_LAST = 5
Last = Annotated[
    int | None,
    typer.Option(
        min=1,
        help=f"With --metric: of how many rounds, the last ones, its mean is taken; {_LAST} if left out.",
        show_default=False,
    ),
]
Out = Annotated[
    Path | None, typer.Option(help="Of runs: folder for a page with pictures, and CSV files beside it.")
]


def compare(
    results: ResultFiles,
    contrast: Contrasts = [],  # noqa: B006 - Typer's form
    metric: Metrics = [],  # noqa: B006 - Typer's form
    last: Last = None,
    at: At = [],  # noqa: B006 - Typer's form
    out: Out = None,
) -> None:
    """Put results side by side; the first is what the others are held against."""
    of_runs = bool(contrast or metric or at) or not (last is None and out is None)
    if missing := next((path for path in results if not path.exists()), None):
        known = "folders of runs or sweeps" if of_runs else "results of genenv eval, or folders of runs"
        raise UsageError(f"{missing} does not exist; name {known}")
    if any(path.is_dir() for path in results):
        if last is not None and not metric:
            raise UsageError("--last is of the metrics that --metric names; name one, or leave --last out")
        _runs(results, [pair_of(text) for text in contrast], metric, last or _LAST, _amounts(at), out)
    elif of_runs:
        raise UsageError(
            "--contrast, --metric, --last, --at and --out are for runs: name folders of runs or sweeps"
        )
    else:
        _evaluations(results)


def _amounts(asked: Sequence[str]) -> dict[str, float]:
    """Parse BUDGET=AMOUNT.

    Raises:
        UsageError: there is no such budget, or the amount is not a number above 0.
    """
    from genenv.research.sweeps.readings import BUDGETS

    found = dict[str, float]()
    for text in asked:
        name, _, amount = text.partition("=")
        budget = registered("budget", name.strip(), BUDGETS)
        if budget in found:
            raise UsageError(f"--at names {budget!r} twice; compare at one amount of each budget")
        try:
            found[budget] = float(amount)
        except ValueError:
            found[budget] = math.nan
        if not 0 < found[budget] < math.inf:
            raise UsageError(f"--at {text!r} must be BUDGET=AMOUNT with a number above 0, as attempts=5000")
    return found


def _runs(
    paths: list[Path],
    contrasts: list[tuple[str, str]],
    metrics: list[str],
    last: int,
    at: dict[str, float],
    out: Path | None,
) -> None:
    from genenv.research.sweeps import compare as sweeps

    if out is not None:
        check_writable(out)
    found = sweeps.compare(paths, contrasts, at=at)
    measured = sweeps.by_metric(found, metrics, last=last)
    console = Console(highlight=False)
    show(_table(sweeps.COLUMNS, sweeps.rows(found)), console)
    show(_table(sweeps.COST_COLUMNS, sweeps.costs(found)), console)
    if measured:
        show(_table(sweeps.METRIC_COLUMNS, sweeps.metric_rows(measured)), console)
    for line in sweeps.findings(found):
        console.print(Text(inert(line)), soft_wrap=True)
    for note in [*found.notes, *sweeps.metric_notes(measured, found)]:
        console.print(Text(inert(f"note: {note}"), style="bold"), soft_wrap=True)
    if out is not None:
        from genenv.research.sweeps.page import write_page

        if measured:
            write_csv(out / "metrics.csv", sweeps.metric_numbers(measured))
        title = " and ".join(path.resolve().name for path in paths[:3])
        page = write_page(found, out, title=title)
        console.print(Text(f"page: {page}"), soft_wrap=True)


def _table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    table = Table(box=box.SIMPLE_HEAD, show_edge=False)
    for name in columns:
        words = name in ("budget", "metric", "variant", "against", "verdict")
        table.add_column(name, no_wrap=True, justify="left" if words else "right")
    for row in rows:
        table.add_row(*(Text(inert(cell)) for cell in row))
    return table


def _evaluations(results: list[Path]) -> None:
    console = Console(highlight=False)
    found = comparing.compare(results)
    table, legend = comparison_table(found)
    show(table, console)
    for line in legend:
        console.print(Text(line), soft_wrap=True)
    for name, gain in zip(found.names[1:], found.gains, strict=True):
        if gain is not None:
            console.print(
                Text(
                    f"{name} minus {found.names[0]}, mean score over the {gain.items} items both answered: "
                    f"{gain.value:+z.1%} (95% {gain.low:+z.1%} to {gain.high:+z.1%})"
                ),
                soft_wrap=True,
            )
    for warning in found.warnings:
        console.print(Text(f"note: {warning}", style="bold"), soft_wrap=True)


Arms = Annotated[
    str, typer.Option(metavar="A,B,...", help="Arms by name; all when left out.", show_default=False)
]
Seeds = Annotated[
    str, typer.Option(metavar="N|FROM-TO", help="Runs of each arm: 1000 for seeds 0 to 999, or 1000-1999.")
]
Rounds = Annotated[int, typer.Option(min=1, max=1000, help="Rounds of a life.")]
Jobs = Annotated[int, typer.Option(min=1, max=256, help="Processes.")]
Copy = Annotated[
    float, typer.Option(min=0, max=1, help="Chance that the simulator copies its seed's difficulty.")
]
Settings = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="A setting of the laboratory, e.g. slope=2. Repeatable."),
]
LabOut = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="For lab.html, curves.csv and lives.csv.", show_default=False),
]


def lab(  # noqa: PLR0913 - Typer: a parameter an option
    arms: Arms = "",
    seeds: Seeds = "1000",
    rounds: Rounds = 10,
    jobs: Jobs = 2,
    copy: Copy = 0.0,
    out: LabOut = None,
    overrides: Settings = [],  # noqa: B006 - Typer's form
) -> None:
    """Compare curricula on simulated learners: thousands of runs in a minute, no model takes part."""
    from genenv.research.simulation.run import lab_config, run_arms, summary, write_page
    from genenv.research.simulation.simulated_run import chosen

    if out is not None:
        check_writable(out)
    config = lab_config(overrides, rounds=rounds, copy_share=copy)
    listed = seeds_of(seeds)
    names = list(chosen([name.strip() for name in arms.split(",") if name.strip()]))
    began = time.monotonic()
    with ConsoleReporter().stage("simulating", items=len(listed), unit="seeds") as advance:
        results = run_arms(names, config, seeds=listed, jobs=jobs, advance=lambda done: advance(0, done))
    rows = summary(results, config.goal)
    took_s = time.monotonic() - began
    show(_lab_table(rows, config, len(listed)), Console(highlight=False))
    typer.echo(
        f"{len(rows)} arms x {len(listed)} seeds x {rounds} rounds of {config.tasks * config.rollouts} "
        f"attempts in {took_s:.1f} s"
    )
    if out is not None:
        typer.echo(f"report: {write_page(out, results, config)}")


def _lab_table(rows: list[Row], config: LabConfig, seeds: int) -> Table:
    title = f"Held-out success after {config.rounds} rounds, {seeds} seeds"
    table = Table(box=box.SIMPLE_HEAD, title=title, title_justify="left", title_style="bold")
    table.add_column("arm", no_wrap=True)
    for column in ("held-out", "SE", "over random", "SE", f"attempts to {config.goal:g}", "mixed"):
        table.add_column(column, justify="right", no_wrap=True)
    table.add_column("what it is", no_wrap=True)
    for row in rows:
        table.add_row(
            row.arm,
            f"{row.held_out:.3f}",
            f"{row.error:.4f}",
            "-" if row.gain is None else f"{row.gain:+z.3f}",
            "-" if row.gain_error is None else f"{row.gain_error:.4f}",
            "-" if row.attempts is None else f"{row.attempts:,.0f}",
            f"{row.mixed:.0%}",
            row.about,
        )
    return table
