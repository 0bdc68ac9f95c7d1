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

import itertools
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from genenv.backends.local.attention import AnyLayout, attend
from genenv.backends.local.cpu.kernels import InTorch, Kernels, LowRank
from genenv.backends.local.cpu.packed_weights import Product, can_be_packed, worth_packing

Angles = tuple[Tensor, Tensor]
"""Cosine and sine, [N, 1, D / 2], for the first half of a head's dimensions; the second half has the same."""


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

    def low_rank(self, adapter: str | None) -> Iterator[Part]:
        """An adapter of each of the layers that have one."""
        start = 0
        for layer, width in zip(self._names, self.widths, strict=True):
            found = getattr(self._owner, layer)
            if adapter is not None and adapter in getattr(found, "lora_A", ()):
                module: Any = found
                down, up = module.lora_A[adapter].weight, module.lora_B[adapter].weight
                yield Part(down, up, float(module.scaling[adapter]), slice(start, start + width))
            start += width

    def forget(self, adapter: str) -> None:
        """Free the cached matrices of a detached adapter."""
        self._adapters.pop(adapter, None)

    def _adapter(self, name: str) -> _Adapter:
        if name not in self._adapters:
            self._adapters[name] = _Adapter(list(self.low_rank(name)))
        return self._adapters[name]


class Part(NamedTuple):
    """The adapter of one of several joint projections."""

    down_rI: Tensor
    """A."""
    up_Or: Tensor
    """B."""
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
    return getattr(module, "base_layer", module)  # what PEFT put its adapters around


def _joined(parameters: Sequence[Tensor], room: int = 0) -> Tensor:
    """Copy parameters into one tensor with rows of zeros at the end, and make them views of it; return it."""
    own = [parameter.detach() for parameter in parameters]
    whole = torch.cat([*own, *([own[0].new_zeros(room, *own[0].shape[1:])] * bool(room))])
    start = 0
    for parameter in parameters:
        parameter.data = whole[start : start + len(parameter)]
        start += len(parameter)
    return whole


_TRIED_LAYERS = 8
"""Packing is tried on the joint up-projections of so many layers: together more than a cache holds."""

FAMILIES = ("LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model")
"""Supported decoder classes; a model with image inputs may contain one of them."""


