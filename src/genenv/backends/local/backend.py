# pyright: standard
"""The backend `local`: samplers and trainers of both policies on models of this machine.

By default the policies are two adapters on one base, and the base is the reference model of both. With
several processes, rank 0 opens the policies and the other ranks (followers) open the same ones.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Sequence
from typing import cast

from genenv.backends.base import Opened, Role
from genenv.backends.local.model import LocalModel, settled_config
from genenv.backends.local.policy_weights import PolicyWeights
from genenv.backends.local.processes import ALONE, METHODS_ON_ALL_RANKS, Call, Opening, Processes, connected
from genenv.backends.local.sampler import LocalSampler
from genenv.backends.local.trainer import LocalTrainer
from genenv.backends.settings import PolicyConfig
from genenv.environments.base import Environment
from genenv.errors import GenenvError
from genenv.seeding import stream


def open_local(
    config: PolicyConfig,
    roles: Sequence[Role],
    env: Environment,
    seed: int,
    processes: Processes = ALONE,
) -> Opened:
    """Load the models, and open a sampler and a trainer for each policy.

    Args:
        config: settings of the policies.
        roles: the policies to open.
        env: the environment of the tasks.
        seed: of the adapters' initial weights.
        processes: the processes that train together. If there are several, they share the base, train only
            adapters, and do not sample.

    Raises:
        UsageError: a model cannot be loaded or used on this machine.
    """
    models = _models(config, roles, processes)
    full = config.tuning == "full"
    weights: dict[str, PolicyWeights] = {}
    for role, model in zip(roles, models, strict=True):
        adapter = (
            role.name if role.name in ("agent", "simulator") else f"agent-{role.name}"
        )  # no layer's name
        if not full:
            model.add_adapter(adapter, seed=stream(seed, "adapter", role.name) % 2**31)
        weights[role.name] = PolicyWeights(model, None if full else adapter, keep_reference=role.reference)
    return Opened(
        samplers={name: LocalSampler(own) for name, own in weights.items()},
        trainers={
            role.name: LocalTrainer(
                weights[role.name], role.optimizer, ramped=role.ramped, processes=processes
            )
            for role in roles
        },
        settled=settled_config(config, *models),
        scores_written=True,
    )


def _models(config: PolicyConfig, roles: Sequence[Role], processes: Processes) -> list[LocalModel]:
    """Return each role's model: one for all with one base, but one of its own for each if tuning is full.

    A simulator whose base is named has one of its own, too.
    """
    found: list[LocalModel] = []
    bases: dict[str, LocalModel] = {}
    for role in roles:
        other = config.simulator_model if role.name == "simulator" else role.model
        name = other or config.model
        shared = config.tuning == "lora" and (other is None or role.name != "simulator")
        if not shared or name not in bases:
            bases[name] = LocalModel(name, config, processes.size)
        found.append(bases[name])
    return found


def open_on_all_ranks(config: PolicyConfig, roles: Sequence[Role], env: Environment, seed: int) -> Opened:
    """Open the policies in all processes that torchrun started; see `open_local`."""
    processes = connected()
    processes.broadcast(Opening(config, tuple(roles), seed))
    return open_local(config, roles, env, seed, processes)


def follow_rank_0() -> None:
    """Run every trainer call that rank 0 broadcasts, until rank 0 calls `release_followers`."""
    processes = connected()
    trainers: dict[str, LocalTrainer] = {}
    with asyncio.Runner() as runner:
        while (call := processes.receive()) is not None:
            with contextlib.suppress(GenenvError):  # rank 0 gets the same error and reports it
                if isinstance(call, Opening):
                    env = cast(Environment, None)
                    opened = open_local(call.config, call.roles, env, call.seed, processes)
                    trainers = {name: cast(LocalTrainer, own) for name, own in opened.trainers.items()}
                elif isinstance(call, Call) and call.method in METHODS_ON_ALL_RANKS:
                    does = getattr(trainers[call.policy], call.method)
                    runner.run(does(*call.arguments, **call.options))


def release_followers() -> None:
    """End `follow_rank_0` in all other processes; rank 0 calls this however the run ends."""
    connected().broadcast(None)
