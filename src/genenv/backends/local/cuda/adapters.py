# pyright: standard
"""The adapters of all layers, laid out for `layer_math` by a few operations once in a pass.

Layers are alike, so matrices that have the same place in each are stacked, cast and scaled together, and so
are their gradients on the way back. One by one they would cost more time than small updates have.

Shapes: L = layers that are alike, I = inputs, O = outputs, R = ranks of all adapters of a product together.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from genenv.backends.local.fused_projections import Projection

_Found = tuple[Tensor, Tensor, float, slice]
"""A and B of an adapter, its scale, and its columns of a joint result."""


class Laid(NamedTuple):
    """The adapters of a product: A and B as `layer_math.Linear` has them."""

    down_RI: Tensor
    up_OR: Tensor
    own: tuple[Tensor, Tensor]
    """The same, which stand in no graph."""


class _Part(NamedTuple):
    """The adapter of one of several joint projections, in all layers that are alike."""

    start: int
    """First of its columns in the joint outputs."""
    stop: int
    scale: float
    ranks: slice


class _Alike(NamedTuple):
    """Products with adapters of the same shape."""

    places: list[int]
    """Which."""
    outputs: int
    dtype: torch.dtype
    """Of their weights."""
    parts: tuple[_Part, ...]
    matrices: list[Tensor]
    """Of the first part, A of every product and then B of every product; then of the second, and so on."""


class Adapters:
    """The adapters of products with one name.

    Args:
        projections: all products.
        adapter: the name; None: there are no adapters.
    """

    def __init__(self, projections: Sequence[Projection], adapter: str | None) -> None:
        self._products = len(projections)
        found: dict[object, list[tuple[int, list[_Found]]]] = {}
        for place, projection in enumerate(projections):
            pairs = list(projection.low_rank(adapter))
            if pairs:
                shapes = [(a.shape, b.shape, scale, c.start, c.stop) for a, b, scale, c in pairs]
                key = (projection.outputs, projection.product.weight.dtype, *shapes)
                found.setdefault(key, []).append((place, pairs))
        self._alike: list[_Alike] = []
        for members in found.values():
            place, first = members[0]
            parts, rank = list[_Part](), 0
            for down, _, scale, columns in first:
                parts.append(_Part(columns.start, columns.stop, scale, slice(rank, rank + len(down))))
                rank += len(down)
            matrices = list[Tensor]()
            for part in range(len(parts)):
                matrices += [pairs[part][0] for _, pairs in members]
                matrices += [pairs[part][1] for _, pairs in members]
            weight, outputs = projections[place].product.weight, projections[place].outputs
            places = [place for place, _ in members]
            self._alike.append(_Alike(places, outputs, weight.dtype, tuple(parts), matrices))

    @property
    def matrices(self) -> list[Tensor]:
        """All of them, which learn."""
        return [matrix for alike in self._alike for matrix in alike.matrices]

    def laid_out(self) -> list[Laid | None]:
        """Those of each product, as they are now."""
        laid: list[Laid | None] = [None] * self._products
        for alike in self._alike:
            both: Any = _LaidOut.apply(alike, *alike.matrices)
            split = (whole.unbind() for tensor in both for whole in (tensor, tensor.detach()))
            downs, own_downs, ups, own_ups = split
            for place, *of_product in zip(alike.places, downs, ups, own_downs, own_ups, strict=True):
                down, up, own_down, own_up = of_product
                laid[place] = Laid(down, up, (own_down, own_up))
        return laid


class _LaidOut(torch.autograd.Function):
    """[L, R, I] and [L, O, R]."""

    @staticmethod
    def forward(ctx: Any, alike: _Alike, *matrices: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]  # noqa: ANN401
        count = len(alike.places)
        stacks = [torch.stack(matrices[at : at + count]) for at in range(0, len(matrices), count)]
        down_LRI = torch.cat(stacks[::2], 1).to(alike.dtype)
        up_LOR = down_LRI.new_zeros(count, alike.outputs, down_LRI.shape[1])
        for part, up in zip(alike.parts, stacks[1::2], strict=True):
            up_LOR[:, part.start : part.stop, part.ranks] = up * part.scale
        ctx.alike, ctx.dtype = alike, matrices[0].dtype
        return down_LRI, up_LOR

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        d_down_LRI, d_up_LOR = gradients
        found: list[Tensor] = []
        for part in ctx.alike.parts:
            down = d_down_LRI[:, part.ranks].to(ctx.dtype)
            up = d_up_LOR[:, part.start : part.stop, part.ranks].to(ctx.dtype) * part.scale
            found.extend(down.contiguous().unbind())
            found.extend(up.contiguous().unbind())
        return None, *found
