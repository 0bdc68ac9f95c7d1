"""Players that are Python functions, and the registry by whose names backends are opened."""

from __future__ import annotations

import asyncio
import random
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from genenv.algorithms.datum import Objective
from genenv.algorithms.settings import OptimizerConfig
from genenv.backends.base import Opened, Role, open_backend
from genenv.backends.scripted import BYTES_A_TOKEN, END, ScriptedSampler, ScriptedTrainer
from genenv.backends.settings import PolicyConfig
from genenv.errors import RolloutError
from genenv.progress import staged
from genenv.rollout.driver import Sampling, roll_out
from genenv.sampling import SampleRequest
from genenv.types import Message, Seed
from lessons import imitated
from watched import Watched

ROLES = [Role(name=name, optimizer=OptimizerConfig(), reference=False) for name in ("agent", "simulator")]
HELLO = (Message(role="user", content="hello"),)


@pytest.fixture
def env(toy: Any) -> Any:
    class Seeded(toy.Environment):
        def seeds(self) -> list[Seed]:
            return [Seed(id="seed-1", environment="sums", spec={}, skills=("sums",))]

        def variation(self, seed: Seed, rng: random.Random) -> dict[str, int]:
            return {"turns": 1, "left": 20, "right": 22}

    return Seeded()


def opened(env: Any) -> Opened:
    return open_backend(PolicyConfig(backend="scripted"), ROLES, env, seed=0)


def test_the_simulator_may_be_alone(env: Any) -> None:
    alone = open_backend(PolicyConfig(backend="scripted"), ROLES[1:], env, seed=0)
    assert sample(alone.samplers["simulator"]).text


def sample(sampler: Any, **request: Any) -> Any:
    return asyncio.run(sampler.sample(SampleRequest(**({"prompt_ids": (65,), "max_tokens": 100} | request))))


# --- the registry ---


def test_a_backend_that_there_is_not_is_one_sentence() -> None:
    with pytest.raises(ValidationError, match="unknown backend 'scribed'; did you mean 'scripted'"):
        PolicyConfig(backend="scribed")


# --- the sampler ---


def test_a_reply_is_what_the_script_makes_of_the_conversation_so_far() -> None:
    sampler = ScriptedSampler(lambda prompt, rng: f"{len(prompt)} é")
    prompt = sampler.render(HELLO, first=True)
    assert bytes(prompt).decode() == "[user] hello\n[assistant] "
    completion = sample(sampler, prompt_ids=prompt)
    assert completion.text == f"{len(prompt)} é"
    assert completion.token_ids == (*f"{len(prompt)} é".encode(), END)
    assert completion.logprobs == (0.0,) * len(completion.token_ids)
    assert completion.finished
    later = sampler.render((Message(role="tool", content="more"),), first=False)
    assert bytes(later).decode() == "\n[tool] more\n[assistant] "


def test_what_a_script_draws_depends_on_the_stream_of_its_request_alone() -> None:
    sampler = ScriptedSampler(lambda prompt, rng: str(rng.random()))
    said = [sample(sampler, stream=stream).text for stream in (1, 2, 1)]
    assert said[0] == said[2] != said[1]


@pytest.mark.parametrize(("bytes_a_token", "text"), [(1, "abc"), (2, "abcdef"), (4, "abcdefghij")])
def test_a_reply_is_cut_at_the_limit_of_tokens(bytes_a_token: int, text: str) -> None:
    sampler = ScriptedSampler(lambda prompt, rng: "abcdefghij", bytes_a_token=bytes_a_token)
    completion = sample(sampler, max_tokens=3)
    assert completion.text == text
    assert completion.finished == (text == "abcdefghij")


def test_a_prompt_that_leaves_no_room_is_a_failed_rollout() -> None:
    sampler = ScriptedSampler(lambda prompt, rng: "yes", context_tokens=10)
    assert sample(sampler, prompt_ids=(65,) * 6, max_tokens=4).text == "yes"
    with pytest.raises(RolloutError, match="no room"):
        sample(sampler, prompt_ids=(65,) * 7, max_tokens=4)


