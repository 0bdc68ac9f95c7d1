"""genenv trains an LLM agent for your own tools with tasks that a second LLM, the simulator, learns to write.

The simulator is rewarded for tasks that the agent solves about half of the time, and code, not a model,
decides what is correct (GenEnv, arXiv:2512.19682). This module holds the nouns that flow through a round and
nothing heavy: it loads no torch. `genenv.coevolve` is the loop, `genenv.config.run` its settings;
`genenv.domains` and `genenv.backends` are the two things you are most likely to replace.
"""

from __future__ import annotations

from genenv.errors import DataError, GenenvError, RolloutError, UpdateSkipped, UsageError
from genenv.types import (
    Context,
    Generation,
    Group,
    Lineage,
    Message,
    Origin,
    Profile,
    Proposal,
    Rejection,
    RejectReason,
    Seed,
    SimulatorSample,
    StopReason,
    Task,
    TaskBatch,
    Trace,
    Verdict,
)

__version__ = "0.1.0"

__all__ = [
    "Context",
    "DataError",
    "GenenvError",
    "Generation",
    "Group",
    "Lineage",
    "Message",
    "Origin",
    "Profile",
    "Proposal",
    "RejectReason",
    "Rejection",
    "RolloutError",
    "Seed",
    "SimulatorSample",
    "StopReason",
    "Task",
    "TaskBatch",
    "Trace",
    "UpdateSkipped",
    "UsageError",
    "Verdict",
    "__version__",
]
