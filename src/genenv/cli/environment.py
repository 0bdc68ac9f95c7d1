"""`genenv check` tests an environment against its interface; `genenv play` gives one task to a person."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text

from genenv.cli.console import Overrides, begin, next_line
from genenv.cli.progress import ConsoleReporter
from genenv.config.run import RunConfig, load_config
from genenv.environments import load_environment
from genenv.environments.base import Environment, OutOfTurns, choices_of, verdict_of
from genenv.errors import UsageError
from genenv.evaluation.environment_check import (
    BROKEN,
    GOOD,
    Finding,
    HasFindings,
    Pace,
    check_environment,
    verdict,
)
from genenv.gate.gate import base_tasks
from genenv.texts import inert
from genenv.types import Message, Task, Verdict

_STYLES = {GOOD: "green", BROKEN: "bold red"}

Name = Annotated[
    str,
    typer.Argument(
        metavar="ENVIRONMENT",
        help="An environment's name, a folder of tools, package.module:Class or FILE.py:Class of your own, "
        "an environment of others (openenv:http://HOST:PORT, verifiers:TASKSET, textarena:GAME), or a "
        "run's TOML file.",
    ),
]
Number = Annotated[int, typer.Option("--n", min=1, help="How many tasks of each kind to look at.")]
Wanted = Annotated[str, typer.Option("--task", help="Id of the task; left out, one at random.")]


def check(env: Name, n: Number = 100, overrides: Overrides = []) -> None:  # noqa: B006 - Typer's form
    """Say whether an environment keeps what it promises. No model takes part."""
    begin(f"checking {env}")
    config = config_of(env, overrides)
    table = Table(title=inert(f"{config.environment.name}: what it promises"), title_justify="left")
    for column in ("what", "state", "seen"):
        table.add_column(column, overflow="fold" if column == "seen" else "ellipsis")
    found: list[Finding] = []
    environment = load_environment(config.environment.name, config.environment.settings)
    more = environment.findings() if isinstance(environment, HasFindings) else ()
    for one in itertools.chain(
        check_environment(environment, config, n=n, pace=Pace(ConsoleReporter())), more
    ):
        found.append(one)
        table.add_row(
            one.what, Text(one.state, style=_STYLES.get(one.state, "yellow")), Text(inert(one.seen))
        )
    Console(highlight=False).print(table)
    typer.echo(inert(verdict(found)))
    if any(one.state == BROKEN for one in found):
        raise typer.Exit(1)


def config_of(name: str, overrides: Sequence[str]) -> RunConfig:
    """Return the settings of a run with this environment, from a file or from the defaults."""
    if name.endswith(".toml") and Path(name).is_file():
        return load_config(Path(name), overrides)
    return load_config(None, [f"environment.name={name}", *overrides])


class _Ended(Exception):
    """Raised at the end of the input."""


def play(
    env: Name,
    task: Wanted = "",
    listed: Annotated[
        bool, typer.Option("--list", help="Only list all tasks: id, and what the user asks for.")
    ] = False,
    solutions: Annotated[
        bool, typer.Option("--solutions", help="List all tasks, each with a solution below it.")
    ] = False,
    overrides: Overrides = [],  # noqa: B006 - Typer's form
) -> None:
    """Attempt a task yourself: what the agent is told, and the verdict on what you reply."""
    listed = listed or solutions
    begin(f"looking for {'the tasks' if listed else 'a task'} of {env}")
    config = config_of(env, overrides)
    environment = load_environment(config.environment.name, config.environment.settings)
    tasks = list(base_tasks(environment, environment.seeds(), seed=config.run.seed).values())
    if listed or task not in ("", *(one.id for one in tasks)):
        tasks += environment.held_out()
    if listed:
        for one in tasks:
            typer.echo(f"{one.id}\t{inert(' '.join(one.messages[-1].content.split()))}")
            for line in "\n".join(one.oracle if solutions else ()).splitlines():
                typer.echo(f"\t{inert(line)}")
        return
    chosen = _chosen(tasks, task)
    typer.echo(f"task {chosen.id}; a reply may have several lines, an empty line ends it\n")
    graded = asyncio.run(_attempted(environment, chosen))
    typer.echo(f"\n{'solved' if graded.success else 'not solved'}: {inert(graded.explanation)}")
    if not graded.success and chosen.oracle:
        typer.echo("\na solution:\n" + inert("\n".join(chosen.oracle)))


def _chosen(tasks: Sequence[Task], wanted: str) -> Task:
    known = {task.id: task for task in tasks}
    if not known:
        raise UsageError("the environment has no base data that is a task of its own")
    if not wanted:
        return random.choice(list(known.values()))
    if wanted not in known:
        raise UsageError(
            f"there is no task {wanted!r}; they are called like {next(iter(known))!r}, and --list names them"
        )
    return known[wanted]


async def _attempted(env: Environment, task: Task) -> Verdict:
    """Return the verdict on the person's replies, read turn by turn."""
    replies: list[str] = []

    async def ask(messages: Sequence[Message]) -> str:
        for message in messages:
            typer.echo(f"[{message.role}]\n{inert(message.content)}\n")
        replies.append(_reply(choices_of(episode)))
        return replies[-1]

    episode = env.episode(task)
    try:
        with contextlib.suppress(OutOfTurns):
            await episode.run(ask)
    except _Ended:
        return env.check(task, replies)
    return verdict_of(env, task, episode, replies)


def _reply(choices: Sequence[str]) -> str:
    """Read lines up to an empty one, again while they are no possible reply.

    Args:
        choices: the possible replies; empty if any text is.

    Raises:
        _Ended: the input is at its end, or there is an empty line where a reply begins.
    """
    if choices:
        typer.echo(f"possible: {inert(' '.join(choices))}\n")
    while True:
        lines: list[str] = []
        while (line := next_line("" if lines else "> ")) and line.strip():
            lines.append(line)
        if not lines:
            raise _Ended
        reply = "\n".join(lines)
        if not choices or reply in choices:
            return reply
        typer.echo(f"{inert(reply)!r} is not possible here; choose one of the replies above")
