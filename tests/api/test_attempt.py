"""An attempt that is played reply by reply: the same episodes, the same verdicts, without an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import random
from collections.abc import Sequence
from typing import Any

import pytest

import genenv
from genenv.environments.base import Ask, OutOfTurns
from genenv.environments.stepwise import StepwiseRollout
from genenv.errors import EnvironmentCodeError, RolloutError, UsageError
from genenv.types import Message


@pytest.fixture(scope="module")
def tools() -> genenv.Environment:
    return genenv.Environment("tool_calling", {"mode": "multi"})


def played(env: genenv.Environment, task: genenv.Task, replies: Sequence[str]) -> list[Sequence[Message]]:
    """What an episode asks with when it is run as training runs it."""
    heard: list[Sequence[Message]] = []
    left = iter(replies)

    async def ask(messages: Sequence[Message]) -> str:
        heard.append(tuple(messages))
        try:
            return next(left)
        except StopIteration:
            raise OutOfTurns from None

    async def run() -> None:
        with contextlib.suppress(OutOfTurns):
            await env.world.episode(task).run(ask)

    asyncio.run(run())
    return heard


@pytest.mark.long
def test_it_asks_what_a_run_asks_and_gets_the_same_verdict(tools: genenv.Environment) -> None:
    rng = random.Random(0)
    for task in tools.held_out[:40]:
        for replies in (task.oracle, tools.world.random_replies(task, rng), task.oracle[:1]):
            attempt, heard = tools.attempt(task), list[Sequence[Message]]()
            for reply in replies:
                if attempt.done:
                    break
                heard.append(attempt.messages)
                attempt.reply(reply)
            if not attempt.done:
                heard.append(attempt.messages)
            assert heard == played(tools, task, replies)
            assert attempt.verdict() == tools.grade(task, replies)


@pytest.mark.long
def test_a_solution_ends_it_and_nothing_can_be_said_after(tools: genenv.Environment) -> None:
    attempt = tools.attempt(tools.held_out[0])
    assert attempt.messages == attempt.task.messages
    for reply in attempt.task.oracle:
        attempt.reply(reply)
    assert attempt.done
    assert attempt.verdict().success
    assert attempt.replies == attempt.task.oracle
    assert (attempt.messages, attempt.choices) == ((), ())
    with pytest.raises(UsageError, match="has ended"):
        attempt.reply("more")


class _Own:
    """An environment whose episodes do what they are told."""

    def __init__(self, run: Any) -> None:
        self._run = run

    def episode(self, task: Any) -> Any:
        run = self._run

        class Episode:
            max_turns = 2

            async def run(self, ask: Ask) -> None:
                await run(ask)

        return Episode()


def test_one_that_cannot_go_on_has_failed(tools: genenv.Environment) -> None:
    async def breaks(ask: Ask) -> None:
        await ask(())
        raise RolloutError("the world is gone")

    attempt = StepwiseRollout(_Own(breaks), tools.held_out[0])  # type: ignore[arg-type]
    attempt.reply("go")
    assert attempt.done
    assert attempt.verdict() == genenv.Verdict(
        reward=0.0, success=False, explanation="the world is gone", readable=False
    )


def test_one_that_waits_for_something_else_says_so(tools: genenv.Environment) -> None:
    async def waits(ask: Ask) -> None:
        await asyncio.sleep(0)

    with pytest.raises(EnvironmentCodeError, match="waits for something else than a reply"):
        StepwiseRollout(_Own(waits), tools.held_out[0])  # type: ignore[arg-type]
