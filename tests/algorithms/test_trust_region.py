"""The KL cap: a step that goes too far is halved, and after so many halvings taken back."""

from __future__ import annotations

import asyncio

import pytest
import torch

from genenv.algorithms.update import PROBE_TOKENS, TrustRegion, probe
from genenv.errors import UpdateSkipped
from genenv.simulator.settings import SimulatorConfig
from learners import SimulatorLearner
from lessons import Recorder, imitated, samples


def step(distances: list[float], retries: int) -> tuple[Recorder, TrustRegion]:
    trainer, region = Recorder(distances), TrustRegion(cap=1.0, retries=retries)
    asyncio.run(region.step(trainer, 0.5))
    return trainer, region


def learner(sampler, **config) -> SimulatorLearner:
    return SimulatorLearner(sampler, SimulatorConfig(**({"lr": 1e-3, "kl_coefficient": 0.05} | config)))


def test_a_step_is_halved_until_it_stays_within_the_cap():
    trainer, region = step([3.0, 2.0, 1.0], retries=3)
    assert trainer.calls == ["step", "moved", "shorten", "moved", "shorten", "moved"]
    assert (trainer.rates, trainer.fractions) == ([0.5], [0.5, 0.25])
    assert (region.halved, region.moved) == (2, 1.0)
    trainer, region = step([0.25], retries=0)
    assert (trainer.calls, region.halved, region.moved) == (["step", "moved"], 0, 0.25)


@pytest.mark.parametrize(("retries", "fractions"), [(0, [0.0]), (3, [0.5, 0.25, 0.125, 0.0])])
@pytest.mark.parametrize("far", [1.01, float("inf"), float("nan")])
def test_a_step_of_which_even_the_smallest_part_goes_too_far_is_taken_back(retries, fractions, far):
    trainer, region = Recorder([far] * 9), TrustRegion(cap=1.0, retries=retries)
    with pytest.raises(UpdateSkipped, match="even the smallest step takes it further than 1 nats per token"):
        asyncio.run(region.step(trainer, 0.5))
    assert trainer.fractions == fractions
    assert (region.halved, region.moved) == (retries, 0.0)


def test_the_distance_is_measured_on_one_of_each_prompt_the_heaviest_first_then_on_a_second_one():
    rows = [((1,), 0.1), ((2,), 0.2), ((1,), 0.4), ((1,), 0.3), ((3,), 0.05)]
    data = [imitated(prompt, (9, 9), weight) for prompt, weight in rows]
    assert probe(data) == [data[i] for i in (2, 1, 4, 3, 0)]


def test_it_is_measured_on_a_few_hundred_tokens_and_at_least_on_one_datum():
    long = [imitated((i,), (9,) * (PROBE_TOKENS // 2), 1.0 - i / 10) for i in range(3)]
    assert probe(long) == long[:2]
    too_long = imitated((1,), (9,) * (PROBE_TOKENS + 1))
    assert probe([too_long, *long]) == [too_long]


@pytest.mark.parametrize("adapter", ["simulator", None])
@pytest.mark.parametrize("halvings", [1, 3])
def test_a_step_beyond_the_cap_is_taken_back_and_halved(tiny, adapter, halvings):
    """It ends where a step of a smaller learning rate does, but for the last bits of the interpolation."""
    lr = 4e-3
    small = tiny.player(adapter=adapter)
    start = tiny.values(small)
    reached = learner(small, lr=lr / 2**halvings, kl_cap=10.0).update(samples(0.5, 0.25, 0.25))
    sampler = tiny.player(adapter=adapter)
    cap = reached["simulator/kl_step"] * 1.01
    metrics = learner(sampler, lr=lr, kl_cap=cap).update(samples(0.5, 0.25, 0.25))
    assert metrics["simulator/kl_retries"] == halvings
    assert metrics["simulator/kl_step"] == pytest.approx(reached["simulator/kl_step"], rel=1e-4)
    assert metrics["simulator/skipped_updates"] == 0
    expected, found = tiny.values(small), tiny.values(sampler)
    assert any(not torch.equal(expected[name], first) for name, first in start.items())
    for name, first in start.items():
        step, apart = expected[name] - first, (found[name] - expected[name]).abs()
        ulp = 2**-23 * torch.maximum(first.abs(), expected[name].abs())  # each step is added to a weight
        assert (apart <= 2 * ulp + 1e-6 * step.abs()).all(), name


@pytest.mark.parametrize("adapter", ["simulator", None])
def test_after_three_halvings_the_parameters_are_exactly_as_before_and_the_moments_have_moved(tiny, adapter):
    sampler = tiny.player(adapter=adapter)
    player = learner(sampler, lr=1e-3, kl_cap=10.0)
    player.update(samples(0.5, 0.25, 0.25))  # the moments are not empty any more
    player.config = player.config.model_copy(update={"kl_cap": 1e-12})
    before, names = player.state(), tiny.values(sampler).keys()
    metrics = player.update(samples(0.25, 0.25, 0.5), seed=1)
    assert metrics["simulator/skipped_updates"] == 1
    assert metrics["simulator/kl_retries"] == 3
    assert metrics["tokens/trained"] == 0
    assert "simulator/kl_step" not in metrics
    after = player.state()
    assert all(torch.equal(after[name], before[name]) for name in names)
    steps = [name for name in before if name.endswith(".step")]
    assert steps
    assert {int(after[name] - before[name]) for name in steps} == {1}
    assert any(not torch.equal(after[n], before[n]) for n in before if n.endswith(".exp_avg"))
    assert all(p.grad is None for p in player.optimizer.parameters)


def test_the_cap_holds_for_all_steps_of_an_update_together(tiny):
    def far(cap: float, epochs: int) -> dict[str, float]:
        player = learner(tiny.player(), lr=2e-3, kl_cap=cap, epochs=epochs)
        return player.update(samples(0.5, 0.25, 0.25))

    one, four = far(10.0, 1), far(10.0, 4)
    assert four["simulator/kl_step"] > 2 * one["simulator/kl_step"]
    cap = 1.5 * one["simulator/kl_step"]
    held = far(cap, 4)
    assert held["simulator/kl_retries"] > 0
    assert held["simulator/kl_step"] <= cap
