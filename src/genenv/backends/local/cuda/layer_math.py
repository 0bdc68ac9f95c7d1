# pyright: standard
"""A decoder layer before and after attention, forwards and backwards, as functions of tensors alone.

Weights are arguments, so that one compilation serves all layers, and derivatives are written out, so that a
layer keeps no more than it needs and a frozen weight costs no gradient. Nothing is changed in place.

Low-rank adapters ride along in the matrix products of the base, by a few more columns on the side that is
the model's width:

    wide     y = [x, x A^T] [W, B]^T           [dx, dy B] = dy [W, B],  dx += (dy B) A        outputs > inputs
    narrow   [y, x A^T] = x [W; A]^T, y += (x A^T) B^T     dx = [dy, dy B] [W; A]             otherwise
             dA = (dy B)^T x,  dB = dy^T (x A^T)           the adapter's scale is in B

Shapes: N = tokens, W = width, I = inputs, O = outputs, R = ranks of all adapters of a product together,
H = query heads, K = key/value heads, D = head size.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor, nn

Gradients = tuple[Tensor | None, Tensor | None]
"""By A and B of a product's adapters; None where it has none."""


class Linear(NamedTuple):
    """A product with a frozen weight, and its adapters, in one number format."""

    weight_OI: Tensor
    bias_O: Tensor | None
    down_RI: Tensor | None = None
    """A of all adapters, one below the other."""
    up_OR: Tensor | None = None
    """B of all adapters times their scales, each in its own rows and columns."""


def _is_wide(linear: Linear) -> bool:
    """Whether there are more outputs than inputs."""
    return linear.weight_OI.shape[0] > linear.weight_OI.shape[1]


def forward(x_NI: Tensor, linear: Linear) -> tuple[Tensor, Tensor | None]:
    """[N, O] outputs, and [N, R] x A^T, which `backward` needs; None without adapters."""
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
    """The derivatives by the inputs, [N, I], and by the adapters' matrices."""
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
    """RMS norm over the last dimension, computed in float32."""
    wide = x.float()
    inverse = (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
    return (wide * inverse).to(x.dtype) * weight


def norm_back(x: Tensor, weight: Tensor, eps: float, dy: Tensor) -> Tensor:
    """The derivative of `norm` by x, times dy."""
    wide, weighted = x.float(), (dy * weight).float()
    inverse = (wide.square().mean(-1, keepdim=True) + eps).rsqrt()
    share = (weighted * wide).mean(-1, keepdim=True) * inverse.pow(3)
    return (weighted * inverse - wide * share).to(x.dtype)


def rotate(x_NXD: Tensor, cos_N1D: Tensor, sin_N1D: Tensor) -> Tensor:
    """Heads turned by the angles of their positions; turned back where the sines are negative."""
    left, right = x_NXD.chunk(2, -1)
    return torch.cat([left * cos_N1D - right * sin_N1D, right * cos_N1D + left * sin_N1D], -1)


def swiglu(joint_N2I: Tensor) -> Tensor:
    """[N, I]: silu(gate) * up, of gate and up side by side."""
    gate, up = joint_N2I.chunk(2, -1)
    return nn.functional.silu(gate) * up


def swiglu_back(joint_N2I: Tensor, dy_NI: Tensor) -> Tensor:
    """The derivative of `swiglu`, times dy."""
    gate, up = (part.float() for part in joint_N2I.chunk(2, -1))
    share = gate.sigmoid()
    d_gate = dy_NI.float() * up * share * (1 + gate * (1 - share))
    d_up = dy_NI.float() * gate * share
    return torch.cat([d_gate, d_up], -1).to(joint_N2I.dtype)


class Before(NamedTuple):
    """What of a layer comes before attention."""

    norm_W: Tensor
    eps: float
    qkv: Linear
    q_norm_D: Tensor | None
    k_norm_D: Tensor | None
    head_eps: float
    size: int
    """Of a head."""
    widths: tuple[int, int, int]
    """Of all query heads, all key heads, all value heads."""


class After(NamedTuple):
    """What of a layer comes after attention."""

    norm_W: Tensor
    eps: float
    out: Linear
    up: Linear
    down: Linear


def heads(
    x_NW: Tensor, cos_N1D: Tensor, sin_N1D: Tensor, part: Before
) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None]:
    """Queries [N, H, D], keys and values [N, K, D]; and what `heads_back` needs."""
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
    """The derivatives by the inputs of `heads`, added to what came past attention, and by its adapters."""
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
    """The layer's outputs [N, W] after attention; and what `rest_back` needs."""
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
    """The derivatives by both inputs of `rest`, and by its adapters in the order of `After`."""
    d_gated, of_down = backward(dy_NW, swiglu(joint_N2I), down_low, part.down)
    d_joint = swiglu_back(joint_N2I, d_gated)
    d_normed, of_up = backward(d_joint, norm(between_NW, part.norm_W, part.eps), up_low, part.up)
    d_between = dy_NW + norm_back(between_NW, part.norm_W, part.eps, d_normed)
    d_mixed, of_out = backward(d_between, mixed_NI, out_low, part.out)
    return d_between, d_mixed, of_out, of_up, of_down
