"""Limits of time that other tests cannot break."""

from __future__ import annotations

import gc
import time
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def within(seconds: float) -> Iterator[None]:
    """What is done here takes this process less than so long; garbage that others left is collected later."""
    gc.disable()
    start = time.process_time()
    try:
        yield
        took = time.process_time() - start
        assert took < seconds, took
    finally:
        gc.enable()
