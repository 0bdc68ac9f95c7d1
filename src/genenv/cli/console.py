"""Shared parts of the commands: options, the first line of output, reading input, ending and stopping."""

from __future__ import annotations

import _thread
import contextlib
import json
import os
import re
import signal
import sys
import threading
import time
from collections.abc import Generator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from genenv.errors import UsageError
from genenv.texts import inert, masked
from genenv.types import Json

Config = Annotated[
    Path | None,
    typer.Argument(
        metavar="[CONFIG]",
        help="A TOML file, or the name of one that comes with genenv, such as quickstart; "
        "a run that is named has its own.",
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
    ),
]
Corpus = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE.jsonl",
        help="Passages of your own, for environments that read any: sets environment.corpus.",
    ),
]

BANDIT = "curriculum.candidates=8"
"""With columns of a dataset, a task bandit chooses one row of eight by the success rates of their values."""

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
    """Announce the work on standard error, because loading libraries and models takes seconds."""
    typer.echo(f"{masked(inert(what))} ...", err=True)


def check_packages(extra: str, *, by: str = "this command", **modules: str) -> None:
    """Refuse to begin without packages that an extra of genenv brings.

    Args:
        extra: its name.
        by: what needs them.
        modules: what is imported, by package.

    Raises:
        UsageError: some are missing.
    """
    missing: list[str] = []
    for package, module in modules.items():
        try:
            import_module(module)
        except ImportError:
            missing.append(package)
    if missing:
        raise UsageError(
            f"{by} needs {' and '.join(missing)}: pip install 'genenv[{extra}]', or the same of your clone"
        )


def ended(text: str, status: int) -> typer.Exit:
    """Print one sentence to standard error and return the exception that exits with this status."""
    typer.echo(f"genenv: {masked(inert(' '.join(text.split())))}", err=True)
    return typer.Exit(status)


def next_line(prompt: str) -> str | None:
    """Return the next line of standard input without its end, or None at the end of the input.

    Args:
        prompt: text to print first.
    """
    typer.echo(prompt, nl=False)
    line = sys.stdin.readline()
    if not line:
        typer.echo()
        return None
    return line.rstrip("\r\n")


class Terminated(KeyboardInterrupt):
    """SIGTERM as an exception: batch systems and containers stop a command with it. Handled like Ctrl-C."""


@contextlib.contextmanager
def terminable() -> Generator[None]:
    """Raise `Terminated` at SIGTERM, so that files, servers and loggers are closed as after Ctrl-C."""

    def terminate(*_: object) -> None:
        raise Terminated

    main = threading.current_thread() is threading.main_thread()
    ours = main and signal.getsignal(signal.SIGTERM) is signal.SIG_DFL
    if ours:
        signal.signal(signal.SIGTERM, terminate)
    try:
        yield
    finally:
        if ours:
            signal.signal(signal.SIGTERM, signal.SIG_DFL)


def stopped_by(error: KeyboardInterrupt) -> int:
    """Return the exit status that shells expect after a signal: 130 after Ctrl-C, 143 after SIGTERM."""
    return 128 + _signal_of(error)


def _signal_of(error: BaseException | None) -> signal.Signals:
    return signal.SIGTERM if isinstance(error, Terminated) else signal.SIGINT


_AGAIN_S = 0.05
"""Seconds after which a signal that was lost is sent again."""


def resend_lost_stops() -> None:
    """Make every Ctrl-C and SIGTERM stop the process, wherever the signal arrives.

    Python prints and discards an exception that is raised inside of `__del__` or of a weak reference's
    callback, a KeyboardInterrupt too. The signal is then sent again a moment later, from another thread.
    """
    report = sys.unraisablehook

    def resend(number: int) -> None:
        time.sleep(_AGAIN_S)
        os.kill(os.getpid(), number)

    def heed(lost: sys.UnraisableHookArgs) -> None:
        if isinstance(lost.exc_value, KeyboardInterrupt):
            number = _signal_of(lost.exc_value)
            # `threading` takes locks that the interrupted code may hold
            _thread.start_new_thread(resend, (number,))
        else:
            report(lost)

    sys.unraisablehook = heed


