# pyright: standard
"""The decoder of Llama-like models in few large operations, with low-rank adapters inside.

The same mathematics as the modules of transformers and PEFT, which do it in some eighty small steps a layer;
each of these reads and writes all activations, and keeps some of them for the backward pass. Here the
projections that read the same input are one product, an adapter is added into its result in place, norms,
rotation and activation know their own derivatives, and no more is kept than these need. On a CPU they are
compiled code where that can be had (`native`), in torch otherwise.

    y = x W^T + s (x A^T) B^T        W: several projections, one after the other; A, B: their adapters
    dx = dy W + s (dy B) A,  dA = s (dy B)^T x,  dB = s dy^T (x A^T)

The frozen base has no gradient. Weights are the model's own: projections that were apart become views of one
tensor, so nothing is in memory twice.

Shapes: N = tokens in the flat row, W = width, H = query heads, K = key/value heads, D = head size, r = rank.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from peft.tuners.lora import LoraLayer
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from genenv.backends.local.cpu.kernels import Kernels, LowRank
from genenv.backends.local.cpu.packed_weights import Product, can_be_packed, worth_packing
from genenv.backends.local.packing import AnyLayout, attend

_FEW_ROWS = 256
"""Up to so many rows compiled code adds an adapter's share faster than torch does."""

_LARGEST, _TRIED_LAYERS = 2, 8
"""Packing is tried on the joint up-projections of so many layers: together more than a cache holds."""

FAMILIES = ("LlamaForCausalLM", "MistralForCausalLM", "Qwen2ForCausalLM", "Qwen3ForCausalLM")


def why_not(causal: Any) -> str | None:  # noqa: ANN401
    """What keeps a model from running here; None when nothing does."""
    name = type(causal).__name__
    if name not in FAMILIES:
        return f"{name} is none of {', '.join(FAMILIES)}"
    activation = causal.config.get_text_config().hidden_act
    return None if activation == "silu" else f"its activation is {activation}, not silu"


class FusedDecoder:
    """A decoder whose base is frozen, run with one adapter or none.

    Args:
        causal: one of `FAMILIES`; its projections become views of joint tensors. Adapters may be attached
            before or after.
        activation_bytes: a backward pass that would need more than this is given the inputs of the layers
            alone, and computes the rest again (gradient checkpointing, arXiv:1604.06174).
        kernels: compiled code for what is not a matrix product.
        packed_bytes: weights that take no more than this are packed for sampling, where that is faster; it
            doubles them.
    """

    def __init__(
        self,
        causal: Any,  # noqa: ANN401
        activation_bytes: float = float("inf"),
        kernels: Kernels | None = None,
        packed_bytes: float = 0.0,
    ) -> None:
        self._model, self._kernels = causal.get_decoder(), kernels
        self._layers = [_Layer(layer, kernels) for layer in self._model.layers]
        self._activation_bytes = activation_bytes
        head = causal.get_output_embeddings()
        self._head = Product(head.weight, head.bias)
        self.packed = False
        """Whether the weights are packed for sampling."""
        weights = [layer.products[_LARGEST].weight for layer in self._layers[:_TRIED_LAYERS]]
        size = sum(product.weight.nbytes for product in self._products())
        if size <= packed_bytes and worth_packing(weights):
            self.pack()

    def _products(self) -> list[Product]:
        return [*(product for layer in self._layers for product in layer.products), self._head]

    def pack(self) -> bool:
        """Pack all weights for sampling; False, and nothing is done, where that is not possible."""
        self.packed = all(can_be_packed(product.weight) for product in self._layers[0].products)
        if self.packed:
            for product in self._products():
                product.pack()
        return self.packed

    def unpack(self) -> None:
        """Let go of packed weights."""
        self.packed = False
        for product in self._products():
            product.unpack()

    def scores(self, hidden_MW: Tensor) -> Tensor:
        """[M, V] scores of all tokens."""
        return self._head(hidden_MW)

    def hidden(self, ids_1N: Tensor, positions_1N: Tensor, layout: AnyLayout, adapter: str | None) -> Tensor:
        """[N, W] last hidden states of a flat row, with the named adapter or with none."""
        x_NW = self._model.embed_tokens(ids_1N[0])
        cos, sin = self._model.rotary_emb(x_NW, positions_1N)
        half = cos.shape[-1] // 2
        angles = cos[0, :, None, :half].contiguous(), sin[0, :, None, :half].contiguous()
        values = sum(layer.kept_values for layer in self._layers)
        recompute = (
            adapter is not None
            and torch.is_grad_enabled()
            and len(x_NW) * values * x_NW.element_size() > self._activation_bytes
        )
        for index, layer in enumerate(self._layers):
            arguments = (x_NW, angles, layout, index, adapter)
            x_NW = checkpoint(layer, *arguments, use_reentrant=False) if recompute else layer(*arguments)
        return _norm(x_NW, self._model.norm, self._kernels)


