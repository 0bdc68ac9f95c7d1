# pyright: standard
"""Device, number format, threads and memory that suit this machine, and the cache folder."""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import platform
from collections.abc import Callable
from pathlib import Path

import torch

from genenv.backends.local.cpu.threads import cpu_seconds
from genenv.errors import UsageError

log = logging.getLogger(__name__)

_MEASURED_S = 0.5
"""Time for a choice by stopwatch, seconds."""
_AS_FAST = 1.1
_MICROBATCH_ON_CPU, _MICROBATCH_ON_GPU = 4096, 16_384
_FEWEST_TOKENS, _MOST_TOKENS, _WHOLE_TOKENS = 4096, 65_536, 1024
"""Bounds of a micro-batch that is fitted to a GPU, and what it is a multiple of."""
_TRIED_LAYERS, _TRIED_ROWS = 2, (64, 256)
_WORTH_SAYING = 1.1
"""Number formats that are slower by less than this differ by chance."""


def choose_device(name: str) -> torch.device:
    """`auto` is CUDA where there is one.

    Raises:
        UsageError: CUDA was asked for and there is none.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("policy.device is 'cuda', and torch finds no CUDA device here; use 'auto' or 'cpu'")
    return torch.device(name)


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """`auto` is bfloat16 where matrix products run at least 1.5 times as fast in it as in float32.

    Measured once in a process. Where bfloat16 is asked for and slower than float32, a warning says so.
    """
    if name == "float32":
        return torch.float32
    if device.type == "cuda":
        return torch.bfloat16 if name == "bfloat16" or torch.cuda.is_bf16_supported() else torch.float32
    gain = _bfloat16_gain()
    if name == "bfloat16":
        if gain < 1 / _WORTH_SAYING:
            _say_bfloat16_is_slow(1 / gain)
        return torch.bfloat16
    return torch.bfloat16 if gain > 1.5 else torch.float32


@functools.cache
def _bfloat16_gain() -> float:
    """How many times as fast products are in bfloat16 as in float32."""
    formats = (torch.float32, torch.bfloat16)
    seconds = cpu_seconds({dtype: _layers(dtype) for dtype in formats}, budget_s=_MEASURED_S / 2)
    return seconds[torch.float32] / seconds[torch.bfloat16]


@functools.cache
def _say_bfloat16_is_slow(times: float) -> None:
    log.warning(
        "policy.dtype is 'bfloat16', and products take %.1f times as long in it as in float32 here", times
    )


def choose_threads(dtype: torch.dtype = torch.float32) -> int:
    """How many CPU threads suit the layers of a small model, measured: rather more than fewer.

    n threads that use t seconds of processor time together need t / n by the clock when no other process
    disturbs them. That is compared, so a machine that is busy just now makes no difference to the choice;
    where cores share their units or their way to memory, t grows with n. Taken are the most threads that need
    at most `_AS_FAST` times as long as the best.
    """
    before = torch.get_num_threads()
    counts = sorted({1, *(2**i for i in range(1, 8) if 2**i < before), before})
    if len(counts) == 1:
        return before
    layers = _layers(dtype)

    def on(count: int) -> Callable[[], object]:
        def work() -> None:
            torch.set_num_threads(count)
            layers()

        return work

    try:
        together = cpu_seconds({count: on(count) for count in counts}, budget_s=_MEASURED_S)
    finally:
        torch.set_num_threads(before)
    seconds = {count: together[count] / count for count in counts}
    return max(count for count in counts if seconds[count] <= _AS_FAST * min(seconds.values()))


def keep_freed_memory() -> None:
    """Let the C library keep freed memory for the next tensor instead of giving it back (Linux with glibc).

    Activations are allocated and freed at every step; fresh pages cost a fault each, which on small virtual
    machines is a fifth of a training step. All threads allocate from one arena, so that what is freed can be
    found again; that must be said before there are others. Changes the whole process.
    """
    libc = _glibc()
    if libc is None:
        return
    trim_threshold, top_pad, mmap_threshold, most_arenas = -1, -2, -3, -8  # as in malloc.h
    libc.mallopt(mmap_threshold, 32 * 2**20)  # the largest value it takes
    libc.mallopt(trim_threshold, 2**31 - 1)
    libc.mallopt(top_pad, 64 * 2**20)
    libc.mallopt(most_arenas, 1)


def _glibc() -> ctypes.CDLL | None:
    known = platform.system() == "Linux" and platform.libc_ver()[0] == "glibc"
    return ctypes.CDLL("libc.so.6") if known else None


def memory_bytes(device: torch.device) -> float:
    """All memory of a device; infinite where the system does not tell."""
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    try:
        return float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):  # not on Windows
        return float("inf")


def activation_bytes(gib: float, device: torch.device) -> float:
    """What a backward pass may keep: so many GiB, or with 0 a quarter of the device's memory."""
    return gib * 2**30 or memory_bytes(device) / 4


