# pyright: standard
"""Estimate of the device memory that a run needs for both policies, before any weight is loaded.

    weights     P b             the base, P parameters of b bytes; plus copies that are packed for the CPU
                                in 4 bits Q 0.516 + (P - Q) b, and one matrix of b bytes while it is used
                                with n processes each: Q b / n of the layers' Q, the rest, two whole layers
    adapters    A (4 + 8)       of each policy: float32, both moments of AdamW; A 4 for a reference
    gradients   A 4             of the policy that is updated
    sampling    R T 2 L K d b   keys and values of R rows of T tokens, in L layers of K heads of size d
    learning    N b sum(kept)   activations of a backward pass over N tokens in all layers, or only inputs
    scores      M V 4           logits of M places over a vocabulary of V, in comparison and derivative

With full tuning A = P, each policy has a model of its own, and b = 4. Then n processes hold 1 / n each of
weights, gradients, moments and references, and gather, with g bytes a number (`policy.dtype`), L layers of l
parameters in all, E parameters outside the layers, and an output layer of H:

    layers      l / L (3 g + f)     weights of two layers and gradient of one; f = 4, its float32 copy
    the rest    E 2 g + H (g + f)   weights and gradients; the output layer of a reference; f as above
    sampling    P g                 a whole copy, in the first process alone

f is 0 if g = 4, because there is no copy.

Rows and tokens are the maximum that the settings allow; sampling usually needs a fraction of it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from genenv.backends.local import hardware, loading
from genenv.backends.local.adapters import add_lora_adapter, unadapted, unadapted_sentence
from genenv.backends.local.fused_decoder import Sizes
from genenv.backends.local.model import check_can_quantize
from genenv.backends.local.model_forward import quantized_token_bytes, sizes_of
from genenv.backends.local.sharding import check_can_shard, full_dtype
from genenv.backends.local.token_logprobs import HEAD_ROWS
from genenv.backends.settings import PolicyConfig
from genenv.errors import UsageError

NF4_BYTES = 1 / 2 + 1 / 64 + 4 / (64 * 256)
"""Bytes of a weight in nf4: 4 bits, a scale of 8 bits for 64 weights, a number of 4 bytes for 256 scales."""
_COPIES_OF_SCORES = 4
_PROGRAM = 0.7e9
"""Memory of Python, torch and other libraries on a CPU, or of a CUDA context on a GPU."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """The sizes of a model that determine its memory."""

    parameters: int
    sizes: Sizes
    vocabulary: int
    products: int
    """Parameters in matrices of layers, which can be packed."""
    in_layers: int
    """Parameters in layers; the others are in embeddings, last norm and output layer."""
    adapted: int
    """Parameters of an adapter of rank 1; an adapter of rank r has r times as many."""
    unadapted: Mapping[str, float]
    """Kinds of weights in layers that get no adapter, with their shares."""

    @property
    def output(self) -> int:
        """Parameters of the output layer."""
        return self.vocabulary * self.sizes.width


@dataclass(frozen=True, slots=True, kw_only=True)
class Need:
    """One part of the memory estimate, in bytes, with the settings that determine it."""

    name: str
    bytes: float
    decided_by: str
    """The settings that determine this part."""
    sampling: bool = False
    """Whether this memory is for sampling; such parts are upper bounds."""


def shape_of(source: str, targets: str) -> Shape:
    """Return the shape of a resolved model, without reading its weights.

    Raises:
        UsageError: the model cannot be found, or is not a causal language model.
    """
    try:
        return shape_in(loading.causal_config(source), targets)
    except UsageError as error:
        raise UsageError(f"the shape of {source} cannot be read: {error}") from error


def shape_in(config: Any, targets: str) -> Shape:  # noqa: ANN401
    """Return the shape of the model of a transformers configuration.

    Args:
        config: of transformers.
        targets: `policy.lora_targets`.
    """
    causal = loading.without_other_inputs(loading.causal_on_meta(config))
    last = causal.get_output_embeddings()
    linear = {
        name: module
        for name, module in causal.named_modules()
        if isinstance(module, nn.Linear) and module is not last
    }
    parameters = sum(p.numel() for p in causal.parameters())
    products = sum(module.weight.numel() for module in linear.values())
    layers = getattr(causal.get_decoder(), "layers", None)  # not all models have them there
    in_layers = products if layers is None else sum(p.numel() for p in layers.parameters())
    causal.requires_grad_(requires_grad=False)
    with torch.device("meta"):
        add_lora_adapter(causal, "counted", PolicyConfig(lora_rank=1, lora_targets=targets))
    return Shape(
        parameters=parameters,
        sizes=sizes_of(config),
        vocabulary=config.get_text_config().vocab_size,
        products=products,
        in_layers=in_layers,
        adapted=sum(p.numel() for p in causal.parameters() if p.requires_grad),
        unadapted=unadapted(causal),
    )


def memory_needs(  # noqa: PLR0913 - all inputs of the estimate
    shape: Shape,
    config: PolicyConfig,
    *,
    policies: Sequence[str],
    held: Sequence[str],
    dtype: torch.dtype,
    device: torch.device,
    processes: int = 1,
) -> list[Need]:
    """Return the memory that policies on one base need, part by part.

    Args:
        shape: of the base.
        config: settings of the policies.
        policies: names of the policies with weights.
        held: names of those with a KL term, which keeps a reference.
        dtype: of the base; with full tuning, of computations.
        device: of the models.
        processes: number of processes that train together; the result is for one of them.
    """
    size, full, sizes = dtype.itemsize, config.tuning == "full", shape.sizes
    learned = shape.parameters if full else shape.adapted * config.lora_rank
    packed = 0.0
    whole_numbers = not full and processes == 1 and config.quantize == "none"
    if whole_numbers and device.type == "cpu" and config.packed_weights is not False:
        own = float((shape.products + shape.output) * size)
        packed = own if config.packed_weights is True or own <= hardware.packing_bytes(device) else 0.0
    rows = hardware.batch_rows(config.max_batch_rows, device)
    cache = rows * config.context_tokens * 2 * sizes.layers * sizes.keys * size
    compiled = device.type == "cuda" and whole_numbers
    compiled = compiled and config.decoder != "transformers" and config.compiled is not False
    values = sizes.kept_by_compiled_layer if compiled else sizes.kept_by_fused_layer
    token = sizes.layers * values * size if compiled else None
    tokens = hardware.microbatch_tokens(config.tokens_per_microbatch, device, token)
    whole = tokens * sizes.layers * values * size
    inputs = tokens * (sizes.layers * sizes.width + values) * size
    most = config.activation_gib * 2**30 or hardware.memory_bytes(device) / (2 if compiled else 4)
    kept_whole = processes == 1 and whole <= most
    backward = whole if kept_whole else inputs
    weights = _weights(shape, len(policies), size, processes, full=full, held=bool(held))
    if config.quantize != "none":
        tokens = hardware.microbatch_tokens(
            config.tokens_per_microbatch, device, quantized_token_bytes(sizes, dtype)
        )
        kept_whole = tokens * sizes.kept * size <= hardware.activation_bytes(config.activation_gib, device)
        backward = tokens * (sizes.kept if kept_whole else sizes.kept_when_recomputed) * size
        weights = _weights_in_4_bits(shape, size)
    share = processes if full else 1  # the number of processes that share what is learned
    own_adapters = 0 if full else len(policies) + (config.backend == "vllm")  # vllm: one to check servers
    kept = [
        *weights,
        ("their copy, packed for the processor", packed, "policy.packed_weights"),
        ("gradients", learned * 4 / share, "policy.tuning, policy.lora_rank"),
        ("moments of AdamW", len(policies) * learned * 8 / share, "policy.tuning, policy.lora_rank"),
        ("adapters", own_adapters * learned * 4, "policy.lora_rank"),
        ("what KL terms hold on to", len(held) * learned * 4 / share, "the players' kl_coefficient"),
        ("a backward pass", backward, "policy.tokens_per_microbatch, policy.activation_gib"),
        ("scores", _COPIES_OF_SCORES * HEAD_ROWS * shape.vocabulary * 4, "the vocabulary"),
        ("the program", _PROGRAM, "nothing"),
    ]
    sampled = [
        ("keys and values of a full batch", cache, "policy.max_batch_rows, policy.context_tokens"),
        ("keys and values between turns", config.cache_gib * 2**30, "policy.cache_gib"),
    ]
    return [
        Need(name=name, bytes=float(count), decided_by=by, sampling=parts is sampled)
        for parts in (kept, sampled)
        for name, count, by in parts
        if count
    ]


def _weights_in_4_bits(shape: Shape, size: int) -> list[tuple[str, float, str]]:
    """Return what the weights of a base in 4 bits take, as `_weights` does."""
    base = shape.products * NF4_BYTES + (shape.parameters - shape.products) * size
    return [
        ("base weights", base, "policy.model, policy.dtype, policy.quantize"),
        ("a matrix as numbers", float(shape.sizes.width * shape.sizes.inner * size), "policy.quantize"),
    ]


def _weights(
    shape: Shape, policies: int, size: int, processes: int, *, full: bool, held: bool
) -> list[tuple[str, float, str]]:
    """Return what weights of models take in one of the processes: name, bytes, settings that decide.

    Args:
        shape: of the model.
        policies: number of policies.
        size: bytes of a number in computations.
        processes: number of processes that train together.
        full: whether all weights are trained.
        held: whether there is a reference.
    """
    by, layer = "policy.model, policy.dtype", shape.in_layers / shape.sizes.layers
    if not full:
        apart = shape.products * (1 - 1 / processes)  # held by the other processes
        together = 2 * shape.products / shape.sizes.layers if processes > 1 else 0.0  # running, and next
        return [
            ("base weights", (shape.parameters - apart) * size, by),
            ("layers that are brought together", together * size, by),
        ]
    weights = [("base weights", policies * shape.parameters * 4 / processes, by)]
    if processes == 1:
        return weights
    ends = shape.parameters - shape.in_layers
    in_float32 = 0 if size == 4 else 4  # gradients, before they are summed
    whole = ends * 2 * size + shape.output * (size * held + in_float32)
    return [
        *weights,
        ("layers that are brought together", layer * (3 * size + in_float32), by),
        ("embeddings and output layer, whole", whole, by),
        ("a whole copy that samples, in the first process", shape.parameters * size, by),
    ]


def estimate_memory(
    config: PolicyConfig, *, policies: Sequence[str], held: Sequence[str], processes: int = 1
) -> tuple[list[Need], str, float, str | None]:
    """Return the memory that the policies of a run need on this machine's device.

    Args:
        config: settings of both policies.
        policies: names of the policies with weights.
        held: names of those with a KL term.
        processes: number of processes that train together, each on such a device; on a CPU they share it.

    Returns:
        The parts of one process; the device; the total memory available to a process, bytes; and a warning
            about weights without adapters, or None.

    Raises:
        UsageError: the model or the device is not available, or the settings do not allow several processes.
    """
    check_can_quantize(config)
    if processes > 1:
        check_can_shard(config)
    device = hardware.choose_device(config.device)
    full = config.tuning == "full"
    dtype = full_dtype(config, processes) if full else hardware.choose_dtype(config.dtype, device)
    shape = shape_of(loading.resolve(config.model), config.lora_targets)
    found = memory_needs(
        shape, config, policies=policies, held=held, dtype=dtype, device=device, processes=processes
    )
    warning = None if full else unadapted_sentence(shape.unadapted)
    if device.type == "cuda":
        return found, torch.cuda.get_device_name(device), hardware.memory_bytes(device), warning
    name = "this machine" if processes == 1 else f"each of {processes} here"
    return found, name, hardware.memory_bytes(device) / processes, warning