def test_the_stage_around_it_is_told_of_every_token() -> None:
    watched = Watched()
    with staged(watched, "sampling", items=None, unit=""):
        sample(ScriptedSampler(lambda prompt, rng: "abc"))
    assert watched.told == {"sampling": (4, 0)}


# --- the trainer ---


def test_only_what_was_learned_counts_as_an_update(tmp_path: Path) -> None:
    counts: list[int] = []
    trainer = ScriptedTrainer(counts.append)

    async def learn() -> None:
        await trainer.forward_backward([imitated((5,), (6, 1))], Objective())
        await trainer.step(0.1)

    async def go() -> None:
        await trainer.publish()  # of nothing
        await learn()
        await trainer.anchor("both")  # a warm-up is no update
        await trainer.publish()
        await learn()
        assert await trainer.publish() == 1
        await trainer.save(tmp_path / "agent")

    asyncio.run(go())
    assert counts == [0, 0, 1]
    other = ScriptedTrainer(counts.append)
    asyncio.run(other.load(tmp_path / "agent"))
    assert other.count == counts[-1] == 1


# --- both players of a run ---


def play(both: Opened, env: Any, tasks: list[Any], *, rollouts: int = 1) -> list[Any]:
    sampling = Sampling(temperature=1.0, max_new_tokens=60, timeout_s=60.0, seed=0)
    return asyncio.run(roll_out(env, both.samplers["agent"], tasks, rollouts=rollouts, sampling=sampling))


def test_the_agent_solves_more_with_every_update_up_to_a_share(env: Any, toy: Any) -> None:
    both = opened(env)
    task = toy.task(3, 4)

    def solved(updates: int) -> float:
        both.trainers["agent"].on_update(updates)  # type: ignore[attr-defined]
        (group,) = play(both, env, [task], rollouts=400)
        return group.successes / 400

    for updates, share in ((0, 0.3), (3, 0.6), (50, 0.9)):
        assert solved(updates) == pytest.approx(share, abs=0.08)


def test_an_attempt_goes_on_as_it_began(env: Any, toy: Any) -> None:
    (group,) = play(opened(env), env, [toy.task(3, 4, turns=3)], rollouts=60)
    replies = {trace.replies for trace in group.traces}
    assert replies == {("7", "7", "7"), ("-1", "-1", "-1")}


def test_a_task_that_the_environment_never_built_here_is_solved_too(env: Any, toy: Any) -> None:
    tasks = [toy.task(i, 4, name=f"task-{i}") for i in range(20, 60)]  # as those that a store brings back
    assert any(group.successes for group in play(opened(env), env, tasks))


def test_tools_that_the_chat_template_would_offer_do_not_hide_a_task(env: Any, toy: Any) -> None:
    both = opened(env)
    task = toy.task(3, 4)
    env.episode(task)
    agent: Any = both.samplers["agent"]
    prompt = agent.render(task.messages, first=True, tools=[{"name": "add"}, {"name": "halve"}])
    assert {sample(agent, prompt_ids=prompt, stream=i).text for i in range(20)} == {"7", "-1"}


def test_the_simulator_writes_variations_and_sometimes_breaks_off(env: Any) -> None:
    simulator = opened(env).samplers["simulator"]
    written = [sample(simulator, stream=i).text for i in range(300)]
    whole = '{"turns": 1, "left": 20, "right": 22}'
    assert set(written) == {whole, whole[: len(whole) // 2]}
    assert written.count(whole) / 300 == pytest.approx(0.9, abs=0.05)


def test_the_players_of_a_run_have_the_limits_of_models(env: Any) -> None:
    simulator: Any = opened(env).samplers["simulator"]
    assert simulator.bytes_a_token == BYTES_A_TOKEN
    assert not opened(env).warms_up
