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
    """A function compiled as a whole; the tensors that `any_length` marked may be of any length.

    What else differs between calls is compiled each time, up to a limit of torch. Once a function is
    compiled, tensors need no marks: calls that are alike but for those lengths find the code.
    """
    return torch.compile(function, dynamic=False, fullgraph=True)  # type: ignore[return-value]


def as_it_is(function: _F) -> _F:
    """The function itself, where `compiled` is not wanted."""
    return function


def any_length(tensor: Tensor, *dimensions: int) -> Tensor:
    """The same tensor, whose length (first dimension, or those named) is not compiled into code."""
    for dimension in dimensions or (0,):
        torch._dynamo.maybe_mark_dynamic(tensor, dimension)
    return tensor
