"""Random tensors, and how close they must be, for tests of what runs in compiled code."""

from __future__ import annotations

import shutil

import pytest
import torch

from genenv.backends.local.cpu.build import COMPILERS
from genenv.backends.local.cpu.kernels import DTYPES

__all__ = ["DTYPES", "close", "compiled", "random"]

compiled = pytest.mark.skipif(
    not any(shutil.which(name) for name in COMPILERS), reason="there is no C++ compiler here"
)


def close(found: torch.Tensor, expected: torch.Tensor) -> None:
    """Within the rounding of the number format, relative to the largest value."""
    most = {torch.float32: 2e-6, torch.bfloat16: 2e-2}[found.dtype]
    assert (found.float() - expected.float()).abs().max() <= most * (1 + expected.float().abs().max())


def random(*shape: int, seed: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(dtype)