_Angles = tuple[Tensor, Tensor]
"""Cosine and sine, [N, 1, D / 2], of the first half of a head's places; the second has the same angles."""


class _Layer:
    def __init__(self, layer: Any, kernels: Kernels | None) -> None:  # noqa: ANN401
        self._kernels = kernels
        attention, mlp = layer.self_attn, layer.mlp
        self._before, self._between = layer.input_layernorm, layer.post_attention_layernorm
        self._head_size, self._scaling = attention.head_dim, attention.scaling
        self._norms = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
        self._qkv = _Projection(attention, ("q_proj", "k_proj", "v_proj"), kernels)
        self._out = _Projection(attention, ("o_proj",), kernels)
        self._up = _Projection(mlp, ("gate_proj", "up_proj"), kernels)
        self._down = _Projection(mlp, ("down_proj",), kernels)
        self.products = [part.product for part in (self._qkv, self._out, self._up, self._down)]
        width, inner = self._down.outputs, self._up.outputs // 2
        self.kept_values = 4 * width + 5 * self._qkv.outputs + self._qkv.widths[0] + 3 * inner
        """About how many numbers a token leaves here for the backward pass: attention keeps copies."""

    def __call__(
        self, x_NW: Tensor, angles: _Angles, layout: AnyLayout, index: int, adapter: str | None
    ) -> Tensor:
        q, k, v = self._heads(self._qkv(_norm(x_NW, self._before, self._kernels), adapter), angles)
        mixed_NHD = attend(layout, index, q, k, v, self._scaling)
        x_NW = x_NW + self._out(mixed_NHD.flatten(1), adapter)
        gated = _swiglu(self._up(_norm(x_NW, self._between, self._kernels), adapter), self._kernels)
        return x_NW + self._down(gated, adapter)

    def _heads(self, joint: Tensor, angles: _Angles) -> tuple[Tensor, Tensor, Tensor]:
        """[N, H, D], [N, K, D], [N, K, D]: queries and keys rotated by their positions."""
        size = self._head_size
        q, k, v = (width // size for width in self._qkv.widths)
        if self._norms[0] is None:
            turned, values = joint.view(len(joint), -1, size).split([q + k, v], 1)
            queries, keys = _rotate(turned, angles, self._kernels).split([q, k], 1)
            return queries, keys, values
        parts = joint.view(len(joint), -1, size).split([q, k, v], 1)
        queries, keys = (
            _rotate(_norm(part, norm, self._kernels), angles, self._kernels)
            for part, norm in zip(parts, self._norms, strict=False)
        )
        return queries, keys, parts[2]


class _Projection:
    """Linear layers that read the same input, as one product.

    Args:
        owner: the module that has them.
        names: of the layers in it.
        kernels: compiled code.
    """

    def __init__(self, owner: nn.Module, names: Sequence[str], kernels: Kernels | None) -> None:
        self._owner, self._names, self._kernels = owner, names, kernels
        bases = [_base(getattr(owner, name)) for name in names]
        self.widths = [base.out_features for base in bases]
        self.outputs = sum(self.widths)
        weight, bias = bases[0].weight, bases[0].bias
        if len(bases) > 1:
            weight = _joined([base.weight for base in bases])
            bias = None if bias is None else _joined([base.bias for base in bases])
        self.product = Product(weight, bias)
        self._adapters: dict[str, _Adapter] = {}

    def __call__(self, x_NI: Tensor, adapter: str | None) -> Tensor:
        """[N, sum of widths]."""
        found = None if adapter is None else self._adapter(adapter)
        if found is None or not found.pairs:
            return self.product(x_NI)
        if self._kernels is not None and len(x_NI) <= _FEW_ROWS and not torch.is_grad_enabled():
            y_NO = self.product(x_NI)
            self._kernels.add_low_rank(y_NO, x_NI, found.for_few_rows())
            return y_NO
        matrices = [matrix for pair in found.pairs for matrix in pair]
        return _LowRank.apply(x_NI, self.product.weight, self.product.bias, found, *matrices)

    def _adapter(self, name: str) -> _Adapter:
        if name not in self._adapters:
            self._adapters[name] = _Adapter(list(self._parts(name)))
        return self._adapters[name]

    def _parts(self, name: str) -> Iterator[_Part]:
        start = 0
        for layer, width in zip(self._names, self.widths, strict=True):
            found = getattr(self._owner, layer)
            if isinstance(found, LoraLayer) and name in found.lora_A:
                module: Any = found
                down, up = module.lora_A[name].weight, module.lora_B[name].weight
                yield _Part(down, up, float(module.scaling[name]), slice(start, start + width))
            start += width


@dataclass(frozen=True, slots=True)
class _Part:
    """The adapter of one of several joint projections."""

    down_rI: Tensor
    up_Or: Tensor
    scale: float
    columns: slice
    """Where the projection stands in the joint result."""


class _Adapter:
    """The adapters of joint projections."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        self.pairs = [(part.down_rI, part.up_Or) for part in parts]
        self.scales = [part.scale for part in parts]
        self.columns = [part.columns for part in parts]
        ends = [0]
        for part in parts:
            ends.append(ends[-1] + len(part.down_rI))
        self.ranks = [slice(a, b) for a, b in itertools.pairwise(ends)]
        self._laid_out: tuple[tuple[int, ...], LowRank] | None = None

    def for_few_rows(self) -> LowRank:
        """The present matrices as compiled code wants them; laid out again when they have learned."""
        versions = tuple(matrix._version for pair in self.pairs for matrix in pair)
        if self._laid_out is None or self._laid_out[0] != versions:
            downs, ups = zip(*self.pairs, strict=True)
            starts = [columns.start for columns in self.columns]
            self._laid_out = versions, LowRank(downs, ups, self.scales, starts)
        return self._laid_out[1]


class _LowRank(torch.autograd.Function):
    """x W^T + b, with the adapters' share added in place."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,  # noqa: ANN401
        x_NI: Tensor,
        weight_OI: Tensor,
        bias_O: Tensor | None,
        adapter: _Adapter,
        *matrices: Tensor,
    ) -> Tensor:
        downs, ups = list(matrices[::2]), list(matrices[1::2])
        joint_rI = torch.cat(downs).to(x_NI.dtype) if len(downs) > 1 else downs[0].to(x_NI.dtype)
        low_Nr = x_NI @ joint_rI.T
        y_NO = nn.functional.linear(x_NI, weight_OI, bias_O)
        for up, scale, columns, ranks in zip(
            ups, adapter.scales, adapter.columns, adapter.ranks, strict=True
        ):
            y_NO[:, columns].addmm_(low_Nr[:, ranks], up.to(x_NI.dtype).T, alpha=scale)
        ctx.save_for_backward(x_NI, weight_OI, low_Nr, joint_rI, *ups)
        ctx.adapter, ctx.types = adapter, [matrix.dtype for matrix in matrices]
        return y_NO

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        x_NI, weight_OI, low_Nr, joint_rI, *ups = ctx.saved_tensors
        adapter, (dy_NO,) = ctx.adapter, gradients
        back_Nr = torch.cat(
            [
                (dy_NO[:, columns] @ up.to(dy_NO.dtype)).mul_(scale)
                for up, scale, columns in zip(ups, adapter.scales, adapter.columns, strict=True)
            ],
            1,
        )
        d_joint_rI = back_Nr.T @ x_NI
        found: list[Tensor] = []
        for scale, columns, ranks in zip(adapter.scales, adapter.columns, adapter.ranks, strict=True):
            found.append(d_joint_rI[ranks])
            found.append((dy_NO[:, columns].T @ low_Nr[:, ranks]).mul_(scale))
        dx_NI = None
        if ctx.needs_input_grad[0]:
            dx_NI = (dy_NO @ weight_OI).addmm_(back_Nr, joint_rI)
        typed = (gradient.to(dtype) for gradient, dtype in zip(found, ctx.types, strict=True))
        return dx_NI, None, None, None, *typed


