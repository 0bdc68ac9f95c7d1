"""Players of toy tasks that are scripts: for tests of what they learn from a round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from genenv.agent.policy import Agent
from genenv.backends.base import Backend
from genenv.backends.scripted import ScriptedSampler, ScriptedTrainer
from genenv.config.run import RunConfig
from genenv.progress import Silent
from genenv.runs.metrics import Stages
from genenv.simulator.policy import Simulator
from genenv.training.rounds import Learner, Policies
from lessons import Recorder

STAGES = Stages(Silent(), 1, 1)


def learner_of(
    toy: Any,
    settings: Mapping[str, Any] | None = None,
    *,
    agent: ScriptedTrainer | None = None,
    simulator: ScriptedTrainer | None = None,
    apart: bool = False,
    context_tokens: int = 100_000,
) -> Learner:
    """Has them learn; settings are those of a run."""

    class Sums(toy.Environment):
        def seeds(self) -> list[Any]:
            return []

        def held_out(self) -> list[Any]:
            return []

    config = RunConfig.model_validate(settings or {})
    sampler = ScriptedSampler(lambda prompt, rng: "", context_tokens=context_tokens)
    players = Policies(
        agent=Agent(sampler, agent or Recorder(), config.agent, seed=0),
        simulator=Simulator(sampler, simulator or Recorder(), config.simulator, seed=0),
        backend=Backend(parallel_updates=apart),
    )
    return Learner(config, Sums(), players)
