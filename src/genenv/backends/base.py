"""The interface of a backend: a sampler and a trainer for each policy, and how a backend is opened by name.

`open_backend` opens each policy on the backend that its settings name, and joins several into one. The rank
of this process under torchrun, and which settings several processes can train with, stand here too.

Shapes: T = tokens of one sequence.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import importlib.util
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import cast

from genenv.algorithms.datum import Trainer
from genenv.algorithms.settings import OptimizerConfig
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
    model: str | None = None
    """Base model of the policy; None: the one that the settings of the policies name."""
    backend: str | None = None
    """Backend of the policy; None: the one that the settings of the policies name."""
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
    reply_tokens: Mapping[str, int] = field(default_factory=dict[str, int])
    """Tokens of the longest reply of an agent, where that is known; agents with a lower limit are refused."""


Open = Callable[[PolicyConfig, Sequence[Role], Environment, int], Opened]
"""(settings, roles, environment of the tasks, seed of the run) -> both policies; raises UsageError."""


def process_rank() -> int:
    """Return this process's rank, from 0; rank 0 runs the training loop, and a single process has rank 0."""
    return int(os.environ.get("RANK", "0")) if process_count() > 1 else 0


def process_count() -> int:
    """Return how many processes train together; 1 if torchrun did not start this process."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "TORCHELASTIC_RUN_ID" in os.environ else 1


_PR_SET_PDEATHSIG = 1


def end_with_torchrun() -> None:
    """Have the kernel kill this process when torchrun ends, for any reason (Linux only).

    Torchrun starts its workers in sessions of their own, so a signal to torchrun's group does not reach them.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)


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
    """Open each policy on its own backend, or on the one that `config.backend` names.

    Raises:
        UsageError: a backend is unknown, a model cannot be loaded or used on it, or several processes train
            together on more than one backend.
    """
    by_backend: dict[str, list[Role]] = {}
    for role in roles:
        by_backend.setdefault(role.backend or config.backend, []).append(role)
    by_backend = by_backend or {config.backend: []}
    if len(by_backend) > 1 and process_count() > 1:
        raise UsageError(
            f"the policies of this run are on {' and '.join(by_backend)}, but several processes train "
            "together on one backend: leave out agents.NAME.backend, or start one process"
        )
    found = list[Opened]()
    try:
        for name, some in by_backend.items():
            own = config.model_copy(update={"backend": name})
            found.append(_open_one(own, some, env, seed=seed))
    except BaseException:
        _end(found)
        raise
    return found[0] if len(found) == 1 else _joined(config, found)


def _joined(config: PolicyConfig, found: Sequence[Opened]) -> Opened:
    """Return several backends as one, which can do what all of them can."""
    settled = [one.settled for one in found if one.settled is not None]
    here = next((one for one in settled if one.learns_here), (*settled, None)[0])

    def begin(folder: Path) -> None:
        for one in found:
            if one.begin is not None:
                one.begin(folder)

    return Opened(
        samplers={name: sampler for one in found for name, sampler in one.samplers.items()},
        trainers={name: trainer for one in found for name, trainer in one.trainers.items()},
        reply_tokens={name: most for one in found for name, most in one.reply_tokens.items()},
        settled=None if here is None else here.model_copy(update={"backend": config.backend}),
        warms_up=any(one.warms_up for one in found),
        scores_written=all(one.scores_written for one in found),
        found={name: value for one in found for name, value in one.found.items()},
        check=in_turn([one.check for one in found]),
        close=in_turn([one.close for one in found]),
        begin=begin,
        end=lambda: _end(found),
    )


def _end(found: Sequence[Opened]) -> None:
    """End what the backends have started, in order; the others follow where one raises an error."""
    with contextlib.ExitStack() as stack:
        for one in reversed(found):
            if one.end is not None:
                stack.callback(one.end)


def in_turn(actions: Sequence[Callable[[], Awaitable[None]] | None]) -> Callable[[], Awaitable[None]] | None:
    """Return one action that awaits these one after another; None if there are none."""
    wanted = [one for one in actions if one is not None]

    async def all_of_them() -> None:
        async with contextlib.AsyncExitStack() as stack:  # the others follow where one raises an error
            for one in reversed(wanted):
                stack.push_async_callback(one)

    return all_of_them if wanted else None


def _open_one(config: PolicyConfig, roles: Sequence[Role], env: Environment, *, seed: int) -> Opened:
    """Open policies on the backend that `config.backend` names.

    Raises:
        UsageError: there is no such backend, or a model cannot be loaded or used on it.
    """
    check_several(config, process_count())
    if config.backend == "tinker" and importlib.util.find_spec("tinker") is None:
        raise UsageError("a Tinker server is asked by the package tinker: pip install 'genenv[tinker]'")
    return cast(Open, load(parts("backends")[config.backend]))(config, roles, env, seed)
