"""An attempt that is played reply by reply: the same episodes, the same verdicts, without an event loop."""

from __future__ import annotations

import asyncio
import contextlib
import gc
import random
import re
from collections.abc import Sequence
from typing import Any

import pytest

import genenv
from endpoints import Server
from genenv.api.runs import Agent
from genenv.config.run import parse_config
from genenv.environments.base import Ask, OutOfTurns
from genenv.environments.stepwise import StepwiseRollout
from genenv.errors import EnvironmentCodeError, RolloutError, UsageError
from genenv.evaluation.held_out import Limits
from genenv.gate.gate import base_tasks
from genenv.types import Message
from recited import Recited


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


@pytest.mark.long
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


class _Assistant(Recited):
    """A model with one conversation."""

    def concurrency(self, *, many_turns: bool) -> int:
        return 1

    def talk(self, seed: int, *, many_turns: bool = False) -> Any:
        return self


def test_the_environment_of_a_run_has_its_seats_agents_and_seed() -> None:
    config = parse_config(
        {
            "run": {"seed": 5},
            "environment": {"name": "guess_who", "seats": {"asker": "seeker", "answerer": "helper"}},
            "agents": {"seeker": {}, "helper": {"max_new_tokens": 3, "episode_timeout_s": 9.0}},
        }
    )
    whole, own = genenv.Environment.of_run(config), genenv.Environment.of_run(config, "helper")
    assert whole.attempt(whole.held_out[0]).messages[0].content.startswith("One of these persons was chosen")
    assert own.attempt(own.held_out[0]).messages[0].content.startswith("You are ")
    assert own.run_config().environment.name == "guess_who"
    assert own.tasks == tuple(base_tasks(own.world, own.world.seeds(), seed=5).values())
    model = _Assistant(*["yes"] * 9)
    (done,) = Agent("a", model, Limits.of_run(config, "helper"), own).attempt(own.held_out[0])  # type: ignore[arg-type]
    assert model.heard[0][0]["content"].startswith("You are ")
    assert set(model.max_tokens) == {3}
    assert done.verdict == own.grade(done.task, done.replies)


def test_a_single_reply_may_be_graded_as_it_stands() -> None:
    env = genenv.Environment("programs")
    task = env.held_out[0]
    assert env.grade(task, task.oracle[0]) == env.grade(task, task.oracle)
    assert env.grade(task, task.oracle[0]).success


@pytest.mark.filterwarnings("error")
def test_a_model_behind_an_endpoint_answers_in_a_notebook_and_leaves_no_connection(server: Server) -> None:
    async def cell() -> str:  # a notebook runs a loop already
        agent = genenv.load_agent(f"openai:{server.url}#m")
        env = genenv.Environment("programs")
        with pytest.raises(UsageError, match=re.escape("env=...")):
            agent.attempt(env.held_out[:1])
        assert len(agent.attempt(env.held_out[:2], env=env)) == 2
        return agent.reply([{"role": "user", "content": "hi"}]).text

    assert asyncio.run(cell()) == "hello"
    gc.collect()  # what is left open warns here
