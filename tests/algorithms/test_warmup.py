"""The warm-up: what both players are shown, and what of it does not fit into their context."""

from __future__ import annotations

import asyncio
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest
import torch

from genenv.agent.policy import AgentConfig
from genenv.algorithms.advantages import grpo_credit
from genenv.algorithms.datum import Datum
from genenv.algorithms.reward_weighting import rwr_credit
from genenv.backends.local.trainer import LocalTrainer
from genenv.config.run import RunConfig
from genenv.errors import EnvironmentCodeError, RolloutError, UsageError
from genenv.progress import Silent
from genenv.simulator.settings import SimulatorConfig
from genenv.training.opening import build_players
from genenv.types import Feedback, Group, Message, Profile, Seed, SimulatorSample
from learners import AgentLearner, SimulatorLearner

LR = 1e-3
LONG = 10**60
"""A number of more digits than there is room for."""


@pytest.fixture
def players(tiny, toy):
    return players_with(tiny, toy)


def players_with(tiny, toy, **warmup):
    class Sums(toy.Environment):
        def simulator_messages(self, seed, profile, target):
            return (Message(role="user", content=f"a sum like {seed.spec['left']}"),)

        def variation(self, seed, rng):
            return {"turns": 1, "left": rng.randrange(10), "right": 2}

    config = {
        "policy": {"model": str(tiny.folder()), "device": "cpu", "dtype": "float32", "threads": 1}
        | {"lora_rank": 2, "context_tokens": 80},
        "agent": {
            "lr": LR,
            "max_new_tokens": 4,
            "kl_coefficient": 0.0,
            "skip_zero_advantage": False,
            "warmup": {"steps": 2, "batch": 2, "check_tasks": 1, "check_every": 2, **warmup},
        },
        "simulator": {
            "lr": LR,
            "variations": 1,
            "kl_cap": 10.0,
            "warmup": {"steps": 8, "batch": 1, **warmup},
        },
    }
    return build_players(RunConfig.model_validate(config), Sums())


def warm_up(players, seeds, tasks) -> dict[str, float]:
    return asyncio.run(players.warmup(seeds, tasks, Silent()))


def tasks_of(toy, *lefts: int):
    return [toy.task(left, 2, name=f"task-{i}") for i, left in enumerate(lefts)]


def seeds_of(*lefts: int):
    return [
        Seed(id=f"seed-{i}", environment="sums", spec={"left": left}, skills=("sums",))
        for i, left in enumerate(lefts)
    ]


def test_demonstrations_that_do_not_fit_the_context_are_left_out_and_counted(players, toy, caplog):
    tasks, seeds = tasks_of(toy, 1, 2, 3, LONG, LONG + 1), seeds_of(1, LONG)
    checked, solved = asyncio.run(players.warmup._solved(tasks))
    short = sum(task.payload["left"] < LONG for task in tasks if task not in checked)
    assert len(solved) == short
    assert all(d.tokens and len(d.prompt_ids) + len(d.completion_ids) <= 80 for d in solved)
    assert f"{4 - short} of 4 demonstrations for the warm-up of the agent do not fit" in caplog.text
    written = players.warmup._written(seeds)
    assert 0 < len(written) < 8
    assert all(len(d.prompt_ids) + len(d.completion_ids) <= 80 for step in written for d in step)
    assert f"{8 - len(written)} of 8 demonstrations for the warm-up of the simulator" in caplog.text

    metrics = warm_up(players, seeds, tasks)
    assert metrics["agent/warmup_steps"] == 2
    assert metrics["agent/skipped_updates"] == metrics["simulator/skipped_updates"] == 0
    assert metrics["simulator/warmup_loss"] > 0


@pytest.mark.parametrize("player", ["agent", "simulator"])
def test_without_a_demonstration_that_fits_the_warm_up_ends_before_it_begins(tiny, toy, players, player):
    before = tiny.values(players.agent.sampler)
    tasks = tasks_of(toy, *([LONG] * 3 if player == "agent" else [1, 2, 3]))
    with pytest.raises(UsageError, match=rf"warm-up of the {player} fits .* raise policy\.context_tokens"):
        warm_up(players, seeds_of(LONG, LONG + 1), tasks)
    assert all(torch.equal(p, before[name]) for name, p in players.agent.sampler.weights.parameters())


