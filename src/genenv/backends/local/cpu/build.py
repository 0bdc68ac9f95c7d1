# pyright: standard
"""Compile `kernels.cpp`, once per source, compiler and processor, in about two seconds.

The result is compared with torch on small inputs, and stored in the cache folder. If any of that fails,
`load` logs the reason, and callers use torch.
"""

from __future__ import annotations

import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import torch
from torch import Tensor

from genenv.backends.local.cpu.kernels import InTorch, Kernels, LowRank, Tasks
from genenv.errors import UsageError
from genenv.files import cache_folder

log = logging.getLogger(__name__)


class WrongResult(Exception):
    """Compiled code and torch give different results."""


def check(kernels: Kernels) -> None:
    """Compare the compiled functions with torch on small inputs of both number formats.

    Raises:
        WrongResult: a result differs.
    """
    random = torch.Generator().manual_seed(0)
    for dtype, most in ((torch.float32, 1e-4), (torch.bfloat16, 0.1)):

        def draw(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.randn(shape, generator=random).to(dtype)

        for name, found, expected in (*_simple_cases(kernels, draw), *_attention_cases(kernels, draw)):
            off = (found.float() - expected.float()).abs().max().item()
            if not off <= most:
                raise WrongResult(f"compiled and checked, {name} is off by {off:.3g}")


_Draw = Callable[..., Tensor]
"""Function that returns a random tensor of the given shape."""
_Case = tuple[str, Tensor, Tensor]
"""Name of the check, result of the compiled code, and result of torch."""


def _simple_cases(kernels: Kernels, draw: _Draw) -> Iterator[_Case]:
    """Yield the checks of all functions but attention."""
    plain, x, weight, slope = InTorch(), draw(3, 40), draw(40), draw(3, 40)
    (scaled, inverse), (expected, own) = (one.norm(x, weight, 1e-5) for one in (kernels, plain))
    yield "norm", scaled, expected
    back = kernels.norm_back(x, weight, inverse, slope)
    yield "norm_back", back, plain.norm_back(x, weight, own, slope)
    yield "swiglu", kernels.swiglu(x), plain.swiglu(x)
    half = draw(3, 20)
    yield "swiglu_back", kernels.swiglu_back(x, half), plain.swiglu_back(x, half)
    heads, angles = draw(3, 2, 20), draw(3, 1, 10)
    cos, sin = angles.float().cos().to(x.dtype), angles.float().sin().to(x.dtype)
    turned = plain.rotate(heads, cos, sin, 1)
    yield "rotate", kernels.rotate(heads, cos, sin, 1), turned
    yield "rotate back", kernels.rotate(turned, cos, sin, -1), heads
    y, down, upward = draw(3, 24), draw(4, 40), draw(24, 4)
    added = y.float() + 0.5 * (x.float() @ down.float().T) @ upward.float().T
    kernels.add_low_rank(y, x, LowRank([down], [upward], [0.5], [0]))
    yield "low_rank", y, added
    tops, sums = kernels.chunk_sums(x, 39)
    yield "chunk_sums", tops + sums.sum(-1, keepdim=True).log(), x.float().logsumexp(-1, keepdim=True)


def _attention_cases(kernels: Kernels, draw: _Draw) -> Iterator[_Case]:
    """Yield checks of attention: heads of one and of several vectors, and long, partly cached prompts."""
    lengths_B, starts_B, seen, scale = (150, 9), (3, 0), 17, 0.1
    counts_B = [length - start for length, start in zip(lengths_B, starts_B, strict=True)]
    for size in (16, 64):
        prompts, many = draw(2, 2, 2, max(lengths_B), size), draw(sum(counts_B), 6, size)
        queries_3B = torch.tensor([[0, counts_B[0]], counts_B, starts_B])
        found = kernels.prefill(many, (prompts[0], prompts[1]), queries_3B, len(many), scale)
        expected = [
            _attention(queries, prompts[0, b, :, :length], prompts[1, b, :, :length], scale)
            for b, (queries, length) in enumerate(zip(many.split(counts_B), lengths_B, strict=True))
        ]
        yield f"prefill of {size}", found, torch.cat(expected)
        q, k, v, own = draw(2, 6, size), draw(2, 2, size), draw(2, 2, size), draw(2, 2, 2, seen + 3, size)
        keys, values = (
            torch.cat([prompts[i, 1, :, :9].expand(2, -1, -1, -1), own[i, :, :, :seen], new[:, :, None]], 2)
            for i, new in enumerate((k, v))
        )
        lengths = torch.tensor(lengths_B), torch.tensor([seen, seen])
        found = kernels.decode(
            q, k, v, (prompts[0], prompts[1]), (own[0], own[1]), lengths, Tasks([1, 1]), scale
        )
        expected = [_attention(q[r, None], keys[r], values[r], scale) for r in range(2)]
        yield f"decode of {size}", found, torch.cat(expected)


def _attention(q_NHD: Tensor, keys_KTD: Tensor, values_KTD: Tensor, scale: float) -> Tensor:
    """Return [N, H, D]: causal attention of the last N of T tokens, in float32."""
    queries, repeats = q_NHD.float().transpose(0, 1), q_NHD.shape[1] // len(keys_KTD)
    keys, values = (part.float().repeat_interleave(repeats, 0) for part in (keys_KTD, values_KTD))
    scores_HNT = queries @ keys.transpose(1, 2) * scale
    new, tokens = scores_HNT.shape[1:]
    unseen_NT = torch.ones(new, tokens, dtype=torch.bool).triu(tokens - new + 1)
    return (scores_HNT.masked_fill(unseen_NT, float("-inf")).softmax(-1) @ values).transpose(0, 1)


SOURCE = Path(__file__).with_name("kernels.cpp")
FLAGS = (
    "-std=gnu++17",
    "-O3",
    "-march=native",
    "-fopenmp",
    "-fno-math-errno",
    "-Wno-psabi",
    "-fPIC",
    "-shared",
)
COMPILERS = ("c++", "g++", "clang++")
_LONGEST_COMPILATION_S = 120


@functools.cache
def load() -> Kernels | None:
    """Return the compiled functions; None, with the reason logged, if they are not available."""
    found = find()
    if isinstance(found, Kernels):
        return found
    log.info("sampling and learning run without compiled code, which is slower: %s", found)
    return None


def wanted(setting: str | bool, device: torch.device) -> Kernels | None:
    """Return the compiled functions for a CPU if `policy.compiled` requests them; None on other devices.

    Raises:
        UsageError: the setting is true, and they are not available.
    """
    if device.type != "cpu" or not setting:
        return None
    if setting is True and (reason := why_not()):
        raise UsageError(f"policy.compiled is true, and {reason}")
    return load()


def why_not() -> str:
    """Return why there is no compiled code for this CPU; "" if there is."""
    return "" if load() is not None else f"there is no compiled code: {find()}"


def find() -> Kernels | str:
    """Return the compiled functions, or the reason why they are not available."""
    try:
        return Kernels(_library())
    except (OSError, AttributeError, subprocess.SubprocessError, WrongResult, _NoCompiler) as error:
        return _reason(error)


class _NoCompiler(Exception):
    """No C++ compiler was found."""


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        lines = [line for line in str(error.stderr).splitlines() if "error" in line]
        return f"{error.cmd[0]} fails" + (f" ({lines[0].strip()[:200]})" if lines else "")
    return str(error)


def _library() -> Path:
    """Return the library for this source, compiler and processor; compile it if it does not exist."""
    chosen = os.environ.get("CXX")
    compiler = next(
        (found for name in ([chosen] if chosen else COMPILERS) if (found := shutil.which(name))), None
    )
    if compiler is None:
        raise _NoCompiler(f"there is no C++ compiler ({chosen or ', '.join(COMPILERS)})")
    text = SOURCE.read_bytes()
    key = hashlib.sha256(b"\0".join([text, *(part.encode() for part in (compiler, *FLAGS, _processor()))]))
    folder = cache_folder()
    path = folder / f"kernels-{key.hexdigest()[:16]}.so"
    if not path.is_file():
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            partial = Path(scratch, path.name)
            command = [compiler, *FLAGS, str(SOURCE), "-o", str(partial)]
            subprocess.run(  # noqa: S603 - the user's own compiler
                command, check=True, capture_output=True, text=True, timeout=_LONGEST_COMPILATION_S
            )
            check(Kernels(partial))
            partial.replace(path)
    return path


def _processor() -> str:
    """Return a description of the processor's instruction sets, as far as the system reports them."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return next(
        (line for line in lines if line.lower().startswith(("flags", "features"))), platform.machine()
    )
