"""`genenv compare`: results of several evaluations side by side."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.text import Text

from genenv.cli.tables import comparison_table, show
from genenv.evaluation import compare as comparing

ResultFiles = Annotated[
    list[Path],
    typer.Argument(
        metavar="RESULTS...",
        help="Results of one benchmark: .summary.json or .jsonl files of genenv eval.",
        show_default=False,
    ),
]


def compare(results: ResultFiles) -> None:
    """Put results side by side; the first is what the others are held against."""
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
                    f"{gain.value:+.1%} (95% {gain.low:+.1%} to {gain.high:+.1%})"
                ),
                soft_wrap=True,
            )
    for warning in found.warnings:
        console.print(Text(f"note: {warning}", style="bold"), soft_wrap=True)
