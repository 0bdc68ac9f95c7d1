# pyright: standard
"""Compiled code for the small operations of a decoder on a CPU, where there is a C++ compiler.

Between its matrix products a decoder reads and writes its activations some thirty times a layer, and calls
torch as often; for a batch of sampled tokens that takes longer than the products. `kernels.cpp` does the same
in six passes, attention included, and the sums over the vocabulary that a token is drawn by. It is compiled
once in about two seconds, held to torch on small inputs, and kept in the cache folder.
Where any of that fails `load` says so in one logged sentence, and callers use torch.

Shapes: N = tokens, W = width, R = rows, B = prompts, H = query heads, K = key/value heads, D = head size,
V = vocabulary, C = chunks of it.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import logging
import os
import platform
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from genenv.backends.local import loading
from genenv.errors import UsageError

log = logging.getLogger(__name__)

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
_ROWS_OF_A_TASK = 8
"""Rows that read their prompt together: their queries fit into the innermost cache."""

_LANES = 16
"""Numbers of a vector in `kernels.cpp`, which reads whole vectors."""

_POINTER, _LONG, _FLOAT, _INT = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int
_SIGNATURES = {
    "norm": [_POINTER, _LONG, _POINTER, _FLOAT, _LONG, _LONG, _POINTER, _POINTER, _INT],
    "norm_back": [
        *[_POINTER, _LONG, _POINTER, _POINTER, _POINTER, _LONG],
        *[_LONG, _LONG, _POINTER, _INT],
    ],
    "swiglu": [_POINTER, _LONG, _LONG, _POINTER, _INT],
    "swiglu_back": [_POINTER, _POINTER, _LONG, _LONG, _LONG, _POINTER, _INT],
    "rotate": [
        *[_POINTER, _LONG, _POINTER, _POINTER, _LONG, _FLOAT],
        *[_LONG, _LONG, _LONG, _POINTER, _INT],
    ],
    "low_rank": [
        *[_POINTER, _LONG, _LONG, _POINTER, _LONG, _POINTER],
        *[_POINTER, _LONG, _POINTER, _LONG, _INT],
    ],
    "decode": [
        *[_POINTER, _POINTER, _POINTER, _LONG, _LONG, _LONG],
        *[_POINTER, _POINTER, _LONG, _POINTER, _POINTER, _LONG],
        *[_POINTER, _POINTER, _POINTER, _POINTER, _LONG],
        *[_LONG, _LONG, _LONG, _FLOAT, _POINTER, _INT],
    ],
    "prefill": [
        *[_POINTER, _LONG, _POINTER, _POINTER, _LONG, _POINTER, _POINTER, _POINTER],
        *[_LONG, _LONG, _LONG, _LONG, _FLOAT, _POINTER, _INT],
    ],
    "chunk_sums": [_POINTER, _LONG, _LONG, _LONG, _LONG, _POINTER, _POINTER, _INT],
}
HEAD_SIZES = frozenset({16, 32, 64, 80, 96, 128})
"""Sizes of attention heads that `decode` and `prefill` have code for."""


class Kernels:
    """The compiled functions, for CPU tensors of float32 or bfloat16 whose last dimension is dense.

    Args:
        path: the compiled library.

    Raises:
        OSError: it cannot be loaded.
        AttributeError: it lacks a function.
    """

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        self._functions: dict[tuple[str, torch.dtype], Callable[..., int | None]] = {}
        for name, signature in _SIGNATURES.items():
            for dtype in (torch.float32, torch.bfloat16):
                function = getattr(library, f"{name}_{str(dtype).removeprefix('torch.')}")
                function.argtypes = signature
                function.restype = _INT if name in ("decode", "prefill") else None
                self._functions[name, dtype] = function

    def _call(self, name: str, dtype: torch.dtype, *arguments: float) -> None:
        """Call a function. `decode` and `prefill` return 0 where there is no code for the head size.

        Raises:
            ValueError: there is none.
        """
        if self._functions[name, dtype](*arguments, torch.get_num_threads()) == 0:
            raise ValueError(f"{name} has code for heads of {sorted(HEAD_SIZES)} alone")

    def norm(self, x: Tensor, weight_W: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """RMS norm over the last dimension, x / sqrt(mean(x^2) + eps) * weight; and [rows, 1] 1 / sqrt."""
        x_NW = _rows(x)
        out, inverse_N1 = torch.empty(x.shape, dtype=x.dtype), torch.empty(len(x_NW), 1)
        self._call(
            "norm",
            x.dtype,
            *_at(x_NW),
            weight_W.data_ptr(),
            eps,
            *x_NW.shape,
            out.data_ptr(),
            inverse_N1.data_ptr(),
        )
        return out, inverse_N1

    def norm_back(self, x: Tensor, weight_W: Tensor, inverse_N1: Tensor, dy: Tensor) -> Tensor:
        """The derivative of `norm` by x, times dy."""
        x_NW, dy_NW = _rows(x), _rows(dy)
        dx = torch.empty(x.shape, dtype=x.dtype)
        self._call(
            "norm_back",
            x.dtype,
            *_at(x_NW),
            weight_W.data_ptr(),
            inverse_N1.data_ptr(),
            *_at(dy_NW),
            *x_NW.shape,
            dx.data_ptr(),
        )
        return dx

    def swiglu(self, joint_N2W: Tensor) -> Tensor:
        """[N, W]: silu(gate) * up, of gate and up side by side."""
        rows, width = joint_N2W.shape[0], joint_N2W.shape[1] // 2
        out = joint_N2W.new_empty(rows, width)
        joint = joint_N2W.contiguous()
        self._call("swiglu", joint.dtype, joint.data_ptr(), rows, width, out.data_ptr())
        return out

    def swiglu_back(self, joint_N2W: Tensor, dy_NW: Tensor) -> Tensor:
        """The derivative of `swiglu`, times dy."""
        joint, dy = joint_N2W.contiguous(), _rows(dy_NW)
        out = torch.empty_like(joint)
        self._call("swiglu_back", joint.dtype, joint.data_ptr(), *_at(dy), *dy.shape, out.data_ptr())
        return out

    def rotate(self, x_NXD: Tensor, cos_N1D: Tensor, sin_N1D: Tensor, sign: int) -> Tensor:
        """Heads turned by their positions' angles (half of a head's dimensions), or back where sign is -1."""
        count, heads, size = x_NXD.shape
        x, cos, sin = _heads(x_NXD), cos_N1D.contiguous(), sin_N1D.contiguous()
        out = torch.empty(x.shape, dtype=x.dtype)
        self._call(
            "rotate",
            x.dtype,
            *_at(x),
            cos.data_ptr(),
            *_at(sin),
            float(sign),
            count,
            heads,
            size // 2,
            out.data_ptr(),
        )
        return out

    def add_low_rank(self, y_NO: Tensor, x_NI: Tensor, adapter: LowRank) -> None:
        """Add (x A^T) B^T to y, for all parts of an adapter at once. For few rows: large ones suit torch."""
        x = x_NI.contiguous()
        self._call(
            "low_rank",
            x.dtype,
            x.data_ptr(),
            *x.shape,
            adapter.down_IR.data_ptr(),
            adapter.down_IR.shape[1],
            adapter.up.data_ptr(),
            adapter.parts.data_ptr(),
            len(adapter.parts),
            y_NO.data_ptr(),
            y_NO.shape[1],
        )

    def decode(  # noqa: PLR0913 - what attention reads and writes
        self,
        q_RHD: Tensor,
        k_RKD: Tensor,
        v_RKD: Tensor,
        prompt: tuple[Tensor, Tensor],
        own: tuple[Tensor, Tensor],
        lengths: tuple[Tensor, Tensor],
        tasks: Tasks,
        scale: float,
    ) -> Tensor:
        """[R, H, D]: attention of one new token per row to its prompt and to the tokens since.

        Args:
            q_RHD: queries, with a head size of `HEAD_SIZES`.
            k_RKD: this token's keys; they are added to the row's own.
            v_RKD: this token's values, likewise.
            prompt: keys and values of the prompts, [B, K, P, D].
            own: keys and values of the rows, [R, K, room, D], with room for one more.
            lengths: [B] prompt tokens and [R] own tokens before this one, int64.
            tasks: which row continues which prompt.
            scale: factor of the scores.

        Raises:
            ValueError: a tensor is not as described.
        """
        _must_fit(q_RHD, *prompt, *own)
        _must_fit(q_RHD, k_RKD, v_RKD, dense=False)
        rows, heads, size = q_RHD.shape
        q, k, v = (_heads(tensor) for tensor in (q_RHD, k_RKD, v_RKD))
        out = q.new_empty(rows, heads, size)
        self._call(
            "decode",
            q.dtype,
            *(tensor.data_ptr() for tensor in (q, k, v)),
            *(tensor.stride(0) for tensor in (q, k, v)),
            *(tensor.data_ptr() for tensor in prompt),
            prompt[0].shape[2],
            *(tensor.data_ptr() for tensor in own),
            own[0].shape[2],
            *(tensor.data_ptr() for tensor in lengths),
            tasks.tasks.data_ptr(),
            tasks.row_of.data_ptr(),
            len(tasks.tasks),
            heads,
            k.shape[1],
            size,
            scale,
            out.data_ptr(),
        )
        return out

    def prefill(
        self, q_NHD: Tensor, prompt: tuple[Tensor, Tensor], queries_3B: Tensor, count: int, scale: float
    ) -> Tensor:
        """[count, H, D]: causal attention of tokens to the prompts that they belong to.

        Args:
            q_NHD: queries in a flat row, with a head size of `HEAD_SIZES`.
            prompt: keys and values of the prompts, [B, K, P, D]; those of the queries' own tokens too.
            queries_3B: where each prompt's queries begin in the flat row, how many there are, and the
                position of the first; contiguous int64.
            count: of all queries, which are the first of the flat row.
            scale: factor of the scores.

        Raises:
            ValueError: a tensor is not as described.
        """
        _, heads, size = q_NHD.shape
        q, keys, values = _heads(q_NHD), prompt[0].contiguous(), prompt[1].contiguous()
        _must_fit(q, keys, values)
        out = q.new_empty(count, heads, size)
        self._call(
            "prefill",
            q.dtype,
            *_at(q),
            keys.data_ptr(),
            values.data_ptr(),
            keys.shape[2],
            *(numbers_B.data_ptr() for numbers_B in queries_3B),
            len(keys),
            heads,
            keys.shape[1],
            size,
            scale,
            out.data_ptr(),
        )
        return out

    def chunk_sums(self, scores_RV: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
        """[R, 1] largest score of each row, and [R, C] sums of exp(score - largest) over chunks; float32."""
        scores = _rows(scores_RV)
        rows, vocabulary = scores.shape
        top_R1, sums_RC = torch.empty(rows, 1), torch.empty(rows, -(-vocabulary // chunk))
        self._call(
            "chunk_sums",
            scores.dtype,
            *_at(scores),
            rows,
            vocabulary,
            chunk,
            top_R1.data_ptr(),
            sums_RC.data_ptr(),
        )
        return top_R1, sums_RC


class Tasks:
    """Rows sorted by the prompt that they continue, in pieces that are worked on at once.

    Args:
        prompt_of_R: the index of each row's prompt.
    """

    def __init__(self, prompt_of_R: Sequence[int]) -> None:
        order = sorted(range(len(prompt_of_R)), key=prompt_of_R.__getitem__)
        tasks: list[list[int]] = []
        for place, row in enumerate(order):
            last = tasks[-1] if tasks else [-1, 0, 0]
            if last[0] == prompt_of_R[row] and place - last[1] < _ROWS_OF_A_TASK:
                last[2] = place + 1
            else:
                tasks.append([prompt_of_R[row], place, place + 1])
        self.tasks = torch.tensor(tasks)
        """[tasks, 3]: the prompt, and where its rows begin and end in `row_of`."""
        self.row_of = torch.tensor(order)


class LowRank:
    """The adapters of joint projections, laid out for `Kernels.add_low_rank`.

    Args:
        downs: A of each, [r, I].
        ups: B of each, [O, r].
        scales: the factor of each.
        starts: the first column of each in the joint result.
    """

    def __init__(
        self, downs: Sequence[Tensor], ups: Sequence[Tensor], scales: Sequence[float], starts: Sequence[int]
    ) -> None:
        down_rI = torch.cat([down.detach().float() for down in downs])
        self.down_IR = nn.functional.pad(down_rI.T, (0, -len(down_rI) % _LANES)).contiguous()
        turned = [(up.detach().float() * scale).T.flatten() for up, scale in zip(ups, scales, strict=True)]
        self.up = nn.functional.pad(torch.cat(turned), (0, _LANES))
        parts, rank, begin = [], 0, 0
        for up, start in zip(ups, starts, strict=True):
            parts.append([start, up.shape[0], rank, up.shape[1], begin])
            rank, begin = rank + up.shape[1], begin + up.numel()
        self.parts = torch.tensor(parts)


def _must_fit(q_NHD: Tensor, *others: Tensor, dense: bool = True) -> None:
    """Other tensors of attention must have the queries' number format and head size.

    Raises:
        ValueError: one has not, or is not contiguous and must be.
    """
    for tensor in others:
        if tensor.dtype != q_NHD.dtype or tensor.shape[-1] != q_NHD.shape[-1]:
            raise ValueError(f"keys or values are {tensor.dtype} {tuple(tensor.shape)}, the queries differ")
        if dense and not tensor.is_contiguous():
            raise ValueError("keys or values are not contiguous")


def _rows(x: Tensor) -> Tensor:
    """[rows, width], as it is where its rows are dense."""
    flat = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    return flat if flat.stride(1) == 1 else flat.contiguous()


def _heads(x_NXD: Tensor) -> Tensor:
    """As it is where each token's heads are dense."""
    dense = x_NXD.stride(2) == 1 and x_NXD.stride(1) == x_NXD.shape[2]
    return x_NXD if dense else x_NXD.contiguous()


