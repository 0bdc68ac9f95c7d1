"""The records that the store saves for a round, and the small values that it returns."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from genenv.types import (
    AGENT,
    Group,
    JsonObject,
    RejectReason,
    SimulatorSample,
    TaskBatch,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """The result of one greedy rollout of a held-out task. Policies are not trained on it."""

    task_id: str
    """Id of a task in the store. `PoolStore.put_base` stores held-out tasks."""
    success: bool
    reward: float
    """In [0, 1], from the environment's checker."""
    replies: tuple[str, ...]
    explanation: str
    agent: str = AGENT
    """Name of the agent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """All data of one round. The store saves a record completely or not at all."""

    number: int
    """The first round of a run is 0 or 1; the numbers are consecutive."""
    metrics: Mapping[str, float]
    """By metric name. `time/...` and `..._per_s` are stored separately, because they may differ between equal
    runs."""
    state: JsonObject
    """The curriculum's `state_dict`."""
    batches: Sequence[TaskBatch] = ()
    groups: Sequence[Group] = ()
    """All groups of the round in order: those of the batches, of base tasks and of replayed tasks."""
    samples: Sequence[SimulatorSample] = ()
    """Generations that the simulator trained on. A batch with such a generation counts as selected."""
    surfaces: Mapping[str, str] = field(default_factory=dict[str, str])
    """By id of new tasks: the text by which novelty is measured."""
    evaluations: Sequence[Evaluation] = ()
    reminded: Sequence[str] = ()
    """Ids of base tasks and earlier tasks whose demonstrations the agent trained on again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRate:
    """The success rate and reward of a batch, without its texts and tokens."""

    context_id: str
    p_hat: float | None
    """Successes / rollouts; None if there are no valid rollouts."""
    env_reward: float
    selected: bool
    """Whether the simulator trained on it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOverview:
    """Summary of a round, without texts or tokens."""

    number: int
    metrics: Mapping[str, float]
    """Metrics, including timings."""
    batches: tuple[BatchRate, ...]
    generated: int
    """Number of the simulator's generations, including rejected ones."""
    rejected: Counter[RejectReason]
    held_out: tuple[float, int] | None
    """(held-out tasks solved, held-out tasks evaluated); None if there was no evaluation. With seats the
    leading agent counts; of several agents without seats, the mean of how many each solved."""
    task_skills: tuple[frozenset[str], ...]
    """The skills of each generated task of the round."""

    @property
    def accepted(self) -> int:
        """Number of generations that became tasks."""
        return self.generated - self.rejected.total()

    @property
    def valid_rate(self) -> float | None:
        """Share of generations that became tasks; None if there were no generations."""
        return self.accepted / self.generated if self.generated else None

    @property
    def wall_s(self) -> float:
        """Seconds of the round: by the round's timer, or else the sum of its stages."""
        parts = math.fsum(value for name, value in self.metrics.items() if name.startswith("time/"))
        return self.metrics.get("time/round_s", parts)
