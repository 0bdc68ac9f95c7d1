"""genenv trains an LLM agent for your tools with tasks that a second LLM, the simulator, learns to write.

The simulator is rewarded for tasks that the agent solves about half of the time. Code, not a model, decides
whether an answer is correct (GenEnv, arXiv:2512.19682). This package exports the data types of a round and
the Python interface: `train`, `Environment`, `load_agent`, `Run` (docs/guides/python.md). Importing it loads
no heavy dependencies.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

from genenv.config import __version__
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
"""Attributes that are imported at first access, with their modules."""


def __dir__() -> list[str]:
    """Return all public names, including those that are imported at first access."""
    return __all__


def __getattr__(name: str) -> object:
    """Import the module of a public name at first access and return the attribute."""
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
