"""What a backend is: something that samples, something that learns, and how the two are opened by name.

Shapes: T = tokens of one sequence.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import cast

from genenv.algorithms.datum import Trainer
from genenv.algorithms.settings import OptimizerConfig
from genenv.backends import torchrun
from genenv.backends.settings import PolicyConfig
from genenv.environments.base import Environment
from genenv.errors import UsageError
from genenv.plugins import load, parts
from genenv.sampling import Sampler


@dataclass(frozen=True, slots=True, kw_only=True)
class Role:
    """What a backend must know of a player to open it."""

    name: str
    """`agent` or `simulator`: of the adapter, and of the folder in a checkpoint."""
    optimizer: OptimizerConfig
    reference: bool
    """Whether a KL term holds on to the weights as they are at the start."""
    ramped: bool
    """Whether the first steps after its warm-up are shorter, which left no moments."""
    ahead: bool = False
    """Whether it samples rounds to come while it learns from others."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Backend:
    """What both policies of a run share: what they run on, and what it can do."""

    settled: PolicyConfig | None = None
    """The settings with all decided that was left to the machine and the models; None where nothing was."""
    warms_up: bool = True
    """Whether imitating known solutions makes a difference."""
    parallel_updates: bool = False
    """Whether the two players have devices of their own, so that they can learn at the same time."""
    async_rollouts: bool = False
    """Whether samplers go on with the weights that were published while trainers learn."""
    found: Mapping[str, object] = field(default_factory=dict[str, object])
    """What was found out of a server, for the run's records."""
    check: Callable[[], Awaitable[None]] | None = None
    """Holds what was sampled since the last check to the weights that it should be of; raises GenenvError.
    None: samplers and trainers have the same weights."""
    close: Callable[[], Awaitable[None]] | None = None
    """Ends connections, when the run is over; None: there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened(Backend):
    """Both policies of a run, on a backend."""

    samplers: Mapping[str, Sampler]
    """By role."""
    trainers: Mapping[str, Trainer]
    """By role."""


Open = Callable[[PolicyConfig, Sequence[Role], Environment, int], Opened]
"""(settings, roles, the world of the tasks, seed of the run) -> both players; raises UsageError."""


def open_backend(config: PolicyConfig, roles: Sequence[Role], env: Environment, *, seed: int) -> Opened:
    """Both players on the backend that the settings name.

    Raises:
        UsageError: there is no such backend, or a model cannot be loaded or used here.
    """
    if torchrun.size() > 1 and config.backend != "vllm":
        raise UsageError(
            f"policy.backend is {config.backend!r}, and {torchrun.size()} processes train together while "
            "servers sample: set policy.backend='vllm', or start one process without torchrun"
        )
    if config.backend == "tinker" and importlib.util.find_spec("tinker") is None:
        raise UsageError("a Tinker server is asked by the package tinker: pip install 'genenv[tinker]'")
    return cast(Open, load(parts("backends")[config.backend]))(config, roles, env, seed)
