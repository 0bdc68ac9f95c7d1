"""Training: starts a run, or goes on with one. The command line is a thin layer over this."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path

from genenv.backends.settings import AUTOMATIC, OF_THE_MACHINE
from genenv.config.run import RunConfig, as_tables, check_simulator, dump_toml
from genenv.environments import close_environment
from genenv.environments.base import Environment
from genenv.gate.gate import base_tasks
from genenv.progress import Reporter, staged
from genenv.rollout.driver import tools_of
from genenv.runs.folder import RunFolder
from genenv.runs.sinks import close_all, open_sinks
from genenv.runs.store.reader import read_last_round
from genenv.runs.store.store import PoolStore
from genenv.training import opening
from genenv.training.branching import Origin
from genenv.training.loop import CoEvolution
from genenv.training.policies import Players
from genenv.training.resuming import check_length, for_training, possible, record, remember

Say = Callable[[str], None]

SERVER = "server.jsonl"
"""File in a run's folder: a line for each start, what was found out of the server that plays."""


def start(
    config: RunConfig,
    path: Path,
    reporter: Reporter,
    *,
    file: Path | None = None,
    origin: Origin | None = None,
) -> None:
    """Play a new run to its end.

    Args:
        config: its settings; what is automatic in them is decided first.
        path: its folder, which is made when nothing else can fail.
        reporter: is told how far it is.
        file: where the settings stood.
        origin: a round of another run to start from.

    Raises:
        GenenvError: it cannot start, or cannot go on; the sentence says why.
    """
    folder = RunFolder.vacant(path)
    opening.check_models(config)
    check_simulator(config)
    if origin is not None:
        origin.check(config)

    def create(config: RunConfig) -> None:
        path.mkdir(parents=True, exist_ok=True)
        remember(folder, file)
        if origin is None:
            RunFolder.create(path, dump_toml(config))
        else:
            RunFolder.create(path, origin.note() + dump_toml(config), fill=origin.fill)

    _play(config, folder, reporter, create=create)


def go_on(
    path: Path,
    reporter: Reporter,
    say: Say,
    *,
    file: Path | None = None,
    overrides: Sequence[str] = (),
    other_arithmetic: bool = False,
) -> str | None:
    """Play the rounds of a run that are left.

    Args:
        path: the run.
        reporter: is told how far it is.
        say: is told what a person should know.
        file: settings that are meant to be the run's; a change that would make it another run is refused.
        overrides: `key=value` each.
        other_arithmetic: whether a machine will do that lacks what the run was computed with.

    Returns:
        A sentence where there was nothing left to play.

    Raises:
        GenenvError: it cannot go on; the sentence says why.
    """
    folder = RunFolder.open(path)
    change = for_training(folder, file, overrides, other_arithmetic=other_arithmetic)
    if (note := check_length(folder, change)) is not None:
        say(note)
    if (done := _finished(folder, change.asked)) is not None:
        number, told = done
        for text in told:
            say(f"note: {text}")
        unchanged = "" if told else ", nothing was changed"
        return f"{folder.path} is finished: all of its {number} rounds are committed{unchanged}"

    def note_changes(config: RunConfig, last: int | None) -> None:
        record(folder, replace(change, asked=config), since=0 if last is None else last + 1)
        remember(folder, file)

    config = _chosen(possible(change, folder, other_arithmetic=other_arithmetic))
    _play(config, folder, reporter, proven=note_changes)
    return None


def _finished(folder: RunFolder, config: RunConfig) -> tuple[int, Sequence[str]] | None:
    """How many rounds a finished run has, and what mending it had to say; None when some rounds are left."""
    told: list[str] = []
    with folder.lock():
        last = read_last_round(folder.pool)
        if last is None or last < config.run.rounds:
            return None
        with PoolStore.open(folder.pool, create=False) as store:
            folder.restore(store, told.append)
    return last, told


def _play(
    config: RunConfig,
    folder: RunFolder,
    reporter: Reporter,
    *,
    create: Callable[[RunConfig], None] | None = None,
    proven: Callable[[RunConfig, int | None], None] | None = None,
) -> None:
    """Play all rounds that are left.

    Args:
        config: the settings; what is automatic in them is decided first.
        folder: the run.
        reporter: is told how far it is.
        create: makes the folder of a new run, when nothing else can fail; told the settings as decided.
        proven: told them and the last round of a run that is continued, when it was proven whole.
    """
    env = opening.open_environment(config, reporter)
    try:
        _play_on(env, config, folder, reporter, create=create, proven=proven)
    finally:
        close_environment(env)


def _play_on(
    env: Environment,
    config: RunConfig,
    folder: RunFolder,
    reporter: Reporter,
    *,
    create: Callable[[RunConfig], None] | None,
    proven: Callable[[RunConfig, int | None], None] | None,
) -> None:
    config = _chosen(config)
    players = opening.load_players(config, env, reporter)
    config = _settled(config, players)
    _check_tools(env, players, config)
    sinks = open_sinks(config.logging, folder.path, name=config.run.name, settings=as_tables(config))
    try:
        with staged(reporter, "building base tasks", items=len(env.seeds()), unit="tasks"):
            loop = CoEvolution(config, env, players, folder, sinks=sinks, reporter=reporter)
        if create is not None:
            create(config)
        if players.found:
            with (folder.path / SERVER).open("a", encoding="utf-8") as file:
                file.write(json.dumps(players.found) + "\n")
        loop.run(None if proven is None else lambda last: proven(config, last))
    finally:
        close_all(sinks)


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


def _check_tools(env: Environment, players: Players, config: RunConfig) -> None:
    """Refuse a model that cannot be offered an environment's tools, before a run begins."""
    for task in base_tasks(env, env.seeds()[:1], seed=config.run.seed).values():
        players.agent.sampler.render(task.messages, first=True, tools=tools_of(env.episode(task)))
