# pyright: standard
"""Products with frozen weights, packed once for the processor if that is faster.

oneDNN can lay out a matrix in advance in the order in which its kernels read it. Otherwise it does so at
every product. For the few rows of a sampling step that costs a third of the time (bfloat16 with AVX-512) or
nothing (float32 with AVX2), so it is measured. A packed matrix is a second copy.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from genenv.backends.local.cpu.threads import cpu_seconds

MOST_ROWS = 256
"""Packing gains nothing for more rows than this."""
_ROWS = 64
_MEASURED_S = 0.4
_WORTH = 0.93
"""Packed products must take less than this share of the time."""


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
        """Return [N, O]; packed weights are used for few rows without gradients."""
        if self._packed is None or len(x_NI) > MOST_ROWS or torch.is_grad_enabled():
            return nn.functional.linear(x_NI, self.weight, self.bias)
        return _packed_linear(x_NI, self._packed, self.bias)

    def pack(self) -> None:
        """Pack the present weight."""
        self._packed = _pack(self.weight)

    def unpack(self) -> None:
        """Free the packed copy."""
        self._packed = None


def worth_packing(weights: Sequence[Tensor]) -> bool:
    """Measure whether products with these weights are faster when packed; False if they cannot be packed.

    The result is cached per kind of weights, so that two policies on one model measure once.

    Args:
        weights: weights of one shape, together larger than the processor's cache.
    """
    if not can_be_packed(weights[0]):
        return False
    kind = (weights[0].shape, weights[0].dtype, len(weights), torch.get_num_threads())
    if kind not in MEASURED:
        MEASURED[kind] = _is_faster_packed(weights)
    return MEASURED[kind]


MEASURED: dict[tuple[torch.Size, torch.dtype, int, int], bool] = {}
"""Results of `worth_packing`, by shape, number format, number of weights, and threads."""


def _is_faster_packed(weights: Sequence[Tensor]) -> bool:
    x = torch.ones(_ROWS, weights[0].shape[1], dtype=weights[0].dtype)
    packed = [_pack(weight) for weight in weights]
    seconds = cpu_seconds(
        {
            "plain": lambda: [nn.functional.linear(x, weight) for weight in weights],
            "packed": lambda: [_packed_linear(x, weight, None) for weight in packed],
        },
        budget_s=_MEASURED_S,
    )
    return seconds["packed"] < _WORTH * seconds["plain"]


def can_be_packed(weight_OI: Tensor) -> bool:
    """Return whether packed products work on this machine and give the plain product's result."""
    if weight_OI.device.type != "cpu" or not torch.backends.mkldnn.is_available():
        return False
    x = torch.ones(_ROWS, weight_OI.shape[1], dtype=weight_OI.dtype)
    try:
        found = _packed_linear(x, _pack(weight_OI), None)
    except (AttributeError, RuntimeError, NotImplementedError):  # the operators are internal to torch
        return False
    return torch.allclose(found, nn.functional.linear(x, weight_OI), rtol=0.05, atol=0.05)


def _pack(weight_OI: Tensor) -> Tensor:
    return torch.ops.mkldnn._reorder_linear_weight(weight_OI.detach(), _ROWS)


def _packed_linear(x_NI: Tensor, packed: Tensor, bias_O: Tensor | None) -> Tensor:
    return torch.ops.mkldnn._linear_pointwise(x_NI, packed, bias_O, "none", [], "")
