"""`genenv train`: start a run or resume one, then print its summary."""

from __future__ import annotations

import contextlib
import shlex
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Annotated

import typer

from genenv.backends.base import end_with_torchrun, process_count, process_rank
from genenv.cli.console import (
    Config,
    Corpus,
    Overrides,
    VariantName,
    begin,
    check_named,
    dataset_overrides,
    ended,
    stopped_by,
    with_corpus,
)
from genenv.cli.progress import ConsoleReporter
from genenv.config.run import load_config
from genenv.config.tables import read_tables
from genenv.errors import UsageError
from genenv.progress import Reporter
from genenv.runs.folder import RunFolder
from genenv.runs.summary import summarise
from genenv.training import opening as training
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
        help="Train on these rows: each line is an object with a prompt and any other columns. "
        "A JSON list, Parquet and gzip are read too.",
        show_default=False,
    ),
]
RewardName = Annotated[
    str,
    typer.Option(
        metavar="FILE.py:NAME", help="With --data: the function that gives a reply its reward, from 0 to 1."
    ),
]
EvalData = Annotated[str, typer.Option(metavar="FILE.jsonl", help="With --data: the held-out rows.")]
Columns = Annotated[
    str,
    typer.Option(
        metavar="A,B", help="With --data: columns of which a task bandit learns which values to train on."
    ),
]

View = Annotated[
    bool,
    typer.Option(
        "--view", help="Serve the pages of `genenv view` beside the run, on this machine, until it ends."
    ),
]
ViewAfter = Annotated[
    bool, typer.Option("--view-after", help="As --view, and after the end of the run until Ctrl-C.")
]

_LOCAL = "genenv.backends.local.backend"
_PATIENCE_S = 5.0
"""Seconds in which the process that serves the pages must end."""


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
    view: View = False,
    view_after: ViewAfter = False,
) -> None:
    """Co-evolve an agent and its simulator.

    Several processes that torchrun starts train together, while servers sample: docs/guides/scaling.md.
    """
    if process_count() > 1:
        end_with_torchrun()
    if process_rank() > 0:
        import_module(_LOCAL).follow_rank_0()
        return
    begin("going on with a run" if resume else "starting a run")
    named = [name.strip() for name in columns.split(",") if name.strip()]
    own = {"data": data, "reward": reward, "eval_data": eval_data, "columns": named}
    overrides = [*dataset_overrides(own), *overrides]
    if any(own.values()):
        config = _for_rows(config, data, reward)
    reporter = ConsoleReporter()
    with contextlib.closing(_Pages(reporter, wanted=view or view_after)) as pages:

        def begun(run: Path) -> None:
            reporter.simulated = RunFolder.open(run).settings().simulator.writes_tasks
            pages.begin(run)

        try:
            path = _train(
                config,
                out,
                overrides,
                resume,
                other_arithmetic,
                corpus,
                variant,
                origin,
                reporter,
                begun,
            )
        finally:
            if process_count() > 1:
                import_module(_LOCAL).release_followers()
        _print_summary(path)
        if view_after:
            pages.stay(path)


def _for_rows(config: Path | None, data: str, reward: str) -> Path:
    """Return the settings file of a run on rows: the one that is named, or the bundled one.

    Raises:
        UsageError: the named one is for another environment.
    """
    if config is None:
        return Path("dataset")
    table = read_tables(config).get("environment")
    name = table.get("name", "dataset") if isinstance(table, Mapping) else "dataset"
    if name != "dataset":
        command = (
            f"genenv train --data {shlex.quote(data or 'tasks.jsonl')} --reward {reward or 'reward.py:score'}"
        )
        raise UsageError(
            f"{config} is for the environment {name}, not for rows of a file: leave it out ({command}), and "
            "change settings with --set"
        )
    return config


def _train(  # noqa: PLR0913 - as `train`
    config: Path | None,
    out: Path | None,
    overrides: Sequence[str],
    resume: bool,
    other_arithmetic: bool,
    corpus: Path | None,
    variant: str,
    origin: str | None,
    reporter: Reporter,
    begun: Callable[[Path], None],
) -> Path:
    """Start or resume the run and return its folder."""
    check_named(config, "--resume --out RUN", run=resume)
    given = with_corpus(overrides, corpus)
    if resume:
        if variant or origin:
            raise UsageError(
                "--variant and --from are for a run that starts; one that is continued has its settings"
            )
        path = _run_of(config, out, given)
        done = training.go_on(
            path,
            reporter,
            file=config,
            overrides=given,
            other_arithmetic=other_arithmetic,
            begun=lambda: begun(path),
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
            training.start(
                settings, path, reporter, file=config, origin=start_from, begun=lambda: begun(path)
            )
        except KeyboardInterrupt as error:
            if (path / "config.toml").is_file():
                raise
            raise ended("stopped before the run began: nothing is kept", stopped_by(error)) from error
    return path


class _Pages:
    """The pages of `genenv view` beside a run, in a process of their own so that readers do not slow the run.

    The process ends when its standard input is closed, which also happens if this process is killed.
    """

    def __init__(self, reporter: Reporter, *, wanted: bool) -> None:
        """Start nothing yet."""
        self._reporter, self._wanted = reporter, wanted
        self._process: subprocess.Popen[str] | None = None

    def begin(self, path: Path) -> None:
        """Serve a run and note the address, or note how to see the run."""
        if not self._wanted:
            self._reporter.note(f"in your browser: {_command('view', path)}")
            return
        process = self._process = subprocess.Popen(  # noqa: S603 - this program
            [sys.executable, "-m", "genenv", "view", str(path), "--beside"],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            start_new_session=True,  # Ctrl-C is for the run
        )

        def pass_on() -> None:
            for line in process.stdout or ():
                self._reporter.note(line.rstrip())

        threading.Thread(target=pass_on, name="view", daemon=True).start()

    def stay(self, path: Path) -> None:
        """Go on until Ctrl-C, for a run that was finished before as well."""
        if self._process is None:
            self.begin(path)
        if self._process is not None:
            typer.echo("the pages stay until Ctrl-C", err=True)
            with contextlib.suppress(KeyboardInterrupt):
                self._process.wait()

    def close(self) -> None:
        """End the process."""
        if self._process is None:
            return
        if self._process.stdin is not None:
            self._process.stdin.close()
        try:
            self._process.wait(_PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()


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
    typer.echo(f"pictures and tasks: {_command('view', path)}, or in one file: {_command('report', path)}")


def _command(name: str, path: Path) -> str:
    return f"genenv {name} {shlex.quote(str(path))}"