def why_not(causal: Any) -> str | None:  # noqa: ANN401
    """Return why a model cannot run in `FusedDecoder`; None if it can."""
    name = type(causal.get_decoder()).__name__
    if name not in FAMILIES:
        return f"{name} is none of {', '.join(FAMILIES)}"
    if getattr(causal, "is_quantized", False):
        return "its weights are quantized"
    activation = causal.config.get_text_config().hidden_act
    return None if activation == "silu" else f"its activation is {activation}, not silu"


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
        self.layers = [Layer(layer, self._steps) for layer in self._model.layers]
        self.last_norm = self._model.norm
        """The norm behind the last layer."""
        self._activation_bytes = activation_bytes
        head = causal.get_output_embeddings()
        self.head = Product(head.weight, head.bias)
        """The output layer."""
        self.packed = False
        """Whether the weights are packed for sampling."""
        weights = [layer.up.product.weight for layer in self.layers[:_TRIED_LAYERS]]
        size = sum(product.weight.nbytes for product in self._products())
        if size <= packed_bytes and worth_packing(weights):
            self.pack()

    def _products(self) -> list[Product]:
        products = (part.product for layer in self.layers for part in layer.projections)
        return [*products, self.head]

    def pack(self) -> bool:
        """Pack all weights for sampling; return False without an effect if that is not possible."""
        self.packed = all(can_be_packed(part.product.weight) for part in self.layers[0].projections)
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
        for layer in self.layers:
            for part in layer.projections:
                part.forget(adapter)

    def hidden(self, ids_1N: Tensor, positions_1N: Tensor, layout: AnyLayout, adapter: str | None) -> Tensor:
        """Return [N, W] the last hidden states of a flat row, with the named adapter or with none."""
        x_NW = self.embedded(ids_1N[0])
        angles = self.angles(x_NW, positions_1N)
        recompute = (
            adapter is not None
            and torch.is_grad_enabled()
            and len(x_NW) * self.sizes.kept_by_fused * x_NW.element_size() > self._activation_bytes
        )
        for index, layer in enumerate(self.layers):
            arguments = (x_NW, angles, layout, index, adapter)
            x_NW = checkpoint(layer, *arguments, use_reentrant=False) if recompute else layer(*arguments)
        return norm(x_NW, self.last_norm, self._steps)

    @property
    def heads(self) -> tuple[int, int, int]:
        """Number of query heads, number of key heads, and head size."""
        layer = self.layers[0]
        queries, keys, _ = layer.qkv.widths
        return queries // layer.head_size, keys // layer.head_size, layer.head_size

    @property
    def sizes(self) -> Sizes:
        """The sizes of the layers."""
        layer = self.layers[0]
        queries, keys, _ = layer.qkv.widths
        return Sizes(len(self.layers), layer.down.outputs, queries, keys, layer.up.outputs // 2)

    @property
    def vocabulary(self) -> int:
        """Size of the vocabulary."""
        return int(self.head.weight.shape[0])

    def embedded(self, ids_N: Tensor) -> Tensor:
        """Return [N, W] the embeddings of tokens."""
        return self._model.embed_tokens(ids_N)

    def angles(self, x_NW: Tensor, positions_1N: Tensor) -> Angles:
        """Return cosines and sines of positions, in the number format of x."""
        cos, sin = self._model.rotary_emb(x_NW, positions_1N)
        half = cos.shape[-1] // 2
        return cos[0, :, None, :half].contiguous(), sin[0, :, None, :half].contiguous()


class Sizes(NamedTuple):
    """The sizes of a model's layers, and estimates of the numbers per token that a backward pass needs."""

    layers: int
    width: int
    queries: int
    """Width of all query heads together."""
    keys: int
    """Width of all key heads together, which is also that of the values."""
    inner: int
    """Width between the two products of the MLP."""

    @property
    def kept_by_fused_layer(self) -> int:
        """Numbers per token that a layer of `FusedDecoder` keeps; attention keeps copies."""
        return 4 * self.width + 5 * (self.queries + 2 * self.keys) + self.queries + 3 * self.inner

    @property
    def kept_by_fused(self) -> int:
        """Numbers per token that all layers of `FusedDecoder` keep."""
        return self.layers * self.kept_by_fused_layer

    @property
    def kept_by_compiled_layer(self) -> int:
        """Numbers per token that a layer keeps that is compiled for training (`cuda.learning`)."""
        return 2 * self.width + 3 * (self.queries + self.keys) + 2 * self.inner

    @property
    def kept_by_compiled(self) -> int:
        """Numbers per token that all layers keep that are compiled for training."""
        return self.layers * self.kept_by_compiled_layer

    @property
    def kept_by_layer(self) -> int:
        """Numbers per token that a layer of transformers keeps, with adapters of PEFT."""
        return 2 * self.kept_by_fused_layer

    @property
    def kept(self) -> int:
        """Numbers per token that all layers of transformers keep."""
        return self.layers * self.kept_by_layer

    @property
    def kept_when_recomputed(self) -> int:
        """The same if they keep only their inputs: these, and one layer that is recomputed."""
        return self.layers * self.width + self.kept_by_layer


class Layer:
    """One layer: its norms, its projections, and the numbers of its attention."""

    def __init__(self, layer: Any, steps: Steps) -> None:  # noqa: ANN401
        self._steps = steps
        attention, mlp = layer.self_attn, layer.mlp
        self.before, self.between = layer.input_layernorm, layer.post_attention_layernorm
        """The norms before attention, and before the products behind it."""
        self.head_norms: tuple[Any, Any] = (
            getattr(attention, "q_norm", None),
            getattr(attention, "k_norm", None),
        )
        """Those of queries and keys; None where there are none."""
        self.head_size, self.scaling = attention.head_dim, attention.scaling
        """Of a head, and the factor of attention's scores."""
        self.qkv = Projection(attention, ("q_proj", "k_proj", "v_proj"), steps)
        self.out = Projection(attention, ("o_proj",), steps)
        self.up = Projection(mlp, ("gate_proj", "up_proj"), steps)
        self.down = Projection(mlp, ("down_proj",), steps)
        self.projections = (self.qkv, self.out, self.up, self.down)

    def __call__(
        self, x_NW: Tensor, angles: Angles, layout: AnyLayout, index: int, adapter: str | None
    ) -> Tensor:
        """[N, W] outputs."""
        q, k, v = self._heads(self.qkv(norm(x_NW, self.before, self._steps), adapter), angles)
        mixed_NHD = attend(layout, index, q, k, v, self.scaling)
        x_NW = x_NW + self.out(mixed_NHD.flatten(1), adapter)
        gated = swiglu(self.up(norm(x_NW, self.between, self._steps), adapter), self._steps)
        return x_NW + self.down(gated, adapter)

    def _heads(self, joint: Tensor, angles: Angles) -> tuple[Tensor, Tensor, Tensor]:
        """[N, H, D], [N, K, D], [N, K, D]: queries and keys rotated by their positions."""
        size = self.head_size
        q, k, v = (width // size for width in self.qkv.widths)
        if self.head_norms[0] is None:
            turned, values = joint.view(len(joint), -1, size).split([q + k, v], 1)
            queries, keys = rotate(turned, angles, self._steps).split([q, k], 1)
            return queries, keys, values
        parts = joint.view(len(joint), -1, size).split([q, k, v], 1)
        queries, keys = (
            rotate(norm(part, module, self._steps), angles, self._steps)
            for part, module in zip(parts, self.head_norms, strict=False)
        )
        return queries, keys, parts[2]
