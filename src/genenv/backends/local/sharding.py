# pyright: standard
"""Weights that are sharded over the processes that train together, by FSDP2 (`torch.distributed.fsdp`).

The weights of a layer are gathered when it runs, forward and backward, and then released. The backward pass
keeps only the input of each layer and recomputes the rest.

- Adapters on a frozen base (`shard_base`): the layers are sharded. Embeddings and output layer stay whole.
  So do adapters, because they are attached after sharding.
- All weights trained (`shard_all`): weights, gradients, moments and reference are sharded. Log-probabilities
  are computed from the output layer in pieces, and each process has its own number of pieces. So weights
  outside the layers (embeddings, last norm, output layer) are not gathered for each piece, but once for each
  micro-batch (`whole_ends`). Their gradients are summed once, too.

Shards are float32. The gathered weights can have another number format; gradients are summed in float32.
"""

from __future__ import annotations

import contextlib
import copy
import functools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor

from genenv.backends.local.model_forward import recomputed, setting_that_reads_weights
from genenv.backends.settings import PolicyConfig
from genenv.errors import UsageError


def check_can_shard(config: PolicyConfig) -> None:
    """Refuse settings that sharded training does not support.

    Raises:
        UsageError: a setting is not supported; the message names it.
    """
    if config.quantize != "none":
        raise UsageError(
            f"policy.quantize is {config.quantize!r}, and weights in 4 bits are not split between several "
            "processes; take one process, or policy.quantize='none'"
        )
    if name := setting_that_reads_weights(config):
        raise UsageError(
            f"policy.{name} needs the whole base in one process; take one, or begin a run with "
            "policy.decoder=transformers"
        )


def full_dtype(config: PolicyConfig, processes: int) -> torch.dtype:
    """Return the number format of computations when all weights are trained: float32 unless stated.

    Raises:
        UsageError: bfloat16 in one process, which would also keep its weights in it.
    """
    if config.dtype != "bfloat16":
        return torch.float32
    if processes == 1:
        raise UsageError(
            "policy.tuning is 'full' and policy.dtype 'bfloat16': steps of usual size vanish in bfloat16 "
            "weights; use policy.dtype='float32', or policy.tuning='lora', or several processes (torchrun), "
            "which keep float32 weights and compute in bfloat16"
        )
    return torch.bfloat16


def shard_base(causal: Any, device: torch.device, size: int) -> None:  # noqa: ANN401
    """Shard the layers of a frozen model over all processes, in place.

    Args:
        causal: the frozen model in CPU memory, equal in all processes.
        device: receives this process's shards and the parameters that stay whole.
        size: number of processes.

    Raises:
        UsageError: the model has no list of layers.
    """
    _shard_layers(causal, _mesh(device.type, size), MixedPrecisionPolicy())
    _move(causal, device)


def shard_all(causal: Any, device: torch.device, size: int, dtype: torch.dtype) -> None:  # noqa: ANN401
    """Shard all weights of a model over all processes, in place, for training.

    Args:
        causal: the model in CPU memory, equal in all processes; or on the meta device, for `twin`.
        device: receives this process's shards.
        size: number of processes.
        dtype: number format of the weights while they are gathered.

    Raises:
        UsageError: the model has no list of layers.
    """
    mesh = _mesh(device.type, size)
    policy = MixedPrecisionPolicy(param_dtype=dtype, reduce_dtype=torch.float32)
    for layer in _shard_layers(causal, mesh, policy):
        layer.set_gradient_divide_factor(1.0)  # a loss is a sum over all processes, not a mean
        layer.set_force_sum_reduction_for_comms(True)  # Gloo has no other
    shards: dict[nn.Parameter, nn.Parameter] = {}
    used = (causal.get_decoder(), causal.get_input_embeddings(), causal.get_output_embeddings())
    for module in _outside_layers(causal, used):
        for name, value in module._parameters.items():
            if value is None:
                continue
            if value not in shards:  # tied weights stay tied
                placed = [Shard(0) if value.ndim else Replicate()]
                shard = _distributed(value.detach(), mesh, placed)
                shards[value] = nn.Parameter(shard, requires_grad=value.requires_grad)
            module._parameters[name] = shards[value]
    if next(iter(causal.parameters())).device.type != "meta":
        _move(causal, device)


def _shard_layers(causal: Any, mesh: DeviceMesh, policy: MixedPrecisionPolicy) -> list[Any]:  # noqa: ANN401
    decoder = causal.get_decoder()
    layers = getattr(decoder, "layers", None)
    if layers is None:
        raise UsageError(
            f"a {type(causal).__name__} is not trained by several processes: its layers are not where they "
            "are looked for; take one process"
        )
    for layer in layers:
        own = layer.forward
        fully_shard(layer, mesh=mesh, mp_policy=policy)
        layer.forward = functools.partial(recomputed, own)
    whole = {parameter for name, parameter in decoder.named_parameters() if not name.startswith("layers.")}
    fully_shard(decoder, mesh=mesh, mp_policy=policy, ignored_params=whole)
    return list(layers)


