# pyright: standard
"""Functions in `torch.compile`, once for any number of tokens.

What is compiled is kept by torch on disk, so that a machine pays for it once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
from torch import Tensor

_F = TypeVar("_F", bound=Callable[..., Any])


@functools.cache
def compiled(function: _F) -> _F:
    """A function compiled for GPUs; the tensors that `any_length` marked may be of any length."""
    return torch.compile(function, dynamic=False)  # type: ignore[return-value]


def any_length(tensor: Tensor, *dimensions: int) -> Tensor:
    """The same tensor, whose length (first dimension, or those named) is not compiled into code."""
    for dimension in dimensions or (0,):
        torch._dynamo.maybe_mark_dynamic(tensor, dimension)
    return tensor
