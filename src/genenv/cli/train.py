"""`genenv train`: start a run, or continue one with the settings it has; then say how it went."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer

from genenv.agent.rollout import tools_of
from genenv.backends.settings import AUTOMATIC, OF_THE_MACHINE
from genenv.cli import opening
from genenv.cli.console import ConsoleReporter, begin
from genenv.cli.options import Config, Corpus, Overrides, VariantName, check_named, said
from genenv.coevolve import CoEvolution, Players
from genenv.config.run import RunConfig, anchored, as_tables, dump_toml, load_config
from genenv.domains.base import Domain
from genenv.errors import UsageError
from genenv.gate.gate import base_tasks
from genenv.runs.branching import Origin
from genenv.runs.folder import RunFolder
from genenv.runs.resuming import check_length, for_training, possible, record, remember
from genenv.runs.sinks import close_all, open_sinks
from genenv.runs.store.identity import read_last_round
from genenv.runs.store.store import PoolStore
from genenv.runs.summary import summarise

Out = Annotated[Path | None, typer.Option(help="Folder of the run; runs/NAME when left out.")]
Resume = Annotated[
    bool,
    typer.Option("--resume", help="Continue the run in --out, with its settings; run.rounds may have grown."),
]
From = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="RUN@ROUND",
        help="Start from the weights, pools and statistics of a round of another run, with these settings.",
    ),
]
OtherArithmetic = Annotated[
    bool,
    typer.Option(
        "--allow-other-arithmetic",
        help="With --resume: go on although this machine lacks what the run was computed with, such as a "
        "compiler or as many cores.",
    ),
]


def train(  # noqa: PLR0913 - a command has the options it has
    config: Config = None,
    out: Out = None,
    overrides: Overrides = [],  # noqa: B006 - Typer's form
    resume: Resume = False,
    other_arithmetic: OtherArithmetic = False,
    corpus: Corpus = None,
    variant: VariantName = "",
    origin: From = None,
) -> None:
    """Co-evolve an agent and its simulator."""
    begin("going on with a run" if resume else "starting a run")
    check_named(config, "--resume --out RUN", run=resume)
    if resume:
        if variant or origin:
            raise UsageError(
                "--variant and --from are for a run that starts; one that is continued has its settings"
            )
        _continue(config, out, said(overrides, corpus), other_arithmetic=other_arithmetic)
    elif other_arithmetic:
        raise UsageError("--allow-other-arithmetic is for a run that is continued; add --resume")
    else:
        config_ = anchored(load_config(config, said(overrides, corpus), variant=variant))
        _start(config, config_, out, None if origin is None else Origin.named(origin))


def _start(config_path: Path | None, config: RunConfig, out: Path | None, origin: Origin | None) -> None:
    path = out or Path("runs") / config.run.name
    folder = RunFolder.vacant(path)
    opening.check_models(config)
    if origin is not None:
        origin.check(config)

    def create(config: RunConfig) -> None:
        path.mkdir(parents=True, exist_ok=True)
        remember(folder, config_path)
        if origin is None:
            RunFolder.create(path, dump_toml(config))
        else:
            RunFolder.create(path, origin.note() + dump_toml(config), fill=origin.fill)

    _play(config, folder, create=create)


def _continue(
    config_path: Path | None, out: Path | None, overrides: Sequence[str], *, other_arithmetic: bool
) -> None:
    folder = RunFolder.open(_run_of(config_path, out, overrides))
    change = for_training(folder, config_path, overrides, other_arithmetic=other_arithmetic)
    if (note := check_length(folder, change)) is not None:
        typer.echo(note, err=True)
    if (done := _finished(folder, change.asked)) is not None:
        number, told = done
        unchanged = "" if told else ", nothing was changed"
        typer.echo(f"{folder.path} is finished: all of its {number} rounds are committed{unchanged}")
        _say_how_it_went(folder.path)
        return

    def note_changes(config: RunConfig, last: int | None) -> None:
        record(folder, replace(change, asked=config), since=0 if last is None else last + 1)
        remember(folder, config_path)

    config = _chosen(possible(change, folder, other_arithmetic=other_arithmetic))
    _play(config, folder, proven=note_changes)


def _run_of(config_path: Path | None, out: Path | None, overrides: Sequence[str]) -> Path:
    """The folder of the run that is meant.

    Raises:
        UsageError: none is named.
    """
    if config_path is not None and (config_path / "config.toml").is_file():
        raise UsageError(f"{config_path} is a run; continue it with --resume --out {config_path}")
    if out is not None:
        return out
    if config_path is None:
        raise UsageError("name the run to continue, such as --out runs/demo")
    return Path("runs") / load_config(config_path, overrides).run.name


def _finished(folder: RunFolder, config: RunConfig) -> tuple[int, Sequence[str]] | None:
    """How many rounds a finished run has, and what mending it had to say; None when some rounds are left."""
    told: list[str] = []
    with folder.lock():
        last = read_last_round(folder.pool)
        if last is None or last < config.run.rounds:
            return None
        with PoolStore.open(folder.pool, create=False) as store:
            folder.restore(store, told.append)
    for text in told:
        typer.echo(f"note: {text}", err=True)
    return last, told


def _play(
    config: RunConfig,
    folder: RunFolder,
    *,
    create: Callable[[RunConfig], None] | None = None,
    proven: Callable[[RunConfig, int | None], None] | None = None,
) -> None:
    """Play all rounds that are left.

    Args:
        config: the settings; what is automatic in them is decided first.
        folder: the run.
        create: makes the folder of a new run, when nothing else can fail; told the settings as decided.
        proven: told them and the last round of a run that is continued, when it was proven whole.
    """
    domain = opening.open_domain(config)
    config = _chosen(config)
    players = opening.load_players(config, domain)
    config = _settled(config, players)
    _check_tools(domain, players, config)
    sinks = open_sinks(config.logging, folder.path, name=config.run.name, settings=as_tables(config))
    try:
        reporter = ConsoleReporter()
        with reporter.stage("building base tasks", items=None, unit=""):
            loop = CoEvolution(config, domain, players, folder, sinks=sinks, reporter=reporter)
        if create is not None:
            create(config)
        loop.run(None if proven is None else lambda last: proven(config, last))
    finally:
        close_all(sinks)
    _say_how_it_went(folder.path)


def _chosen(config: RunConfig) -> RunConfig:
    """The settings with what the machine decides in `policy` decided: once, so a resumed run is equal."""
    automatic = any(getattr(config.policy, name) == AUTOMATIC[name] for name in OF_THE_MACHINE)
    if config.policy.backend != "local" or not automatic:
        return config
    from genenv.backends.local.arithmetic import chosen

    return config.model_copy(update={"policy": chosen(config.policy)})


def _settled(config: RunConfig, players: Players) -> RunConfig:
    """The settings with what the models decide in `policy` decided as well."""
    return config if players.settled is None else config.model_copy(update={"policy": players.settled})


def _check_tools(domain: Domain, players: Players, config: RunConfig) -> None:
    """Refuse a model that cannot be offered a domain's tools, before a run begins."""
    for task in base_tasks(domain, domain.seeds()[:1], seed=config.run.seed).values():
        players.agent.sampler.render(task.messages, first=True, tools=tools_of(domain.episode(task)))


def _say_how_it_went(path: Path) -> None:
    for line in summarise(path):
        typer.echo(line)
    typer.echo(f"pictures and tasks: genenv report {shlex.quote(str(path))}")
