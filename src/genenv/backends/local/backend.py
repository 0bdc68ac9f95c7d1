# pyright: standard
"""Both players on models of this machine: by default two adapters on one base, which is both references."""

from __future__ import annotations

from collections.abc import Sequence

from genenv.backends.base import Opened, Role
from genenv.backends.local.arithmetic import settled
from genenv.backends.local.model import LocalModel
from genenv.backends.local.player_weights import PlayerWeights
from genenv.backends.local.sampler import LocalSampler
from genenv.backends.local.trainer import LocalTrainer
from genenv.backends.settings import PolicyConfig
from genenv.domains.base import Domain
from genenv.seeding import stream


def open_local(config: PolicyConfig, roles: Sequence[Role], domain: Domain, seed: int) -> Opened:
    """Load the models and give each player its weights.

    Raises:
        UsageError: a model cannot be loaded or used here.
    """
    weights = _weights(config, roles, seed)
    return Opened(
        samplers={role.name: LocalSampler(own) for role, own in zip(roles, weights, strict=True)},
        trainers={
            role.name: LocalTrainer(own, role.optimizer) for role, own in zip(roles, weights, strict=True)
        },
        settled=settled(config, *(own.model for own in weights)),
    )


def _weights(config: PolicyConfig, roles: Sequence[Role], seed: int) -> list[PlayerWeights]:
    loaded: dict[str, LocalModel] = {}
    found: list[PlayerWeights] = []
    full = config.tuning == "full"
    models: list[LocalModel] = []
    for role in roles:
        source = (config.simulator_model if role.name == "simulator" else None) or config.model
        key = role.name if full or config.simulator_model is not None else source
        loaded[key] = loaded.get(key) or LocalModel(source, config)
        models.append(loaded[key])
    for role, model in zip(roles, models, strict=True):
        if full:
            found.append(PlayerWeights(model, None, keep_reference=role.reference))
        else:
            model.add_adapter(role.name, seed=stream(seed, "adapter", role.name) % 2**31)
            found.append(PlayerWeights(model, role.name))
    return found
