"""The interface of a backend: a sampler and a trainer for each policy, and how a backend is opened by name.

Shapes: T = tokens of one sequence.
"""

from __future__ import annotations

import importlib
import importlib.util
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
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
    """The settings of one policy that a backend needs to open it."""

    name: str
    """`simulator`, or the name of an agent; names the policy's adapter and its folder in a checkpoint."""
    optimizer: OptimizerConfig
    reference: bool
    """Whether the policy has a KL term to its initial weights, so that a reference model is needed."""
    ramped: bool
    """Whether the first steps after the warm-up are scaled by 1 - beta1^t, because AdamW's moments were
    reset."""
    model: str | None = None
    """Base model of the policy; None: the one that the settings of the policies name."""
    ahead: bool = False
    """Whether the policy samples future rounds while it trains on earlier ones (off-policy)."""


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
    scores_written: bool = False
    """Whether trainers score data under the weights in a folder of `save` (`Trainer.logprobs`)."""
    found: Mapping[str, object] = field(default_factory=dict[str, object])
    """What was found out of a server, for the run's records."""
    check: Callable[[], Awaitable[None]] | None = None
    """Holds what was sampled since the last check to the weights that it should be of; raises GenenvError.
    None: samplers and trainers have the same weights."""
    close: Callable[[], Awaitable[None]] | None = None
    """Ends connections, when the run is over; None: there are none."""
    begin: Callable[[Path], None] | None = None
    """Called with the run's folder once it exists, for logs of what the backend started; None: there are
    none."""
    end: Callable[[], None] | None = None
    """Ends the processes that the backend started, whatever became of the run; None: there are none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Opened(Backend):
    """Both policies of a run, on a backend."""

    samplers: Mapping[str, Sampler]
    """The sampler of each role, by role name."""
    trainers: Mapping[str, Trainer]
    """The trainer of each role, by role name."""
    reply_tokens: int = 0
    """Tokens of the longest reply of an agent, where that is known; agents with a lower limit are refused."""


Open = Callable[[PolicyConfig, Sequence[Role], Environment, int], Opened]
"""(settings, roles, environment of the tasks, seed of the run) -> both policies; raises UsageError."""


def check_several(config: PolicyConfig, processes: int) -> None:
    """Refuse settings with which several processes cannot train together.

    Raises:
        UsageError: nothing would sample; the message names the settings.
    """
    pair = (config.backend, config.tuning)
    if processes > 1 and pair not in (("vllm", "lora"), ("local", "full")):
        raise UsageError(
            f"policy.backend is {pair[0]!r} and policy.tuning {pair[1]!r}: {processes} processes train "
            "adapters while servers sample (set policy.backend='vllm' and policy.tuning='lora'), or all "
            "weights while rank 0 samples (set policy.backend='local' and policy.tuning='full'); or start "
            "one process"
        )


def open_backend(config: PolicyConfig, roles: Sequence[Role], env: Environment, *, seed: int) -> Opened:
    """Open both policies on the backend that `config.backend` names.

    Raises:
        UsageError: there is no such backend, or a model cannot be loaded or used on it.
    """
    check_several(config, torchrun.size())
    if config.backend == "tinker" and importlib.util.find_spec("tinker") is None:
        raise UsageError("a Tinker server is asked by the package tinker: pip install 'genenv[tinker]'")
    return cast(Open, load(parts("backends")[config.backend]))(config, roles, env, seed)
