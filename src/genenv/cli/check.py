"""What `genenv check` prints."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from genenv.config.run import RunConfig, load_config
from genenv.domains import load_domain
from genenv.evaluation.domain_check import BROKEN, GOOD, Finding, check_domain
from genenv.texts import inert

_STYLES = {GOOD: "green", BROKEN: "bold red"}


def show_check(name: str, overrides: Sequence[str], *, n: int) -> None:
    """Check a domain and print what was found.

    Args:
        name: a domain, or a configuration that names one.
        overrides: settings, `domain.key=value` among them.
        n: how many tasks of each kind to look at.

    Raises:
        GenenvError: anything the user can mend.
        typer.Exit: the domain breaks a promise (status 1).
    """
    config = _config(name, overrides)
    domain = load_domain(config.domain.name, config.domain.settings)
    table = Table(title=inert(f"{config.domain.name}: what it promises"), title_justify="left")
    for column in ("what", "state", "seen"):
        table.add_column(column, overflow="fold" if column == "seen" else "ellipsis")
    found: list[Finding] = []
    for one in check_domain(domain, config, n=n):
        found.append(one)
        table.add_row(
            one.what, Text(one.state, style=_STYLES.get(one.state, "yellow")), Text(inert(one.seen))
        )
    Console(highlight=False).print(table)
    if any(one.state == BROKEN for one in found):
        raise typer.Exit(1)


def _config(name: str, overrides: Sequence[str]) -> RunConfig:
    """The settings of a run with this domain: from a file, or the defaults."""
    if name.endswith(".toml") and Path(name).is_file():
        return load_config(Path(name), overrides)
    return load_config(None, [f"domain.name={name}", *overrides])
