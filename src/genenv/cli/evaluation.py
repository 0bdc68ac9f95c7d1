"""What `genenv eval` and `genenv compare` print."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console
from rich.text import Text

from genenv.cli.console import ConsoleReporter
from genenv.cli.tables import comparison_table, figures_table, show
from genenv.evaluation.command import Outcome, Request, evaluate
from genenv.evaluation.compare import compare
from genenv.evaluation.config import load_evaluation_config
from genenv.evaluation.regrade import regrade

_FAILED = 1
"""Exit status when items were not answered."""


def run_evaluations(request: Request, overrides: Sequence[str]) -> None:
    """Measure, and print a table for each benchmark.

    Raises:
        GenenvError: anything the user can mend.
        typer.Exit: items failed (status 1), or the user stopped it (130).
    """
    config = load_evaluation_config(overrides)
    console = Console(highlight=False)
    failed = 0
    try:
        for outcome in evaluate(request, config, ConsoleReporter()):
            show_outcome(outcome, console)
            failed += len(outcome.failed)
    except KeyboardInterrupt as error:
        typer.echo("genenv: stopped; items that were done are kept, continue with --resume", err=True)
        raise typer.Exit(130) from error
    if failed:
        raise typer.Exit(_FAILED)


def run_regrading(
    paths: Sequence[Path], data: Path | None, *, changed_data: bool, export: Path | None
) -> None:
    """Grade stored answers again, and print a table for each evaluation.

    Raises:
        GenenvError: anything the user can mend.
        typer.Exit: some items have no answer (status 1).
    """
    console, failed = Console(highlight=False), 0
    for outcome in regrade(paths, data, changed_data=changed_data, export=export):
        show_outcome(outcome, console)
        failed += len(outcome.failed)
    if failed:
        raise typer.Exit(_FAILED)


def show_outcome(outcome: Outcome, console: Console) -> None:
    """Print one benchmark's figures, and what a reader must know beside them."""
    asked, seconds = len(outcome.records), outcome.seconds
    part = "" if asked == outcome.of else f", {asked} of {outcome.of} items"
    show(figures_table(f"{outcome.name}{part}", outcome.figures), console)
    console.print(
        Text(
            f"{asked} items in {seconds:,.0f} s, {outcome.tokens('prompt'):,} prompt tokens, "
            f"{outcome.tokens('sampled'):,} sampled, {outcome.tokens('cut'):,} of "
            f"{outcome.tokens('replies'):,} replies cut off by the token limit"
        )
    )
    if outcome.overflow:
        console.print(Text(f"{outcome.overflow} items do not fit into the model's window: wrong"))
    if outcome.failed:
        console.print(
            Text(
                f"{len(outcome.failed)} of {asked} items were not answered and are in no figure "
                f"({outcome.failed[0].explanation}); ask for them again with --resume",
                style="bold",
            )
        )
    for note in outcome.notes:
        console.print(Text(note), soft_wrap=True)
    for path in outcome.exported:
        console.print(Text(f"exported: {path}"), soft_wrap=True)
    console.print(Text(f"items: {outcome.results.path}\nsummary: {outcome.results.summary}"), soft_wrap=True)


def show_comparison(paths: Sequence[Path]) -> None:
    """Print a table of several results.

    Raises:
        GenenvError: anything the user can mend.
    """
    console = Console(highlight=False)
    found = compare(paths)
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
