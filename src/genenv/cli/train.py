"""`genenv train`: start a run or resume one, then print its summary."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from genenv.backends import torchrun
from genenv.cli.console import (
    Config,
    Corpus,
    Overrides,
    VariantName,
    begin,
    check_named,
    dataset_overrides,
    ended,
    with_corpus,
)
from genenv.cli.progress import ConsoleReporter
from genenv.config.run import load_config
from genenv.errors import UsageError
from genenv.report.facts import summarise
from genenv.training import start as training
from genenv.training.branching import Origin

KEPT = "committed rounds are kept, `genenv train` continues them with --resume"
"""A phrase for `genenv.cli.app` about the work that is preserved if the command ends early."""

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
Data = Annotated[
    str,
    typer.Option(
        metavar="FILE.jsonl",
        help="Train on these rows: each line is an object with a prompt and any other columns.",
        show_default=False,
    ),
]
RewardName = Annotated[
    str,
    typer.Option(
        metavar="FILE.py:NAME",
        help="With --data: the function that gives a reply its reward, from 0 to 1.",
        show_default=False,
    ),
]
EvalData = Annotated[
    str, typer.Option(metavar="FILE.jsonl", help="With --data: the held-out rows.", show_default=False)
]
Columns = Annotated[
    str,
    typer.Option(
        metavar="A,B",
        help="With --data: columns of which a task bandit learns which values to train on.",
        show_default=False,
    ),
]

_LOCAL = "genenv.backends.local.backend"


def train(  # noqa: PLR0913 - a command has the options it has
    config: Config = None,
    out: Out = None,
    overrides: Overrides = [],  # noqa: B006 - Typer's form
    resume: Resume = False,
    other_arithmetic: OtherArithmetic = False,
    corpus: Corpus = None,
    variant: VariantName = "",
    origin: From = None,
    data: Data = "",
    reward: RewardName = "",
    eval_data: EvalData = "",
    columns: Columns = "",
) -> None:
    """Co-evolve an agent and its simulator.

    Several processes that torchrun starts train together, while servers sample: docs/guides/scaling.md.
    """
    if torchrun.size() > 1:
        torchrun.end_with_torchrun()
    if torchrun.rank() > 0:
        import_module(_LOCAL).follow_rank_0()
        return
    begin("going on with a run" if resume else "starting a run")
    named = [name.strip() for name in columns.split(",") if name.strip()]
    own = {"data": data, "reward": reward, "eval_data": eval_data, "columns": named}
    overrides = [*dataset_overrides(own), *overrides]
    if data and config is None:
        config = Path("dataset")
    try:
        path = _train(config, out, overrides, resume, other_arithmetic, corpus, variant, origin)
    finally:
        if torchrun.size() > 1:
            import_module(_LOCAL).release_followers()
    _print_summary(path)


def _train(  # noqa: PLR0913 - as `train`
    config: Path | None,
    out: Path | None,
    overrides: Sequence[str],
    resume: bool,
    other_arithmetic: bool,
    corpus: Path | None,
    variant: str,
    origin: str | None,
) -> Path:
    """Start or resume the run and return its folder."""
    check_named(config, "--resume --out RUN", run=resume)
    reporter, given = ConsoleReporter(), with_corpus(overrides, corpus)
    if resume:
        if variant or origin:
            raise UsageError(
                "--variant and --from are for a run that starts; one that is continued has its settings"
            )
        path = _run_of(config, out, given)
        done = training.go_on(
            path, reporter, _print_note, file=config, overrides=given, other_arithmetic=other_arithmetic
        )
        if done is not None:
            typer.echo(done)
    elif other_arithmetic:
        raise UsageError("--allow-other-arithmetic is for a run that is continued; add --resume")
    else:
        settings = load_config(config, given, variant=variant)
        path = out or Path("runs") / settings.run.name
        start_from = None if origin is None else Origin.named(origin)
        try:
            training.start(settings, path, reporter, file=config, origin=start_from)
        except KeyboardInterrupt as error:
            if (path / "config.toml").is_file():
                raise
            raise ended("stopped before the run began: nothing is kept", 130) from error
    return path


def _print_note(text: str) -> None:
    typer.echo(text, err=True)


def _run_of(config_path: Path | None, out: Path | None, overrides: Sequence[str]) -> Path:
    """Return the folder of the run to resume.

    Raises:
        UsageError: the command names no run.
    """
    if config_path is not None and (config_path / "config.toml").is_file():
        raise UsageError(f"{config_path} is a run; continue it with --resume --out {config_path}")
    if out is not None:
        return out
    if config_path is None:
        raise UsageError("name the run to continue, such as --out runs/demo")
    return Path("runs") / load_config(config_path, overrides).run.name


def _print_summary(path: Path) -> None:
    for line in summarise(path):
        typer.echo(line)
    typer.echo(f"pictures and tasks: genenv report {shlex.quote(str(path))}")
