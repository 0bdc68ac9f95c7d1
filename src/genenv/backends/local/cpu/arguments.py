# pyright: standard
"""What a tensor must be before compiled code is given its address; a wrong one is a sentence, never read.

All raise TypeError for what is no tensor, or of another number format, and ValueError for what is of another
shape or on another device.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

DTYPES = (torch.float32, torch.bfloat16)
"""Number formats that there is compiled code for."""


def must_be(
    what: str, tensor: Tensor, dtype: torch.dtype, shape: Sequence[int], *, anyhow: bool = False
) -> None:
    """Hold a tensor to its number format and shape.

    Args:
        what: its name, for the message.
        tensor: the tensor.
        dtype: its number format.
        shape: of it.
        anyhow: it may lie in any order in memory; otherwise it must be contiguous.
    """
    _must_be_readable(what, tensor, (dtype,))
    if tensor.shape != shape:
        raise ValueError(f"{what} must be {tuple(shape)}, not {tuple(tensor.shape)}")
    if not (anyhow or tensor.is_contiguous()):
        raise ValueError(f"{what} must be contiguous")


def rows_of(x: Tensor) -> Tensor:
    """[rows, width] of a tensor of either format, as it is where its rows are dense."""
    _must_be_readable("x", x, DTYPES)
    if x.dim() == 0 or x.shape[-1] == 0:
        raise ValueError(f"x must have rows, not {tuple(x.shape)}")
    flat = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    return flat if flat.stride(1) == 1 else flat.contiguous()


def heads_of(what: str, x_NXD: Tensor) -> Tensor:
    """[N, X, D] of either format, as it is where each token's heads are dense."""
    _must_be_readable(what, x_NXD, DTYPES)
    if x_NXD.dim() != 3 or x_NXD.shape[2] == 0:
        raise ValueError(f"{what} must be tokens of heads, not {tuple(x_NXD.shape)}")
    solid = x_NXD.stride(2) == 1 and x_NXD.stride(1) == x_NXD.shape[2]
    return x_NXD if solid else x_NXD.contiguous()


def dense(what: str, x: Tensor) -> Tensor:
    """A tensor of either format without gaps."""
    _must_be_readable(what, x, DTYPES)
    return x.contiguous()


def _must_be_readable(what: str, tensor: Tensor, dtypes: Sequence[torch.dtype]) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{what} must be a tensor, not {type(tensor).__name__}")
    if tensor.dtype not in dtypes:
        raise TypeError(f"{what} must be {' or '.join(map(str, dtypes))}, not {tensor.dtype}")
    if not tensor.is_cpu or tensor.layout is not torch.strided:
        raise ValueError(f"{what} must be in the CPU's memory, not {tensor.layout} on {tensor.device}")