def _at(x: Tensor) -> tuple[int, int]:
    """Where a tensor begins, and how far its rows are apart."""
    return x.data_ptr(), x.stride(0)


@functools.cache
def load() -> Kernels | None:
    """The compiled functions; None, with a logged sentence, where they cannot be had."""
    found = find()
    if isinstance(found, Kernels):
        return found
    log.info("sampling and learning run without compiled code, which is slower: %s", found)
    return None


def wanted(setting: str | bool, device: torch.device) -> Kernels | None:
    """The compiled functions as `policy.compiled` asks for them.

    Raises:
        UsageError: it asks for them and they cannot be had.
    """
    if setting is True and (reason := why_not(device)):
        raise UsageError(f"policy.compiled is true, and {reason}")
    return load() if setting and device.type == "cpu" else None


def why_not(device: torch.device) -> str:
    """Why there is no compiled code for a device; empty where there is."""
    if device.type != "cpu":
        return "compiled code is for CPUs alone; set it to false"
    return "" if load() is not None else f"there is no compiled code: {find()}"


def find() -> Kernels | str:
    """The compiled functions, or why they cannot be had."""
    try:
        return Kernels(_library())
    except (OSError, AttributeError, subprocess.SubprocessError, _Unusable) as error:
        return _reason(error)


