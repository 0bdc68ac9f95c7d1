"""`genenv check`: whether an environment keeps what it promises."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from genenv.cli.console import begin
from genenv.cli.options import Overrides
from genenv.cli.progress import ConsoleReporter
from genenv.config.run import RunConfig, load_config
from genenv.environments import load_environment
from genenv.evaluation.environment_check import BROKEN, GOOD, Finding, HasFindings, Pace, check_environment
from genenv.texts import inert

_STYLES = {GOOD: "green", BROKEN: "bold red"}

Name = Annotated[
    str,
    typer.Argument(
        metavar="ENVIRONMENT",
        help="An environment's name, package.module:Class for one of your own, an environment of others "
        "(openenv:http://HOST:PORT, verifiers:TASKSET), or a run's TOML file.",
        show_default=False,
    ),
]
Number = Annotated[int, typer.Option("--n", min=1, help="How many tasks of each kind to look at.")]


def check(env: Name, n: Number = 100, overrides: Overrides = []) -> None:  # noqa: B006 - Typer's form
    """Say whether an environment keeps what it promises. No model takes part."""
    begin(f"checking {env}")
    config = config_of(env, overrides)
    table = Table(title=inert(f"{config.environment.name}: what it promises"), title_justify="left")
    for column in ("what", "state", "seen"):
        table.add_column(column, overflow="fold" if column == "seen" else "ellipsis")
    found: list[Finding] = []
    world = load_environment(config.environment.name, config.environment.settings)
    more = world.findings() if isinstance(world, HasFindings) else ()
    for one in itertools.chain(check_environment(world, config, n=n, pace=Pace(ConsoleReporter())), more):
        found.append(one)
        table.add_row(
            one.what, Text(one.state, style=_STYLES.get(one.state, "yellow")), Text(inert(one.seen))
        )
    Console(highlight=False).print(table)
    if any(one.state == BROKEN for one in found):
        raise typer.Exit(1)


def config_of(name: str, overrides: Sequence[str]) -> RunConfig:
    """The settings of a run with this environment: from a file, or the defaults."""
    if name.endswith(".toml") and Path(name).is_file():
        return load_config(Path(name), overrides)
    return load_config(None, [f"environment.name={name}", *overrides])