def _norm(x: Tensor, module: Any, kernels: Kernels | None) -> Tensor:  # noqa: ANN401
    if kernels is not None and not torch.is_grad_enabled():
        return kernels.norm(x, module.weight, module.variance_epsilon)[0]
    return _Norm.apply(x, module.weight, module.variance_epsilon, kernels)


class _Norm(torch.autograd.Function):
    """x / sqrt(mean(x^2) + eps) * weight, in float32 inside."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,  # noqa: ANN401
        x: Tensor,
        weight: Tensor,
        eps: float,
        kernels: Kernels | None,
    ) -> Tensor:
        ctx.kernels = kernels
        if kernels is not None:
            out, inverse = kernels.norm(x, weight, eps)
            ctx.save_for_backward(x, weight, inverse)
            return out
        wide = x.float()
        inverse = wide.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
        ctx.save_for_backward(x, weight, inverse)
        scaled = wide * inverse
        return scaled.mul_(weight) if x.dtype == torch.float32 else scaled.to(x.dtype).mul_(weight)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        x, weight, inverse = ctx.saved_tensors
        if ctx.kernels is not None:
            return ctx.kernels.norm_back(x, weight, inverse, gradients[0]), None, None, None
        wide, dy = x.float(), (gradients[0] * weight).float()
        share = (dy * wide).mean(-1, keepdim=True).mul_(inverse.pow(3))
        return dy.mul_(inverse).addcmul_(wide, share, value=-1).to(x.dtype), None, None, None


def _rotate(x_NXD: Tensor, angles: _Angles, kernels: Kernels | None) -> Tensor:
    if torch.is_grad_enabled():
        return _Rotate.apply(x_NXD, *angles, kernels)
    return _turned(x_NXD, *angles, 1, kernels)


class _Rotate(torch.autograd.Function):
    """Rotary positions: the two halves of a head are the coordinates that turn."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,  # noqa: ANN401
        x_NXD: Tensor,
        cos_N1D: Tensor,
        sin_N1D: Tensor,
        kernels: Kernels | None,
    ) -> Tensor:
        ctx.kernels = kernels
        ctx.save_for_backward(cos_N1D, sin_N1D)
        return _turned(x_NXD, cos_N1D, sin_N1D, 1, kernels)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        cos_N1D, sin_N1D = ctx.saved_tensors
        return _turned(gradients[0], cos_N1D, sin_N1D, -1, ctx.kernels), None, None, None