class _Unusable(Exception):
    """Why there is no compiled code."""


def _reason(error: Exception) -> str:
    if isinstance(error, subprocess.CalledProcessError):
        lines = [line for line in str(error.stderr).splitlines() if "error" in line]
        return f"{error.cmd[0]} fails" + (f" ({lines[0].strip()[:200]})" if lines else "")
    return str(error)


def _library() -> Path:
    """The compiled file for this source, compiler and processor, made if it is not there."""
    chosen = os.environ.get("CXX")
    compiler = next(
        (found for name in ([chosen] if chosen else COMPILERS) if (found := shutil.which(name))), None
    )
    if compiler is None:
        raise _Unusable(f"there is no C++ compiler ({chosen or ', '.join(COMPILERS)})")
    text = SOURCE.read_bytes()
    key = hashlib.sha256(b"\0".join([text, *(part.encode() for part in (compiler, *FLAGS, _processor()))]))
    folder = loading.cache_folder()
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
    """What decides which instructions the compiler may use."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return f"{platform.machine()} {platform.processor()}"
    return next(
        (line for line in lines if line.lower().startswith(("flags", "features"))), platform.machine()
    )


def check(kernels: Kernels) -> None:
    """Hold the functions to torch on small inputs of both number formats.

    Raises:
        _Unusable: one of them says something else.
    """
    random = torch.Generator().manual_seed(0)
    for dtype, most in ((torch.float32, 1e-4), (torch.bfloat16, 0.1)):

        def draw(*shape: int, dtype: torch.dtype = dtype) -> Tensor:
            return torch.randn(shape, generator=random).to(dtype)

        for name, found, expected in (*_simple_cases(kernels, draw), *_attention_cases(kernels, draw)):
            off = (found.float() - expected.float()).abs().max().item()
            if not off <= most:
                raise _Unusable(f"compiled and checked, {name} is off by {off:.3g}")


_Draw = Callable[..., Tensor]
"""A random tensor of a shape."""
_Case = tuple[str, Tensor, Tensor]
"""What was checked, what compiled code says, and what torch says."""


def _simple_cases(kernels: Kernels, draw: _Draw) -> Iterator[_Case]:
    """All but attention."""
    x, weight, slope = draw(3, 40), draw(40), draw(3, 40)
    scaled, inverse = kernels.norm(x, weight, 1e-5)
    wide = x.float()
    root = (wide.square().mean(-1, keepdim=True) + 1e-5).rsqrt()
    yield "norm", scaled, wide * root * weight.float()
    yield "norm_back", kernels.norm_back(x, weight, inverse, slope), _norm_slope(wide, weight, root, slope)
    gate, up = wide.chunk(2, -1)
    yield "swiglu", kernels.swiglu(x), nn.functional.silu(gate) * up
    heads, angles = draw(3, 2, 20), draw(3, 1, 10)
    left, right = heads.float().chunk(2, -1)
    cos, sin = angles.float().cos().to(x.dtype), angles.float().sin().to(x.dtype)
    turned = torch.cat([left * cos - right * sin, right * cos + left * sin], -1)
    yield "rotate", kernels.rotate(heads, cos, sin, 1), turned
    yield "rotate back", kernels.rotate(turned.to(x.dtype), cos, sin, -1), heads
    y, down, upward = draw(3, 24), draw(4, 40), draw(24, 4)
    added = y.float() + 0.5 * (wide @ down.float().T) @ upward.float().T
    kernels.add_low_rank(y, x, LowRank([down], [upward], [0.5], [0]))
    yield "low_rank", y, added
    tops, sums = kernels.chunk_sums(x, 39)
    yield "chunk_sums", tops + sums.sum(-1, keepdim=True).log(), wide.logsumexp(-1, keepdim=True)


def _attention_cases(kernels: Kernels, draw: _Draw) -> Iterator[_Case]:
    """Heads of one vector and of several; prompts longer than a block of queries, and seen in part."""
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
    """[N, H, D]: causal attention of the last N of T tokens, in float32."""
    queries, repeats = q_NHD.float().transpose(0, 1), q_NHD.shape[1] // len(keys_KTD)
    keys, values = (part.float().repeat_interleave(repeats, 0) for part in (keys_KTD, values_KTD))
    scores_HNT = queries @ keys.transpose(1, 2) * scale
    new, tokens = scores_HNT.shape[1:]
    unseen_NT = torch.ones(new, tokens, dtype=torch.bool).triu(tokens - new + 1)
    return (scores_HNT.masked_fill(unseen_NT, float("-inf")).softmax(-1) @ values).transpose(0, 1)


def _norm_slope(x: Tensor, weight: Tensor, root: Tensor, dy: Tensor) -> Tensor:
    weighted = (dy * weight).float()
    return root * (weighted - x * (weighted * x).mean(-1, keepdim=True) * root.square())
