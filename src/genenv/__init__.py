"""genenv trains an LLM agent for your own tools with tasks that a second LLM, the simulator, learns to write.

The simulator is rewarded for tasks that the agent solves about half of the time, and code, not a model,
decides what is correct (GenEnv, arXiv:2512.19682). Here are the nouns that flow through a round, and what a
program calls: `train`, `Environment`, `load_agent`, `Run` (docs/guides/python.md). Importing it loads nothing
heavy.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from genenv.config.version import __version__
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

if TYPE_CHECKING:
    from genenv.api.environment import Environment
    from genenv.api.runs import Agent, Run, load_agent, train
    from genenv.progress import Silent

_LATER = {
    "Agent": "genenv.api.runs",
    "Environment": "genenv.api.environment",
    "Run": "genenv.api.runs",
    "Silent": "genenv.progress",
    "load_agent": "genenv.api.runs",
    "train": "genenv.api.runs",
}
"""What is loaded when it is first asked for."""


def __dir__() -> list[str]:
    """All that there is, what is loaded later too."""
    return __all__


def __getattr__(name: str) -> object:
    """What a program calls, loaded when it is asked for."""
    if name not in _LATER:
        raise AttributeError(f"module 'genenv' has no attribute {name!r}")
    return getattr(import_module(_LATER[name]), name)


__all__ = [
    "Agent",
    "Context",
    "DataError",
    "Environment",
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
    "Run",
    "Seed",
    "Silent",
    "SimulatorSample",
    "StopReason",
    "Task",
    "TaskBatch",
    "Trace",
    "UpdateSkipped",
    "UsageError",
    "Verdict",
    "__version__",
    "load_agent",
    "train",
]