def _turned(x_NXD: Tensor, cos_N1D: Tensor, sin_N1D: Tensor, sign: int, kernels: Kernels | None) -> Tensor:
    if kernels is not None:
        return kernels.rotate(x_NXD, cos_N1D, sin_N1D, sign)
    left, right = x_NXD.chunk(2, -1)
    out = torch.empty_like(x_NXD, memory_format=torch.contiguous_format)
    out_left, out_right = out.chunk(2, -1)
    torch.mul(left, cos_N1D, out=out_left).addcmul_(right, sin_N1D, value=-sign)
    torch.mul(right, cos_N1D, out=out_right).addcmul_(left, sin_N1D, value=sign)
    return out


def _swiglu(joint: Tensor, kernels: Kernels | None) -> Tensor:
    if kernels is not None and not torch.is_grad_enabled():
        return kernels.swiglu(joint)
    return _SwiGlu.apply(joint, kernels)


class _SwiGlu(torch.autograd.Function):
    """silu(gate) * up, of gate and up side by side."""

    @staticmethod
    def forward(ctx: Any, joint: Tensor, kernels: Kernels | None) -> Tensor:  # type: ignore[override]  # noqa: ANN401
        ctx.kernels = kernels
        ctx.save_for_backward(joint)
        if kernels is not None:
            return kernels.swiglu(joint)
        gate, up = joint.chunk(2, -1)
        return nn.functional.silu(gate).mul_(up)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        (joint,) = ctx.saved_tensors
        if ctx.kernels is not None:
            return ctx.kernels.swiglu_back(joint, gradients[0]), None
        gate, up = joint.chunk(2, -1)
        out = torch.empty_like(joint)
        d_gate, d_up = out.chunk(2, -1)
        torch.mul(nn.functional.silu(gate), gradients[0], out=d_up)
        torch.ops.aten.silu_backward.grad_input(gradients[0] * up, gate, grad_input=d_gate)
        return out, None


def _base(module: Any) -> Any:  # noqa: ANN401
    return module.get_base_layer() if isinstance(module, LoraLayer) else module


def _joined(parameters: Sequence[Tensor]) -> Tensor:
    """One tensor that the parameters are made views of."""
    whole = torch.cat([parameter.detach() for parameter in parameters])
    start = 0
    for parameter in parameters:
        parameter.data = whole[start : start + len(parameter)]
        start += len(parameter)
    return whole
