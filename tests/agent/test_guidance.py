"""Known solutions as one more attempt: their tokens, what they weigh, and what they never touch."""

from __future__ import annotations

import asyncio
import random
from dataclasses import replace

import pytest
import torch

from genenv.agent.grpo import Clip, GrpoLearner, TokenBatch, grpo_loss
from genenv.agent.player import Agent
from genenv.agent.rollout import Sampling, attempt, guide
from genenv.agent.settings import AgentConfig
from genenv.backends.local.packing import Bundle, Packed
from genenv.backends.scripted import ScriptedPolicy
from genenv.runs.progress import silent
from genenv.types import Group


class Recorder:
    """A learner that keeps what it is given."""

    progress = None

    def __init__(self) -> None:
        self.groups: list[Group] = []

    def update(self, groups, *, seed, lr_scale=1.0):
        self.groups = list(groups)
        return {}


def played(toy, script, tasks, rollouts=2):
    sampling = Sampling(temperature=1.0, max_new_tokens=20, timeout_s=5.0, seed=0)
    policy = ScriptedPolicy(script)
    return policy, asyncio.run(attempt(toy.Domain(), policy, tasks, rollouts=rollouts, sampling=sampling))


def test_a_guide_is_the_oracles_solution_turn_after_turn_in_the_policys_tokens(toy):
    task = toy.task(1, 2, turns=3)
    policy, (group,) = played(toy, lambda prompt, rng: "3", [task])
    trace = asyncio.run(guide(toy.Domain(), policy, task))
    right = group.traces[0]
    assert (trace.token_ids, trace.sampled, trace.prompt_tokens) == (
        right.token_ids,
        right.sampled,
        right.prompt_tokens,
    )
    assert trace.success
    assert trace.reward == 1.0


@pytest.mark.parametrize(("wanted", "guided"), [("none", [0, 0]), ("unsolved", [0, 1]), ("all", [1, 1])])
def test_the_setting_says_which_groups_are_guided_and_attempts_stay_as_they_are(toy, wanted, guided):
    def half(prompt: str, rng: random.Random) -> str:
        return "3" if "1 and 2" in prompt or "1 + 2" in prompt else "no idea"

    tasks = [toy.task(1, 2, name="solved"), toy.task(30, 4, name="unsolved")]
    policy, groups = played(toy, half, tasks)
    assert [group.successes for group in groups] == [2, 0]
    learner = Recorder()
    agent = Agent(policy, learner, AgentConfig(rollouts=2, guidance=wanted), seed=0)
    metrics = asyncio.run(agent.update(toy.Domain(), groups, round_=1, rounds=10, stage=silent))
    assert [group.guide is not None for group in learner.groups] == [bool(flag) for flag in guided]
    assert metrics["agent/guided_rate"] == sum(guided) / 2
    assert [group.traces for group in learner.groups] == [group.traces for group in groups]


def test_replayed_tasks_teach_by_their_solutions_alone(tiny, toy):
    policy, groups = played(toy, lambda prompt, rng: "3", [toy.task(1, 2, name="attempted")])
    learner = Recorder()
    agent = Agent(policy, learner, AgentConfig(rollouts=2), seed=0)
    others = [toy.task(5, 6, name="other"), toy.task(7, 8, name="another")]
    metrics = asyncio.run(
        agent.update(toy.Domain(), groups, replayed=others, round_=1, rounds=10, stage=silent)
    )
    assert (metrics["agent/replayed"], metrics["agent/guided_rate"]) == (2, 0)
    assert [group.guide is not None for group in learner.groups] == [False, True, True]
    assert [group.traces for group in learner.groups[1:]] == [(), ()]

    local = tiny.player()
    alone = Group(
        task=toy.task(), traces=(), guide=toy.trace((5, 6, 7), [(8, 9, 1)], reward=1.0, success=True)
    )
    found = GrpoLearner(local, AgentConfig(lr=1e-2)).update([alone], seed=0)
    assert (found["agent/steps"], found["tokens/trained"], found["agent/zero_advantage_rate"]) == (1, 3, 0)
    failed = replace(alone, traces=(toy.trace((5, 6, 7), [(8, 9, 1)], reward=0.0, success=False),))
    found = GrpoLearner(local, AgentConfig(lr=1e-2)).update([failed], seed=0)  # one attempt compares nothing
    assert (found["agent/steps"], found["tokens/trained"], found["agent/zero_advantage_rate"]) == (1, 3, 0)


def test_a_solution_that_does_not_fit_the_context_guides_nobody(toy):
    _, groups = played(toy, lambda prompt, rng: "no idea", [toy.task(1, 2)])
    learner = Recorder()
    agent = Agent(
        ScriptedPolicy(lambda prompt, rng: "", context_tokens=10),
        learner,
        AgentConfig(rollouts=2, guidance="all"),
        seed=0,
    )
    metrics = asyncio.run(agent.update(toy.Domain(), groups, round_=1, rounds=10, stage=silent))
    assert learner.groups[0].guide is None
    assert metrics["agent/guided_rate"] == 0.0


