"""The policy network: closed-loop trajectories, GAE by hand, and whole runs that learn, resume and refuse."""

from __future__ import annotations

import asyncio
import json
import math
import subprocess
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from genenv.algorithms.advantages import ppo_credit
from genenv.algorithms.datum import Critic, Datum, Objective
from genenv.algorithms.settings import GrpoConfig, OptimizerConfig
from genenv.algorithms.update import learn
from genenv.backends.base import Opened, Role, open_backend
from genenv.backends.local.ppo import FIRST, ActionAssistant, ActionSampler, PpoTrainer
from genenv.backends.scripted import END, ScriptedTrainer
from genenv.backends.settings import PolicyConfig, PpoConfig, SamplingConfig
from genenv.environments import load_environment
from genenv.environments.control.environment import Control, ControlConfig
from genenv.environments.control.simulation import Level, read_actions, replay
from genenv.errors import ContextOverflow, DataError, RolloutError, UpdateSkipped
from genenv.rollout.driver import Sampling, demonstration, roll_out
from genenv.sampling import SampleRequest
from genenv.types import Group, Message
from genenv.viewer.tasks import actions
from typed import refused, succeeds

CONFIG = PolicyConfig(backend="ppo", context_tokens=1024, ppo=PpoConfig(hidden=16))
GREEDY = Sampling(temperature=0.0, max_new_tokens=121, timeout_s=10, seed=0)
RANDOM = replace(GREEDY, temperature=1.0)


@pytest.fixture(scope="module")
def env() -> Control:
    return cast(Control, load_environment("control", ControlConfig(base_tasks=4, held_out_tasks=3)))


def opened(env: Any, *, reference: bool = False, seed: int = 0) -> tuple[ActionSampler, PpoTrainer]:
    role = Role(name="agent", optimizer=OptimizerConfig(), reference=reference)
    found: Opened = open_backend(CONFIG, [role], env, seed=seed)
    return cast(ActionSampler, found.samplers["agent"]), cast(PpoTrainer, found.trainers["agent"])


def groups_of(
    env: Control, sampler: ActionSampler, sampling: Sampling = RANDOM, rollouts: int = 3
) -> list[Group]:
    return asyncio.run(roll_out(env, sampler, env.held_out()[:4], rollouts=rollouts, sampling=sampling))


def data_of(env: Control, sampler: ActionSampler) -> list[Datum]:
    return ppo_credit(groups_of(env, sampler), {}, GrpoConfig(), temperature=1.0).data


# --- the sampler ---


def test_an_evaluated_reply_is_as_long_as_the_context_window_allows(env: Control, tmp_path: Path) -> None:
    sampler, trainer = opened(env)
    asyncio.run(trainer.save(tmp_path))
    messages: list[Any] = [{"role": one.role, "content": one.content} for one in env.held_out()[0].messages]
    size = len(sampler.render(env.held_out()[0].messages, first=True))

    def reply(window: int, limit: int) -> Any:
        config = CONFIG.model_copy(update={"context_tokens": window})
        sampling = SamplingConfig(max_new_tokens=limit)
        assistant = ActionAssistant(config, env, tmp_path, sampling, name="agent", weights={})
        return asyncio.run(assistant.talk(0)(messages))

    assert reply(1024, 4096) == reply(1024, 121)
    assert 0 < reply(size + 10, 4096).tokens <= 10
    with pytest.raises(ContextOverflow, match=f"the level has {size} tokens, the context window {size}"):
        reply(size, 4096)


def test_a_trace_holds_the_actions_and_replays_to_its_verdict(env: Control) -> None:
    sampler, trainer = opened(env)
    for group in groups_of(env, sampler):
        for trace in group.traces:
            actions = read_actions(trace.replies[0])
            assert actions is not None
            assert [one - FIRST for one in trace.token_ids[trace.prompt_tokens : -1]] == [
                round(one * 1000) for one in actions
            ]
            assert trace.token_ids[-1] == END
            assert not trace.sampled[-1]
            found = replay(Level.read(str(group.task.payload["level"])), actions)
            assert (found.reward, found.success, len(found.actions)) == (
                trace.reward,
                trace.success,
                len(actions),
            )
    data = data_of(env, sampler)
    for datum, logprobs in zip(data, asyncio.run(trainer.logprobs(data)), strict=True):
        assert logprobs == pytest.approx(datum.old_logprobs, abs=1e-4)


def test_a_trajectory_depends_on_its_stream_and_not_on_its_batch(env: Control) -> None:
    sampler, _ = opened(env)
    prompt = sampler.render(env.held_out()[0].messages, first=True)
    asked = [SampleRequest(prompt_ids=prompt, max_tokens=121, stream=stream) for stream in (1, 2, 1)]

    async def together() -> Sequence[Any]:
        return await asyncio.gather(*map(sampler.sample, asked))

    one, other, again = asyncio.run(together())
    assert one == again == asyncio.run(sampler.sample(asked[0]))
    assert one != other


