"""How a command begins, reads what a person types, and how it ends or is stopped."""

from __future__ import annotations

import contextlib
import signal
import sys
import threading
from collections.abc import Generator

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


class Terminated(KeyboardInterrupt):
    """SIGTERM, as batch systems and containers stop a command: it ends as after Ctrl-C."""


@contextlib.contextmanager
def stoppable(kept: str) -> Generator[None]:
    """Work that Ctrl-C and SIGTERM end with one sentence, and with status 130 and 143, as shells count.

    Args:
        kept: what is kept of the work, for the sentence.

    Raises:
        typer.Exit: it was stopped.
    """

    def terminate(*_: object) -> None:
        raise Terminated

    main = threading.current_thread() is threading.main_thread()
    before = signal.getsignal(signal.SIGTERM)
    ours = main and before is signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    except KeyboardInterrupt as error:
        number = signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT
        raise ended(f"stopped; {kept}", 128 + number) from error
    finally:
        if ours:
            signal.signal(signal.SIGTERM, before)
