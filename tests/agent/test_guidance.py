"""Known solutions as traces: whose they are, what is learnt of them, and what fits."""

from __future__ import annotations

import asyncio
import random

import pytest

from genenv.algorithms.advantages import grpo_credit, imitate
from genenv.backends.scripted import ScriptedSampler
from genenv.rollout.driver import Sampling, demonstration, roll_out
from lessons import Recorder
from loops import STAGES, learner_of


def played(toy, script, tasks, rollouts=2):
    sampling = Sampling(temperature=1.0, max_new_tokens=20, timeout_s=5.0, seed=0)
    sampler = ScriptedSampler(script)
    return sampler, asyncio.run(
        roll_out(toy.Environment(), sampler, tasks, rollouts=rollouts, sampling=sampling)
    )


def test_a_guide_is_the_oracles_solution_turn_after_turn_in_the_policys_tokens(toy):
    task = toy.task(1, 2, turns=3)
    sampler, (group,) = played(toy, lambda prompt, rng: "3", [task])
    trace = asyncio.run(demonstration(toy.Environment(), sampler, task))
    right = group.traces[0]
    assert (trace.token_ids, trace.sampled, trace.prompt_tokens) == (
        right.token_ids,
        right.sampled,
        right.prompt_tokens,
    )
    assert trace.success
    assert trace.reward == 1.0


@pytest.mark.parametrize(
    ("wanted", "guided"), [("none", []), ("unsolved", ["unsolved"]), ("all", ["solved", "unsolved"])]
)
def test_the_setting_says_which_groups_are_guided_and_attempts_stay_as_they_are(toy, wanted, guided):
    def half(prompt: str, rng: random.Random) -> str:
        return "3" if "1 and 2" in prompt or "1 + 2" in prompt else rng.choice(["no idea", "none"])

    tasks = [toy.task(1, 2, name="solved"), toy.task(30, 4, name="unsolved")]
    _, groups = played(toy, half, tasks)
    assert [group.successes for group in groups] == [2, 0]
    trainer = Recorder()
    settings = {"rollouts": 2, "guidance": wanted, "skip_zero_advantage": False}
    learner = learner_of(toy, {"agent": settings}, agent=trainer)
    known = asyncio.run(learner.policies.agent.solutions(learner.env, groups))
    assert sorted(known) == guided
    metrics = asyncio.run(learner.agent_learns(1, groups, [], STAGES))
    assert metrics["agent/guided_rate"] == len(guided) / 2
    (step,) = trainer.data
    assert sum(datum.loss == "nll" for datum in step) == len(guided)
    config = learner.config.agent
    with_them, without = (
        grpo_credit(groups, solutions, config, temperature=1.0).units for solutions in (known, {})
    )
    assert [[d for d in unit if d.loss == "ppo"] for unit in with_them] == without
    attempts = sum(len(group.traces) for group in groups)
    assert sum(datum.loss == "ppo" for datum in step) == attempts


def test_replayed_tasks_teach_by_their_solutions_alone(toy):
    _, groups = played(toy, lambda prompt, rng: "3", [toy.task(1, 2, name="attempted")])
    trainer = Recorder()
    learner = learner_of(toy, {"agent": {"rollouts": 2}}, agent=trainer)
    others = [toy.task(5, 6, name="other"), toy.task(7, 8, name="another")]
    metrics = asyncio.run(learner.agent_learns(1, groups, others, STAGES))
    assert (metrics["agent/replayed"], metrics["agent/guided_rate"]) == (2, 0)
    known = asyncio.run(learner.policies.agent.solutions(learner.env, groups, others))
    assert list(known) == ["other", "another"]
    (step,) = trainer.data
    expected = {imitate(trace)[0].completion_ids for trace in known.values()}
    assert {datum.completion_ids for datum in step} == expected
    assert {datum.loss for datum in step} == {"nll"}


def test_a_solution_that_does_not_fit_the_context_guides_nobody(toy):
    _, groups = played(toy, lambda prompt, rng: "no idea", [toy.task(1, 2)])
    trainer = Recorder()
    settings = {"rollouts": 2, "guidance": "all"}
    learner = learner_of(toy, {"agent": settings}, agent=trainer, context_tokens=10)
    metrics = asyncio.run(learner.agent_learns(1, groups, [], STAGES))
    assert asyncio.run(learner.policies.agent.solutions(learner.env, groups)) == {}
    assert trainer.data == []
    assert metrics["agent/guided_rate"] == 0.0


def test_a_solution_fits_the_context_to_its_last_token(toy):
    task = toy.task(1, 2, turns=2)
    needed = len(
        asyncio.run(demonstration(toy.Environment(), ScriptedSampler(lambda prompt, rng: ""), task)).token_ids
    )
    for room, fits in ((needed, True), (needed - 1, False)):
        sampler = ScriptedSampler(lambda prompt, rng: "", context_tokens=room)
        assert asyncio.run(demonstration(toy.Environment(), sampler, task)).success is fits