def test_a_solution_fits_the_context_to_its_last_token(toy):
    task = toy.task(1, 2, turns=2)
    needed = len(asyncio.run(guide(toy.Domain(), ScriptedPolicy(lambda prompt, rng: ""), task)).token_ids)
    for room, fits in ((needed, True), (needed - 1, False)):
        policy = ScriptedPolicy(lambda prompt, rng: "", context_tokens=room)
        assert asyncio.run(guide(toy.Domain(), policy, task)).success is fits


def test_the_gradient_of_a_known_solution_is_the_supervised_one():
    generator = torch.Generator().manual_seed(0)
    logprobs_M = -torch.rand(6, generator=generator, dtype=torch.float64) * 5
    logprobs_M.requires_grad_()
    batch = TokenBatch(
        old_M=torch.zeros(6, dtype=torch.float64),
        reference_M=torch.full((6,), -9.0, dtype=torch.float64),
        advantage_M=torch.zeros(6, dtype=torch.float64),
        weight_M=torch.full((6,), 1.5 / 6, dtype=torch.float64),
        guided_M=torch.ones(6, dtype=torch.bool),
    )
    loss, sums = grpo_loss(logprobs_M, batch, Clip(low=0.2, high=0.2, kl=0.5))
    loss.backward()
    assert loss.item() == pytest.approx(-1.5 * logprobs_M.detach().mean().item())
    assert torch.allclose(logprobs_M.grad, torch.full((6,), -1.5 / 6, dtype=torch.float64))
    assert float(sums["kl"]) == 0.0
    assert float(sums["clip_rate"]) == 0.0


def test_tokens_beside_a_known_solution_count_as_they_did():
    logprobs_M = torch.tensor([-1.0, -2.0, -0.5], dtype=torch.float64)
    batch = TokenBatch(
        old_M=torch.tensor([-1.2, -1.5, -0.6], dtype=torch.float64),
        reference_M=torch.tensor([-1.1, -1.0, -0.7], dtype=torch.float64),
        advantage_M=torch.tensor([1.0, -1.0, 0.5], dtype=torch.float64),
        weight_M=torch.tensor([0.2, 0.3, 0.5], dtype=torch.float64),
    )
    clip = Clip(low=0.2, high=0.2, kl=0.1)
    plain = grpo_loss(logprobs_M, batch, clip)[0]
    marked = grpo_loss(logprobs_M, replace(batch, guided_M=torch.tensor([False, False, False])), clip)[0]
    assert torch.equal(plain, marked)


def test_a_group_that_solved_nothing_learns_the_solution_and_says_that_its_attempts_agreed(tiny, toy):
    prompt, answer = (5, 6, 7), (8, 9, 1)

    policy = tiny.player()
    group = Group(
        task=toy.task(),
        traces=(toy.trace(prompt, [(4, 1)]), toy.trace(prompt, [(30, 1)])),
        guide=toy.trace(prompt, [answer], reward=1.0, success=True),
    )

    def likely() -> float:
        packed = Packed([Bundle(prompt_ids=prompt, completions=[answer])], torch.device("cpu"))
        with torch.no_grad(), policy.active():
            return float(policy.logprobs(packed).sum())

    before = likely()
    learner = GrpoLearner(policy, AgentConfig(lr=1e-2, kl_coefficient=0.05))
    metrics = learner.update([group], seed=0)
    assert metrics["agent/steps"] == 1
    assert metrics["agent/zero_advantage_rate"] == 1.0
    assert likely() > before
    plain = GrpoLearner(policy, AgentConfig(lr=1e-2)).update([replace(group, guide=None)], seed=0)
    assert plain["agent/steps"] == 0


def test_known_solutions_are_imitated_at_temperature_1_and_attempts_weighed_at_theirs(tiny, toy):
    policy = tiny.player(noise=0.3)
    learner = GrpoLearner(policy, AgentConfig(temperature=0.5))
    packed = Packed([Bundle(prompt_ids=(5, 6, 7), completions=[(8, 9, 1), (4, 30, 1)])], torch.device("cpu"))
    chosen_M = torch.arange(6)
    guided_M = torch.tensor([False] * 3 + [True] * 3)
    with torch.no_grad(), policy.active():
        found = learner._logprobs(packed, chosen_M, guided_M)
        cold, plain = policy.logprobs(packed, temperature=0.5), policy.logprobs(packed)
    assert torch.allclose(found, torch.cat([cold[:3], plain[3:]]))
    assert not torch.allclose(cold, plain)
    with torch.no_grad(), policy.active():
        alone = learner._logprobs(packed, chosen_M, torch.ones(6, dtype=torch.bool))
    assert torch.allclose(alone, plain)
