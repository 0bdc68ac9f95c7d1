"""The command `genenv sweep`: runs every variant of a configuration with every seed; resumable."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

from genenv.cli.console import Overrides, begin, pair_of, seeds_of
from genenv.texts import inert, masked

KEPT = "finished runs and committed rounds are kept, and the same command goes on"
"""The outcome to report if the command is interrupted."""

SweepConfig = Annotated[
    Path, typer.Argument(metavar="CONFIG", help="A TOML file that all runs share.", show_default=False)
]
Variants = Annotated[
    str, typer.Option(help="Names separated by commas; several joined by + are laid over each other.")
]
Seeds = Annotated[
    str,
    typer.Option(
        metavar="N|FROM-TO", help="Runs of each variant: 3 for seeds 0, 1, 2; or 100-109; or 0,2,10-12."
    ),
]
Jobs = Annotated[int, typer.Option(min=1, max=1024, help="Runs at a time; they share the cores.")]
Out = Annotated[Path | None, typer.Option(help="Folder of the sweep; runs/CONFIG-sweep when left out.")]
Contrasts = Annotated[
    list[str],
    typer.Option(
        "--contrast",
        metavar="A:B",
        help="A comparison named beforehand, for genenv compare; A is held against B. Repeatable.",
    ),
]
From = Annotated[
    str | None,
    typer.Option("--from", metavar="RUN@ROUND", help="All runs go on from there, e.g. from one warm-up."),
]
SharedWarmup = Annotated[
    bool,
    typer.Option(
        "--shared-warmup", help="One warm-up a seed, that of CONFIG; all its variants go on from there."
    ),
]


def sweep(  # noqa: PLR0913 - a command has the options it has
    config: SweepConfig,
    variants: Variants,
    seeds: Seeds = "3",
    jobs: Jobs = 1,
    out: Out = None,
    overrides: Overrides = [],  # noqa: B006 - Typer's form
    contrast: Contrasts = [],  # noqa: B006 - Typer's form
    origin: From = None,
    shared_warmup: SharedWarmup = False,
) -> None:
    """Play variants times seeds of one configuration; typed again, it goes on where it stopped."""
    from genenv.files import locked
    from genenv.research.sweeps.grid import Grid
    from genenv.research.sweeps.sweep import play, threads_of
    from genenv.training.branching import Origin

    begin("looking at the sweep")
    if origin is not None:
        found = Origin.named(origin)
        origin = f"{found.folder.path.resolve()}@{found.round}"
    path = out or Path("runs") / f"{config.stem}-sweep"
    grid = Grid.begin(
        path,
        config,
        overrides,
        variants=[name.strip() for name in variants.split(",") if name.strip()],
        seeds=seeds_of(seeds),
        contrasts=[pair_of(text) for text in contrast],
        origin=origin,
        shared_warmup=shared_warmup,
    )
    total = len(grid.variants) * len(grid.seeds)
    typer.echo(
        f"{total} runs, {jobs} at a time with {threads_of(jobs)} threads each, in {path}; "
        "the first to end says how long the rest will take",
        err=True,
    )
    with locked(path, path / ".lock"):
        outcome = play(grid, jobs=jobs, say=lambda line: typer.echo(masked(inert(line)), err=True))
    typer.echo(f"{len(outcome.done)} of {total} runs are finished; compare them: genenv compare {path}")
    for name, why in outcome.failed.items():
        typer.echo(masked(inert(f"failed: {name}: {why}")))
    if outcome.failed:
        typer.echo(
            f"typed again, the command tries them again; their folders are in {shlex.quote(str(path))}"
        )
        raise typer.Exit(1)
