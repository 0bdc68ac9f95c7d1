"""The compiled functions."""

from __future__ import annotations

import pytest

from genenv.backends.local.cpu import build
from genenv.backends.local.cpu.kernels import Kernels


@pytest.fixture(scope="module")
def kernels() -> Kernels:
    found = build.load()
    assert found is not None
    return found