def test_greedy_rollouts_agree_and_others_do_not(env: Control) -> None:
    sampler, _ = opened(env)
    (first, *_), *_ = [group.traces for group in groups_of(env, sampler, GREEDY)]
    assert {trace.replies for trace in groups_of(env, sampler, GREEDY)[0].traces} == {first.replies}
    assert len({trace.replies for trace in groups_of(env, sampler)[0].traces}) == 3


def test_a_trajectory_that_reaches_the_token_limit_is_not_finished(env: Control) -> None:
    sampler, _ = opened(env)
    group = groups_of(env, sampler, replace(RANDOM, max_new_tokens=9))[0]
    assert {trace.stop_reason for trace in group.traces} == {"length"}
    assert group.traces[0].response_tokens == 8
    prompt = sampler.render(group.task.messages, first=True)

    async def together() -> Sequence[Any]:
        limits = (1, 5, 121)
        asked = [SampleRequest(prompt_ids=prompt, max_tokens=most, stream=1) for most in limits]
        return await asyncio.gather(*map(sampler.sample, asked))

    none, few, all_ = asyncio.run(together())
    assert (len(none.token_ids), len(few.token_ids), none.finished, few.finished) == (0, 4, False, False)
    assert all_.finished
    assert all_.token_ids[:4] == few.token_ids


@pytest.mark.parametrize(
    "text", ["hello", '{"system": "cartpole", "start": [0]}', "{", '{"system": "pendulum"}']
)
def test_a_prompt_without_a_level_is_one_failed_rollout(env: Control, text: str) -> None:
    sampler, _ = opened(env)
    prompt = sampler.render([Message(role="user", content=text)], first=True)
    with pytest.raises(RolloutError, match="policy network"):
        asyncio.run(sampler.sample(SampleRequest(prompt_ids=prompt, max_tokens=121)))


def test_weights_that_are_not_finite_fail_rollouts_with_a_sentence(env: Control) -> None:
    sampler, _ = opened(env)
    with torch.no_grad():
        sampler.network.log_std.fill_(math.nan)
    trace = groups_of(env, sampler)[0].traces[0]
    assert trace.stop_reason == "error"
    assert "not finite; committed rounds are kept" in trace.explanation


# --- the trainer ---


def test_advantages_are_those_of_gae(env: Control) -> None:
    sampler, trainer = opened(env)
    data = data_of(env, sampler)
    found = asyncio.run(trainer.advantages(data))
    gamma, decay = CONFIG.ppo.gamma, CONFIG.ppo.gamma * CONFIG.ppo.gae_lambda
    scale = 120 * (1 - gamma) / (1 - gamma**120)  # returns are near 1, whatever the discount
    raw: list[float] = []
    for one in trainer._trajectories(data):
        values = [*trainer.network.value(one.states_TD)[:, 0].tolist(), 0.0]
        rewards = (scale * one.rewards_T).tolist()
        errors = [r + gamma * values[t + 1] - values[t] for t, r in enumerate(rewards)]
        raw += [sum(decay**k * error for k, error in enumerate(errors[t:])) for t in range(len(errors))]
    mean = sum(raw) / len(raw)
    std = math.sqrt(sum((one - mean) ** 2 for one in raw) / len(raw))
    flat = [one for row in found for one in row]  # the end token, which was not sampled, is no action
    assert flat == pytest.approx([(one - mean) / std for one in raw], abs=1e-4)
    assert [len(row) for row in found] == [len(datum.completion_ids) for datum in data]


def test_rewards_of_steps_sum_to_the_reward_of_the_trace(env: Control) -> None:
    sampler, trainer = opened(env)
    groups = groups_of(env, sampler)
    data = ppo_credit(groups, {}, GrpoConfig(), temperature=1.0).data
    traces = [trace for group in groups for trace in group.traces]
    for one, trace in zip(trainer._trajectories(data), traces, strict=True):
        assert one.rewards_T.sum() == pytest.approx(trace.reward, abs=1e-5)


