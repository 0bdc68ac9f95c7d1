# pyright: standard
"""Choices that suit this machine: device, number format, threads and memory limits; and the cache folder.

`lacking` says which recorded choices of a run this machine cannot follow when the run is resumed.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import platform
from collections.abc import Callable, Iterator
from pathlib import Path

import torch

from genenv.backends.local.cpu import build
from genenv.backends.local.cpu.threads import cpu_seconds
from genenv.backends.settings import PolicyConfig
from genenv.errors import UsageError
from genenv.threads import control_groups, cores, words_in

log = logging.getLogger(__name__)

_MEASURED_S = 0.5
"""Duration of a measurement, seconds."""
_AS_FAST = 1.1
_MICROBATCH_ON_CPU, _MICROBATCH_ON_GPU = 4096, 16_384
_FEWEST_TOKENS, _MOST_TOKENS, _WHOLE_TOKENS = 4096, 65_536, 1024
"""Minimum and maximum of a micro-batch that is fitted to a GPU's memory, and the unit of rounding."""
_TRIED_LAYERS, _TRIED_ROWS = 2, (64, 256)
_FILES = ("active_file", "inactive_file")
_WORTH_SAYING = 1.1
"""A smaller slowdown of bfloat16 is within measurement noise."""


def choose_device(name: str) -> torch.device:
    """Return the device of a setting; `auto` is CUDA if available.

    Raises:
        UsageError: CUDA is requested and not available.
    """
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    if name == "cuda" and not torch.cuda.is_available():
        raise UsageError("policy.device is 'cuda', and torch finds no CUDA device here; use 'auto' or 'cpu'")
    return torch.device(name)


