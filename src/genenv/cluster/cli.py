"""`genenv launch`: a run on a cluster, whose servers and trainer Ray places and restarts."""

from __future__ import annotations

import shlex
import shutil
from pathlib import Path
from typing import Annotated

import typer

from genenv.backends.vllm.client import check_policies
from genenv.cli.console import Config, Overrides, begin, check_named
from genenv.cluster.hosts import Needs, Plan
from genenv.cluster.on_ray import play
from genenv.config.run import load_config
from genenv.config.tables import dump_tables, read_tables
from genenv.errors import GenenvError

KEPT = "committed rounds are kept, `genenv train` continues them with --resume"
"""A phrase for `genenv.cli.app` about the work that is preserved if the command ends early."""

Address = Annotated[
    str,
    typer.Option("--ray", metavar="ADDRESS", help="Of the cluster: HOST:6379, ray://HOST:10001, or auto."),
]
Out = Annotated[Path, typer.Option(help="Folder of the run, on a disk that all nodes see.")]
Servers = Annotated[int, typer.Option(min=1, max=10_000, help="How many servers sample.")]
Gpus = Annotated[int, typer.Option(min=0, max=64, help="GPUs of each server.")]
Cpus = Annotated[int, typer.Option(min=1, max=1024, help="CPUs of each server.")]
TrainerGpus = Annotated[int, typer.Option(min=0, max=64, help="GPUs of the trainer: a process on each.")]
TrainerCpus = Annotated[int, typer.Option(min=1, max=1024, help="CPUs of the trainer.")]
Vllm = Annotated[bool, typer.Option("--vllm", help="Servers are vLLM's, which each node has to have.")]
Resume = Annotated[bool, typer.Option("--resume", help="Continue the run in --out.")]
Wait = Annotated[float, typer.Option(min=0, help="Seconds to wait for room on the cluster.")]


def launch(  # noqa: PLR0913 - a command has the options it has
    ray: Address,
    out: Out,
    config: Config = None,
    servers: Servers = 1,
    gpus_per_server: Gpus = 0,
    cpus_per_server: Cpus = 1,
    trainer_gpus: TrainerGpus = 0,
    trainer_cpus: TrainerCpus = 1,
    vllm: Vllm = False,
    overrides: Overrides = [],  # noqa: B006 - Typer's form
    resume: Resume = False,
    wait: Wait = 60.0,
) -> None:
    """Play a run on a Ray cluster: servers that sample, and a trainer."""
    check_named(config, "--resume --out RUN", run=resume)
    if not resume:
        check_policies(load_config(config, overrides).policy)
    plan = Plan(
        run=out.absolute(),
        servers=servers,
        server=Needs(cpus=cpus_per_server, gpus=gpus_per_server),
        trainer=Needs(cpus=trainer_cpus, gpus=trainer_gpus),
        vllm=vllm,
        overrides=tuple(overrides),
        resume=resume,
        named=config is not None,
        typed_in=Path.cwd(),
    )
    settings = None if config is None else dump_tables(read_tables(config))
    columns = {"COLUMNS": str(shutil.get_terminal_size().columns)}
    begin(f"connecting to the Ray cluster at {ray}")
    resources = f"--servers {servers} --gpus-per-server {gpus_per_server} --cpus-per-server {cpus_per_server}"
    resources += f" --trainer-gpus {trainer_gpus} --trainer-cpus {trainer_cpus}{' --vllm' if vllm else ''}"
    go_on = f"genenv launch --resume --ray {ray} --out {shlex.quote(str(out))} {resources}"
    try:
        status = play(ray, plan, settings, columns, typer.echo, wait_s=wait)
    except KeyboardInterrupt as error:
        typer.echo(
            "genenv: stopped, servers and trainer have ended; committed rounds are kept, "
            f"`{go_on}` continues them",
            err=True,
        )
        raise typer.Exit(130) from error
    if status:
        raise GenenvError(
            f"the trainer ended with status {status}; committed rounds are kept, `{go_on}` continues them"
        )
