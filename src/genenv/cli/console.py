"""What all commands share: options, the first line of output, reading a line, ending and being stopped."""

from __future__ import annotations

import contextlib
import json
import signal
import sys
import threading
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from genenv.errors import UsageError
from genenv.texts import inert, masked

Config = Annotated[
    Path | None,
    typer.Argument(
        metavar="[CONFIG]",
        help="A TOML file, or the name of one that comes with genenv, such as quickstart; "
        "a run that is named has its own.",
        show_default=False,
    ),
]
Overrides = Annotated[
    list[str],
    typer.Option("--set", metavar="KEY=VALUE", help="Override a setting, e.g. run.seed=1. Repeatable."),
]
VariantName = Annotated[
    str,
    typer.Option(
        "--variant",
        metavar="NAME",
        help="Settings laid over CONFIG by name, such as random, static, genenv, variation, rl; "
        "several joined by +. See docs/reference/configuration.md.",
        show_default=False,
    ),
]
Corpus = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.jsonl",
        help="Passages of your own, for environments that read any: sets environment.corpus.",
    ),
]

Host = Annotated[str, typer.Option(help="Address to listen on. Beyond loopback clients need an API key.")]
AllowHost = Annotated[
    list[str],
    typer.Option(
        "--allow-host",
        metavar="NAME",
        help="A name by which clients call this machine, beside localhost and --host. Repeatable.",
    ),
]
BodyMib = Annotated[
    float, typer.Option("--max-body-mib", min=0.01, max=4096, help="The largest body of a request, MiB.")
]
Requests = Annotated[
    int, typer.Option("--max-requests", min=1, max=1_000_000, help="How many requests may be under way.")
]


def begin(what: str) -> None:
    """Print what begins: libraries and models take seconds to load, and a log file shows no cursor."""
    typer.echo(f"{masked(inert(what))} ...", err=True)


def ended(text: str, status: int) -> typer.Exit:
    """End a command with one sentence on standard error and an exit status."""
    typer.echo(f"genenv: {masked(inert(' '.join(text.split())))}", err=True)
    return typer.Exit(status)


def next_line(prompt: str) -> str | None:
    """The next line of standard input, without its end; None at the end of the input.

    Args:
        prompt: what to print first.
    """
    typer.echo(prompt, nl=False)
    line = sys.stdin.readline()
    if not line:
        typer.echo()
        return None
    return line.rstrip("\r\n")


class Terminated(KeyboardInterrupt):
    """SIGTERM, by which batch systems and containers stop a command: it ends as after Ctrl-C."""


@contextlib.contextmanager
def stoppable(kept: str) -> Generator[None]:
    """Work that Ctrl-C and SIGTERM end with one sentence, and with status 130 and 143, as shells count.

    Args:
        kept: which work is kept, for the sentence.

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


def check_named(config: Path | None, instead: str, *, run: bool) -> None:
    """Refuse a command with neither a CONFIG nor a run.

    Args:
        config: the CONFIG, if named.
        instead: the option that names a run.
        run: whether a run is named.

    Raises:
        typer.BadParameter: it has neither.
    """
    if config is None and not run:
        raise typer.BadParameter(
            f"name a TOML file, such as configs/quickstart.toml, or a run with {instead}", param_hint="CONFIG"
        )


def with_corpus(overrides: Sequence[str], corpus: Path | None) -> list[str]:
    """Overrides, with that of `--corpus` as an absolute path so that a run finds it from any folder."""
    if corpus is None:
        return list(overrides)
    return [*overrides, f"environment.corpus={json.dumps(str(corpus.resolve()), ensure_ascii=False)}"]


def pair_of(text: str) -> tuple[str, str]:
    """The two variants of `A:B`.

    Raises:
        UsageError: it is not of that form.
    """
    first, colon, second = text.partition(":")
    if not (first and colon and second) or ":" in second:
        raise UsageError(f"--contrast {text!r} is not of the form A:B, two variants")
    return first, second
