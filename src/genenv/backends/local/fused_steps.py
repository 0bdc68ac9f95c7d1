# pyright: standard
"""What a decoder does between its matrix products, each as one step that knows its own derivative.

`Kernels` does them in compiled code, `InTorch` says the same in torch.

Shapes: N = tokens, W = width, X = heads, D = head size.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from genenv.backends.local.cpu.kernels import Kernels

Angles = tuple[Tensor, Tensor]
"""Cosine and sine, [N, 1, D / 2], of the first half of a head's places; the second has the same angles."""


class InTorch:
    """The steps of `Kernels` in torch, on any device."""

    def norm(self, x: Tensor, weight_W: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """RMS norm over the last dimension, x / sqrt(mean(x^2) + eps) * weight; and 1 / sqrt, in float32."""
        wide = x.float()
        inverse = wide.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
        scaled = wide * inverse
        return scaled.to(x.dtype).mul_(weight_W), inverse

    def norm_back(self, x: Tensor, weight_W: Tensor, inverse: Tensor, dy: Tensor) -> Tensor:
        """The derivative of `norm` by x, times dy."""
        wide, weighted = x.float(), (dy * weight_W).float()
        share = (weighted * wide).mean(-1, keepdim=True).mul_(inverse.pow(3))
        return weighted.mul_(inverse).addcmul_(wide, share, value=-1).to(x.dtype)

    def swiglu(self, joint_N2W: Tensor) -> Tensor:
        """[N, W]: silu(gate) * up, of gate and up side by side."""
        gate, up = joint_N2W.chunk(2, -1)
        return nn.functional.silu(gate).mul_(up)

    def swiglu_back(self, joint_N2W: Tensor, dy_NW: Tensor) -> Tensor:
        """The derivative of `swiglu`, times dy."""
        gate, up = joint_N2W.chunk(2, -1)
        out = torch.empty_like(joint_N2W)
        d_gate, d_up = out.chunk(2, -1)
        torch.mul(nn.functional.silu(gate), dy_NW, out=d_up)
        torch.ops.aten.silu_backward.grad_input(dy_NW * up, gate, grad_input=d_gate)
        return out

    def rotate(self, x_NXD: Tensor, cos_N1D: Tensor, sin_N1D: Tensor, sign: int) -> Tensor:
        """Heads turned by their positions' angles (half of a head's dimensions), or back where sign is -1."""
        left, right = x_NXD.chunk(2, -1)
        out = torch.empty_like(x_NXD, memory_format=torch.contiguous_format)
        out_left, out_right = out.chunk(2, -1)
        torch.mul(left, cos_N1D, out=out_left).addcmul_(right, sin_N1D, value=-sign)
        torch.mul(right, cos_N1D, out=out_right).addcmul_(left, sin_N1D, value=sign)
        return out


Steps = Kernels | InTorch


def norm(x: Tensor, module: Any, steps: Steps) -> Tensor:  # noqa: ANN401
    """RMS norm with the weight and epsilon of a module of transformers."""
    arguments = x, module.weight, module.variance_epsilon
    return _Norm.apply(*arguments, steps) if torch.is_grad_enabled() else steps.norm(*arguments)[0]


def swiglu(joint_N2W: Tensor, steps: Steps) -> Tensor:
    """[N, W]: silu(gate) * up, of gate and up side by side."""
    return _SwiGlu.apply(joint_N2W, steps) if torch.is_grad_enabled() else steps.swiglu(joint_N2W)


def rotate(x_NXD: Tensor, angles: Angles, steps: Steps) -> Tensor:
    """Rotary positions: the two halves of a head are the coordinates that turn."""
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
