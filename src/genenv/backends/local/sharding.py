# pyright: standard
"""A frozen base of which each of several processes holds a part: FSDP2 (`torch.distributed.fsdp`).

The weights of a layer come together where it is run, forwards and backwards, and are let go of after it.
Embeddings and output layer stay whole, as likelihoods are worked out from them a piece at a time
(`token_logprobs`); so do adapters, which are attached afterwards. Of a layer nothing is kept for the backward
pass but what goes in: it is computed twice.
"""

from __future__ import annotations

import functools
from typing import Any

import torch
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.utils.checkpoint import checkpoint

from genenv.backends.settings import PolicyConfig
from genenv.errors import UsageError


def check(config: PolicyConfig) -> None:
    """Hold the settings to what several processes can do.

    Raises:
        UsageError: they ask for more; names the setting.
    """
    if config.tuning == "full":
        raise UsageError("policy.tuning is 'full', and several processes train adapters alone; take 'lora'")
    if config.decoder == "fused" or config.packed_weights is True:
        name = "decoder" if config.decoder == "fused" else "packed_weights"
        raise UsageError(
            f"policy.{name} needs the whole base in one process; take one, or begin a run with "
            "policy.decoder=transformers"
        )


def shard(causal: Any, device: torch.device, size: int) -> None:  # noqa: ANN401
    """Share the layers of a model out among so many processes, in place.

    Args:
        causal: frozen, in the memory of the CPU, equal in all processes.
        device: where this process's part goes, a layer at a time, and all that stays whole.
        size: how many processes.

    Raises:
        UsageError: it has no list of layers.
    """
    decoder = causal.get_decoder()
    layers = getattr(decoder, "layers", None)
    if layers is None:
        raise UsageError(
            f"a {type(causal).__name__} is not trained by several processes: its layers are not where they "
            "are looked for; take one process"
        )
    mesh = init_device_mesh(device.type, (size,))
    for layer in layers:
        own = layer.forward
        fully_shard(layer, mesh=mesh)
        layer.forward = functools.partial(_twice, own)
    whole = {parameter for name, parameter in decoder.named_parameters() if not name.startswith("layers.")}
    fully_shard(decoder, mesh=mesh, ignored_params=whole)
    for module in causal.modules():
        for own in (module._parameters, module._buffers):
            for name, value in own.items():
                if value is not None and value.device.type != device.type:
                    own[name] = _moved(value, device)


def _twice(forward: Any, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
    if torch.is_grad_enabled():
        return checkpoint(forward, *arguments, use_reentrant=False, **options)
    return forward(*arguments, **options)


def _moved(value: torch.Tensor, device: torch.device) -> torch.Tensor:
    if isinstance(value, torch.nn.Parameter):
        value.data = value.data.to(device)
        return value
    return value.to(device)
