"""The command line. A wrong input ends in one sentence that says what is wrong and what to do, exit status 2."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console

from genenv import __version__
from genenv.errors import GenenvError

app = typer.Typer(
    name="genenv",
    help="Train an LLM agent on tasks that a second LLM learns to write for it (GenEnv, arXiv:2512.19682).",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)

ConfigFile = Annotated[Path, typer.Argument(help="A TOML file, such as configs/quickstart.toml.", show_default=False)]
RunPath = Annotated[Path, typer.Argument(help="The folder of a run, such as runs/demo.", show_default=False)]
Override = Annotated[
    list[str], typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, e.g. run.seed=1. Repeatable.")
]


@app.command()
def train(
    config: ConfigFile,
    out: Annotated[Path | None, typer.Option(help="Folder of the run; runs/NAME when left out.")] = None,
    overrides: Override = [],  # noqa: B006 - Typer's form
    resume: Annotated[bool, typer.Option("--resume", help="Continue the run in --out with its own settings.")] = False,
) -> None:
    """Co-evolve an agent and its simulator."""
    from genenv.commands import train_run

    train_run(config, out, overrides, resume=resume)


@app.command()
def generate(
    config: ConfigFile,
    n: Annotated[int, typer.Option("--n", min=1, help="How many tasks.")] = 8,
    run: Annotated[Path | None, typer.Option(help="A run whose trained simulator writes; else an untrained one.")] = None,
    out: Annotated[Path | None, typer.Option(help="JSONL file for the tasks; printed when left out.")] = None,
    overrides: Override = [],  # noqa: B006 - Typer's form
) -> None:
    """Write checked tasks, without training anything."""
    from genenv.commands import generate_tasks

    generate_tasks(config, overrides, n=n, run=run, out=out)


@app.command()
def report(run: RunPath) -> None:
    """Make RUN/report.html: pictures of the run, and tasks with the agent's attempts."""
    from genenv.report import write_report

    page = write_report(run)
    for line in summary(run):
        typer.echo(line)
    typer.echo(f"report: {page}")


@app.command()
def doctor() -> None:
    """Say what works on this machine, and how to get the rest."""
    from genenv.doctor import examine

    Console(highlight=False).print(examine())


def summary(run: Path) -> list[str]:
    """Five lines on a run."""
    from genenv.commands import summarise

    return summarise(run)


@app.callback(invoke_without_command=True)
def root(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    """Options of every command."""
    if version:
        typer.echo(f"genenv {__version__}")
        raise typer.Exit


@contextlib.contextmanager
def one_sentence() -> Iterator[None]:
    """Turn what the user can mend into one sentence and exit status 2."""
    try:
        yield
    except GenenvError as error:
        typer.echo(f"genenv: {error}", err=True)
        sys.exit(2)
    except KeyboardInterrupt:
        typer.echo("genenv: stopped; committed rounds are kept, continue with --resume", err=True)
        sys.exit(130)
    except OSError as error:
        where = f" {error.filename}" if error.filename else ""
        typer.echo(f"genenv: the system refused to work on{where or ' a file'}: {error.strerror}", err=True)
        sys.exit(2)


def main() -> None:
    """Entry point of the `genenv` command."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    logging.basicConfig(level=logging.WARNING, format="genenv: %(message)s")
    with one_sentence():
        app()
