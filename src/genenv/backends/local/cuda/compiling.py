# pyright: standard
"""Functions in `torch.compile`, once for any number of tokens.

What is compiled is kept by torch on disk, so that a machine pays for it once.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import torch
import torch._dynamo
from torch import Tensor
from torch._dynamo.exc import FailOnRecompileLimitHit

_F = TypeVar("_F", bound=Callable[..., Any])
_VARIANTS = 64
"""Of one function: models, ranks of adapters, with masks and without."""


@functools.cache
def compiled(function: _F) -> _F:
    """A function compiled as a whole; the tensors that `any_length` marked may be of any length.

    What else differs between calls is compiled each time, up to a limit; then it runs as it is. Once a
    function is compiled, tensors need no marks: calls that are alike but for those lengths find the code.
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
    """The function itself, where `compiled` is not wanted."""
    return function


def any_length(tensor: Tensor, *dimensions: int) -> Tensor:
    """The same tensor, whose length (first dimension, or those named) is not compiled into code."""
    for dimension in dimensions or (0,):
        torch._dynamo.maybe_mark_dynamic(tensor, dimension)
    return tensor