@functools.cache
def _mesh(kind: str, size: int) -> DeviceMesh:
    return init_device_mesh(kind, (size,))


def _move(causal: Any, device: torch.device) -> None:  # noqa: ANN401
    """Move what is not yet on a device there."""
    for module in causal.modules():
        for own in (module._parameters, module._buffers):
            for name, value in own.items():
                if value is None or value.device.type == device.type:
                    continue
                if isinstance(value, nn.Parameter):
                    value.data = value.data.to(device)
                else:
                    own[name] = value.to(device)


def _outside_layers(causal: Any, roots: Iterable[Any]) -> Iterator[nn.Module]:  # noqa: ANN401
    """Yield the modules of some roots that are in no layer, each once."""
    layers = set(causal.get_decoder().layers.modules())
    seen: set[nn.Module] = set()
    for root in roots:
        for module in () if root is None else root.modules():
            if module not in layers and module not in seen:
                seen.add(module)
                yield module


def _distributed(whole: Tensor, mesh: DeviceMesh, placed: Any) -> DTensor:  # noqa: ANN401
    """Return this process's shard of a tensor that all processes have, in memory of its own."""
    found = distribute_tensor(whole, mesh, placed, src_data_rank=None)
    return found.clone()  # pyright: ignore[reportReturnType] - a DTensor as well


class _Gathered(torch.autograd.Function):
    """A whole weight out of the shards of all processes; its gradients are summed, and sharded again."""

    @staticmethod
    def forward(ctx: Any, shard: DTensor, dtype: torch.dtype) -> Tensor:  # type: ignore[override]  # noqa: ANN401
        ctx.mesh, ctx.placed, ctx.kept = shard.device_mesh, shard.placements, shard.dtype
        return _whole(shard.to(dtype))

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:  # noqa: ANN401
        own = DTensor.from_local(gradients[0].to(ctx.kept), ctx.mesh, [Partial()], run_check=False)
        return own.redistribute(ctx.mesh, ctx.placed), None


@contextlib.contextmanager
def whole_ends(causal: Any, dtype: torch.dtype) -> Iterator[None]:  # noqa: ANN401
    """Context manager: the weights outside the layers of a model of `shard_all` are whole.

    All processes must enter it together, and run backward passes inside it.
    """
    found = [
        (module, name, shard)
        for module in _outside_layers(causal, (causal,))
        for name, shard in module._parameters.items()
        if isinstance(shard, DTensor)
    ]
    whole: dict[int, Any] = {}
    try:
        for module, name, shard in found:
            if id(shard) not in whole:
                whole[id(shard)] = _Gathered.apply(shard, dtype)
            module._parameters[name] = whole[id(shard)]
        yield
    finally:
        for module, name, shard in found:
            module._parameters[name] = shard


def twin(causal: Any, device: torch.device, size: int, dtype: torch.dtype) -> Any:  # noqa: ANN401
    """Return a frozen copy of a model of `shard_all`, sharded too; no process ever holds it whole."""
    with torch.device("meta"):
        other = type(causal)(copy.deepcopy(causal.config))
    other.requires_grad_(requires_grad=False).eval()
    other.tie_weights()
    shard_all(other, device, size, dtype)
    other.to_empty(device=device)
    with torch.no_grad():
        for own, present in zip(other.parameters(), causal.parameters(), strict=True):
            own.copy_(present)
        for own, present in zip(other.buffers(), causal.buffers(), strict=True):
            own.copy_(present)
    return other


@torch.no_grad()
def whole_tensors(tensors: Mapping[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield tensors by name, each gathered in its turn; all processes must go through it."""
    for name, value in tensors.items():
        yield name, _whole(value.detach())


@torch.no_grad()
def whole_state(tensors: Mapping[str, Tensor]) -> dict[str, Tensor] | None:
    """Gather tensors in the CPU memory of rank 0; return None in the other processes.

    Args:
        tensors: by name. Those that are one object (tied weights) stay one.
    """
    leads = dist.get_rank() == 0
    found: dict[int, Tensor] = {}
    for value in {id(value): value for value in tensors.values()}.values():
        whole = _whole(value.detach())
        if leads:
            found[id(value)] = whole.cpu()
    return {name: found[id(value)] for name, value in tensors.items()} if leads else None


def _whole(value: Tensor) -> Tensor:
    return value.full_tensor() if isinstance(value, DTensor) else value


@torch.no_grad()
def put_state(tensors: Mapping[str, Tensor], state: Mapping[str, Tensor]) -> None:
    """Set tensors, whole or sharded, to values that each process has whole.

    Raises:
        ValueError: names or shapes differ.
    """
    if {k: v.shape for k, v in tensors.items()} != {k: v.shape for k, v in state.items()}:
        raise ValueError("they belong to another model")
    for name, value in tensors.items():
        if isinstance(value, DTensor):
            value.copy_(
                distribute_tensor(state[name], value.device_mesh, value.placements, src_data_rank=None)
            )
        else:
            value.copy_(state[name])
