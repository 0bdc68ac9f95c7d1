"""`genenv compare`: results of several evaluations, or of several runs, side by side."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from genenv.cli.console import pair_of
from genenv.cli.tables import comparison_table, show
from genenv.errors import UsageError
from genenv.evaluation import compare as comparing
from genenv.files import check_writable
from genenv.texts import inert

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
Last = Annotated[
    int, typer.Option(min=1, help="Of how many rounds, the last ones, a metric's mean is taken.")
]
Out = Annotated[
    Path | None, typer.Option(help="Of runs: folder for a page with pictures, and CSV files beside it.")
]


def compare(
    results: ResultFiles,
    contrast: Contrasts = [],  # noqa: B006 - Typer's form
    metric: Metrics = [],  # noqa: B006 - Typer's form
    last: Last = 5,
    out: Out = None,
) -> None:
    """Put results side by side; the first is what the others are held against."""
    if any(path.is_dir() for path in results):
        _runs(results, [pair_of(text) for text in contrast], metric, last, out)
    elif contrast or metric or out is not None:
        raise UsageError("--contrast, --metric and --out are for runs: name folders of runs or sweeps")
    else:
        _evaluations(results)


def _runs(
    paths: list[Path], contrasts: list[tuple[str, str]], metrics: list[str], last: int, out: Path | None
) -> None:
    from genenv.research.sweeps import by_metric
    from genenv.research.sweeps.compare import compare as compared
    from genenv.research.sweeps.page import COLUMNS, rows, said, write_page

    if out is not None:
        check_writable(out)
    found = compared(paths, contrasts)
    measured = by_metric.by_metric(found, metrics, last=last)
    console = Console(highlight=False)
    show(_table(COLUMNS, rows(found)), console)
    if measured:
        show(_table(by_metric.COLUMNS, by_metric.rows(measured)), console)
    for line in said(found):
        console.print(Text(inert(line)), soft_wrap=True)
    for note in found.notes:
        console.print(Text(inert(f"note: {note}"), style="bold"), soft_wrap=True)
    if out is not None:
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
                    f"{gain.value:+.1%} (95% {gain.low:+.1%} to {gain.high:+.1%})"
                ),
                soft_wrap=True,
            )
    for warning in found.warnings:
        console.print(Text(f"note: {warning}", style="bold"), soft_wrap=True)
