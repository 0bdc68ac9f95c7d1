"""`genenv try`: a person asks a trained agent for something, and sees each call before it runs."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Awaitable, Callable, Sequence
from typing import Annotated, cast

import typer

from genenv.backends.settings import EndpointConfig, PolicyConfig, SamplingConfig
from genenv.chat.assistant import Assistant, ChatMessage
from genenv.cli.console import begin, next_line
from genenv.config.run import RunConfig
from genenv.environments import load_environment
from genenv.errors import UsageError
from genenv.evaluation.models import assistant, named_policy
from genenv.runs.folder import RunFolder
from genenv.texts import inert
from genenv.tools.build import opening
from genenv.tools.calls import format_calls, read_reply
from genenv.tools.check import calls_of, refusal
from genenv.tools.environment import Tools
from genenv.tools.worlds.base import GONE, Call, Outcome
from genenv.tools.worlds.base import Session as WorldSession
from genenv.types import Task

Run = Annotated[str, typer.Argument(metavar="RUN", help="A run, or a round of it: runs/desk@8.")]
Policy = Annotated[
    str, typer.Option("--policy", help="Whom to ask instead: a model, or openai:BASE_URL#MODEL.")
]
Yes = Annotated[
    bool, typer.Option("--yes", help="Run every call without asking: where requests come from a pipe.")
]
Show = Callable[[str, str], None]
Wanted = Callable[[str], Awaitable[bool]]

MOST_TOKENS = 256
"""Tokens of a reply."""
_EXPECTED = "each request takes a line, and each call the next one: an empty line runs it, n does not"


def try_agent(run: Run, policy: Policy = "", yes: Yes = False) -> None:
    """Ask the agent of a run for something: each call is shown before it runs, on a copy of the state."""
    begin(f"loading {policy or run}")
    named = named_policy(run)
    if named is None:
        raise UsageError(f"{run} is no run; name the folder of one, such as runs/desk")
    config = RunFolder.open(named.run).settings()
    env = load_environment(config.environment.name, config.environment.settings)
    if not isinstance(env, Tools):
        raise UsageError(
            f"{run} is of {config.environment.name}, and `genenv try` is for your own tools; "
            f"`genenv play {config.environment.name}` lets you attempt a task yourself"
        )
    try:
        asked = assistant(policy or run, as_trained(config), EndpointConfig(), SamplingConfig())
        names = ", ".join(env.world.tools)
        typer.echo(f"tools: {names}\nsay what you want; an empty line ends it")
        session = Session(env, asked, show=_show, wanted=_always if yes else _is_wanted)
        if not asyncio.run(_held(session)):
            raise UsageError(f"nothing was asked for; type a request, or pipe some ({_EXPECTED})")
    finally:
        env.world.close()


def as_trained(config: RunConfig) -> PolicyConfig:
    """Return how a person's agent is loaded: on the device at hand, with the context window of its run."""
    return PolicyConfig(context_tokens=config.policy.context_tokens)


async def _held(session: Session) -> int:
    """Answer requests until an empty line, or until the end of a pipe; return how many there were."""
    person, requests = sys.stdin.isatty(), 0
    async with contextlib.aclosing(session):
        while (request := next_line("\n> ")) is not None:
            if request.strip():
                typer.echo("" if person else f"{inert(request.strip())}\n", nl=False)
                requests += 1
                await session.answer(request.strip())
            elif person:
                break
    return requests


def _show(kind: str, text: str) -> None:
    """Print a step of a session."""
    typer.echo({"agent": "agent: ", "call": "call: ", "result": "  "}[kind] + inert(text))


async def _is_wanted(_: str) -> bool:
    """Ask the person whether to run the call that is shown; the end of the input means no."""
    said = next_line("Enter runs it, n does not: ")
    if said is None:
        typer.echo(f"the input has ended, so this call does not run: {_EXPECTED}, or --yes runs all")
        return False
    return not said.strip().lower().startswith("n")


async def _always(_: str) -> bool:
    return True


class Session:
    """An agent with a user's tools: the state persists, and each request begins a conversation of its own.

    All its answers are given in one event loop.

    Args:
        env: the environment of the tools.
        asked: the agent.
        show: receives each step: (`agent`, what it says), (`call`, a call before it runs), (`result`, what
            came of it).
        wanted: says whether a call that was shown may run.
        task: a task whose tools are shown and in whose state the session begins; None: all tools, and the
            state in which tasks begin.
    """

    def __init__(
        self, env: Tools, asked: Assistant, *, show: Show, wanted: Wanted, task: Task | None = None
    ) -> None:
        self._env, self._assistant, self._show, self._wanted, self._task = env, asked, show, wanted, task
        before = env.beginning if task is None else calls_of(task.payload, "before")
        self._done: list[Call] = list(before)
        """The calls that led to the present state."""
        self._world: WorldSession | None = None
        self._entered = contextlib.AsyncExitStack()
        self._shown = list(env.world.tools)
        if task is not None:
            offered = cast("Sequence[str]", task.payload["tools"])
            self._shown = [name for name in offered if name in env.world.tools]
        self._multi = env.settings.mode != "single"
        native = env.settings.style == "native"
        self._tools = [env.world.tools[name].schema for name in self._shown] if native else []

    async def answer(self, request: str) -> None:
        """Let the agent answer a request with calls and words, in a new conversation on the present state."""
        if self._task is not None and request == self._task.messages[-1].content:
            first = self._task.messages
        else:
            today = self._env.today(self._done)
            first = opening(self._env, request, self._shown, multi=self._multi, today=today)
        messages: list[ChatMessage] = [{"role": one.role, "content": one.content} for one in first]
        talk = self._assistant.talk(len(self._done), many_turns=self._multi)
        for _ in range(self._env.settings.max_turns if self._multi else 1):
            reply = await talk(messages, tools=self._tools, max_tokens=MOST_TOKENS)
            messages.append(reply.message())
            calls = [Call(tool=one.name, args=one.arguments) for one in reply.calls]
            if not calls:
                read = read_reply(reply.text, self._env.settings.style, self._env.known)
                calls = list(read.calls)
                if not calls:
                    self._show("agent", read.words or reply.text)
                    return
            answers = [await self._run(call) for call in calls]
            messages += [{"role": "tool", "content": one.text} for one in answers]

    async def _run(self, call: Call) -> Outcome:
        """Show a call, and run it if it is wanted."""
        text = format_calls([call], "python")
        self._show("call", text)
        if (problem := refusal(self._env.world, self._shown, call)) is not None:
            outcome = Outcome(error=problem)
        elif not await self._wanted(text):
            outcome = Outcome(error="The user does not want this call.")
        else:
            outcome = await self._made(call)
        self._show("result", outcome.text)
        return outcome

    async def _made(self, call: Call) -> Outcome:
        """Make a call in the session of the tools. If it ends that, the next session begins where it was."""
        if self._world is None:
            self._world = await self._entered.enter_async_context(self._env.world.session())
            for one in self._done:
                await self._world.call(one)
        outcome = await self._world.call(call)
        if outcome.error == GONE:
            await self.aclose()
        else:
            self._done.append(call)
        return outcome

    async def aclose(self) -> None:
        """End the session of the tools."""
        self._world = None
        await self._entered.aclose()
