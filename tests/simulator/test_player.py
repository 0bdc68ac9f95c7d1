"""The simulator learns from its specs under the grammars that it wrote them under."""

from __future__ import annotations

from genenv.runs.progress import silent
from genenv.simulator.player import Simulator
from genenv.simulator.settings import SimulatorConfig
from genenv.types import SimulatorSample


class Recorder:
    """A learner that keeps the samples it is given."""

    progress = None

    def update(self, samples, *, seed, lr_scale):
        self.samples = list(samples)
        return {}


def test_each_sample_is_learnt_under_the_schema_of_its_context(toy):
    learner, domain = Recorder(), toy.Domain()
    contexts = [toy.context("r0001-c00"), toy.context("r0001-c01")]
    schemas = [{"enum": [context.id]} for context in contexts]
    domain.spec_schema = lambda seed: schemas[[c.seed is seed for c in contexts].index(True)]
    samples = [
        SimulatorSample(generation=toy.generation("a", context=context.id), weight=0.5)
        for context in reversed(contexts)
    ]
    Simulator(None, learner, SimulatorConfig(), seed=0).update(
        domain, contexts, samples, round_=1, rounds=2, stage=silent
    )
    assert [sample.schema for sample in learner.samples] == schemas[::-1]
    assert [(s.generation, s.weight) for s in learner.samples] == [(s.generation, s.weight) for s in samples]
