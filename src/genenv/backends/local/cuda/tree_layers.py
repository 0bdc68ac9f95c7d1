# pyright: standard
"""Decoder layers for training over a tree of tokens, as autograd functions with hand-written derivatives.

The parts of a layer before and after attention, forward and backward, are pure functions of tensors. Weights
are arguments, so that one compilation serves all layers. Derivatives are hand-written, so that a layer keeps
only what they need, and frozen weights cost no gradient. Nothing is changed in place. `torch.compile`
compiles the functions once for any number of tokens, and caches the code on disk. Attention is flex attention
in compiled code, else dense.

LoRA adapters become part of the base's matrix products, as a few more columns on the side that has the
model's width:

    wide     y = [x, x A^T] [W, B]^T           [dx, dy B] = dy [W, B],  dx += (dy B) A        outputs > inputs
    narrow   [y, x A^T] = x [W; A]^T, y += (x A^T) B^T     dx = [dy, dy B] [W; A]             otherwise
             dA = (dy B)^T x,  dB = dy^T (x A^T)           the adapter's scale is in B

Adapters of layers with equal shapes are stacked, converted and scaled together once per pass, and so are
their gradients. One by one this would take longer than a small update.

Shapes: N = tokens in the flat row, S = blocks of it, L = layers of equal shapes, W = width, I = inputs,
O = outputs, R = ranks of all adapters of a product together, H = query heads, K = key/value heads, D = head
size.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Hashable, Sequence
from typing import Any, NamedTuple, TypeVar

import torch
import torch._dynamo
from torch import Tensor, nn
from torch._dynamo.exc import FailOnRecompileLimitHit
from torch.nn.attention.flex_attention import BlockMask, flex_attention

from genenv.backends.local.fused_decoder import Part, Projection
from genenv.backends.local.packing import BLOCK, Blocks, TokenTree

_F = TypeVar("_F", bound=Callable[..., Any])
_VARIANTS = 64
"""Maximum number of compiled variants of a function, for different models, ranks and masks."""


@functools.cache
def compiled(function: _F) -> _F:
    """Compile a function as one graph; dimensions marked by `any_length` stay dynamic.

    Any other difference between calls compiles a new variant, up to a limit; beyond it the function runs
    uncompiled. After compilation, calls need no marks: they match a variant if only dynamic dimensions
    differ.
    """
    torch._dynamo.config.recompile_limit = max(_VARIANTS, torch._dynamo.config.recompile_limit)
    fast = torch.compile(function, dynamic=False, fullgraph=True)

    @functools.wraps(function)
    def run(*arguments: Any) -> Any:  # noqa: ANN401
        try:
            return fast(*arguments)
        except FailOnRecompileLimitHit:
            return function(*arguments)

    return run  # type: ignore[return-value]


def as_it_is(function: _F) -> _F:
    """Return the function itself; used in place of `compiled`."""
    return function


def any_length(tensor: Tensor, *dimensions: int) -> Tensor:
    """Mark the first dimension of a tensor, or the given ones, as dynamic; return the tensor."""
    for dimension in dimensions or (0,):
        torch._dynamo.maybe_mark_dynamic(tensor, dimension)
    return tensor


Gradients = tuple[Tensor | None, Tensor | None]
"""Gradients of A and B of a product's adapters; None if it has none."""


class Linear(NamedTuple):
    """A product with a frozen weight and its adapters, all in one number format."""

    weight_OI: Tensor
    bias_O: Tensor | None
    down_RI: Tensor | None = None
    """A of all adapters, stacked vertically."""
    up_OR: Tensor | None = None
    """B of all adapters times their scales, each in separate rows and columns."""


def _is_wide(linear: Linear) -> bool:
    """Return whether there are more outputs than inputs."""
    return linear.weight_OI.shape[0] > linear.weight_OI.shape[1]


def forward(x_NI: Tensor, linear: Linear) -> tuple[Tensor, Tensor | None]:
    """Return [N, O] outputs, and [N, R] x A^T for `backward`; None instead without adapters."""
    weight_OI, bias_O, down_RI, up_OR = linear
    if down_RI is None or up_OR is None:
        return nn.functional.linear(x_NI, weight_OI, bias_O), None
    if _is_wide(linear):
        low_NR = x_NI @ down_RI.T
        both = torch.cat([weight_OI, up_OR], 1)
        return nn.functional.linear(torch.cat([x_NI, low_NR], 1), both, bias_O), low_NR
    joint = x_NI @ torch.cat([weight_OI, down_RI]).T
    y_NO, low_NR = joint[:, : len(weight_OI)], joint[:, len(weight_OI) :].contiguous()
    y_NO = y_NO + low_NR @ up_OR.T
    return (y_NO if bias_O is None else y_NO + bias_O), low_NR


