"""The two players that a configuration asks for, on tiny models: each has its weights, and they learn."""

from __future__ import annotations

import asyncio

import pytest
import torch

from genenv.algorithms.advantages import grpo_credit
from genenv.config.run import RunConfig
from genenv.training.opening import build_players
from genenv.types import Feedback, Group, Profile, SimulatorSample, TaskBatch

SMALL = {"device": "cpu", "dtype": "float32", "threads": 1, "lora_rank": 2, "context_tokens": 256}


def players_of(toy, policy, *, kl: float = 0.0):
    """Two players; their learners' KL terms have the same coefficient."""
    config = RunConfig.model_validate(
        {
            "policy": SMALL | policy,
            "agent": {"lr": 1e-2, "kl_coefficient": kl},
            "simulator": {"kl_coefficient": kl, "kl_cap": 10.0},
        }
    )
    return build_players(config, toy.Environment())


def learn(toy, players):
    """One update of each player; returns their metrics."""
    traces = (toy.trace((5, 6, 7), [(8, 9, 1)], reward=1.0), toy.trace((5, 6, 7), [(8, 2)]))
    written = SimulatorSample(generation=toy.generation("a sum"), weight=1.0)
    groups = [Group(task=toy.task(), traces=traces)]
    attempts = grpo_credit(groups, {}, players.agent.config, temperature=1.0)
    batch = TaskBatch(context=toy.context(), proposals=(), groups=(), p_hat=None, env_reward=0.0)
    feedback = Feedback(batches=[batch], samples=[written], scored=[], profile=Profile())
    env = toy.Environment()
    env.spec_schema = lambda seed: None  # free text
    return (
        asyncio.run(players.agent.learn(attempts, round_=1, rounds=10)),
        asyncio.run(players.simulator.learn(env, feedback, round_=1, rounds=10)),
    )


def moved(player, before) -> bool:
    return any(not torch.equal(p, before[name]) for name, p in player.sampler.weights.parameters())


@pytest.mark.parametrize("kl", [0.0, 0.05])
def test_full_fine_tuning_learns_with_and_without_a_kl_term(tiny, toy, tmp_path, kl):
    players = players_of(toy, {"model": str(tiny.folder()), "tuning": "full"}, kl=kl)
    assert players.agent.sampler.model is not players.simulator.sampler.model
    before = [tiny.values(player.sampler) for player in (players.agent, players.simulator)]
    agent, simulator = learn(toy, players)
    assert agent["agent/steps"] == simulator["simulator/steps"] == 1
    assert moved(players.agent, before[0])
    assert moved(players.simulator, before[1])
    measured = kl > 0  # otherwise neither player keeps a reference
    assert [("agent/kl" in agent), ("simulator/kl" in simulator)] == [measured, measured]
    asyncio.run(players.save(tmp_path))
    asyncio.run(players.load(tmp_path))


def test_the_simulator_may_have_a_model_of_its_own(tiny, toy):
    own = {"model": str(tiny.folder()), "simulator_model": str(tiny.folder("qwen3"))}
    players = players_of(toy, own)
    kinds = [player.sampler.model.causal.config.model_type for player in (players.agent, players.simulator)]
    assert kinds == ["llama", "qwen3"]
    before = [tiny.values(player.sampler) for player in (players.agent, players.simulator)]
    agent, simulator = learn(toy, players)
    assert agent["agent/kl"] == pytest.approx(0.0, abs=1e-6)  # measured before the first step
    assert simulator["simulator/steps"] == 1
    assert moved(players.agent, before[0])
    assert moved(players.simulator, before[1])
