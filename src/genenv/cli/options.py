"""Options that several commands have."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from genenv.errors import UsageError

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


def check_named(config: Path | None, instead: str, *, run: bool) -> None:
    """Settings come from a CONFIG or from a run.

    Args:
        config: the CONFIG that is named.
        instead: how a run is named.
        run: whether one is.

    Raises:
        typer.BadParameter: neither is named.
    """
    if config is None and not run:
        raise typer.BadParameter(
            f"name a TOML file, such as configs/quickstart.toml, or a run with {instead}", param_hint="CONFIG"
        )


def said(overrides: Sequence[str], corpus: Path | None) -> list[str]:
    """`key=value` of all that is said; a corpus from the root on, so that a run finds it from any folder."""
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
