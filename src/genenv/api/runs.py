"""A run in a program's hands: train, go on, look at what came of it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from genenv.api.agent import Agent, load_agent
from genenv.api.environment import Environment
from genenv.api.values import words
from genenv.cli.progress import ConsoleReporter
from genenv.config.run import RunConfig, anchored, load_config
from genenv.errors import UsageError
from genenv.progress import Reporter
from genenv.report.facts import summarise
from genenv.report.page import write_report
from genenv.runs.folder import RunFolder
from genenv.runs.store.store import PoolStore
from genenv.threads import run_with_own_loop as apart
from genenv.training import start as training
from genenv.training.branching import Origin as Branching
from genenv.types import Origin, Task


class Run:
    """A run on disk.

    Args:
        path: its folder.

    Raises:
        UsageError: it is no run.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._folder = RunFolder.open(self.path)

    @property
    def config(self) -> RunConfig:
        """Its settings, all of them decided."""
        return load_config(self._folder.config)

    @property
    def metrics(self) -> dict[int, dict[str, float]]:
        """Metrics by round; docs/reference/configuration.md lists the names. Round 0 is the start."""
        with PoolStore.open(self._folder.pool, create=False, check=False) as store:
            return {number: dict(found) for number, found in store.metrics_by_round().items()}

    @property
    def held_out(self) -> dict[int, float]:
        """Success on held-out tasks, in [0, 1], by the round after which it was measured."""
        rates = {number: found.get("agent/eval_success") for number, found in self.metrics.items()}
        return {number: rate for number, rate in rates.items() if rate is not None}

    @cached_property
    def environment(self) -> Environment:
        """The world it was trained on."""
        return Environment.of_run(self.config)

    def tasks(self, round_: int | None = None) -> tuple[Task, ...]:
        """The tasks that were written and passed the gate.

        Args:
            round_: those of one round; left out, all.
        """
        rounds = None if round_ is None else range(round_, round_ + 1)
        with PoolStore.open(self._folder.pool, create=False, check=False) as store:
            return store.tasks(origin=Origin.GENERATED, rounds=rounds)

    def agent(self, round_: int | None = None, settings: Mapping[str, object] | None = None) -> Agent:
        """The agent after a round.

        Args:
            round_: which; left out, the last one. Only some of the newest are kept: `run.keep_checkpoints`.
            settings: as for `load_agent`.
        """
        name = self.path.as_posix() if round_ is None else f"{self.path.as_posix()}@{round_}"
        return load_agent(name, settings)

    def report(self) -> Path:
        """Write the page for people; returns where."""
        return write_report(self.path)

    def __str__(self) -> str:
        """What it came to, in six lines."""
        return "\n".join(summarise(self.path))

    def __repr__(self) -> str:
        """How it is opened."""
        return f"Run({self.path.as_posix()!r})"


def train(  # noqa: PLR0913 - as the command's options
    config: RunConfig | Environment | str | Path,
    out: str | Path | None = None,
    *,
    settings: Mapping[str, object] | None = None,
    variant: str = "",
    start_from: str = "",
    resume: bool = False,
    reporter: Reporter | None = None,
) -> Run:
    """Co-evolve an agent and its simulator; returns when all rounds are committed.

    Args:
        config: the settings: a TOML file, the name of one that comes with genenv (`"demo"`), a
            `RunConfig`, or an `environment`, whose bundle's own settings are taken.
        out: the folder of the run; left out, `runs/NAME`.
        settings: laid over them, such as `{"run.rounds": 4}`.
        variant: settings laid over them by name, as by `--variant`.
        start_from: `RUN@ROUND`, whose weights, pools and statistics are the start.
        resume: go on with the run in `out`, if it is there; without it a run that is there is refused.
            Settings other than its own are refused, but for those that may change, such as `run.rounds`.
        reporter: is told how far it is; left out, standard error shows it. `Silent()` for none.

    Raises:
        UsageError: a setting is not allowed, a model cannot be had, or `out` holds a run.
        GenenvError: it cannot go on. Committed rounds stay, and `resume=True` goes on from them.
    """
    told, overrides = reporter or ConsoleReporter(), words(settings or {})
    file: Path | None = None
    if isinstance(config, RunConfig):
        if overrides or variant:
            raise UsageError(
                "settings and variant are for a file or an environment; a RunConfig has all of its own"
            )
        chosen = config
    else:
        if isinstance(config, Environment):
            file, overrides = config.suggested, [*config.overrides, *overrides]
        else:
            file = Path(config)
        chosen = load_config(file, overrides, variant=variant)
    chosen = anchored(chosen)
    path = Path(out) if out is not None else Path("runs") / chosen.run.name
    if not (resume and (path / "config.toml").is_file()):
        origin = Branching.named(start_from) if start_from else None
        apart(lambda: training.start(chosen, path, told, file=file, origin=origin))
        return Run(path)
    if variant or start_from or isinstance(config, RunConfig):
        raise UsageError(
            "a run that is continued has its settings: with resume=True name them by a file or an "
            "environment, and "
            "leave variant and start_from out"
        )
    done = apart(lambda: training.go_on(path, told, told.note, file=file, overrides=overrides))
    if done is not None:
        told.note(done)
    return Run(path)
