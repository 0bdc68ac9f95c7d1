# pyright: standard
"""The decoder of Llama-like models in few large operations, with LoRA adapters inside.

The computation is that of transformers and PEFT. Their modules take some eighty small steps per layer, each
of which reads and writes all activations and keeps some for the backward pass. This decoder joins the
projections that read the same input into one product (`Projection`), and adds adapters to the result in
place. Norms, rotation and activation have hand-written derivatives (`Steps`), which need fewer kept tensors.
They run as compiled code on a CPU with a compiler (`cpu.kernels`), else in torch (`InTorch`).

    y = x W^T + s (x A^T) B^T        W: several projections, one after the other; A, B: their adapters
    dx = dy W + s (dy B) A,  dA = s (dy B)^T x,  dB = s dy^T (x A^T)

The frozen base has no gradient. The model's separate projections become views of one joint tensor, so that no
weight is in memory twice.

Shapes: N = tokens in the flat row, W = width, X = heads, H = query heads, K = key/value heads, D = head size,
I = inputs, O = outputs, r = rank.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from genenv.backends.local.attention import AnyLayout, attend
from genenv.backends.local.cpu.kernels import Kernels, LowRank
from genenv.backends.local.cpu.packed_weights import Product, can_be_packed, worth_packing

Angles = tuple[Tensor, Tensor]
"""Cosine and sine, [N, 1, D / 2], for the first half of a head's dimensions; the second half has the same."""