def test_an_update_raises_the_value_estimate_towards_the_returns_and_publishes(env: Control) -> None:
    sampler, trainer = opened(env, reference=True)
    groups = groups_of(env, sampler)
    config = GrpoConfig(epochs=4, kl_coefficient=0.1, entropy_coefficient=0.01)
    batch = ppo_credit(groups, {}, config, temperature=1.0)
    states = torch.cat([one.states_TD for one in trainer._trajectories(batch.data)])
    before = trainer.network.value(states).mean().item()
    done = asyncio.run(learn(trainer, batch, player="agent", learning_rate=0.003, seed=0))
    metrics = done.metrics()
    assert metrics["agent/steps"] == 4
    assert metrics["agent/mismatch_kl"] < 1e-6
    assert {"agent/kl", "agent/entropy", "agent/clip_rate"} <= metrics.keys()
    assert trainer.network.value(states).mean().item() != before
    assert sampler.network.log_std.item() != trainer.network.log_std.item()
    assert asyncio.run(trainer.publish()) == 1
    assert sampler.network.log_std.item() == trainer.network.log_std.item()
    assert groups_of(env, sampler)[0].traces[0].version == 1


def test_with_more_steps_than_groups_each_step_has_its_own_time_steps(env: Control) -> None:
    sampler, trainer = opened(env)
    batch = ppo_credit(
        groups_of(env, sampler), {}, GrpoConfig(epochs=2, updates_per_epoch=16), temperature=1.0
    )
    seen = list[list[Datum]]()
    forward_backward = trainer.forward_backward

    async def noted(data: Sequence[Datum], objective: Objective) -> Any:
        seen.append(list(data))
        return await forward_backward(data, objective)

    cast(Any, trainer).forward_backward = noted
    done = asyncio.run(learn(trainer, batch, player="agent", learning_rate=0.001, seed=0))
    assert (done.steps, done.skipped) == (32, 0)
    tokens = [sum(datum.tokens for datum in data) for data in seen]
    assert max(tokens) - min(tokens) <= 1
    for epoch in (seen[:16], seen[16:]):
        own = Counter(
            (datum.prompt_ids, datum.completion_ids, t)
            for data in epoch
            for datum in data
            for t, weight in enumerate(datum.weights)
            if weight > 0
        )
        assert set(own.values()) == {1}
        assert len(own) == sum(datum.tokens for datum in batch.data)
    assert seen[0] != seen[16]


def test_demonstrations_are_imitated(env: Control) -> None:
    sampler, trainer = opened(env)
    task = env.held_out()[0]
    trace = asyncio.run(demonstration(env, sampler, task))
    assert trace.success
    assert trace.replies == task.oracle
    batch = ppo_credit([], {task.id: trace}, GrpoConfig(epochs=30), temperature=1.0)
    (before,) = asyncio.run(trainer.logprobs(batch.data))
    asyncio.run(learn(trainer, batch, player="agent", learning_rate=0.003, seed=0))
    (after,) = asyncio.run(trainer.logprobs(batch.data))
    assert sum(after) > sum(before) + 1


def test_demonstrations_beside_rollouts_leave_the_value_loss_to_these(env: Control) -> None:
    sampler, trainer = opened(env)
    task = env.held_out()[0]
    trace = asyncio.run(demonstration(env, sampler, task))
    batch = ppo_credit(groups_of(env, sampler), {task.id: trace}, GrpoConfig(epochs=3), temperature=0.5)
    assert {datum.temperature for datum in batch.data} == {0.5, 1.0}
    value = [parameter.clone() for parameter in trainer.network.value.parameters()]
    done = asyncio.run(learn(trainer, batch, player="agent", learning_rate=0.003, seed=0))
    assert (done.steps, done.skipped) == (3, 0)
    after = list(trainer.network.value.parameters())
    assert not any(torch.equal(a, b) for a, b in zip(value, after, strict=True))


def test_a_loss_that_is_not_finite_is_skipped_and_changes_nothing(env: Control) -> None:
    sampler, trainer = opened(env)
    data = [replace(one, advantages=(math.nan,) * len(one.weights)) for one in data_of(env, sampler)]
    with pytest.raises(UpdateSkipped, match="not finite"):
        asyncio.run(trainer.forward_backward(data, Objective()))
    assert all(parameter.grad is None for parameter in trainer.network.parameters())


def test_a_checkpoint_restores_the_next_update_exactly(env: Control, tmp_path: Path) -> None:
    async def update(trainer: PpoTrainer, sampler: ActionSampler) -> list[float]:
        groups = await roll_out(env, sampler, env.held_out()[:4], rollouts=3, sampling=RANDOM)
        batch = ppo_credit(groups, {}, GrpoConfig(), temperature=1.0)
        await learn(trainer, batch, player="agent", learning_rate=0.01, seed=0)
        await trainer.publish()
        return [parameter.sum().item() for parameter in trainer.network.parameters()]

    sampler, trainer = opened(env, reference=True)
    asyncio.run(update(trainer, sampler))
    asyncio.run(trainer.save(tmp_path))
    expected = asyncio.run(update(trainer, sampler))
    other, again = opened(env, reference=True, seed=3)
    asyncio.run(again.load(tmp_path))
    assert other.version == 1
    assert asyncio.run(update(again, other)) == expected
    (tmp_path / "policy.safetensors").write_bytes(b"damaged")
    with pytest.raises(DataError, match="cannot be read"):
        asyncio.run(again.load(tmp_path))


