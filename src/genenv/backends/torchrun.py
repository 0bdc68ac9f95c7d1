"""The rank of this process and the number of processes, as torchrun sets them in the environment."""

from __future__ import annotations

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def rank() -> int:
    """Return this process's rank, from 0; rank 0 runs the training loop, and a single process has rank 0."""
    return int(os.environ.get("RANK", "0")) if size() > 1 else 0


def size() -> int:
    """Return how many processes train together; 1 if torchrun did not start this process."""
    return int(os.environ.get("WORLD_SIZE", "1")) if "TORCHELASTIC_RUN_ID" in os.environ else 1


def end_with_torchrun() -> None:
    """Have the kernel kill this process when torchrun ends, for any reason (Linux only).

    Torchrun starts its workers in sessions of their own, so a signal to torchrun's group does not reach them.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
