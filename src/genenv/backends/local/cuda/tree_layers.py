# pyright: standard
"""Layers of a decoder over a tree of tokens, as steps of autograd that know their own derivatives.

Shapes as in `layer_math`.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from genenv.backends.local.cuda import layer_math, tree_attention
from genenv.backends.local.cuda.adapters import Laid
from genenv.backends.local.cuda.compiling import any_length, as_it_is, compiled
from genenv.backends.local.cuda.layer_math import After, Before, Linear
from genenv.backends.local.cuda.tree_attention import TreeMask
from genenv.backends.local.token_tree import BLOCK, TokenTree

Keep = Callable[[Tensor, Tensor], None]
"""Takes a layer's keys and values, [N, K, D] each."""


class Row(NamedTuple):
    """What all layers must know of a flat row."""

    tree: TokenTree
    mask: TreeMask | None
    """None: attention is dense."""
    cos_N1D: Tensor
    sin_N1D: Tensor
    kind: Hashable
    """Of a pass over it."""
    seen: set[Hashable]
    """Kinds of passes that were made: whatever they run is compiled."""

    @property
    def is_new(self) -> bool:
        """Whether something may be compiled: then the compiler is told that lengths may differ."""
        return self.kind not in self.seen


class TreeLayer:
    """One layer.

    Args:
        before: its part before attention, without adapters.
        after: its part after it, likewise.
        scale: factor of attention's scores.
        compile: whether it runs in compiled code.
    """

    def __init__(self, before: Before, after: After, scale: float, *, compile: bool) -> None:
        self._before, self._after, self._scale = before, after, scale
        self._as: Callable[..., Any] = compiled if compile else as_it_is

    def __call__(
        self, x_NW: Tensor, row: Row, laid: Sequence[Laid | None], keep: Keep | None = None
    ) -> Tensor:
        """[N, W] outputs, with adapters of its four products or with none; `keep` gets keys and values."""
        before = self._before._replace(qkv=_with(self._before.qkv, laid[0]))
        after = self._after._replace(
            out=_with(self._after.out, laid[1]),
            up=_with(self._after.up, laid[2]),
            down=_with(self._after.down, laid[3]),
        )
        x_NW, q, k, v = _Heads.apply(x_NW, self, row, before, *_matrices(laid[:1]))  # type: ignore[misc]
        if keep is not None:
            keep(k, v)
        mixed_NI = self._attend(q, k, v, row).flatten(1)
        return _Rest.apply(x_NW, mixed_NI, self, row, after, *_matrices(laid[1:]))  # type: ignore[return-value]

    def run(self, function: Callable[..., Any], row: Row, *arguments: Any) -> Any:  # noqa: ANN401
        """A function of `layer_math`, compiled or not; tensors among the arguments have one row a token."""
        if row.is_new:
            for x in arguments:
                if isinstance(x, Tensor):
                    any_length(x)
        return self._as(function)(*arguments)

    def _attend(self, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor, row: Row) -> Tensor:
        if row.mask is None:
            return tree_attention.dense(q_NHD, k_NKD, v_NKD, row.tree, self._scale)
        q, k, v = (each.unflatten(0, (-1, BLOCK)) for each in (q_NHD, k_NKD, v_NKD))
        return self.run(tree_attention.flex, row, q, k, v, row.mask, self._scale).flatten(0, 1)


def _with(linear: Linear, laid: Laid | None) -> Linear:
    return linear if laid is None else Linear(linear.weight_OI, linear.bias_O, *laid.own)


def _matrices(laid: Sequence[Laid | None]) -> list[Tensor | None]:
    return [matrix for one in laid for matrix in ((None, None) if one is None else one[:2])]


class _Heads(torch.autograd.Function):
    """Inputs as they are, queries, keys and values."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,  # noqa: ANN401
        x_NW: Tensor,
        layer: TreeLayer,
        row: Row,
        part: Before,
        *_: Tensor | None,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        x = x_NW.detach()
        q, k, v, kept, low = layer.run(layer_math.heads, row, x, row.cos_N1D, row.sin_N1D, part)
        ctx.layer, ctx.row, ctx.part = layer, row, part
        ctx.save_for_backward(x, kept, low)
        return x_NW.view_as(x_NW), q, k, v

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        x, kept, low = ctx.saved_tensors
        dx, dq, dk, dv = gradients
        row: Row = ctx.row
        arguments = (dq, dk, dv, dx, x, row.cos_N1D, row.sin_N1D, kept, low, ctx.part)
        d_x, of_adapters = ctx.layer.run(layer_math.heads_back, row, *arguments)
        if not ctx.needs_input_grad[0]:  # the first layer, which is the last here
            row.seen.add(row.kind)
        return d_x, None, None, None, *of_adapters


class _Rest(torch.autograd.Function):
    """What comes after attention."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,  # noqa: ANN401
        x_NW: Tensor,
        mixed_NI: Tensor,
        layer: TreeLayer,
        row: Row,
        part: After,
        *_: Tensor | None,
    ) -> Tensor:
        mixed = mixed_NI.detach()
        y_NW, *kept = layer.run(layer_math.rest, row, x_NW.detach(), mixed, part)
        ctx.layer, ctx.row, ctx.part = layer, row, part
        ctx.save_for_backward(mixed, *kept)
        return y_NW

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        arguments = (gradients[0], *ctx.saved_tensors, ctx.part)
        d_x, d_mixed, *of_parts = ctx.layer.run(layer_math.rest_back, ctx.row, *arguments)
        return d_x, d_mixed, None, None, None, *(gradient for pair in of_parts for gradient in pair)
