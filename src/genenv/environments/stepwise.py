"""Run one rollout of a task reply by reply, without an event loop or a model.

An episode is a coroutine that asks for replies. `StepwiseRollout` pauses it at each question until the caller
passes the reply. The caller may be a person, another trainer, or a server's session.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Generator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar, copy_context
from typing import Any, TypeVar

from genenv.environments.base import (
    Environment,
    OutOfTurns,
    choices_of,
    failed,
    is_remote,
    tools_of,
    verdict_of,
)
from genenv.errors import EnvironmentCodeError, RolloutError, UsageError
from genenv.types import JsonObject, Message, Task, Verdict

STEPPED: ContextVar[bool] = ContextVar("genenv_stepped", default=False)
"""Whether an episode is being run step by step, outside of any event loop (though a notebook may run one).
It may then await replies only; any other waiting has to block."""

T = TypeVar("T")


async def blocking(work: Callable[[], T], undo: Callable[[T], None] | None = None) -> T:
    """Return the result of work that blocks: in a thread, or here if the episode is run step by step.

    The thread is a new one: waiting for a thread of a pool would count as the environment's time.

    Args:
        work: the work. A cancelled call waits until it has ended, since it uses the rollout's resources.
        undo: frees the result if the call was cancelled.
    """
    if STEPPED.get():
        return work()
    thread = ThreadPoolExecutor(1)
    running = asyncio.get_running_loop().run_in_executor(thread, copy_context().run, work)
    thread.shutdown(wait=False)
    try:
        return await asyncio.shield(running)
    except asyncio.CancelledError:
        await asyncio.wait([running])
        error = running.exception()
        if isinstance(error, UsageError):  # it ends the run, not this rollout alone
            raise error from None
        if undo is not None and error is None:
            undo(running.result())
        raise


class _Question:
    """An awaitable that `ask` gives to an episode; the caller of the rollout resolves it with a reply."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = tuple(messages)

    def __await__(self) -> Generator[_Question, str, str]:
        return (yield self)


async def _ask(messages: Sequence[Message]) -> str:
    return await _Question(messages)


class StepwiseRollout:
    """One rollout of a task, driven by its caller.

    Args:
        env: the environment of the task.
        task: the task to roll out; it determines the start of the rollout.

    Raises:
        EnvironmentCodeError: the episode awaits something other than a reply.
    """

    def __init__(self, env: Environment, task: Task) -> None:
        self.task = task
        self.messages: tuple[Message, ...] = ()
        """The new messages before the next reply: the task at first, later the environment's response."""
        self.done = False
        """Whether the episode has ended."""
        self.problem = ""
        """The reason why the rollout could not continue, or empty; such a rollout counts as failed."""
        self._env, self._replies = env, list[str]()
        self._episode = env.episode(task)
        self._run: Coroutine[Any, Any, None] = self._episode.run(_ask)
        self._go_on(None)

    @property
    def tools(self) -> Sequence[JsonObject]:
        """Tools for the model's chat template, in OpenAI's form; empty if messages describe them."""
        return tools_of(self._episode)

    @property
    def choices(self) -> Sequence[str]:
        """The replies that are allowed next; empty if every text is allowed."""
        return () if self.done else choices_of(self._episode)

    @property
    def max_turns(self) -> int:
        """The maximum number of replies."""
        return self._episode.max_turns

    @property
    def replies(self) -> tuple[str, ...]:
        """The replies so far; the verdict depends on nothing else."""
        return tuple(self._replies)

    def reply(self, text: str) -> tuple[Message, ...]:
        """Send a reply and return the environment's response.

        Args:
            text: the agent's whole reply.

        Returns:
            The messages before the next reply; empty when the rollout has ended.

        Raises:
            UsageError: the rollout has already ended.
            EnvironmentCodeError: the episode has a fault.
        """
        if self.done:
            raise UsageError("the attempt has ended; begin another one")
        self._replies.append(text)
        self._go_on(text)
        return self.messages

    def verdict(self) -> Verdict:
        """Grade the replies so far. Equal replies get equal verdicts."""
        if self.problem:
            return failed(self.problem)
        own = self._episode if self.done or is_remote(self._episode) else None
        return verdict_of(self._env, self.task, own, self._replies)

    def _go_on(self, text: str | None) -> None:
        stepping = STEPPED.set(True)
        try:
            question = self._run.send(text)
        except (StopIteration, OutOfTurns):
            self.messages, self.done = (), True
            return
        except RolloutError as error:
            self.messages, self.done, self.problem = (), True, str(error)
            return
        finally:
            STEPPED.reset(stepping)
        if not isinstance(question, _Question):
            self._run.close()
            raise EnvironmentCodeError(
                f"the episode of {self.task.id} waits for something else than a reply; such an environment "
                "is played within an event loop, by its own `run`"
            )
        self.messages = question.messages