def backward(dy_NO: Tensor, x_NI: Tensor, low_NR: Tensor | None, linear: Linear) -> tuple[Tensor, Gradients]:
    """Return the derivatives by the inputs, [N, I], and by the adapters' matrices."""
    weight_OI, _, down_RI, up_OR = linear
    if low_NR is None or down_RI is None or up_OR is None:
        return dy_NO @ weight_OI, (None, None)
    inputs = weight_OI.shape[1]
    if _is_wide(linear):
        joint = dy_NO @ torch.cat([weight_OI, up_OR], 1)
        back_NR = joint[:, inputs:].contiguous()
        dx_NI = joint[:, :inputs] + back_NR @ down_RI
    else:
        back_NR = dy_NO @ up_OR
        dx_NI = torch.cat([dy_NO, back_NR], 1) @ torch.cat([weight_OI, down_RI])
    return dx_NI, (back_NR.T @ x_NI, dy_NO.T @ low_NR)


def norm(x: Tensor, weight: Tensor, eps: float) -> Tensor:
    """Return the RMS norm over the last dimension, computed in float32."""
    wide = x.float()
    inverse = (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
    return (wide * inverse).to(x.dtype) * weight


def norm_back(x: Tensor, weight: Tensor, eps: float, dy: Tensor) -> Tensor:
    """Return the derivative of `norm` with respect to x, times dy."""
    wide, weighted = x.float(), (dy * weight).float()
    inverse = (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
    share = (weighted * wide).mean(-1, keepdim=True) * inverse.pow(3)
    return (weighted * inverse - wide * share).to(x.dtype)


def rotate(x_NXD: Tensor, cos_N1D: Tensor, sin_N1D: Tensor) -> Tensor:
    """Rotate half-split heads by the angles of their positions; negative sines rotate back."""
    left, right = x_NXD.chunk(2, -1)
    return torch.cat([left * cos_N1D - right * sin_N1D, right * cos_N1D + left * sin_N1D], -1)


def swiglu(joint_N2I: Tensor) -> Tensor:
    """Return [N, I]: silu(gate) * up, from gate and up side by side."""
    gate, up = joint_N2I.chunk(2, -1)
    return nn.functional.silu(gate) * up


def swiglu_back(joint_N2I: Tensor, dy_NI: Tensor) -> Tensor:
    """Return the derivative of `swiglu`, times dy."""
    gate, up = (part.float() for part in joint_N2I.chunk(2, -1))
    share = gate.sigmoid()
    d_gate = dy_NI.float() * up * share * (1 + gate * (1 - share))
    d_up = dy_NI.float() * gate * share
    return torch.cat([d_gate, d_up], -1).to(joint_N2I.dtype)


class Before(NamedTuple):
    """The weights and settings of a layer's part before attention."""

    norm_W: Tensor
    eps: float
    qkv: Linear
    q_norm_D: Tensor | None
    k_norm_D: Tensor | None
    head_eps: float
    size: int
    """Size of a head."""
    widths: tuple[int, int, int]
    """Widths of all query heads, all key heads, all value heads."""


class After(NamedTuple):
    """The weights and settings of a layer's part after attention."""

    norm_W: Tensor
    eps: float
    out: Linear
    up: Linear
    down: Linear


def heads(
    x_NW: Tensor, cos_N1D: Tensor, sin_N1D: Tensor, part: Before
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Return queries [N, H, D], keys and values [N, K, D], and two tensors for `heads_back`."""
    joint, low_NR = forward(norm(x_NW, part.norm_W, part.eps), part.qkv)
    q, k, v = (each.unflatten(1, (-1, part.size)) for each in joint.split(part.widths, 1))
    kept: Tensor | None = None
    if part.q_norm_D is not None and part.k_norm_D is not None:
        kept = joint[:, : part.widths[0] + part.widths[1]].contiguous()
        q, k = norm(q, part.q_norm_D, part.head_eps), norm(k, part.k_norm_D, part.head_eps)
    return rotate(q, cos_N1D, sin_N1D), rotate(k, cos_N1D, sin_N1D), v.contiguous(), kept, low_NR


def heads_back(  # noqa: PLR0913 - what the backward pass gets and what was kept for it
    dq_NHD: Tensor,
    dk_NKD: Tensor,
    dv_NKD: Tensor,
    dx_NW: Tensor,
    x_NW: Tensor,
    cos_N1D: Tensor,
    sin_N1D: Tensor,
    kept: Tensor | None,
    low_NR: Tensor | None,
    part: Before,
) -> tuple[Tensor, Gradients]:
    """Return the derivatives by the inputs of `heads`, plus `dx_NW`, and by its adapters."""
    dq, dk = rotate(dq_NHD, cos_N1D, -sin_N1D), rotate(dk_NKD, cos_N1D, -sin_N1D)
    if kept is not None and part.q_norm_D is not None and part.k_norm_D is not None:
        q, k = (each.unflatten(1, (-1, part.size)) for each in kept.split(part.widths[:2], 1))
        dq = norm_back(q, part.q_norm_D, part.head_eps, dq)
        dk = norm_back(k, part.k_norm_D, part.head_eps, dk)
    joint = torch.cat([each.flatten(1) for each in (dq, dk, dv_NKD)], 1)
    d_normed, found = backward(joint, norm(x_NW, part.norm_W, part.eps), low_NR, part.qkv)
    return dx_NW + norm_back(x_NW, part.norm_W, part.eps, d_normed), found


def rest(
    x_NW: Tensor, mixed_NI: Tensor, part: After
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor | None]:
    """Return the layer's outputs [N, W] after attention, and the tensors for `rest_back`."""
    out_NW, out_low = forward(mixed_NI, part.out)
    between_NW = x_NW + out_NW
    joint_N2I, up_low = forward(norm(between_NW, part.norm_W, part.eps), part.up)
    down_NW, down_low = forward(swiglu(joint_N2I), part.down)
    return between_NW + down_NW, between_NW, joint_N2I, out_low, up_low, down_low


def rest_back(  # noqa: PLR0913 - what the backward pass gets and what was kept for it
    dy_NW: Tensor,
    mixed_NI: Tensor,
    between_NW: Tensor,
    joint_N2I: Tensor,
    out_low: Tensor | None,
    up_low: Tensor | None,
    down_low: Tensor | None,
    part: After,
) -> tuple[Tensor, Tensor, Gradients, Gradients, Gradients]:
    """Return the derivatives by both inputs of `rest`, and by its adapters in the order of `After`."""
    d_gated, of_down = backward(dy_NW, swiglu(joint_N2I), down_low, part.down)
    d_joint = swiglu_back(joint_N2I, d_gated)
    d_normed, of_up = backward(d_joint, norm(between_NW, part.norm_W, part.eps), up_low, part.up)
    d_between = dy_NW + norm_back(between_NW, part.norm_W, part.eps, d_normed)
    d_mixed, of_out = backward(d_between, mixed_NI, out_low, part.out)
    return d_between, d_mixed, of_out, of_up, of_down


KERNEL_OPTIONS: dict[str, Any] = {}
"""Tiles and warps of flex attention's kernels, as torch documents them; empty: torch's choice. Do not set
`ROWS_GUARANTEED_SAFE`: a token may attend to nothing in the first block that is processed for it."""


class TreeMask(NamedTuple):
    """The attention mask of a `TokenTree` in flex attention's form, for all layers and both passes."""

    end_N: Tensor
    kv_counts: Tensor
    kv_indices: Tensor
    full_kv_counts: Tensor
    full_kv_indices: Tensor
    q_counts: Tensor
    q_indices: Tensor
    full_q_counts: Tensor
    full_q_indices: Tensor

    @staticmethod
    def of(tree: TokenTree) -> TreeMask:
        """Compute the mask of a tree on its device, without waiting for the GPU."""
        partly_SS, whole_SS = tree.partly_and_whole()
        parts = [Blocks.of(chosen_SS) for chosen_SS in (partly_SS, whole_SS, partly_SS.T, whole_SS.T)]
        tensors = [tensor for part in parts for tensor in (part.counts_S, part.indices_SS)]
        return TreeMask(tree.end_N, *tensors)


def block_mask(mask: TreeMask) -> BlockMask:
    """Return the mask as torch's `BlockMask`; may be called in compiled code."""
    end_N = mask.end_N

    def attends(_batch: Tensor, _head: Tensor, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & (query < end_N[key])

    length = BLOCK * mask.kv_indices.shape[-1]
    return BlockMask(
        seq_lengths=(length, length),
        kv_num_blocks=mask.kv_counts,
        kv_indices=mask.kv_indices,
        full_kv_num_blocks=mask.full_kv_counts,
        full_kv_indices=mask.full_kv_indices,
        q_num_blocks=mask.q_counts,
        q_indices=mask.q_indices,
        full_q_num_blocks=mask.full_q_counts,
        full_q_indices=mask.full_q_indices,
        BLOCK_SIZE=(BLOCK, BLOCK),
        mask_mod=attends,
    )


def flex(q_SBHD: Tensor, k_SBKD: Tensor, v_SBKD: Tensor, mask: TreeMask, scale: float) -> Tensor:
    """Return [S, B, H, D] flex attention; B = `BLOCK` tells the compiler that blocks are whole."""
    q, k, v = (each.flatten(0, 1).transpose(0, 1)[None] for each in (q_SBHD, k_SBKD, v_SBKD))
    options: Any = dict(KERNEL_OPTIONS) or None
    mixed = flex_attention(
        q, k, v, block_mask=block_mask(mask), scale=scale, enable_gqa=True, kernel_options=options
    )
    return mixed[0].transpose(0, 1).unflatten(0, (-1, BLOCK))  # type: ignore[union-attr] - no auxiliaries


def dense(q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor, tree: TokenTree, scale: float) -> Tensor:
    """Return [N, H, D]: the same attention in plain torch, which computes all pairs of tokens."""
    repeats = q_NHD.shape[1] // k_NKD.shape[1]
    k_NHD, v_NHD = (each.repeat_interleave(repeats, 1) for each in (k_NKD, v_NKD))
    q, k, v = (each.transpose(0, 1)[None] for each in (q_NHD, k_NHD, v_NHD))
    mixed = nn.functional.scaled_dot_product_attention(q, k, v, attn_mask=tree.attends_NN(), scale=scale)
    return mixed[0].transpose(0, 1)


class Laid(NamedTuple):
    """The stacked adapters of a product: A and B as in `Linear`."""

    down_RI: Tensor
    up_OR: Tensor
    own: tuple[Tensor, Tensor]
    """The same matrices, detached from the autograd graph."""


class _Part(NamedTuple):
    """The adapter of one of several joint projections, in all layers of equal shapes."""

    columns: slice
    """Of the joint outputs."""
    scale: float
    ranks: slice


class _Alike(NamedTuple):
    """Products whose adapters have equal shapes."""

    places: list[int]
    """Indices of these products."""
    outputs: int
    dtype: torch.dtype
    """Number format of their weights."""
    parts: tuple[_Part, ...]
    matrices: list[Tensor]
    """Of the first part, A of every product and then B of every product; then the same for each further
    part."""


class Adapters:
    """The adapters of one name on all products.

    Args:
        projections: all products.
        adapter: the name; None: no adapters.
    """

    def __init__(self, projections: Sequence[Projection], adapter: str | None) -> None:
        self._products = len(projections)
        found: dict[object, list[tuple[int, list[Part]]]] = {}
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
                parts.append(_Part(columns, scale, slice(rank, rank + len(down))))
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
        """All trained matrices of these adapters."""
        return [matrix for alike in self._alike for matrix in alike.matrices]

    def laid_out(self) -> list[Laid | None]:
        """Return the present adapters of each product, stacked and scaled; None for products without one."""
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
    """Stacks adapters of equal shapes into A [L, R, I] and scaled B [L, O, R]; differentiable."""

    @staticmethod
    def forward(ctx: Any, alike: _Alike, *matrices: Tensor) -> tuple[Tensor, Tensor]:  # type: ignore[override]  # noqa: ANN401
        count = len(alike.places)
        stacks = [torch.stack(matrices[at : at + count]) for at in range(0, len(matrices), count)]
        down_LRI = torch.cat(stacks[::2], 1).to(alike.dtype)
        up_LOR = down_LRI.new_zeros(count, alike.outputs, down_LRI.shape[1])
        for part, up in zip(alike.parts, stacks[1::2], strict=True):
            up_LOR[:, part.columns, part.ranks] = up * part.scale
        ctx.alike, ctx.dtype = alike, matrices[0].dtype
        return down_LRI, up_LOR

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        d_down_LRI, d_up_LOR = gradients
        found: list[Tensor] = []
        for part in ctx.alike.parts:
            down = d_down_LRI[:, part.ranks].to(ctx.dtype)
            up = d_up_LOR[:, part.columns, part.ranks].to(ctx.dtype) * part.scale
            found.extend(down.contiguous().unbind())
            found.extend(up.contiguous().unbind())
        return None, *found


Keep = Callable[[Tensor, Tensor], None]
"""Callback that receives a layer's keys and values, [N, K, D] each."""


class Row(NamedTuple):
    """The inputs that all layers of a pass share."""

    tree: TokenTree
    mask: TreeMask | None
    """The mask of flex attention; None: attention is dense."""
    cos_N1D: Tensor
    sin_N1D: Tensor
    kind: Hashable
    """Kind of the pass: adapter, gradients, recomputation."""
    seen: set[Hashable]
    """Kinds of completed passes, whose code is all compiled."""

    @property
    def is_new(self) -> bool:
        """Whether the pass may compile code, so that dynamic dimensions must be marked."""
        return self.kind not in self.seen


class TreeLayer:
    """One decoder layer.

    Args:
        before: the part before attention, without adapters.
        after: the part after attention, without adapters.
        scale: factor of the attention scores.
        compile: whether to run compiled code.
    """

    def __init__(self, before: Before, after: After, scale: float, *, compile: bool) -> None:
        self._before, self._after, self._scale = before, after, scale
        self._as: Callable[..., Any] = compiled if compile else as_it_is

    def __call__(
        self, x_NW: Tensor, row: Row, laid: Sequence[Laid | None], keep: Keep | None = None
    ) -> Tensor:
        """Return [N, W] outputs; `laid` has the four products' adapters, `keep` gets keys and values."""
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
        """Run a function of this module, compiled or not; its tensors have one row per token."""
        if row.is_new:
            for x in arguments:
                if isinstance(x, Tensor):
                    any_length(x)
        return self._as(function)(*arguments)

    def _attend(self, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor, row: Row) -> Tensor:
        if row.mask is None:
            return dense(q_NHD, k_NKD, v_NKD, row.tree, self._scale)
        q, k, v = (each.unflatten(0, (-1, BLOCK)) for each in (q_NHD, k_NKD, v_NKD))
        return self.run(flex, row, q, k, v, row.mask, self._scale).flatten(0, 1)


def _with(linear: Linear, laid: Laid | None) -> Linear:
    return linear if laid is None else Linear(linear.weight_OI, linear.bias_O, *laid.own)


def _matrices(laid: Sequence[Laid | None]) -> list[Tensor | None]:
    return [matrix for one in laid for matrix in ((None, None) if one is None else one[:2])]


class _Heads(torch.autograd.Function):
    """Autograd function of a layer's part before attention: returns its inputs, queries, keys, values."""

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
        q, k, v, kept, low = layer.run(heads, row, x, row.cos_N1D, row.sin_N1D, part)
        ctx.layer, ctx.row, ctx.part = layer, row, part
        ctx.save_for_backward(x, kept, low)
        return x_NW.view_as(x_NW), q, k, v

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        x, kept, low = ctx.saved_tensors
        dx, dq, dk, dv = gradients
        row: Row = ctx.row
        arguments = (dq, dk, dv, dx, x, row.cos_N1D, row.sin_N1D, kept, low, ctx.part)
        d_x, of_adapters = ctx.layer.run(heads_back, row, *arguments)
        if not ctx.needs_input_grad[0]:  # the first layer, which is the last here
            row.seen.add(row.kind)
        return d_x, None, None, None, *of_adapters


class _Rest(torch.autograd.Function):
    """Autograd function of a layer's part after attention: returns the layer's outputs."""

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
        y_NW, *kept = layer.run(rest, row, x_NW.detach(), mixed, part)
        ctx.layer, ctx.row, ctx.part = layer, row, part
        ctx.save_for_backward(mixed, *kept)
        return y_NW

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor | None, ...]:  # noqa: ANN401
        arguments = (gradients[0], *ctx.saved_tensors, ctx.part)
        d_x, d_mixed, *of_parts = ctx.layer.run(rest_back, ctx.row, *arguments)
        return d_x, d_mixed, None, None, None, *(gradient for pair in of_parts for gradient in pair)
