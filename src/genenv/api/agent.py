"""A trained agent in a program's hands: ask it, let it attempt tasks."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from genenv.api.environment import Environment, named
from genenv.api.values import words
from genenv.chat.assistant import Assistant, ChatMessage, Reply
from genenv.config.run import load_config
from genenv.errors import RolloutError, UsageError
from genenv.evaluation.config import load_evaluation_config
from genenv.evaluation.held_out import Conversation, Limits
from genenv.evaluation.models import assistant, run_of
from genenv.rollout.driver import UNFINISHED
from genenv.runs.folder import RunFolder
from genenv.threads import run_with_own_loop as apart
from genenv.types import JsonObject, Message, StopReason, Task, Verdict


@dataclass(frozen=True, slots=True)
class Attempted:
    """What came of an attempt."""

    task: Task
    replies: tuple[str, ...]
    """The agent's, one a turn."""
    verdict: Verdict


class Agent:
    """A model that answers: a trained agent, a model before training, or one behind an endpoint.

    Args:
        name: as for `load_agent`.
        assistant: what answers.
        limits: of an attempt.
        env: what it was trained on; None for a model of no run.
    """

    def __init__(self, name: str, assistant: Assistant, limits: Limits, env: Environment | None) -> None:
        self.name, self.env = name, env
        self._assistant, self._limits = assistant, limits
        self._conversations = itertools.count()

    def reply(
        self,
        messages: Sequence[ChatMessage | Message],
        *,
        tools: Sequence[JsonObject] = (),
        max_tokens: int | None = None,
    ) -> Reply:
        """Answer a conversation.

        Args:
            messages: all of it, in OpenAI's chat format, or as a task has them.
            tools: offered in OpenAI's format, where the model's template can.
            max_tokens: at most so many new ones; left out, as in training.

        Raises:
            ContextOverflow: the conversation does not fit into the model's window.
            RolloutError: no answer could be had.
        """
        told = [_chat(message) for message in messages]
        talk = self._assistant.talk(next(self._conversations))
        most = max_tokens or self._limits.max_new_tokens

        async def ask() -> Reply:
            return await talk(told, tools=tools, max_tokens=most)

        return apart(lambda: asyncio.run(ask()))

    def attempt(
        self, tasks: Task | Sequence[Task], env: Environment | str | Path | None = None
    ) -> list[Attempted]:
        """Attempt tasks, as many at a time as the model is best given; one that cannot go on has failed.

        Args:
            tasks: of an environment, such as `environment.held_out`.
            env: whose they are; left out, the one it was trained on.

        Raises:
            UsageError: nothing says whose tasks they are.
        """
        of = self.env if env is None else named(env)
        if of is None:
            raise UsageError(
                f"{self.name} was trained on no environment here; say whose tasks these are: environment=..."
            )
        listed = [tasks] if isinstance(tasks, Task) else list(tasks)
        return apart(lambda: asyncio.run(self._attempted(of, listed)))

    async def _attempted(self, env: Environment, tasks: Sequence[Task]) -> list[Attempted]:
        world, many = env.world, any(env.world.episode(task).max_turns > 1 for task in tasks[:1])
        free = asyncio.Semaphore(self._assistant.concurrency(many_turns=many))

        async def one(task: Task) -> Attempted:
            talk = self._assistant.talk(next(self._conversations), many_turns=many)
            held = Conversation(talk, self._limits)
            try:
                async with free:
                    await held.run(world.episode(task))
            except RolloutError as error:
                return Attempted(task, tuple(held.replies), _failed(str(error)))
            cut = UNFINISHED[StopReason.LENGTH]
            verdict = _failed(cut) if held.cut else world.check(task, held.replies)
            return Attempted(task, tuple(held.replies), verdict)

        return list(await asyncio.gather(*(one(task) for task in tasks)))

    def __repr__(self) -> str:
        """How it is loaded."""
        return f"load_agent({self.name!r})"


def load_agent(name: str | Path, settings: Mapping[str, object] | None = None) -> Agent:
    """Load an agent.

    Args:
        name: a run (`"runs/desk"`, `"runs/desk@8"`), a model's short name, folder or hub name, or
            `"openai:BASE_URL#MODEL"`.
        settings: `policy.*` says how a local model is loaded, `sampling.*` how it answers (greedily, as
            measurements do, unless told otherwise), `endpoint.*` how an endpoint is asked.

    Raises:
        UsageError: it cannot be had.
        DataError: a checkpoint is damaged.
    """
    found, asked = str(name), load_evaluation_config(words(settings or {}))
    run = run_of(found)
    config = load_config(None if run is None else RunFolder.open(run).config)
    env = None if run is None else Environment.of_run(config)
    limits = Limits(
        max_new_tokens=config.agent.max_new_tokens,
        context_tokens=config.policy.context_tokens,
        timeout_s=config.agent.episode_timeout_s,
    )
    return Agent(found, assistant(found, asked.policy, asked.endpoint, asked.sampling), limits, env)


def _failed(why: str) -> Verdict:
    """Of an attempt that did not come to its end."""
    return Verdict(reward=0.0, success=False, explanation=why, readable=False)


def _chat(message: ChatMessage | Message) -> ChatMessage:
    if isinstance(message, Message):
        return {"role": message.role, "content": message.content}
    return message
