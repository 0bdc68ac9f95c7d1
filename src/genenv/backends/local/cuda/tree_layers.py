# pyright: standard
"""Layers of a decoder over a tree of tokens, as steps of autograd that know their own derivatives.

Shapes as in `layer_math`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from genenv.backends.local.cuda import layer_math, tree_attention
from genenv.backends.local.cuda.compiling import any_length, compiled
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


class TreeLayer:
    """One layer with one adapter or none.

    Args:
        before: its part before attention.
        after: its part after it.
        scale: factor of attention's scores.
        compile: whether it runs in compiled code.
    """

    def __init__(self, before: Before, after: After, scale: float, *, compile: bool) -> None:
        self.before, self.after, self.scale = before, after, scale
        self._as: Callable[..., Any] = compiled if compile else _as_it_is
        self._before_matrices = _matrices(before.qkv)
        self._after_matrices = [m for part in (after.out, after.up, after.down) for m in _matrices(part)]

    def __call__(self, x_NW: Tensor, row: Row, keep: Keep | None = None) -> Tensor:
        """[N, W] outputs; keys and values are given to `keep`."""
        x_NW, q, k, v = _Heads.apply(x_NW, row.cos_N1D, row.sin_N1D, self, *self._before_matrices)  # type: ignore[misc]
        if keep is not None:
            keep(k, v)
        return _Rest.apply(x_NW, self._attend(q, k, v, row).flatten(1), self, *self._after_matrices)  # type: ignore[return-value]

    @property
    def matrices(self) -> list[Tensor]:
        """Those of its adapter, which learn."""
        return [*self._before_matrices, *self._after_matrices]

    def run(self, function: Callable[..., Any], *arguments: Any) -> Any:  # noqa: ANN401
        """A function of `layer_math`, compiled or not; tensors among the arguments have one row a token."""
        free = (any_length(x.detach()) if isinstance(x, Tensor) else x for x in arguments)
        return self._as(function)(*free)

    def _attend(self, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor, row: Row) -> Tensor:
        if row.mask is None:
            return tree_attention.dense(q_NHD, k_NKD, v_NKD, row.tree, self.scale)
        q, k, v = (any_length(each.unflatten(0, (-1, BLOCK))) for each in (q_NHD, k_NKD, v_NKD))
        return self._as(tree_attention.flex)(q, k, v, row.mask, self.scale).flatten(0, 1)


def _as_it_is(function: Callable[..., Any]) -> Callable[..., Any]:
    return function


def _matrices(linear: Linear) -> list[Tensor]:
    return [matrix for pair in zip(linear.downs, linear.ups, strict=True) for matrix in pair]


def _with(linear: Linear, matrices: Sequence[Tensor]) -> Linear:
    """The same with these matrices, which stand in no graph."""
    own = [matrix.detach() for matrix in matrices]
    return linear._replace(downs=tuple(own[::2]), ups=tuple(own[1::2]))


def _after_with(part: After, matrices: Sequence[Tensor]) -> After:
    out, up = 2 * len(part.out.downs), 2 * (len(part.out.downs) + len(part.up.downs))
    return part._replace(
        out=_with(part.out, matrices[:out]),
        up=_with(part.up, matrices[out:up]),
        down=_with(part.down, matrices[up:]),
    )


class _Heads(torch.autograd.Function):
    """Inputs as they are, queries, keys and values."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,  # noqa: ANN401
        x_NW: Tensor,
        cos: Tensor,
        sin: Tensor,
        layer: TreeLayer,
        *matrices: Tensor,
    ) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        part = layer.before._replace(qkv=_with(layer.before.qkv, matrices))
        q, k, v, kept, low = layer.run(layer_math.heads, x_NW, cos, sin, part)
        ctx.layer = layer
        ctx.save_for_backward(x_NW, cos, sin, kept, low, *matrices)
        return x_NW.view_as(x_NW), q, k, v

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        x, cos, sin, kept, low, *matrices = ctx.saved_tensors
        layer: TreeLayer = ctx.layer
        dx, dq, dk, dv = gradients
        part = layer.before._replace(qkv=_with(layer.before.qkv, matrices))
        d_x, found = layer.run(layer_math.heads_back, dq, dk, dv, dx, x, cos, sin, kept, low, part)
        return d_x, None, None, None, *found


class _Rest(torch.autograd.Function):
    """What comes after attention."""

    @staticmethod
    def forward(  # type: ignore[override]
        ctx: Any,  # noqa: ANN401
        x_NW: Tensor,
        mixed_NI: Tensor,
        layer: TreeLayer,
        *matrices: Tensor,
    ) -> Tensor:
        part = _after_with(layer.after, matrices)
        y_NW, *kept = layer.run(layer_math.rest, x_NW, mixed_NI, part)
        ctx.layer = layer
        ctx.save_for_backward(mixed_NI, *kept, *matrices)
        return y_NW

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        mixed, between, joint, *lows_and_matrices = ctx.saved_tensors
        layer: TreeLayer = ctx.layer
        part = _after_with(layer.after, lows_and_matrices[3:])
        lows = lows_and_matrices[:3]
        found = layer.run(layer_math.rest_back, gradients[0], mixed, between, joint, *lows, part)
        d_x, d_mixed, *of_parts = found
        return d_x, d_mixed, None, *(gradient for part in of_parts for gradient in part)
