"""`genenv report`: a page of a run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from genenv.report import write_report

Run = Annotated[
    Path,
    typer.Argument(metavar="RUN", help="The folder of a run, such as runs/demo.", show_default=False),
]


def report(run: Run) -> None:
    """Make RUN/report.html: pictures of the run, and tasks with the agent's attempts."""
    typer.echo(f"report: {write_report(run)}")
