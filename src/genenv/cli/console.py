"""The first sign of life of a command, its last, and what a person types in between."""

from __future__ import annotations

import sys

import typer

from genenv.texts import inert, masked


def begin(what: str) -> None:
    """The first sign of life: libraries and models take seconds to load, and a log file shows no cursor."""
    typer.echo(f"{masked(inert(what))} ...", err=True)


def ended(text: str, status: int) -> typer.Exit:
    """The end of a command in one sentence on standard error, with an exit status."""
    typer.echo(f"genenv: {masked(inert(' '.join(text.split())))}", err=True)
    return typer.Exit(status)


def next_line(prompt: str) -> str | None:
    """The next line of standard input, a terminal or a pipe, without its end; None where there are no more.

    Args:
        prompt: says what is expected.
    """
    typer.echo(prompt, nl=False)
    line = sys.stdin.readline()
    if not line:
        typer.echo()
        return None
    return line.rstrip("\r\n")