class InTorch:
    """The operations of `Kernels` in torch, for any device."""

    def norm(self, x: Tensor, weight_W: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Return the RMS norm x / sqrt(mean(x^2) + eps) * weight, and 1 / sqrt(...) in float32."""
        wide = x.float()
        inverse = wide.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
        scaled = wide * inverse
        return scaled.to(x.dtype).mul_(weight_W), inverse

    def norm_back(self, x: Tensor, weight_W: Tensor, inverse: Tensor, dy: Tensor) -> Tensor:
        """Return the derivative of `norm` with respect to x, times dy."""
        wide, weighted = x.float(), (dy * weight_W).float()
        share = (weighted * wide).mean(-1, keepdim=True).mul_(inverse.pow(3))
        return weighted.mul_(inverse).addcmul_(wide, share, value=-1).to(x.dtype)

    def swiglu(self, joint_N2W: Tensor) -> Tensor:
        """Return [N, W]: silu(gate) * up, from gate and up side by side."""
        gate, up = joint_N2W.chunk(2, -1)
        return nn.functional.silu(gate).mul_(up)

    def swiglu_back(self, joint_N2W: Tensor, dy_NW: Tensor) -> Tensor:
        """Return the derivative of `swiglu`, times dy."""
        gate, up = joint_N2W.chunk(2, -1)
        out = torch.empty_like(joint_N2W)
        d_gate, d_up = out.chunk(2, -1)
        torch.mul(nn.functional.silu(gate), dy_NW, out=d_up)
        torch.ops.aten.silu_backward.grad_input(dy_NW * up, gate, grad_input=d_gate)
        return out

    def rotate(self, x_NXD: Tensor, cos_N1D: Tensor, sin_N1D: Tensor, sign: int) -> Tensor:
        """Rotate half-split heads by the angles of their positions, or back if sign is -1."""
        left, right = x_NXD.chunk(2, -1)
        out = torch.empty_like(x_NXD, memory_format=torch.contiguous_format)
        out_left, out_right = out.chunk(2, -1)
        torch.mul(left, cos_N1D, out=out_left).addcmul_(right, sin_N1D, value=-sign)
        torch.mul(right, cos_N1D, out=out_right).addcmul_(left, sin_N1D, value=sign)
        return out


Steps = Kernels | InTorch


def norm(x: Tensor, module: Any, steps: Steps) -> Tensor:  # noqa: ANN401
    """Return the RMS norm with the weight and epsilon of a transformers module; differentiable."""
    arguments = x, module.weight, module.variance_epsilon
    return _Norm.apply(*arguments, steps) if torch.is_grad_enabled() else steps.norm(*arguments)[0]


def swiglu(joint_N2W: Tensor, steps: Steps) -> Tensor:
    """Return [N, W]: silu(gate) * up, from gate and up side by side; differentiable."""
    return _SwiGlu.apply(joint_N2W, steps) if torch.is_grad_enabled() else steps.swiglu(joint_N2W)


def rotate(x_NXD: Tensor, angles: Angles, steps: Steps) -> Tensor:
    """Apply rotary positions to heads whose two halves are the rotated coordinates; differentiable."""
    if torch.is_grad_enabled():
        return _Rotate.apply(x_NXD, *angles, steps)
    return steps.rotate(x_NXD, *angles, 1)


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight_W: Tensor, eps: float, steps: Steps) -> Tensor:  # type: ignore[override]  # noqa: ANN401
        out, inverse = steps.norm(x, weight_W, eps)
        ctx.steps = steps
        ctx.save_for_backward(x, weight_W, inverse)
        return out

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        return ctx.steps.norm_back(*ctx.saved_tensors, gradients[0]), None, None, None


class _SwiGlu(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, joint_N2W: Tensor, steps: Steps) -> Tensor:  # type: ignore[override]  # noqa: ANN401
        ctx.steps = steps
        ctx.save_for_backward(joint_N2W)
        return steps.swiglu(joint_N2W)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        return ctx.steps.swiglu_back(*ctx.saved_tensors, gradients[0]), None


class _Rotate(torch.autograd.Function):
    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,  # noqa: ANN401
        x_NXD: Tensor,
        cos_N1D: Tensor,
        sin_N1D: Tensor,
        steps: Steps,
    ) -> Tensor:
        ctx.steps = steps
        ctx.save_for_backward(cos_N1D, sin_N1D)
        return steps.rotate(x_NXD, cos_N1D, sin_N1D, 1)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        return ctx.steps.rotate(gradients[0], *ctx.saved_tensors, -1), None, None, None


_FEW_ROWS = 256
"""Up to this many rows, compiled code adds an adapter's product faster than torch."""


class Projection:
    """Linear layers that read the same input, joined into one product.

    Args:
        owner: the module that contains the layers.
        names: names of the layers in it.
        steps: if this is compiled code, it adds the adapter's product to few rows.
    """

    def __init__(self, owner: nn.Module, names: Sequence[str], steps: Steps) -> None:
        self._owner, self._names, self._steps = owner, names, steps
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
        """Return the joint outputs [N, sum of widths], with an adapter if one is named."""
        found = None if adapter is None else self._adapter(adapter)
        if found is None or not found.pairs:
            return self.product(x_NI)
        few = len(x_NI) <= _FEW_ROWS and not torch.is_grad_enabled()
        if few and isinstance(self._steps, Kernels):
            y_NO = self.product(x_NI)
            self._steps.add_low_rank(y_NO, x_NI, found.for_few_rows())
            return y_NO
        matrices = [matrix for pair in found.pairs for matrix in pair]
        return _LowRank.apply(x_NI, self.product.weight, self.product.bias, found, *matrices)

    def widened(self, rows: int) -> tuple[Tensor, Tensor | None]:
        """Reallocate the joint weight and bias with rows of zeros at the end; return them.

        The layers' own weights stay views of the new tensor.
        """
        layers = [_base(getattr(self._owner, name)) for name in self._names]
        whole = _joined([layer.weight for layer in layers], rows)
        self.product.weight = whole[: self.outputs]
        bias = self.product.bias
        return whole, None if bias is None else nn.functional.pad(bias.detach(), (0, rows))

    def low_rank(self, adapter: str | None) -> Iterator[tuple[Tensor, Tensor, float, slice]]:
        """Yield an adapter's matrices A [r, I] and B [O, r], their scale, and their columns of the result."""
        for part in () if adapter is None else self._parts(adapter):
            yield part.down_rI, part.up_Or, part.scale, part.columns

    def forget(self, adapter: str) -> None:
        """Free the cached matrices of a detached adapter."""
        self._adapters.pop(adapter, None)

    def _adapter(self, name: str) -> _Adapter:
        if name not in self._adapters:
            self._adapters[name] = _Adapter(list(self._parts(name)))
        return self._adapters[name]

    def _parts(self, name: str) -> Iterator[Part]:
        start = 0
        for layer, width in zip(self._names, self.widths, strict=True):
            found = getattr(self._owner, layer)
            if name in getattr(found, "lora_A", ()):
                module: Any = found
                down, up = module.lora_A[name].weight, module.lora_B[name].weight
                yield Part(down, up, float(module.scaling[name]), slice(start, start + width))
            start += width


@dataclass(frozen=True, slots=True)
class Part:
    """The adapter of one of several joint projections."""

    down_rI: Tensor
    up_Or: Tensor
    scale: float
    columns: slice
    """Columns of the projection in the joint result."""


class _Adapter:
    """The adapters of one name on the layers of a `Projection`."""

    def __init__(self, parts: Sequence[Part]) -> None:
        self.pairs = [(part.down_rI, part.up_Or) for part in parts]
        self.scales = [part.scale for part in parts]
        self.columns = [part.columns for part in parts]
        ends = [0]
        for part in parts:
            ends.append(ends[-1] + len(part.down_rI))
        self.ranks = [slice(a, b) for a, b in itertools.pairwise(ends)]
        self._laid_out: tuple[tuple[int, ...], LowRank] | None = None

    def for_few_rows(self) -> LowRank:
        """Return the present matrices in the layout of compiled code, rebuilt after each update."""
        versions = tuple(matrix._version for pair in self.pairs for matrix in pair)
        if self._laid_out is None or self._laid_out[0] != versions:
            downs, ups = zip(*self.pairs, strict=True)
            starts = [columns.start for columns in self.columns]
            self._laid_out = versions, LowRank(downs, ups, self.scales, starts)
        return self._laid_out[1]


class _LowRank(torch.autograd.Function):
    """x W^T + b, with the adapters' products added in place."""

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


def _base(module: Any) -> Any:  # noqa: ANN401
    return getattr(module, "base_layer", module)  # PEFT wraps the layer


def _joined(parameters: Sequence[Tensor], room: int = 0) -> Tensor:
    """Copy parameters into one tensor with rows of zeros at the end, and make them views of it; return it."""
    own = [parameter.detach() for parameter in parameters]
    whole = torch.cat([*own, *([own[0].new_zeros(room, *own[0].shape[1:])] * bool(room))])
    start = 0
    for parameter in parameters:
        parameter.data = whole[start : start + len(parameter)]
        start += len(parameter)
    return whole


_LARGEST, _TRIED_LAYERS = 2, 8
"""Packing is tried on the joint up-projections of this many layers, which together exceed the cache."""

FAMILIES = ("LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model")
"""Supported decoder classes; a model with image inputs may contain one of them."""


def why_not(causal: Any) -> str | None:  # noqa: ANN401
    """Return why a model cannot run in `FusedDecoder`; None if it can."""
    name = type(causal.get_decoder()).__name__
    if name not in FAMILIES:
        return f"{name} is none of {', '.join(FAMILIES)}"
    activation = causal.config.get_text_config().hidden_act
    return None if activation == "silu" else f"its activation is {activation}, not silu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """The modules of one layer, for other code that runs the layer."""

    before: Any
    """The norm before attention."""
    between: Any
    """The norm before the MLP."""
    head_norms: tuple[Any, Any]
    """The norms of queries and keys; None if the model has none."""
    qkv: Projection
    out: Projection
    up: Projection
    down: Projection
    head_size: int
    scaling: float
    """Factor of the attention scores."""


class FusedDecoder:
    """A decoder with a frozen base that runs with one adapter or none.

    Args:
        causal: a model whose decoder is one of `FAMILIES`; its projections become views of joint tensors.
            Adapters may be attached before or after.
        activation_bytes: if a backward pass would need more, only the layers' inputs are kept and the rest is
            recomputed (gradient checkpointing, arXiv:1604.06174).
        kernels: compiled code for all operations but matrix products.
        packed_bytes: maximum size of weights that are packed for sampling if that is faster; packing doubles
            their memory.
    """

    def __init__(
        self,
        causal: Any,  # noqa: ANN401
        activation_bytes: float = float("inf"),
        kernels: Kernels | None = None,
        packed_bytes: float = 0.0,
    ) -> None:
        self._model = causal.get_decoder()
        self._steps: Steps = kernels or InTorch()
        self._layers = [_Layer(layer, self._steps) for layer in self._model.layers]
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
        """Pack all weights for sampling; return False without an effect if that is not possible."""
        self.packed = all(can_be_packed(product.weight) for product in self._layers[0].products)
        if self.packed:
            for product in self._products():
                product.pack()
        return self.packed

    def unpack(self) -> None:
        """Free the packed weights."""
        self.packed = False
        for product in self._products():
            product.unpack()

    def forget(self, adapter: str) -> None:
        """Free the cached matrices of a detached adapter."""
        for layer in self._layers:
            layer.forget(adapter)

    def scores(self, hidden_MW: Tensor) -> Tensor:
        """Return [M, V] logits of all tokens."""
        return self._head(hidden_MW)

    def hidden(self, ids_1N: Tensor, positions_1N: Tensor, layout: AnyLayout, adapter: str | None) -> Tensor:
        """Return [N, W] the last hidden states of a flat row, with the named adapter or with none."""
        x_NW = self.embedded(ids_1N[0])
        angles = self.angles(x_NW, positions_1N)
        values = sum(layer.kept_values for layer in self._layers)
        recompute = (
            adapter is not None
            and torch.is_grad_enabled()
            and len(x_NW) * values * x_NW.element_size() > self._activation_bytes
        )
        for index, layer in enumerate(self._layers):
            arguments = (x_NW, angles, layout, index, adapter)
            x_NW = checkpoint(layer, *arguments, use_reentrant=False) if recompute else layer(*arguments)
        return norm(x_NW, self._model.norm, self._steps)

    @functools.cached_property
    def layers(self) -> list[Parts]:
        """The modules of each layer."""
        return [layer.parts for layer in self._layers]

    @property
    def heads(self) -> tuple[int, int, int]:
        """Number of query heads, number of key heads, and head size."""
        parts = self._layers[0].parts
        queries, keys, _ = parts.qkv.widths
        return queries // parts.head_size, keys // parts.head_size, parts.head_size

    @property
    def last_norm(self) -> Any:  # noqa: ANN401
        """The norm after the last layer."""
        return self._model.norm

    @property
    def head(self) -> Product:
        """The output layer (LM head)."""
        return self._head

    @property
    def vocabulary(self) -> int:
        """Size of the vocabulary."""
        return int(self._head.weight.shape[0])

    def embedded(self, ids_N: Tensor) -> Tensor:
        """Return [N, W] the embeddings of tokens."""
        return self._model.embed_tokens(ids_N)

    def angles(self, x_NW: Tensor, positions_1N: Tensor) -> Angles:
        """Return cosines and sines of positions, in the number format of x."""
        cos, sin = self._model.rotary_emb(x_NW, positions_1N)
        half = cos.shape[-1] // 2
        return cos[0, :, None, :half].contiguous(), sin[0, :, None, :half].contiguous()


def kept_values(width: int, queries: int, keys: int, inner: int) -> int:
    """Estimate how many numbers per token a layer keeps for the backward pass; attention keeps copies.

    Args:
        width: of the layer.
        queries: width of all query heads together.
        keys: width of all key heads together, which is also that of the values.
        inner: width between the two products of the MLP.
    """
    return 4 * width + 5 * (queries + 2 * keys) + queries + 3 * inner


class _Layer:
    def __init__(self, layer: Any, steps: Steps) -> None:  # noqa: ANN401
        self._steps = steps
        attention, mlp = layer.self_attn, layer.mlp
        self._before, self._between = layer.input_layernorm, layer.post_attention_layernorm
        self._head_size, self._scaling = attention.head_dim, attention.scaling
        self._norms = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
        self._qkv = Projection(attention, ("q_proj", "k_proj", "v_proj"), steps)
        self._out = Projection(attention, ("o_proj",), steps)
        self._up = Projection(mlp, ("gate_proj", "up_proj"), steps)
        self._down = Projection(mlp, ("down_proj",), steps)
        self._parts = (self._qkv, self._out, self._up, self._down)
        self.products = [part.product for part in self._parts]
        width, inner = self._down.outputs, self._up.outputs // 2
        self.kept_values = kept_values(width, self._qkv.widths[0], self._qkv.widths[1], inner)

    def __call__(
        self, x_NW: Tensor, angles: Angles, layout: AnyLayout, index: int, adapter: str | None
    ) -> Tensor:
        q, k, v = self._heads(self._qkv(norm(x_NW, self._before, self._steps), adapter), angles)
        mixed_NHD = attend(layout, index, q, k, v, self._scaling)
        x_NW = x_NW + self._out(mixed_NHD.flatten(1), adapter)
        gated = swiglu(self._up(norm(x_NW, self._between, self._steps), adapter), self._steps)
        return x_NW + self._down(gated, adapter)

    @property
    def parts(self) -> Parts:
        """The modules of the layer."""
        return Parts(
            before=self._before,
            between=self._between,
            head_norms=(self._norms[0], self._norms[1]),
            qkv=self._qkv,
            out=self._out,
            up=self._up,
            down=self._down,
            head_size=self._head_size,
            scaling=self._scaling,
        )

    def forget(self, adapter: str) -> None:
        """Free the cached matrices of a detached adapter."""
        for part in self._parts:
            part.forget(adapter)

    def _heads(self, joint: Tensor, angles: Angles) -> tuple[Tensor, Tensor, Tensor]:
        """Return [N, H, D], [N, K, D], [N, K, D]: rotated queries, rotated keys, and values."""
        size = self._head_size
        q, k, v = (width // size for width in self._qkv.widths)
        if self._norms[0] is None:
            turned, values = joint.view(len(joint), -1, size).split([q + k, v], 1)
            queries, keys = rotate(turned, angles, self._steps).split([q, k], 1)
            return queries, keys, values
        parts = joint.view(len(joint), -1, size).split([q, k, v], 1)
        queries, keys = (
            rotate(norm(part, module, self._steps), angles, self._steps)
            for part, module in zip(parts, self._norms, strict=False)
        )
        return queries, keys, parts[2]
