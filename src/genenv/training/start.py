"""Starts or resumes a training run; the implementation of `genenv train` and `genenv.train`."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from genenv.config.resolved import ResolvedConfig, resolve
from genenv.config.run import RunConfig, as_tables, dump_toml
from genenv.environments import close_environment
from genenv.environments.base import Environment, tools_of
from genenv.gate.gate import base_tasks
from genenv.progress import Reporter, staged
from genenv.runs.folder import RunFolder
from genenv.runs.sinks import close_all, open_sinks
from genenv.runs.store.reader import read_last_round
from genenv.runs.store.store import PoolStore
from genenv.sampling import Sampler
from genenv.simulator.settings import check_simulator
from genenv.training import opening
from genenv.training.branching import Origin
from genenv.training.loop import CoEvolution
from genenv.training.resuming import check_length, for_training, possible, record, remember

SERVER = "server.jsonl"
"""File in a run's folder with one line per start: what is known of the remote server that samples."""


def start(
    config: RunConfig,
    path: Path,
    reporter: Reporter,
    *,
    file: Path | None = None,
    origin: Origin | None = None,
    begun: Callable[[], None] = lambda: None,
) -> None:
    """Train a new run to its end.

    Args:
        config: settings of the run. Automatic values are decided once, in this function.
        path: folder of the run. It is created only after everything that can fail has succeeded.
        reporter: shows the progress.
        file: the file that the settings were read from.
        origin: a round of another run to start from.
        begun: called once the run is in its folder, before the first round.

    Raises:
        GenenvError: the run cannot start or cannot continue. The message says why.
    """
    folder = RunFolder.vacant(path)
    opening.check_models(config.policy)
    check_simulator(config.simulator)
    opening.check_own_parts(config)
    resolved = resolve(config)
    if origin is not None:
        origin.check(resolved)
    with _opened(resolved, folder, reporter) as loop:
        path.mkdir(parents=True, exist_ok=True)
        remember(folder, file)
        settings = dump_toml(loop.config)
        if origin is None:
            RunFolder.create(path, settings)
        else:
            RunFolder.create(path, origin.note() + settings, fill=origin.fill)
        _note_server(folder, loop.policies.backend.found)
        begun()
        loop.run()


def go_on(
    path: Path,
    reporter: Reporter,
    *,
    file: Path | None = None,
    overrides: Sequence[str] = (),
    other_arithmetic: bool = False,
    begun: Callable[[], None] = lambda: None,
) -> str | None:
    """Resume a run and train its remaining rounds.

    Args:
        path: folder of the run.
        reporter: shows the progress, and notes for the user.
        file: the CONFIG of the run. Changes in it that would affect results are refused.
        overrides: settings as `key=value`.
        other_arithmetic: whether results may change in their last digits, because this machine lacks
            something that the run was computed with.
        begun: called before the first round that is left.

    Returns:
        A sentence if no round was left, otherwise None.

    Raises:
        GenenvError: the run cannot continue. The message says why.
    """
    folder = RunFolder.open(path)
    change = for_training(folder, file, overrides, other_arithmetic=other_arithmetic)
    if (note := check_length(folder, change)) is not None:
        reporter.note(note)
    if (done := _finished(folder, change.asked.run.rounds)) is not None:
        number, notes = done
        for text in notes:
            reporter.note(f"note: {text}")
        unchanged = "" if notes else ", nothing was changed"
        return f"{folder.path} is finished: all of its {number} rounds are committed{unchanged}"

    resolved = resolve(possible(change, folder, other_arithmetic=other_arithmetic))
    with _opened(resolved, folder, reporter) as loop:
        final = replace(change, asked=loop.config)

        def note_changes(last: int | None) -> None:
            record(folder, final, since=0 if last is None else last + 1)
            remember(folder, file)

        _note_server(folder, loop.policies.backend.found)
        begun()
        loop.run(note_changes)
    return None


def _finished(folder: RunFolder, rounds: int) -> tuple[int, Sequence[str]] | None:
    """The rounds of a finished run, and the notes of its repair; None when it has fewer than these."""
    notes: list[str] = []
    with folder.lock():
        last = read_last_round(folder.pool)
        if last is None or last < rounds:
            return None
        with PoolStore.open(folder.pool, create=False) as store:
            folder.restore(store, notes.append)
    return last, notes


@contextlib.contextmanager
def _opened(config: ResolvedConfig, folder: RunFolder, reporter: Reporter) -> Generator[CoEvolution]:
    """The training loop of a run, whose `config` has what only loaded models decide; closed at the end.

    Args:
        config: the settings.
        folder: the run.
        reporter: shows the progress.
    """
    with contextlib.ExitStack() as opened:
        env = opening.open_environment(config, reporter)
        opened.callback(close_environment, env)
        players = opening.load_players(config, env, reporter)
        if (settled := players.backend.settled) is not None:
            config = config.model_copy(update={"policy": settled})
        _check_tools(env, players.agent.sampler, seed=config.run.seed)
        sinks = open_sinks(config.logging, folder.path, name=config.run.name, settings=as_tables(config))
        opened.callback(close_all, sinks)
        with staged(reporter, "building base tasks", items=len(env.seeds()), unit="tasks"):
            loop = CoEvolution(config, env, players, folder, sinks=sinks, reporter=reporter)
        yield loop


def _note_server(folder: RunFolder, found: Mapping[str, object]) -> None:
    """Write down what was found out of the remote server that samples, where there is one."""
    if found:
        with (folder.path / SERVER).open("a", encoding="utf-8") as file:
            file.write(json.dumps(found) + "\n")


def _check_tools(env: Environment, sampler: Sampler, *, seed: int) -> None:
    """Refuse a model whose chat template does not support the environment's tools, before a run starts."""
    for task in base_tasks(env, env.seeds()[:1], seed=seed).values():
        sampler.render(task.messages, first=True, tools=tools_of(env.episode(task)))