def test_every_solution_is_shown_in_turn_from_the_first_on(players, toy, monkeypatch):
    """Two steps of two: of six tasks one is for the check, four are shown, and one is left."""
    checked, solved = asyncio.run(players.warmup._solved(tasks_of(toy, 1, 2, 3, 4, 5, 6)))
    assert (len(checked), len(solved)) == (1, 4)
    shown: list[list[Datum]] = []
    plain = LocalTrainer.forward_backward

    async def watched(self, data, objective):
        shown.append(list(data))
        return await plain(self, data, objective)

    monkeypatch.setattr(LocalTrainer, "forward_backward", watched)
    asyncio.run(players.warmup._warm_agent(checked, solved, Silent()))
    assert [len(step) for step in shown] == [2, 2]
    for step, given in zip(shown, (solved[:2], solved[2:]), strict=True):
        counted = sum(datum.tokens for datum in given)  # each of these weighs the same, all of them 1
        assert step == [replace(d, weights=tuple(w / counted for w in d.weights)) for d in given]


def test_demonstrations_that_all_fit_are_shown_without_a_word(players, toy, caplog):
    checked, solved = asyncio.run(players.warmup._solved(tasks_of(toy, 1, 2, 3)))
    assert (len(checked), len(solved)) == (1, 2)
    assert [len(step) for step in players.warmup._written(seeds_of(1, 2))] == [1] * 8
    assert "do not fit" not in caplog.text


def test_a_step_of_the_simulators_warm_up_has_its_batch_also_where_there_are_few_seeds(tiny, toy):
    written = players_with(tiny, toy, batch=8).warmup._written(seeds_of(1, 2, 3))
    assert [len(step) for step in written] == [8] * 8
    assert all(sorted(Counter(d.prompt_ids for d in step).values()) == [2, 3, 3] for step in written)


def test_what_samples_sees_what_was_taught(players, toy, monkeypatch):
    """The agent's weights are published before each check, the last of which is at the end."""
    agent, versions = players.agent, []
    plain = agent.solve

    async def solve(env, tasks):
        groups = await plain(env, tasks)
        versions.append({trace.version for group in groups for trace in group.traces})
        return groups

    monkeypatch.setattr(agent, "solve", solve)
    config = agent.config.warmup.model_copy(update={"check_every": 1})
    agent.config = agent.config.model_copy(update={"warmup": config})
    warm_up(players, seeds_of(1, 2), tasks_of(toy, 1, 2, 3))
    assert versions == [{1}, {2}]
    assert players.simulator.sampler.weights.version == 1


@pytest.mark.parametrize(("kept", "first", "second"), [("none", 0, 0), ("second", 0, 1), ("both", 1, 1)])
def test_the_rounds_go_on_with_the_moments_that_the_settings_name(tiny, toy, kept, first, second):
    players = players_with(tiny, toy, kept_moments=kept)
    warm_up(players, seeds_of(1, 2), tasks_of(toy, 1, 2, 3))
    for player, steps in ((players.agent, 2), (players.simulator, 8)):
        state = player.trainer.optimizer._moments()
        for name, expected in (("exp_avg", first), ("exp_avg_sq", second)):
            assert any(v.any() for k, v in state.items() if k.endswith(f".{name}")) == bool(expected)
        taken = {int(v) for k, v in state.items() if k.endswith(".step")}
        assert taken == {0 if kept == "none" else steps}


@pytest.mark.parametrize(("kept", "still"), [("none", True), ("second", True), ("both", False)])
def test_attempts_that_teach_nothing_move_an_agent_only_by_the_momentum_of_its_warm_up(
    tiny, toy, kept, still
):
    players = players_with(tiny, toy, kept_moments=kept)
    warm_up(players, seeds_of(1, 2), tasks_of(toy, 1, 2, 3))
    before = tiny.values(players.agent.sampler)
    alike = tuple(toy.trace((5, 6), [(8, 9, 1)], reward=1.0) for _ in range(2))
    lesson = grpo_credit([Group(task=toy.task(), traces=alike)], {}, players.agent.config, temperature=1.0)
    metrics = asyncio.run(players.agent.learn(lesson, round_=1, rounds=1))
    assert (metrics["agent/steps"], metrics["agent/grad_norm"]) == (1, 0)
    after = tiny.values(players.agent.sampler)
    assert all(torch.equal(after[name], before[name]) for name in before) is still


