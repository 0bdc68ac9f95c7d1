"""The simulator learns from its specs under the grammars that it wrote them under, if at all."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from genenv.curriculum.update_selection import Selection
from genenv.types import Profile, SimulatorSample, TaskBatch
from lessons import Recorder
from loops import STAGES, learner_of

CONTEXTS = ["r0001-c00", "r0001-c01"]


def round_of(toy, learner):
    """Batches of two contexts with schemas of their own, and a sample of each, the other way round."""
    contexts = [replace(c, seed=replace(c.seed, id=f"seed-{c.id}")) for c in map(toy.context, CONTEXTS)]
    learner.env.spec_schema = lambda seed: {"enum": [seed.id]}
    batches = [
        TaskBatch(context=context, proposals=(), groups=(), p_hat=None, env_reward=0.0)
        for context in contexts
    ]
    samples = tuple(
        SimulatorSample(generation=toy.generation(name, context=context.id), weight=0.5)
        for name, context in zip("ab", reversed(contexts), strict=True)
    )
    return batches, samples


@pytest.mark.parametrize("train", [True, False])
def test_each_sample_is_learnt_under_the_schema_of_its_context(toy, train):
    trainer = Recorder()
    learner = learner_of(toy, {"simulator": {"train": train, "temperature": 0.7}}, simulator=trainer)
    batches, samples = round_of(toy, learner)
    metrics = asyncio.run(learner.simulator_learns(1, batches, Selection(samples=samples), Profile(), STAGES))
    if not train:
        assert (metrics, trainer.calls) == ({}, [])
        return
    (step,) = trainer.data
    found = {datum.completion_ids: (datum.schema, datum.temperature) for datum in step}
    assert found == {
        (*b"a",): ({"enum": ["seed-r0001-c01"]}, 0.7),
        (*b"b",): ({"enum": ["seed-r0001-c00"]}, 0.7),
    }
    assert [datum.weights for datum in step] == [(0.5,), (0.5,)]
    assert metrics["tokens/trained"] == 2


def test_decisions_are_the_tokens_that_had_an_alternative(toy):
    class Known(Recorder):
        async def logprobs(self, data, *, reference=False):
            assert [datum.schema for datum in data] == [{"enum": [1]}] * len(data)
            return [(-2.0, 0.0, -1e-9, -1.0) if not reference else (-1.0, 0.0, 0.0, -0.5) for _ in data]

    trainer = Known()
    learner = learner_of(toy, {"simulator": {"kl_coefficient": 0.1}}, simulator=trainer)
    written = [toy.generation(f"g{i}", context="c") for i in range(40)]
    found = asyncio.run(learner.policies.simulator.decision_metrics(written, {"c": {"enum": [1]}}))
    assert found == {"simulator/decision_entropy": 1.5, "simulator/decision_kl": -0.75}
    alone = learner_of(toy, {"simulator": {"kl_coefficient": 0.0}}, simulator=trainer)
    found = asyncio.run(alone.policies.simulator.decision_metrics(written, {"c": {"enum": [1]}}))
    assert found == {"simulator/decision_entropy": 1.5}
    assert asyncio.run(alone.policies.simulator.decision_metrics([], {})) == {}
