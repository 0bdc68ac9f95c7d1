# pyright: standard
"""The decoder of Llama-like models in few large operations, with low-rank adapters inside.

The same mathematics as the modules of transformers and PEFT, which do it in some eighty small steps a layer;
each of these reads and writes all activations, and keeps some of them for the backward pass. Here the
projections that read the same input are one product, an adapter is added into its result in place
(`fused_projections`), norms, rotation and activation know their own derivatives (`fused_steps`), and no more
is kept than these need. On a CPU they are compiled code where that can be had (`cpu.kernels`), in torch
otherwise.

The frozen base has no gradient. Weights are the model's own: projections that were apart become views of one
tensor, so nothing is in memory twice.

Shapes: N = tokens in the flat row, W = width, H = query heads, K = key/value heads, D = head size, r = rank.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from genenv.backends.local.attention import attend
from genenv.backends.local.cpu.kernels import Kernels
from genenv.backends.local.cpu.packed_weights import Product, can_be_packed, worth_packing
from genenv.backends.local.fused_projections import Projection
from genenv.backends.local.fused_steps import Angles, InTorch, Steps, norm, rotate, swiglu
from genenv.backends.local.layouts import AnyLayout

_LARGEST, _TRIED_LAYERS = 2, 8
"""Packing is tried on the joint up-projections of so many layers: together more than a cache holds."""

FAMILIES = ("LlamaModel", "MistralModel", "Qwen2Model", "Qwen3Model")
"""Kinds of decoders; a model that also takes images may have one of them inside."""


def why_not(causal: Any) -> str | None:  # noqa: ANN401
    """What keeps a model from running here; None when nothing does."""
    name = type(causal.get_decoder()).__name__
    if name not in FAMILIES:
        return f"{name} is none of {', '.join(FAMILIES)}"
    activation = causal.config.get_text_config().hidden_act
    return None if activation == "silu" else f"its activation is {activation}, not silu"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """What one layer is made of, for others that run it."""

    before: Any
    """The norm before attention."""
    between: Any
    """The norm before the products behind attention."""
    head_norms: tuple[Any, Any]
    """Those of queries and keys; None where there are none."""
    qkv: Projection
    out: Projection
    up: Projection
    down: Projection
    head_size: int
    scaling: float
    """Factor of attention's scores."""


class FusedDecoder:
    """A decoder whose base is frozen, run with one adapter or none.

    Args:
        causal: a model whose decoder is one of `FAMILIES`; its projections become views of joint tensors.
            Adapters may be attached before or after.
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

    def forget(self, adapter: str) -> None:
        """Let go of the matrices of an adapter that is no longer attached."""
        for layer in self._layers:
            layer.forget(adapter)

    def scores(self, hidden_MW: Tensor) -> Tensor:
        """[M, V] scores of all tokens."""
        return self._head(hidden_MW)

    def hidden(self, ids_1N: Tensor, positions_1N: Tensor, layout: AnyLayout, adapter: str | None) -> Tensor:
        """[N, W] last hidden states of a flat row, with the named adapter or with none."""
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
        """What the layers are made of."""
        return [layer.parts for layer in self._layers]

    @property
    def heads(self) -> tuple[int, int, int]:
        """Of a layer's attention: heads of queries, heads of keys, size of a head."""
        parts = self._layers[0].parts
        queries, keys, _ = parts.qkv.widths
        return queries // parts.head_size, keys // parts.head_size, parts.head_size

    @property
    def last_norm(self) -> Any:  # noqa: ANN401
        """The norm behind the last layer."""
        return self._model.norm

    @property
    def head(self) -> Product:
        """The output layer."""
        return self._head

    @property
    def vocabulary(self) -> int:
        """How many tokens there are."""
        return int(self._head.weight.shape[0])

    def embedded(self, ids_N: Tensor) -> Tensor:
        """[N, W] what the first layer reads."""
        return self._model.embed_tokens(ids_N)

    def angles(self, x_NW: Tensor, positions_1N: Tensor) -> Angles:
        """Cosines and sines of positions, in the number format of x."""
        cos, sin = self._model.rotary_emb(x_NW, positions_1N)
        half = cos.shape[-1] // 2
        return cos[0, :, None, :half].contiguous(), sin[0, :, None, :half].contiguous()


def kept_values(width: int, queries: int, keys: int, inner: int) -> int:
    """About how many numbers a token leaves in a layer for the backward pass: attention keeps copies.

    Args:
        width: of the layer.
        queries: of all heads of queries together.
        keys: of all heads of keys together, and so of values.
        inner: of what is between the two products behind attention.
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
        """What it is made of."""
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
        """Let go of an adapter's matrices."""
        for part in self._parts:
            part.forget(adapter)

    def _heads(self, joint: Tensor, angles: Angles) -> tuple[Tensor, Tensor, Tensor]:
        """[N, H, D], [N, K, D], [N, K, D]: queries and keys rotated by their positions."""
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