def lessons_of(toy) -> tuple[Any, Any]:
    """Something to learn for an agent, and for a simulator."""
    traces = (toy.trace((5, 6), [(8, 9, 1)], reward=1.0), toy.trace((5, 6), [(30, 1)], reward=0.0))
    sample = SimulatorSample(generation=toy.generation("abc"), weight=1.0)
    return (
        grpo_credit([Group(task=toy.task(), traces=traces)], {}, AgentConfig(), temperature=1.0),
        rwr_credit([sample], {}, SimulatorConfig(kl_cap=10.0), temperature=1.0),
    )


def moves(tiny, sampler, step) -> float:
    """How far a step takes the weight that it moves most. Of fresh moments AdamW makes the learning rate."""
    before = tiny.values(sampler)
    step()
    after = tiny.values(sampler)
    return max((after[k] - before[k]).abs().max().item() for k in before)


@pytest.mark.parametrize(("steps", "kept", "share"), [(2, "none", 0.1), (0, "none", 1.0), (2, "both", 1.0)])
def test_the_first_step_after_a_warm_up_that_left_no_moments_is_a_tenth_in_a_run_that_is_continued(
    tiny, toy, tmp_path, steps, kept, share
):
    """From a checkpoint whose moments are fresh: what is shorter than lr is so by the ramp.

    The checkpoint says so, whatever the settings of the run that goes on from it.
    """
    players = players_with(tiny, toy, steps=steps, kept_moments=kept)
    for player in (players.agent, players.simulator):
        if steps:  # as the warm-up ends
            asyncio.run(player.trainer.anchor(kept))
    asyncio.run(players.save(tmp_path))
    players = players_with(tiny, toy, steps=steps, kept_moments="none" if kept == "both" else "both")
    asyncio.run(players.load(tmp_path))
    attempts, _ = lessons_of(toy)
    written = SimulatorSample(generation=toy.generation("abc"), weight=1.0)
    feedback = Feedback(batches=[], samples=[written], scored=[], profile=Profile())
    for player, given in (
        (players.agent, (attempts,)),
        (players.simulator, (toy.Environment(), feedback)),
    ):
        learn = player.learn(*given, round_=1, rounds=1)
        assert moves(tiny, player.sampler, lambda learn=learn: asyncio.run(learn)) == pytest.approx(
            share * LR, rel=1e-2
        )


@pytest.mark.parametrize(("kept", "share"), [(None, 1.0), ("none", 0.1), ("second", 1.0), ("both", 1.0)])
def test_the_first_step_after_a_warm_up_that_left_no_moments_is_a_tenth(tiny, toy, kept, share):
    """The learners alone, whose moments are fresh: AdamW moves by lr, but for the ramp after an anchor."""
    for learner, lesson in zip(
        (
            AgentLearner(tiny.player(), AgentConfig(lr=LR)),
            SimulatorLearner(tiny.player(), SimulatorConfig(lr=LR, kl_cap=10.0)),
        ),
        lessons_of(toy),
        strict=True,
    ):
        if kept is not None:
            asyncio.run(learner.trainer.anchor(kept))
        own, given = learner, lesson
        found = moves(tiny, learner.sampler, lambda own=own, given=given: own.take(given, 0))
        assert found == pytest.approx(share * LR, rel=1e-2)


def test_a_solution_that_fails_when_it_is_played_is_the_environments_fault_and_not_the_windows(players, toy):
    """Both once ended in "does not fit into its context"."""
    wrong = replace(toy.task(3, 2, name="task-wrong"), oracle=("not the sum",))
    with pytest.raises(
        EnvironmentCodeError, match=r"'sums', task-wrong: its own solution does not pass when it is pl"
    ):
        warm_up(players, seeds_of(1), [wrong, wrong])


@pytest.mark.parametrize("refused", [1, 3])
def test_a_solution_that_a_template_refuses_is_left_out_with_its_reason(
    players, toy, caplog, monkeypatch, refused
):
    encode, calls = players.agent.sampler.encode_reply, []

    def encode_reply(text, tools=()):
        calls.append(text)
        if len(calls) <= refused:
            raise RolloutError("the chat template takes one call in a reply")
        return encode(text, tools)

    monkeypatch.setattr(players.agent.sampler, "encode_reply", encode_reply)
    tasks = tasks_of(toy, 1, 2, 3, 4)
    said = "demonstrations for the warm-up of the agent cannot be given to its model: the chat template"
    if refused == 3:
        with pytest.raises(UsageError, match=said):
            warm_up(players, seeds_of(1), tasks)
    else:
        warm_up(players, seeds_of(1), tasks)
        assert f"1 of 3 {said}" in caplog.text