def test_a_kl_cap_can_be_held(env: Control) -> None:
    sampler, trainer = opened(env)
    batch = replace(
        ppo_credit(groups_of(env, sampler), {}, GrpoConfig(), temperature=1.0), cap=1e-6, cap_retries=9
    )
    done = asyncio.run(learn(trainer, batch, player="agent", learning_rate=0.05, seed=0))
    assert done.region is not None
    assert 0 < done.region.moved <= 1e-6
    assert done.region.halved > 0


def test_only_trainers_with_a_value_function_are_critics(env: Control) -> None:
    assert isinstance(opened(env)[1], Critic)
    assert not isinstance(ScriptedTrainer(), Critic)


# --- whole runs ---

SMALL = (
    "run.rounds=3", "run.eval_every=1", "run.eval_tasks=6", "simulator.contexts=4", "agent.rollouts=4",
    "environment.base_tasks=4", "environment.held_out_tasks=4", "agent.updates_per_epoch=2",
)  # fmt: skip


def train(out: Path, *more: str, resume: bool = False) -> tuple[str, ...]:
    settings = [word for one in (*SMALL, *more) for word in ("--set", one)]
    return ("train", "pendulum", "--out", str(out), *settings, *(("--resume",) if resume else ()))


def metrics(run: Path) -> list[dict[str, float]]:
    lines = (run / "metrics.jsonl").read_text().splitlines()
    return [{k: v for k, v in json.loads(line).items() if not k.startswith("time/")} for line in lines]


@pytest.mark.long
def test_a_run_is_resumed_to_the_same_numbers_and_its_agent_evaluated(tmp_path: Path) -> None:
    succeeds(*train(tmp_path / "whole"))
    succeeds(*train(tmp_path / "parts", "run.rounds=2"))
    succeeds(*train(tmp_path / "parts", resume=True))
    assert metrics(tmp_path / "whole") == metrics(tmp_path / "parts")
    out = tmp_path / "evaluation"
    succeeds(
        "eval", "held-out", "--policy", str(tmp_path / "whole"), "--out", str(out), "--split", "measured"
    )
    (summary,) = out.glob("*.summary.json")
    success = json.loads(summary.read_text())["figures"][0]["value"]
    assert success == pytest.approx(metrics(tmp_path / "whole")[-1]["agent/eval_success"])
    assert "regraded: 0 of 6 scores" in succeeds("eval", "--regrade", str(out)).stdout
    assert "not a language model" in refused("export-agent", str(tmp_path / "whole"))


@pytest.mark.long
def test_the_agent_of_a_run_is_no_language_model_elsewhere(tmp_path: Path) -> None:
    words = ("train", "tiny", "--out", str(tmp_path / "run"), "--set")
    assert "tasks of programs are text" in refused(*words, "policy.backend=ppo")
    assert "has no value function" in refused(*words, "agent.algorithm=ppo")


@pytest.mark.slow
def test_a_run_learns_to_swing_up(tmp_path: Path) -> None:
    succeeds("train", "pendulum", "--out", str(tmp_path / "run"), "--set", "run.rounds=40")
    assert metrics(tmp_path / "run")[-1]["agent/eval_success"] > 0.3


@pytest.mark.long
def test_a_limit_that_cuts_trajectories_is_refused(tmp_path: Path) -> None:
    said = refused("train", "pendulum", "--set", "agent.max_new_tokens=90", "--out", tmp_path / "run")
    assert "agent.max_new_tokens is 90, which cuts trajectories of 120 steps off: set it to 121" in said
    assert not (tmp_path / "run").exists()


def test_the_viewer_reads_the_tokens_as_actions() -> None:
    assert actions((FIRST + 1071, FIRST - 547, END)) == ["1.071 ", "-0.547 ", "⏹"]


@pytest.mark.long
def test_a_network_loads_neither_transformers_nor_peft() -> None:
    code = "import sys, genenv.backends.local.ppo; print({'transformers', 'peft'} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


def test_first_weights_may_be_of_a_run_without_a_reference(env: Control, tmp_path: Path) -> None:
    _, trainer = opened(env, seed=3)
    asyncio.run(trainer.save(tmp_path))
    _, again = opened(env, reference=True)
    asyncio.run(again.load(tmp_path))
    asyncio.run(again.anchor("none"))
    assert again.reference is not None
    for network in (again.network, again.reference):
        for one, other in zip(network.parameters(), trainer.network.parameters(), strict=True):
            assert torch.equal(one, other)
