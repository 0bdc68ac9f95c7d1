# pyright: standard
"""Products with weights that never change, packed once for the processor where that is faster.

oneDNN can lay out a matrix beforehand as its kernels read it; otherwise it does so at every product, which
for the few rows of a sampling step costs a third of the time (bfloat16 with AVX-512) or nothing (float32 with
AVX2). So it is measured. A packed matrix is a second copy.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn

MOST_ROWS = 256
"""Beyond so many rows packing gains nothing."""
_ROWS = 64
_WORTH = 0.93
"""Packed products must take less than this part of the time."""


class Product:
    """x W^T + b with a weight that may be packed.

    Args:
        weight_OI: the weight.
        bias_O: the bias.
    """

    def __init__(self, weight_OI: Tensor, bias_O: Tensor | None) -> None:
        self.weight, self.bias = weight_OI, bias_O
        self._packed: Tensor | None = None

    def __call__(self, x_NI: Tensor) -> Tensor:
        """[N, O]; gradients flow to x alone where the weight has none."""
        if self._packed is None or len(x_NI) > MOST_ROWS or torch.is_grad_enabled():
            return nn.functional.linear(x_NI, self.weight, self.bias)
        return _packed_linear(x_NI, self._packed, self.bias)

    def pack(self) -> None:
        """Lay out the weight as it is now."""
        self._packed = _pack(self.weight)


def worth_packing(weights: Sequence[Tensor]) -> bool:
    """Whether products with these weights are faster when packed, measured; False where they cannot be.

    Args:
        weights: of one shape, and so many that a processor's cache does not hold them all.
    """
    first = weights[0]
    if first.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    x = torch.ones(_ROWS, first.shape[1], dtype=first.dtype)
    try:
        packed = [_pack(weight) for weight in weights]
        alike = torch.allclose(
            _packed_linear(x, packed[0], None), nn.functional.linear(x, first), rtol=0.05, atol=0.05
        )
    except (AttributeError, RuntimeError, NotImplementedError):  # the operators are internal to torch
        return False
    plain_s, packed_s = _seconds(
        lambda: [nn.functional.linear(x, weight) for weight in weights],
        lambda: [_packed_linear(x, weight, None) for weight in packed],
    )
    return alike and packed_s < _WORTH * plain_s


def _pack(weight_OI: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight_OI.detach(), _ROWS)


def _packed_linear(x_NI: Tensor, packed: Tensor, bias_O: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x_NI, packed, bias_O, "none", [], "")


def _seconds(*works: Callable[[], object]) -> list[float]:
    """Best of some timings of each, taken in turns."""
    best = [float("inf")] * len(works)
    for _ in range(6):
        for index, work in enumerate(works):
            start = time.perf_counter()
            work()
            best[index] = min(best[index], time.perf_counter() - start)
    return best