def batch_rows(setting: int, device: torch.device) -> int:
    """How many sequences are sampled at once; 0: as many as suit the device."""
    return setting or (256 if device.type == "cuda" else 64)


def microbatch_tokens(setting: int, device: torch.device, token_bytes: float | None = None) -> int:
    """Tokens of one forward and backward pass.

    Args:
        setting: so many; 0: what keeps the device busy.
        device: where.
        token_bytes: what a token leaves for the backward pass: on a GPU all of them together then take up to
            half of its memory. All of it counts, not what is free just now: a run that is resumed decides
            alike.
    """
    if setting or device.type != "cuda":
        return setting or _MICROBATCH_ON_CPU
    if token_bytes is None:
        return _MICROBATCH_ON_GPU
    tokens = int(memory_bytes(device) / 2 / token_bytes) // _WHOLE_TOKENS * _WHOLE_TOKENS
    return min(max(tokens, _FEWEST_TOKENS), _MOST_TOKENS)


def packing_bytes(device: torch.device) -> float:
    """Weights that take no more than this may have a copy for sampling, where it is measured to pay."""
    return memory_bytes(device) / 16


def free_bytes(device: torch.device) -> float:
    """Memory of a device that nobody uses now; infinite where the system does not tell."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    try:
        lines = Path("/proc/meminfo").read_text("utf-8").splitlines()
    except OSError:  # not on Linux
        return float("inf")
    free = [int(line.split()[1]) for line in lines if line.startswith("MemAvailable:")]
    return free[0] * 1024.0 if free else float("inf")


def usable_bytes(device: torch.device) -> float:
    """What this process can still allocate: free memory, and on a GPU what torch holds and does not use."""
    if device.type != "cuda":
        return free_bytes(device)
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free_bytes(device) + held


def release_memory(device: torch.device) -> None:
    """Give memory back that was freed and kept for what comes next."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif (libc := _glibc()) is not None:
        libc.malloc_trim(0)


def _layers(dtype: torch.dtype) -> Callable[[], object]:
    """Layers of a small model, to run again and again: on the rows of a sampling step, and on a prompt's."""
    up = [torch.ones(3072, 576, dtype=dtype) / 576 for _ in range(_TRIED_LAYERS)]
    down = [torch.ones(576, 1536, dtype=dtype) / 1536 for _ in range(_TRIED_LAYERS)]
    inputs = [torch.ones(rows, 576, dtype=dtype) for rows in _TRIED_ROWS]

    @torch.no_grad()
    def work() -> None:
        for x in inputs:
            for wide, narrow in zip(up, down, strict=True):
                gate, value = torch.nn.functional.linear(x, wide).chunk(2, -1)
                torch.nn.functional.linear(torch.nn.functional.silu(gate) * value, narrow)

    return work


def cache_folder() -> Path:
    """Where de-quantised weights are kept: `GENENV_CACHE`, or `genenv` under the user's cache folder."""
    explicit = os.environ.get("GENENV_CACHE")
    if explicit:
        return Path(explicit)
    return Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "genenv"