def choose_dtype(name: str, device: torch.device) -> torch.dtype:
    """Return a number format; `auto` on a CPU is bfloat16 if products are over 1.5 times as fast in it.

    On a GPU `auto` is bfloat16 if supported. The speed is measured once per process. If bfloat16 is requested
    and slower than float32, a warning is logged.
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
    """Return the speed of products in bfloat16 relative to float32."""
    formats = (torch.float32, torch.bfloat16)
    seconds = cpu_seconds({dtype: _layers(dtype) for dtype in formats}, budget_s=_MEASURED_S / 2)
    return seconds[torch.float32] / seconds[torch.bfloat16]


@functools.cache
def _say_bfloat16_is_slow(times: float) -> None:
    log.warning(
        "policy.dtype is 'bfloat16', and products take %.1f times as long in it as in float32 here", times
    )


def choose_threads(dtype: torch.dtype = torch.float32) -> int:
    """Measure and return the number of CPU threads that suits the layers of a small model.

    If n threads use t seconds of processor time together, they need t / n seconds of wall time on an idle
    machine. This estimate is compared, so that other running processes do not affect the choice. If cores
    share execution units or memory bandwidth, t grows with n. The result is the largest number of threads
    that needs at most `_AS_FAST` times as long as the best.
    """
    before = torch.get_num_threads()
    most = min(before, cores())
    counts = sorted({1, *(2**i for i in range(1, 8) if 2**i < most), most})
    if len(counts) == 1:
        return most
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
    """Have the C library keep freed memory for the next tensor, for the whole process (Linux with glibc).

    Activations are allocated and freed at every step, and each fresh page costs a page fault: a fifth of a
    training step on small virtual machines. All threads allocate from one arena, so that freed memory can be
    reused. This must be set before threads start.
    """
    libc = _glibc()
    if libc is None:
        return
    trim_threshold, top_pad, mmap_threshold, most_arenas = -1, -2, -3, -8  # as in malloc.h
    libc.mallopt(mmap_threshold, 32 * 2**20)  # the maximum of glibc
    libc.mallopt(trim_threshold, 2**31 - 1)
    libc.mallopt(top_pad, 64 * 2**20)
    libc.mallopt(most_arenas, 1)


def _glibc() -> ctypes.CDLL | None:
    known = platform.system() == "Linux" and platform.libc_ver()[0] == "glibc"
    return ctypes.CDLL("libc.so.6") if known else None


def memory_bytes(device: torch.device, root: Path = Path("/")) -> float:
    """Return the memory of a device that this process may use; infinity if the system does not report it.

    Args:
        device: whose memory.
        root: folder that contains `proc` and `sys`.
    """
    if device.type == "cuda":
        return float(torch.cuda.get_device_properties(device).total_memory)
    try:
        whole = float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (AttributeError, ValueError, OSError):  # not on Windows
        whole = float("inf")
    return min([whole, *(limit for limit, _ in _limits(root))])


def _limits(root: Path) -> Iterator[tuple[float, float]]:
    """Yield memory limits of this process's control groups, with the use of each.

    Cached pages of files do not count as used, as the system drops them when memory is needed.
    """
    for folder in control_groups("memory", root):
        limit = words_in(folder / "memory.max") or words_in(folder / "memory.limit_in_bytes")
        if limit and limit[0].isdecimal():  # "max": no limit
            used = words_in(folder / "memory.current") or words_in(folder / "memory.usage_in_bytes")
            words = words_in(folder / "memory.stat")
            stat = dict(zip(words[::2], words[1::2], strict=False))
            files = [stat.get(f"total_{name}") or stat.get(name, "0") for name in _FILES]
            yield float(limit[0]), float(used[0] if used else 0) - sum(map(float, files))


def activation_bytes(gib: float, device: torch.device) -> float:
    """Return the memory for activations of a backward pass: the setting, or a quarter of the device for 0."""
    return gib * 2**30 or memory_bytes(device) / 4


def batch_rows(setting: int, device: torch.device) -> int:
    """Return the maximum number of sequences sampled at once; 0: 64, on a GPU 256."""
    return setting or (256 if device.type == "cuda" else 64)


def batch_bytes(device: torch.device) -> float:
    """Return the maximum size of the keys and values of all rows that are sampled at once."""
    return memory_bytes(device) / 6  # while rows come and leave there are copies


def microbatch_tokens(setting: int, device: torch.device, token_bytes: float | None = None) -> int:
    """Return the maximum tokens of one forward and backward pass.

    Args:
        setting: of the user; 0: choose a value for the device.
        device: of the model.
        token_bytes: bytes of activations per token; on a GPU the result then fills half of its memory. That
            is half of the total, not of the free memory, so that a resumed run chooses the same value.
    """
    if setting or device.type != "cuda":
        return setting or _MICROBATCH_ON_CPU
    if token_bytes is None:
        return _MICROBATCH_ON_GPU
    tokens = int(memory_bytes(device) / 2 / token_bytes) // _WHOLE_TOKENS * _WHOLE_TOKENS
    return min(max(tokens, _FEWEST_TOKENS), _MOST_TOKENS)


def packing_bytes(device: torch.device) -> float:
    """Return the maximum size of weights that may get a packed copy for sampling."""
    return memory_bytes(device) / 16


def free_bytes(device: torch.device, root: Path = Path("/")) -> float:
    """Return the free memory of a device; infinity if the system does not report it. See `memory_bytes`."""
    if device.type == "cuda":
        return float(torch.cuda.mem_get_info(device)[0])
    lines = words_in(root / "proc/meminfo", "\n")
    free = [int(line.split()[1]) * 1024.0 for line in lines if line.startswith("MemAvailable:")]
    return min([*free, *(limit - used for limit, used in _limits(root)), float("inf")])


def usable_bytes(device: torch.device) -> float:
    """Return the memory that this process can still allocate, including torch's unused cache on a GPU."""
    if device.type != "cuda":
        return free_bytes(device)
    held = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)
    return free_bytes(device) + held


def release_memory(device: torch.device) -> None:
    """Return cached free memory to the system."""
    if device.type == "cuda":
        torch.cuda.empty_cache()
    elif (libc := _glibc()) is not None:
        libc.malloc_trim(0)


def _layers(dtype: torch.dtype) -> Callable[[], object]:
    """Return a benchmark that runs layers of a small model, on the rows of a decode step and of a prefill."""
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


def lacking(policy: PolicyConfig) -> dict[str, str]:
    """Return the recorded choices that this machine cannot follow: setting -> reason."""
    found: dict[str, str] = {}
    if policy.device == "cuda" and not torch.cuda.is_available():
        return {"device": "torch finds no CUDA device here"}
    if policy.threads > cores():
        found["threads"] = (
            f"{policy.threads} threads, but this process has {cores()} core{'s' * (cores() > 1)}"
        )
    # On a GPU it shows only at compilation.
    if policy.compiled is True and policy.device != "cuda" and (reason := build.why_not()):
        found["compiled"] = reason
    if policy.packed_weights is True and not torch.backends.mkldnn.is_available():
        found["packed_weights"] = "this torch has no oneDNN"
    return found
