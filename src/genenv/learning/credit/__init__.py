"""One way of giving credit a module."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from typing import Protocol, cast

from genenv.learning.datum import Lesson
from genenv.learning.settings import SIMULATOR_ALGORITHMS, SimulatorLearningConfig
from genenv.types import JsonObject, SimulatorSample, TaskBatch


class SimulatorCredit(Protocol):
    """What a simulator is to learn from a round."""

    def __call__(
        self,
        samples: Sequence[SimulatorSample],
        schemas: Mapping[str, JsonObject],
        config: SimulatorLearningConfig,
        *,
        temperature: float,
        batches: Sequence[TaskBatch] = (),
    ) -> Lesson:
        """See `genenv.learning.credit.rwr.rwr_credit`."""
        ...


def simulator_credit(config: SimulatorLearningConfig) -> SimulatorCredit:
    """The function that `simulator.algorithm` names."""
    module, _, name = SIMULATOR_ALGORITHMS[config.algorithm].partition(":")
    return cast(SimulatorCredit, getattr(importlib.import_module(module), name))
