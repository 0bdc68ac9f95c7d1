# pyright: standard
"""Linear layers that read the same input as one product, with their low-rank adapters added in place.

    y = x W^T + s (x A^T) B^T        W: several projections, one after the other; A, B: their adapters
    dx = dy W + s (dy B) A,  dA = s (dy B)^T x,  dB = s dy^T (x A^T)

Shapes: N = tokens, I = inputs, O = outputs, r = rank.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from genenv.backends.local.cpu.kernels import Kernels, LowRank
from genenv.backends.local.cpu.packed_weights import Product
from genenv.backends.local.fused_steps import Steps

_FEW_ROWS = 256
"""Up to so many rows compiled code adds an adapter's share faster than torch does."""


class Projection:
    """Linear layers that read the same input, as one product.

    Args:
        owner: the module that has them.
        names: of the layers in it.
        steps: where they are compiled code, it adds an adapter's share to few rows.
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
        """[N, sum of widths]."""
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
        """The joint weight and bias with so many rows of zeros behind; the layers' own are parts of them."""
        layers = [_base(getattr(self._owner, name)) for name in self._names]
        whole = _joined([layer.weight for layer in layers], rows)
        self.product.weight = whole[: self.outputs]
        bias = self.product.bias
        return whole, None if bias is None else nn.functional.pad(bias.detach(), (0, rows))

    def low_rank(self, adapter: str | None) -> Iterator[tuple[Tensor, Tensor, float, slice]]:
        """An adapter's matrices A [r, I] and B [O, r], their scale, and their columns of the result."""
        for part in () if adapter is None else self._parts(adapter):
            yield part.down_rI, part.up_Or, part.scale, part.columns

    def forget(self, adapter: str) -> None:
        """Let go of an adapter's matrices."""
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
    """Where the projection stands in the joint result."""


class _Adapter:
    """The adapters of joint projections."""

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


def _base(module: Any) -> Any:  # noqa: ANN401
    return getattr(module, "base_layer", module)  # what PEFT put its adapters around


def _joined(parameters: Sequence[Tensor], room: int = 0) -> Tensor:
    """One tensor that the parameters are made views of, with room for so many further rows of zeros."""
    own = [parameter.detach() for parameter in parameters]
    whole = torch.cat([*own, *([own[0].new_zeros(room, *own[0].shape[1:])] * bool(room))])
    start = 0
    for parameter in parameters:
        parameter.data = whole[start : start + len(parameter)]
        start += len(parameter)
    return whole
