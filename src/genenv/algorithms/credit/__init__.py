"""One way of giving credit a module."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Protocol, cast

from genenv.algorithms.datum import Lesson
from genenv.algorithms.settings import (
    AGENT_ALGORITHMS,
    SIMULATOR_ALGORITHMS,
    GrpoConfig,
    SimulatorLearningConfig,
)
from genenv.types import Group, JsonObject, Scored, SimulatorSample, Trace


class AgentCredit(Protocol):
    """What an agent is to learn from a round."""

    def __call__(
        self,
        groups: Sequence[Group],
        solutions: Mapping[str, Trace],
        config: GrpoConfig,
        *,
        temperature: float,
    ) -> Lesson:
        """See `genenv.algorithms.agent_credit.grpo_credit`."""
        ...


class SimulatorCredit(Protocol):
    """What a simulator is to learn from a round."""

    def __call__(
        self,
        samples: Sequence[SimulatorSample],
        schemas: Mapping[str, JsonObject],
        config: SimulatorLearningConfig,
        *,
        temperature: float,
        scored: Sequence[Scored] = (),
    ) -> Lesson:
        """See `genenv.algorithms.simulator_credit.rwr_credit`."""
        ...


def agent_credit(config: GrpoConfig) -> AgentCredit:
    """The function that `agent.algorithm` names."""
    return cast(AgentCredit, _named(AGENT_ALGORITHMS[config.algorithm]))


def simulator_credit(config: SimulatorLearningConfig) -> SimulatorCredit:
    """The function that `simulator.algorithm` names."""
    return cast(SimulatorCredit, _named(SIMULATOR_ALGORITHMS[config.algorithm]))


def _named(place: str) -> object:
    module, _, name = place.partition(":")
    return getattr(importlib.import_module(module), name)
