"""One rollout of a task, reply by reply, without an event loop or a model.

An episode is a coroutine that asks for replies. Here it pauses at each question until the caller gives the
reply. The caller may be a person, another trainer, or a server's session.
"""

from __future__ import annotations

from collections.abc import Coroutine, Generator, Sequence
from typing import Any

from genenv.environments.base import Environment, OutOfTurns, choices_of, failed, tools_of
from genenv.errors import EnvironmentCodeError, RolloutError, UsageError
from genenv.types import JsonObject, Message, Task, Verdict


class _Question:
    """What an episode awaits for a reply."""

    def __init__(self, messages: Sequence[Message]) -> None:
        self.messages = tuple(messages)

    def __await__(self) -> Generator[_Question, str, str]:
        return (yield self)


async def _ask(messages: Sequence[Message]) -> str:
    return await _Question(messages)


class StepwiseRollout:
    """One rollout of a task.

    Args:
        env: whose task it is.
        task: what is rolled out. Everything that the rollout begins with is derived from it.

    Raises:
        EnvironmentCodeError: the environment's episode asks for nothing, or waits for something that is no
            reply.
    """

    def __init__(self, env: Environment, task: Task) -> None:
        self.task = task
        self.messages: tuple[Message, ...] = ()
        """The messages before the next reply: the task at first, then the environment's answer."""
        self.done = False
        """Whether the episode has ended."""
        self.problem = ""
        """Why the rollout could not go on, where it could not: it counts as failed."""
        self._env, self._replies = env, list[str]()
        self._episode = env.episode(task)
        self._run: Coroutine[Any, Any, None] = self._episode.run(_ask)
        self._go_on(None)

    @property
    def tools(self) -> Sequence[JsonObject]:
        """Tools that the model's own form of calls is to offer, in OpenAI's form; mostly messages say it."""
        return tools_of(self._episode)

    @property
    def choices(self) -> Sequence[str]:
        """The replies among which the next one must be; none: any text."""
        return () if self.done else choices_of(self._episode)

    @property
    def max_turns(self) -> int:
        """It asks for no more replies than this."""
        return self._episode.max_turns

    @property
    def replies(self) -> tuple[str, ...]:
        """The replies so far: the log of the rollout, from which alone it is graded."""
        return tuple(self._replies)

    def reply(self, text: str) -> tuple[Message, ...]:
        """Send a reply, and return the environment's answer.

        Args:
            text: the agent's whole reply.

        Returns:
            The messages before the next reply; none when the rollout has ended.

        Raises:
            UsageError: the rollout has ended.
            EnvironmentCodeError: the environment's episode is at fault.
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
        return self._env.check(self.task, self._replies)

    def _go_on(self, text: str | None) -> None:
        try:
            question = self._run.send(text)
        except (StopIteration, OutOfTurns):
            self.messages, self.done = (), True
            return
        except RolloutError as error:
            self.messages, self.done, self.problem = (), True, str(error)
            return
        if not isinstance(question, _Question):
            self._run.close()
            raise EnvironmentCodeError(
                f"the episode of {self.task.id} waits for something else than a reply; such an environment "
                "is played within an event loop, by its own `run`"
            )
        self.messages = question.messages
