"""`genenv play`: a person attempts a task of an environment, at the terminal."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from typing import Annotated

import typer

from genenv.cli.check import Name, config_of
from genenv.cli.console import begin, next_line
from genenv.cli.options import Overrides
from genenv.environments import load_environment
from genenv.environments.base import Environment, OutOfTurns
from genenv.errors import UsageError
from genenv.gate.gate import base_tasks
from genenv.texts import inert
from genenv.types import Message, Task

Wanted = Annotated[
    str, typer.Option("--task", help="Id of the task; left out, one at random.", show_default=False)
]


class _Ended(Exception):
    """The input has ended."""


def play(env: Name, task: Wanted = "", overrides: Overrides = []) -> None:  # noqa: B006 - Typer's form
    """Attempt a task yourself: what the agent is told, and the verdict on what you reply."""
    begin(f"looking for a task of {env}")
    config = config_of(env, overrides)
    world = load_environment(config.environment.name, config.environment.settings)
    tasks = base_tasks(world, world.seeds(), seed=config.run.seed)
    chosen = _chosen(tasks, task)
    typer.echo(f"task {chosen.id}; a reply may have several lines, an empty line ends it\n")
    replies = asyncio.run(_attempted(world, chosen))
    verdict = world.check(chosen, replies)
    typer.echo(f"\n{'solved' if verdict.success else 'not solved'}: {inert(verdict.explanation)}")
    if not verdict.success and chosen.oracle:
        typer.echo("\na solution:\n" + inert("\n".join(chosen.oracle)))


def _chosen(tasks: dict[str, Task], wanted: str) -> Task:
    known = {task.id: task for task in tasks.values()}
    if not known:
        raise UsageError("the environment has no base data that is a task of its own")
    if not wanted:
        return random.choice(list(known.values()))
    if wanted not in known:
        raise UsageError(f"there is no task {wanted!r}; they are called like {next(iter(known))!r}")
    return known[wanted]


async def _attempted(env: Environment, task: Task) -> Sequence[str]:
    """What the person replied, turn by turn."""
    replies: list[str] = []

    async def ask(messages: Sequence[Message]) -> str:
        for message in messages:
            typer.echo(f"[{message.role}]\n{inert(message.content)}\n")
        replies.append(_reply())
        return replies[-1]

    with contextlib.suppress(_Ended, OutOfTurns):
        await env.episode(task).run(ask)
    return replies


def _reply() -> str:
    """Lines up to an empty one."""
    lines: list[str] = []
    while (line := next_line("" if lines else "> ")) and line.strip():
        lines.append(line)
    if not lines:
        raise _Ended
    return "\n".join(lines)