@contextlib.contextmanager
def stoppable(kept: str) -> Generator[None]:
    """End with one sentence after Ctrl-C or SIGTERM.

    Args:
        kept: names the preserved work, for the sentence.

    Raises:
        typer.Exit: the work was stopped.
    """
    try:
        yield
    except KeyboardInterrupt as error:
        raise ended(f"stopped; {kept}", stopped_by(error)) from error


def check_named(config: Path | None, instead: str, *, run: bool) -> None:
    """Refuse a command with neither a CONFIG nor a run.

    Args:
        config: the CONFIG argument, if given.
        instead: the option that names a run.
        run: whether that option is given.

    Raises:
        typer.BadParameter: both are missing.
    """
    if config is None and not run:
        raise typer.BadParameter(
            f"name a TOML file, such as configs/quickstart.toml, or a run with {instead}", param_hint="CONFIG"
        )


def with_corpus(overrides: Sequence[str], corpus: Path | None) -> list[str]:
    """Return the overrides with `--corpus` added as an absolute path, valid from any folder."""
    if corpus is None:
        return list(overrides)
    return [*overrides, f"environment.corpus={json.dumps(str(corpus.resolve()), ensure_ascii=False)}"]


def dataset_overrides(given: Mapping[str, Json]) -> list[str]:
    """Return overrides that select a dataset.

    Args:
        given: settings of the dataset; those that are empty are left out. If all are, nothing is selected.
    """
    from genenv.config.tables import toml_value  # loads Pydantic, which `genenv --help` does without

    own = [f"environment.{key}={toml_value(value)}" for key, value in given.items() if value]
    return ["environment.name=dataset", *own, *([BANDIT] if given.get("columns") else [])] if own else []


def pair_of(text: str) -> tuple[str, str]:
    """Return the two variants of `A:B`, each of which may have parts `key=module:name`.

    Raises:
        UsageError: the text does not have that form.
    """
    pieces = text.split(":")
    pairs = [(":".join(pieces[:n]), ":".join(pieces[n:])) for n in range(1, len(pieces))]
    found = [pair for pair in pairs if all(map(_may_be_variant, pair))]
    if len(found) != 1:
        raise UsageError(f"--contrast {text!r} is not of the form A:B, two variants")
    return found[0]


def _may_be_variant(text: str) -> bool:
    """Whether a colon is only in the value of a setting, and there at most once."""
    return all(re.fullmatch("[^:=]+(=[^:]+(:[^:=]+)?)?", part) for part in text.split("+"))


_MOST_SEEDS = 1_000_000


def seeds_of(text: str) -> list[int]:
    """Return the seeds of `--seeds`: a number N for 0 to N - 1, a range such as 100-109, or a list of both.

    A number with a comma is that seed: `7,` is seed 7 alone, `0,2,10-12` are five seeds.

    Raises:
        UsageError: the text does not have that form, or names no seed or more than a million.
    """
    parts = [part.strip() for part in text.split(",")]
    listed = [part.partition("-") for part in parts if part]
    numbers = [one for first, dash, last in listed for one in ((first, last) if dash else (first,))]
    if not numbers or not all(re.fullmatch("[0-9]{1,9}", one) for one in numbers):
        raise UsageError(f"--seeds {text!r} is neither a number of seeds nor a range such as 100-109")
    spans = [range(int(first), int(last if dash else first) + 1) for first, dash, last in listed]
    if len(parts) == 1 and not listed[0][1]:
        spans = [range(int(parts[0]))]
    if not all(spans) or sum(map(len, spans)) > _MOST_SEEDS:
        raise UsageError(f"--seeds {text!r} must name at least one seed, and at most {_MOST_SEEDS:,}")
    return list(dict.fromkeys(seed for span in spans for seed in span))
