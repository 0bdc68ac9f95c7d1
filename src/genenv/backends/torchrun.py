"""Which of several processes this is that train together, as torchrun tells each of them."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def rank() -> int:
    """From 0, which plays the run; 0 where there is one process."""
    return int(os.environ.get("RANK", "0")) if size() > 1 else 0


def size() -> int:
    """How many train together; 1 where torchrun did not start this process."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "TORCHELASTIC_RUN_ID" in os.environ else 1


def end_with_torchrun() -> None:
    """Be killed with torchrun, however that ends (Linux): its processes have sessions of their own."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
