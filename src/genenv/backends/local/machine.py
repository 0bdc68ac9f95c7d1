"""Checks which recorded choices of a run this machine cannot follow when the run is resumed.

torch is only imported if a check needs it.
"""

from __future__ import annotations

import os

from genenv.backends.settings import PolicyConfig


def cores() -> int:
    """Return the number of cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def lacking(policy: PolicyConfig) -> dict[str, str]:
    """Return the recorded choices that this machine cannot follow: setting -> reason."""
    found: dict[str, str] = {}
    if policy.device == "cuda" and not _has_cuda():
        return {"device": "torch finds no CUDA device here"}
    if policy.threads > cores():
        found["threads"] = f"{policy.threads} threads, but this process has {_cores_in_words()}"
    if policy.compiled is True and (reason := _why_not_compiled(policy.device)):
        found["compiled"] = reason
    if policy.packed_weights is True and not _has_onednn():
        found["packed_weights"] = "this torch has no oneDNN"
    return found


def _cores_in_words() -> str:
    return "1 core" if cores() == 1 else f"{cores()} cores"


def _has_cuda() -> bool:
    import torch

    return torch.cuda.is_available()


def _has_onednn() -> bool:
    import torch

    return torch.backends.mkldnn.is_available()


def _why_not_compiled(device: str) -> str:
    """Return why there is no compiled code, or "" if there is; on a GPU this shows only at compilation."""
    from genenv.backends.local.cpu import build

    return "" if device == "cuda" else build.why_not()
