"""`genenv export-env`: the tasks of an environment or a run for other trainers."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Annotated

import typer

from genenv.cli.console import Overrides, begin
from genenv.cli.environment import config_of
from genenv.cli.progress import ConsoleReporter
from genenv.config.run import RunConfig, load_config
from genenv.environments.base import Environment
from genenv.gate.gate import base_tasks
from genenv.interop.writing import Export, write
from genenv.runs.folder import RunFolder
from genenv.runs.store.store import PoolStore
from genenv.types import Origin, Task

KEPT = "nothing was written"
"""What there is of its work when it ends early."""

Source = Annotated[
    str,
    typer.Argument(
        metavar="ENVIRONMENT|RUN",
        help="An environment's name, a bundle's folder, a run's TOML file, or a run: then the tasks that its "
        "simulator wrote come along.",
        show_default=False,
    ),
]
Out = Annotated[
    Path, typer.Option("--out", help="The folder that is made: a Python package.", show_default=False)
]
Train = Annotated[
    int | None, typer.Option("--tasks", min=1, help="At most so many base tasks; left out, all.")
]
HeldOut = Annotated[
    int | None, typer.Option("--held-out", min=1, help="At most so many for measuring; left out, all.")
]


def export_env(
    source: Source,
    out: Out,
    tasks: Train = None,
    held_out: HeldOut = None,
    overrides: Overrides = [],  # noqa: B006 - Typer's form
) -> None:
    """Write the tasks of an environment as an environment of TRL, verifiers, OpenEnv and Gymnasium."""
    begin(f"exporting {source}")
    run = Path(source) if (Path(source) / "config.toml").is_file() else None
    config = config_of(source, overrides) if run is None else _of_run(run, overrides)
    given = {word.partition("=")[0].strip().removeprefix("environment.") for word in overrides}
    export = Export(
        environment=config.environment.name,
        settings=config.environment.settings.model_dump(mode="json", exclude_none=True),
        asked=frozenset(given),
        train=tasks,
        held_out=held_out,
        generated=[] if run is None else _generated(run),
    )

    def base(env: Environment) -> Iterable[Task]:
        return base_tasks(env, env.seeds(), seed=config.run.seed).values()

    written = write(out, export, base, ConsoleReporter())
    left = f"; {written.refused} specs of the run are no tasks with these settings" if written.refused else ""
    typer.echo(
        f"{out}: {written.train} tasks for training, {written.held_out} for measuring{left}; "
        f"{out / 'README.md'} says how TRL, verifiers, OpenEnv and Gymnasium use it"
    )


def _of_run(run: Path, overrides: Overrides) -> RunConfig:
    return load_config(RunFolder.open(run).config, overrides)


def _generated(run: Path) -> list[Task]:
    with PoolStore.open(RunFolder.open(run).pool, create=False) as store:
        return list(store.tasks(origin=Origin.GENERATED))
