"""The first sign of life of a command."""

from __future__ import annotations

import typer

from genenv.texts import inert, masked


def begin(what: str) -> None:
    """The first sign of life: libraries and models take seconds to load, and a log file shows no cursor."""
    typer.echo(f"{masked(inert(what))} ...", err=True)
