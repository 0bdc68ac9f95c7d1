"""The first sign of life of a command, and its last."""

from __future__ import annotations

import typer

from genenv.texts import inert, masked


def begin(what: str) -> None:
    """The first sign of life: libraries and models take seconds to load, and a log file shows no cursor."""
    typer.echo(f"{masked(inert(what))} ...", err=True)


def ended(text: str, status: int) -> typer.Exit:
    """The end of a command in one sentence on standard error, with an exit status."""
    typer.echo(f"genenv: {masked(inert(' '.join(text.split())))}", err=True)
    return typer.Exit(status)
