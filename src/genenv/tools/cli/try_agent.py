"""`genenv try`: a person asks a trained agent for something, and sees each call before it runs."""

from __future__ import annotations

import asyncio
import sys
from typing import Annotated

import typer

from genenv.backends.settings import EndpointConfig, PolicyConfig, SamplingConfig
from genenv.chat.assistant import Assistant, ChatMessage
from genenv.cli.console import begin, next_line
from genenv.config.run import load_config
from genenv.environments import load_environment
from genenv.errors import UsageError
from genenv.evaluation.models import assistant, run_of
from genenv.runs.folder import RunFolder
from genenv.texts import inert
from genenv.tools.build import opening
from genenv.tools.calls import format_calls, read_reply
from genenv.tools.environment import Tools
from genenv.tools.worlds.base import Call, Outcome

Run = Annotated[
    str, typer.Argument(metavar="RUN", help="A run, or a round of it: runs/desk@8.", show_default=False)
]
Policy = Annotated[
    str,
    typer.Option(
        "--policy", help="Whom to ask instead: a model, or openai:BASE_URL#MODEL.", show_default=False
    ),
]
Yes = Annotated[
    bool,
    typer.Option("--yes", help="Run every call without asking: where requests come from a pipe."),
]
_MOST_TOKENS = 256
_EXPECTED = "each request takes a line, and each call the next one: an empty line runs it, n does not"


def try_agent(run: Run, policy: Policy = "", yes: Yes = False) -> None:
    """Ask the agent of a run for something: each call is shown before it runs, on a copy of the state."""
    begin(f"loading {policy or run}")
    path = run_of(run)
    if path is None:
        raise UsageError(f"{run} is no run; name the folder of one, such as runs/desk")
    config = load_config(RunFolder.open(path).config)
    env = load_environment(config.environment.name, config.environment.settings)
    if not isinstance(env, Tools):
        raise UsageError(
            f"{run} is of {config.environment.name}, and `genenv try` is for your own tools; "
            f"`genenv play {config.environment.name}` lets you attempt a task yourself"
        )
    try:
        asked = assistant(policy or run, PolicyConfig(), EndpointConfig(), SamplingConfig())
        names = ", ".join(env.world.tools)
        typer.echo(f"tools: {names}\nsay what you want; an empty line ends it")
        session = _Session(env, asked, yes=yes)
        asyncio.run(session.held())
        if not session.requests:
            raise UsageError(f"nothing was asked for; type a request, or pipe some ({_EXPECTED})")
    finally:
        env.world.close()


class _Session:
    """A persistent state, and a separate conversation for each request."""

    def __init__(self, env: Tools, asked: Assistant, *, yes: bool) -> None:
        self._env, self._assistant, self._yes = env, asked, yes
        self.requests = 0
        """Number of requests so far."""
        self._done: list[Call] = list(env.beginning)
        self._multi = env.settings.mode != "single"
        native = env.settings.style == "native"
        self._tools = [tool.schema for tool in env.world.tools.values()] if native else []

    async def held(self) -> None:
        """Answer requests until an empty line; if the input is a pipe, until its end."""
        person = sys.stdin.isatty()
        while (request := next_line("\n> ")) is not None:
            if request.strip():
                typer.echo("" if person else f"{inert(request.strip())}\n", nl=False)
                self.requests += 1
                await self._answered(request.strip())
            elif person:
                break

    async def _answered(self, request: str) -> None:
        shown = list(self._env.world.tools)
        first = opening(
            self._env, request, shown, multi=self._multi, today=self._env.today(self._env.beginning)
        )
        messages: list[ChatMessage] = [{"role": one.role, "content": one.content} for one in first]
        talk = self._assistant.talk(len(self._done), many_turns=self._multi)
        for _ in range(self._env.settings.max_turns if self._multi else 1):
            reply = await talk(messages, tools=self._tools, max_tokens=_MOST_TOKENS)
            messages.append(reply.message())
            calls = [Call(tool=one.name, args=one.arguments) for one in reply.calls]
            if not calls:
                read = read_reply(reply.text, self._env.settings.style, self._env.known)
                calls = list(read.calls)
                if not calls:
                    typer.echo(f"agent: {inert(read.words or reply.text)}")
                    return
            answers = [self._run(call) for call in calls]
            messages += [{"role": "tool", "content": one.text} for one in answers]

    def _run(self, call: Call) -> Outcome:
        """Show a call, and run it unless the person says no."""
        typer.echo(f"call: {inert(format_calls([call], 'python'))}")
        tool = self._env.world.tools.get(call.tool)
        problem = f"There is no tool {call.tool!r}." if tool is None else tool.problem(call.args)
        if problem is not None:
            outcome = Outcome(error=problem)
        elif not self._yes and not _is_wanted():
            outcome = Outcome(error="The user does not want this call.")
        else:
            outcome = self._env.world.play([*self._done, call]).outcomes[-1]
            self._done.append(call)
        typer.echo(f"  {inert(outcome.text)}")
        return outcome


def _is_wanted() -> bool:
    """Ask the person whether to run the call that is shown; the end of the input means no."""
    said = next_line("Enter runs it, n does not: ")
    if said is None:
        typer.echo(f"the input has ended, so this call does not run: {_EXPECTED}, or --yes runs all")
        return False
    return not said.strip().lower().startswith("n")
