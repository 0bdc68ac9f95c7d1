# pyright: standard
"""The backend `local`: samplers and trainers of both policies on models of this machine.

By default the policies are two adapters on one base, and the base is the reference model of both. With
several processes, rank 0 opens the policies and the other ranks (followers) open the same ones.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Mapping, Sequence
from typing import cast

from genenv.backends.base import Opened, Role
from genenv.backends.local.model import LocalModel, settled_config
from genenv.backends.local.policy_weights import PolicyWeights
from genenv.backends.local.processes import METHODS_ON_ALL_RANKS, Call, Opening, Processes, connected
from genenv.backends.local.sampler import LocalSampler
from genenv.backends.local.trainer import LocalTrainer
from genenv.backends.settings import PolicyConfig
from genenv.environments.base import Environment
from genenv.errors import GenenvError, UpdateSkipped
from genenv.sampling import Completion, Sampler, SampleRequest
from genenv.seeding import stream


def open_local(config: PolicyConfig, roles: Sequence[Role], env: Environment, seed: int) -> Opened:
    """Load the models, and open a sampler and a trainer for each policy, in all processes of torchrun.

    Several processes share the base and train adapters, and then they do not sample; or they share and train
    all weights, and then rank 0 samples with a whole copy.

    Args:
        config: settings of the policies.
        roles: the policies to open.
        env: the environment of the tasks.
        seed: of the adapters' initial weights.

    Raises:
        UsageError: a model cannot be loaded or used on this machine.
    """
    processes = connected()
    processes.broadcast(Opening(config, tuple(roles), seed))
    return _open(config, roles, seed, processes)


def _open(config: PolicyConfig, roles: Sequence[Role], seed: int, processes: Processes) -> Opened:
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
    trainers = {
        role.name: LocalTrainer(weights[role.name], role.optimizer, processes=processes, name=role.name)
        for role in roles
    }
    if full and processes.size > 1:
        samplers = _samplers_of_shards(trainers) if processes.rank == 0 else {}
    else:
        samplers = {name: LocalSampler(own) for name, own in weights.items()}
    return Opened(
        samplers=samplers,
        trainers=trainers,
        settled=settled_config(config, *models),
        scores_written=True,
    )


class SamplerOfShards(LocalSampler):
    """Samples on rank 0 with weights that are sharded, in a whole copy that policies with one base share.

    Before a batch the copy gets the policy's weights from all processes, unless it has them. The other
    processes wait meanwhile.
    """

    def __init__(self, copy: LocalModel, trainer: LocalTrainer) -> None:
        super().__init__(PolicyWeights(copy, None, learns=False))
        self._trainer = trainer

    def sample_all(self, requests: Sequence[SampleRequest]) -> list[Completion]:
        """Sample completions with the policy's present weights."""
        wanted = (self._trainer.name, self._trainer.changes)
        if self.model.holds != wanted:
            self.model.holds = None
            self._trainer.fill(self.model)
            self.model.holds = wanted
        self.weights.version = self._trainer.weights.version
        return super().sample_all(requests)


def _samplers_of_shards(trainers: Mapping[str, LocalTrainer]) -> dict[str, Sampler]:
    """Return a sampler for each policy, on one whole model for each base."""
    copies: dict[str, LocalModel] = {}
    samplers: dict[str, Sampler] = {}
    for name, trainer in trainers.items():
        own = trainer.weights.model
        if own.source not in copies:
            dtype = str(own.dtype).removeprefix("torch.")
            config = own.config.model_copy(update={"tuning": "lora", "dtype": dtype})  # frozen: no adapter
            copies[own.source] = LocalModel(own.source, config)
        samplers[name] = SamplerOfShards(copies[own.source], trainer)
    return samplers


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


def follow_rank_0() -> None:
    """Run every trainer call that rank 0 broadcasts, until rank 0 calls `release_followers`.

    Raises:
        GenenvError: a call failed here, and rank 0 goes on: the weights are no longer those of rank 0.
    """
    processes = connected()
    trainers: dict[str, LocalTrainer] = {}
    with asyncio.Runner() as runner:
        while (call := processes.receive()) is not None:
            try:
                if isinstance(call, Opening):
                    opened = _open(call.config, call.roles, call.seed, processes)
                    trainers = {name: cast(LocalTrainer, own) for name, own in opened.trainers.items()}
                elif isinstance(call, Call) and call.method in METHODS_ON_ALL_RANKS:
                    done = getattr(trainers[call.policy], call.method)(*call.arguments, **call.options)
                    if inspect.iscoroutine(done):
                        runner.run(done)
            except UpdateSkipped:
                continue  # in all processes
            except GenenvError:
                if processes.ends():
                    return  # rank 0 has the same error and reports it
                raise


def release_followers() -> None:
    """End `follow_rank_0` in all other processes; rank 0 calls this however the run ends."""
    connected().broadcast(None)
