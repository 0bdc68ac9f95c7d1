"""`genenv lab`: curricula on simulated learners."""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table

from genenv.cli.progress import ConsoleReporter
from genenv.cli.tables import show
from genenv.files import check_writable

if TYPE_CHECKING:
    from genenv.research.simulation.settings import LabConfig
    from genenv.research.simulation.summary import Row

Arms = Annotated[
    str, typer.Option(metavar="A,B,...", help="Arms by name; all when left out.", show_default=False)
]
Seeds = Annotated[int, typer.Option(min=1, max=1_000_000, help="Lives of each arm.")]
Rounds = Annotated[int, typer.Option(min=1, max=1000, help="Rounds of a life.")]
Jobs = Annotated[int, typer.Option(min=1, max=256, help="Processes.")]
Copy = Annotated[
    float, typer.Option(min=0, max=1, help="Chance that the simulator copies its seed's difficulty.")
]
Settings = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="A setting of the laboratory, e.g. slope=2. Repeatable."),
]
Out = Annotated[
    Path | None,
    typer.Option(metavar="FOLDER", help="For lab.html, curves.csv and lives.csv.", show_default=False),
]


def lab(  # noqa: PLR0913 - Typer: a parameter an option
    arms: Arms = "",
    seeds: Seeds = 1000,
    rounds: Rounds = 10,
    jobs: Jobs = 2,
    copy: Copy = 0.0,
    out: Out = None,
    overrides: Settings = [],  # noqa: B006 - Typer's form
) -> None:
    """Compare curricula on simulated learners: thousands of runs in a minute, no model takes part."""
    from genenv.research.simulation.arms import chosen
    from genenv.research.simulation.run import lab_config, run_arms
    from genenv.research.simulation.summary import summary

    if out is not None:
        check_writable(out)
    config = lab_config(overrides, rounds=rounds, copy_share=copy)
    names = list(chosen([name.strip() for name in arms.split(",") if name.strip()]))
    began = time.monotonic()
    with ConsoleReporter().stage("simulating", items=seeds, unit="seeds") as advance:
        lives = run_arms(names, config, seeds=seeds, jobs=jobs, advance=lambda done: advance(0, done))
    rows = summary(lives, config.goal)
    took_s = time.monotonic() - began
    show(_table(rows, config, seeds), Console(highlight=False))
    typer.echo(
        f"{len(rows)} arms x {seeds} seeds x {rounds} rounds of {config.tasks * config.rollouts} attempts "
        f"in {took_s:.1f} s"
    )
    if out is not None:
        from genenv.research.simulation.page import write_page

        typer.echo(f"report: {write_page(out, lives, config)}")


def _table(rows: list[Row], config: LabConfig, seeds: int) -> Table:
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
            "-" if row.gain is None else f"{row.gain:+.3f}",
            "-" if row.gain_error is None else f"{row.gain_error:.4f}",
            "-" if row.attempts is None else f"{row.attempts:,.0f}",
            f"{row.mixed:.0%}",
            row.about,
        )
    return table
