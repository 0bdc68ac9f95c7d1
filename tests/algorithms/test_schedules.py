"""What a learning rate does over the rounds of a run, and over the steps of a warm-up."""

from __future__ import annotations

import asyncio

import pytest

from genenv.agent.policy import Agent, AgentConfig
from genenv.algorithms.datum import Objective, UpdateBatch
from genenv.algorithms.update import lr_scale, warmup_lr_scale
from genenv.backends.scripted import ScriptedSampler
from genenv.simulator.policy import Simulator
from genenv.simulator.settings import SimulatorConfig
from genenv.types import Feedback, Profile, SimulatorSample
from lessons import Recorder, imitated

SAMPLER = ScriptedSampler(lambda prompt, rng: "")


@pytest.mark.parametrize(
    ("schedule", "round_", "scale"),
    [("constant", 10, 1.0), ("linear", 1, 1.0), ("linear", 6, 0.5), ("linear", 10, 0.1), ("linear", 30, 0.1)],
)
def test_the_learning_rate_may_fall_over_the_rounds(schedule, round_, scale) -> None:
    assert lr_scale(schedule, round_, 10) == pytest.approx(scale)


@pytest.mark.parametrize("rounds", [2, 3, 100])
def test_it_ends_at_a_tenth_however_many_rounds_there_are(rounds) -> None:
    assert lr_scale("linear", 1, rounds) == 1.0
    assert lr_scale("linear", rounds, rounds) == pytest.approx(0.1)
    assert lr_scale("linear", 1, 1) == 1.0


def test_a_warm_up_keeps_its_learning_rate_unless_it_shall_decay() -> None:
    assert [warmup_lr_scale(0.0, step, 3) for step in (1, 2, 3)] == [1.0] * 3


def test_a_decaying_learning_rate_falls_evenly_to_a_tenth_at_the_last_step() -> None:
    scales = [warmup_lr_scale(0.5, step, 8) for step in range(1, 9)]
    assert scales == pytest.approx([1.0] * 4 + [0.775, 0.55, 0.325, 0.1])


def test_both_players_follow_their_own_schedule(toy) -> None:
    trainer = Recorder()
    simulator = Simulator(SAMPLER, trainer, SimulatorConfig(lr=0.5, lr_schedule="linear"), seed=0)
    agent = Agent(SAMPLER, trainer, AgentConfig(lr=0.25, lr_schedule="linear"), seed=0)
    lesson = UpdateBatch(units=[[imitated((1,), (2,))]], objective=Objective())
    written = SimulatorSample(generation=toy.generation("abc"), weight=1.0)
    feedback = Feedback(batches=[], samples=[written], scored=[], profile=Profile())
    for round_ in (1, 3):
        asyncio.run(simulator.learn(toy.Environment(), feedback, round_=round_, rounds=5))
        asyncio.run(agent.learn(lesson, round_=round_, rounds=3))
    assert trainer.rates == pytest.approx([0.5, 0.25, 0.5 * 0.55, 0.25 * 0.1])
