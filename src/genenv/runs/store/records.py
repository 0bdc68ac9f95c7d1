"""What goes into the store for a round, and the small values that come out of it."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from genenv.types import (
    Context,
    Generation,
    Group,
    JsonObject,
    RejectReason,
    Seed,
    SimulatorSample,
    Task,
    TaskBatch,
    Trace,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    """Which run a store is of; the checkpoints of a run name it too."""

    id: str
    """Random, made with the run."""
    legacy_until: int
    """Checkpoints of rounds up to this one were written before runs had ids, and name none; -1: none were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Evaluation:
    """One attempt at a held-out task, for measuring only."""

    task_id: str
    """A task that the store holds; held-out tasks get there with `PoolStore.put_base`."""
    success: bool
    reward: float
    """In [0, 1], from the environment's checker."""
    replies: tuple[str, ...]
    explanation: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundRecord:
    """Everything that one round leaves behind; the store takes it whole or not at all."""

    number: int
    """The first round of a run is 0 or 1; each later one is one more."""
    metrics: Mapping[str, float]
    """By metric name. `time/...` and `..._per_s` are kept apart: they may differ between two equal runs."""
    state: JsonObject
    """The curriculum's `state_dict`."""
    batches: Sequence[TaskBatch] = ()
    groups: Sequence[Group] = ()
    """All groups of the round in order: the batches', base tasks and replayed tasks alike."""
    samples: Sequence[SimulatorSample] = ()
    """What the simulator learned from; a batch with a generation among them counts as selected."""
    surfaces: Mapping[str, str] = field(default_factory=dict[str, str])
    """By task id: the text by which novelty is measured, for the tasks that are new."""
    evaluations: Sequence[Evaluation] = ()
    reminded: Sequence[str] = ()
    """Ids of base tasks and of earlier rounds' tasks whose known solutions the agent imitated again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchRate:
    """How a batch did, without its texts and tokens."""

    context_id: str
    p_hat: float | None
    """Successes / attempts; None when no proposal became a task."""
    env_reward: float
    selected: bool
    """Whether the simulator learned from it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RoundOverview:
    """What a round came to, without any text or token."""

    number: int
    metrics: Mapping[str, float]
    """Timings included."""
    batches: tuple[BatchRate, ...]
    generated: int
    """Generations of the simulator, rejected ones included."""
    rejected: Counter[RejectReason]
    held_out: tuple[int, int] | None
    """Held-out tasks that were solved, and how many were tried; None where none was."""
    task_skills: tuple[frozenset[str], ...]
    """What each of the round's generated tasks exercises."""

    @property
    def accepted(self) -> int:
        """Generations that became tasks."""
        return self.generated - self.rejected.total()

    @property
    def valid_rate(self) -> float | None:
        """Share of generations that became tasks; None when there were none."""
        return self.accepted / self.generated if self.generated else None

    @property
    def wall_s(self) -> float:
        """Seconds spent: the round's own clock, or the sum of its parts."""
        parts = math.fsum(value for name, value in self.metrics.items() if name.startswith("time/"))
        return self.metrics.get("time/round_s", parts)


@dataclass(frozen=True, slots=True, kw_only=True)
class Provenance:
    """A task and everything it came from; None where a step does not apply to it."""

    seed: Seed | None
    context: Context | None
    generation: Generation | None
    task: Task
    traces: tuple[Trace, ...]
    """Every attempt at it, in the order of the rounds."""
