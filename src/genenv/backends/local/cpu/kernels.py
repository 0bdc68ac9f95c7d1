# pyright: standard
"""Python interface of the compiled code for the small operations of a decoder on a CPU.

Between its matrix products a decoder reads and writes its activations some thirty times per layer, with as
many torch calls. For a batch of sampled tokens that takes longer than the products. `kernels.cpp` does the
same in six passes, including attention and the sums over the vocabulary for drawing; `build` compiles it. The
compiled functions take addresses. So number format and shape of every tensor are checked here first:
TypeError for another number format, ValueError for another shape or device. `kernels.cpp` checks that index
tensors stay within the bounds of the data.

Shapes: N = tokens, W = width, I = inputs, O = outputs, r = rank, R = rows, B = prompts, H = query heads,
K = key/value heads, D = head size, P = room for prompt tokens, T = room for new tokens, V = vocabulary,
C = chunks of it.
"""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

DTYPES = (torch.float32, torch.bfloat16)
"""Number formats that the compiled code supports."""


def must_be(
    what: str, tensor: Tensor, dtype: torch.dtype, shape: Sequence[int], *, anyhow: bool = False
) -> None:
    """Check a tensor's number format and shape.

    Args:
        what: name of the tensor, for the message.
        tensor: the tensor.
        dtype: required number format.
        shape: required shape.
        anyhow: whether any memory layout is allowed; otherwise the tensor must be contiguous.
    """
    _must_be_readable(what, tensor, (dtype,))
    if tensor.shape != shape:
        raise ValueError(f"{what} must be {tuple(shape)}, not {tuple(tensor.shape)}")
    if not (anyhow or tensor.is_contiguous()):
        raise ValueError(f"{what} must be contiguous")


def rows_of(x: Tensor) -> Tensor:
    """Return a tensor as [rows, width]; copied only if its rows are not dense."""
    _must_be_readable("x", x, DTYPES)
    if x.dim() == 0 or x.shape[-1] == 0:
        raise ValueError(f"x must have rows, not {tuple(x.shape)}")
    flat = x if x.dim() == 2 else x.reshape(-1, x.shape[-1])
    return flat if flat.stride(1) == 1 else flat.contiguous()


def heads_of(what: str, x_NXD: Tensor) -> Tensor:
    """Return [N, X, D]; copied only if the heads of a token are not dense."""
    _must_be_readable(what, x_NXD, DTYPES)
    if x_NXD.dim() != 3 or x_NXD.shape[2] == 0:
        raise ValueError(f"{what} must be tokens of heads, not {tuple(x_NXD.shape)}")
    solid = x_NXD.stride(2) == 1 and x_NXD.stride(1) == x_NXD.shape[2]
    return x_NXD if solid else x_NXD.contiguous()


def dense(what: str, x: Tensor) -> Tensor:
    """Return a contiguous tensor."""
    _must_be_readable(what, x, DTYPES)
    return x.contiguous()


def _must_be_readable(what: str, tensor: Tensor, dtypes: Sequence[torch.dtype]) -> None:
    if not isinstance(tensor, Tensor):
        raise TypeError(f"{what} must be a tensor, not {type(tensor).__name__}")
    if tensor.dtype not in dtypes:
        raise TypeError(f"{what} must be {' or '.join(map(str, dtypes))}, not {tensor.dtype}")
    if not tensor.is_cpu or tensor.layout is not torch.strided:
        raise ValueError(f"{what} must be in the CPU's memory, not {tensor.layout} on {tensor.device}")


_ROWS_OF_A_TASK = 8
"""Maximum number of rows that process their prompt together; their queries must fit into the L1 cache."""

_LANES = 16
"""Elements of a vector in `kernels.cpp`, which reads whole vectors."""

_TYPES = {"*": ctypes.c_void_p, "n": ctypes.c_int64, "f": ctypes.c_float}
_SIGNATURES = {
    "norm": "*n*fnn**",
    "norm_back": "*n***nnn*",
    "swiglu": "*nn*",
    "swiglu_back": "**nnn*",
    "rotate": "*n**nfnnn*",
    "low_rank": "*nn*n**n*n",
    "decode": "***nnn**n**n****nnnnnnf*",
    "prefill": "*n**n***nnnnnf*",
    "chunk_sums": "*nnnn**",
}
"""Arguments of each function: addresses (*), integers (n) and floats (f); the number of threads follows."""
_OUT_OF_RANGE = "the numbers that say which tokens belong together point beyond the tensors"
_FAULTS = {"decode": _OUT_OF_RANGE, "prefill": _OUT_OF_RANGE}
"""Meaning of a return value of 0, after which nothing was computed."""
HEAD_SIZES = frozenset({16, 32, 64, 80, 96, 128})
"""Head sizes that `decode` and `prefill` support."""


class Kernels:
    """The compiled functions, for CPU tensors of float32 or bfloat16.

    All raise TypeError for a tensor of the wrong number format, and ValueError for one of the wrong shape or
    device, or with indices out of bounds.

    Args:
        path: the compiled library.

    Raises:
        OSError: the library cannot be loaded.
        AttributeError: the library lacks a function.
    """

    def __init__(self, path: Path) -> None:
        library = ctypes.CDLL(str(path))
        self._functions: dict[tuple[str, torch.dtype], Callable[..., int | None]] = {}
        for name, signature in _SIGNATURES.items():
            for dtype in DTYPES:
                function = getattr(library, f"{name}_{str(dtype).removeprefix('torch.')}")
                function.argtypes = [*(_TYPES[letter] for letter in signature), ctypes.c_int]
                function.restype = ctypes.c_int if name in _FAULTS else None
                self._functions[name, dtype] = function

    def _call(self, name: str, dtype: torch.dtype, *arguments: Tensor | float) -> None:
        numbers = [x.data_ptr() if isinstance(x, Tensor) else x for x in arguments]
        if self._functions[name, dtype](*numbers, torch.get_num_threads()) == 0:
            raise ValueError(f"{name}: {_FAULTS[name]}")

    def norm(self, x: Tensor, weight_W: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Return the RMS norm x / sqrt(mean(x^2) + eps) * weight, and [rows, 1] 1 / sqrt(...)."""
        x_NW = rows_of(x)
        rows, width = x_NW.shape
        must_be("the weight", weight_W, x.dtype, (width,))
        out, inverse_N1 = torch.empty(x.shape, dtype=x.dtype), torch.empty(rows, 1)
        self._call("norm", x.dtype, x_NW, x_NW.stride(0), weight_W, eps, rows, width, out, inverse_N1)
        return out, inverse_N1

    def norm_back(self, x: Tensor, weight_W: Tensor, inverse_N1: Tensor, dy: Tensor) -> Tensor:
        """Return the derivative of `norm` with respect to x, times dy."""
        x_NW, dy_NW = rows_of(x), rows_of(dy)
        rows, width = x_NW.shape
        must_be("the weight", weight_W, x.dtype, (width,))
        must_be("1 / sqrt", inverse_N1, torch.float32, (rows, 1))
        must_be("dy", dy, x.dtype, x.shape, anyhow=True)
        dx = torch.empty(x.shape, dtype=x.dtype)
        steps = x_NW.stride(0), dy_NW.stride(0)
        self._call(
            "norm_back", x.dtype, x_NW, steps[0], weight_W, inverse_N1, dy_NW, steps[1], rows, width, dx
        )
        return dx

    def swiglu(self, joint_N2W: Tensor) -> Tensor:
        """Return [N, W]: silu(gate) * up, from gate and up side by side."""
        joint, width = _halves(joint_N2W)
        out = joint.new_empty(len(joint), width)
        self._call("swiglu", joint.dtype, joint, len(joint), width, out)
        return out

    def swiglu_back(self, joint_N2W: Tensor, dy_NW: Tensor) -> Tensor:
        """Return the derivative of `swiglu`, times dy."""
        joint, width = _halves(joint_N2W)
        must_be("dy", dy_NW, joint.dtype, (len(joint), width), anyhow=True)
        dy, out = rows_of(dy_NW), torch.empty_like(joint)
        self._call("swiglu_back", joint.dtype, joint, dy, dy.stride(0), len(joint), width, out)
        return out

    def rotate(self, x_NXD: Tensor, cos_N1D: Tensor, sin_N1D: Tensor, sign: int) -> Tensor:
        """Rotate half-split heads by the angles of their positions, or back if sign is -1."""
        x = heads_of("x", x_NXD)
        count, heads, size = x.shape
        if size % 2:
            raise ValueError(f"heads of {size} numbers have no halves")
        for angles in (cos_N1D, sin_N1D):
            must_be("the angles", angles, x.dtype, (count, 1, size // 2), anyhow=True)
        out = torch.empty(x.shape, dtype=x.dtype)
        cos, sin = cos_N1D.contiguous(), sin_N1D.contiguous()
        self._call(
            "rotate", x.dtype, x, x.stride(0), cos, sin, size // 2, float(sign), count, heads, size // 2, out
        )
        return out

    def add_low_rank(self, y_NO: Tensor, x_NI: Tensor, adapter: LowRank) -> None:
        """Add (x A^T) B^T to y in place, for all parts of an adapter; torch is faster for many rows."""
        x = rows_of(x_NI).contiguous()
        must_be("x", x_NI, x.dtype, (len(x), adapter.inputs), anyhow=True)
        columns = rows_of(y_NO).shape[1]
        if columns < adapter.outputs:
            raise ValueError(f"y has {columns} columns, and the adapter {adapter.outputs}")
        must_be("y", y_NO, x.dtype, (len(x), columns))
        down, up, parts = adapter.layout
        self._call(
            *("low_rank", x.dtype, x, *x.shape, down, down.shape[1], up, parts, len(parts)),
            *(y_NO, columns),
        )

    def decode(  # noqa: PLR0913 - tensors that attention reads and writes
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
        """Return [R, H, D]: attention of one new token per row to its prompt and to its earlier tokens.

        Args:
            q_RHD: queries, with a head size of `HEAD_SIZES`.
            k_RKD: keys of the new token; they are appended to the row's keys.
            v_RKD: values of the new token; they are appended to the row's values.
            prompt: keys and values of the prompts, [B, K, P, D].
            own: keys and values of the rows, [R, K, T, D], with room for one more token.
            lengths: [B] prompt tokens and [R] own tokens before this one, int64.
            tasks: which row continues which prompt.
            scale: factor of the attention scores.
        """
        q, k, v = heads_of("queries", q_RHD), heads_of("keys", k_RKD), heads_of("values", v_RKD)
        rows, heads, size = q.shape
        kv, prompts = k.shape[1], len(lengths[0])
        _must_have_code(size, heads, kv)
        must_be("keys", k, q.dtype, (rows, kv, size), anyhow=True)
        must_be("values", v, q.dtype, (rows, kv, size), anyhow=True)
        for part in prompt:
            must_be("a prompt's keys or values", part, q.dtype, (prompts, kv, _room(prompt), size))
        for part in own:
            must_be("own keys or values", part, q.dtype, (rows, kv, _room(own), size))
        must_be("prompt lengths", lengths[0], torch.int64, (prompts,))
        must_be("own lengths", lengths[1], torch.int64, (rows,))
        of_prompts, row_of = tasks.layout
        must_be("rows of tasks", row_of, torch.int64, (rows,))
        out = q.new_empty(rows, heads, size)
        self._call(
            *("decode", q.dtype, q, k, v, q.stride(0), k.stride(0), v.stride(0)),
            *(*prompt, prompt[0].shape[2], *own, own[0].shape[2], *lengths),
            *(of_prompts, row_of, len(of_prompts), prompts, rows, heads, kv, size, scale, out),
        )
        return out

    def prefill(
        self, q_NHD: Tensor, prompt: tuple[Tensor, Tensor], queries_3B: Tensor, count: int, scale: float
    ) -> Tensor:
        """Return [count, H, D]: causal attention of tokens to the prompts that they belong to.

        Args:
            q_NHD: queries in a flat row, with a head size of `HEAD_SIZES`.
            prompt: keys and values of the prompts, [B, K, P, D], including those of the queries' tokens.
            queries_3B: for each prompt, start and number of its queries in the flat row, and the position of
                the first; int64.
            count: number of all queries, which are the first of the flat row.
            scale: factor of the attention scores.
        """
        q = heads_of("queries", q_NHD)
        rows, heads, size = q.shape
        keys, values = (dense("a prompt's keys or values", part) for part in prompt)
        if keys.dim() != 4 or not 0 <= count <= rows:
            raise ValueError(f"{count} of {rows} queries, and keys of prompts that are {tuple(keys.shape)}")
        prompts, kv, room = keys.shape[:3]
        _must_have_code(size, heads, kv)
        for part in (keys, values):
            must_be("a prompt's keys or values", part, q.dtype, (prompts, kv, room, size))
        must_be("places of queries", queries_3B, torch.int64, (3, prompts))
        out = q.new_empty(count, heads, size)
        self._call(
            *("prefill", q.dtype, q, q.stride(0), keys, values, room, *queries_3B),
            *(prompts, count, heads, kv, size, scale, out),
        )
        return out

    def chunk_sums(self, scores_RV: Tensor, chunk: int) -> tuple[Tensor, Tensor]:
        """Return [R, 1] largest score per row, and [R, C] sums of exp(score - largest) per chunk; float32."""
        scores = rows_of(scores_RV)
        rows, vocabulary = scores.shape
        if chunk < 1:
            raise ValueError(f"chunks of {chunk} tokens")
        top_R1, sums_RC = torch.empty(rows, 1), torch.empty(rows, -(-vocabulary // chunk))
        self._call(
            "chunk_sums", scores.dtype, scores, scores.stride(0), rows, vocabulary, chunk, top_R1, sums_RC
        )
        return top_R1, sums_RC


class InTorch:
    """The operations of `Kernels` in torch, for any device."""

    def norm(self, x: Tensor, weight_W: Tensor, eps: float) -> tuple[Tensor, Tensor]:
        """Return the RMS norm x / sqrt(mean(x^2) + eps) * weight, and 1 / sqrt(...) in float32."""
        wide = x.float()
        inverse = wide.square().mean(-1, keepdim=True).add_(eps).rsqrt_()
        scaled = wide * inverse
        return scaled.to(x.dtype).mul_(weight_W), inverse

    def norm_back(self, x: Tensor, weight_W: Tensor, inverse: Tensor, dy: Tensor) -> Tensor:
        """Return the derivative of `norm` with respect to x, times dy."""
        wide, weighted = x.float(), (dy * weight_W).float()
        share = (weighted * wide).mean(-1, keepdim=True).mul_(inverse.pow(3))
        return weighted.mul_(inverse).addcmul_(wide, share, value=-1).to(x.dtype)

    def swiglu(self, joint_N2W: Tensor) -> Tensor:
        """Return [N, W]: silu(gate) * up, from gate and up side by side."""
        gate, up = joint_N2W.chunk(2, -1)
        return nn.functional.silu(gate).mul_(up)

    def swiglu_back(self, joint_N2W: Tensor, dy_NW: Tensor) -> Tensor:
        """Return the derivative of `swiglu`, times dy."""
        gate, up = joint_N2W.chunk(2, -1)
        out = torch.empty_like(joint_N2W)
        d_gate, d_up = out.chunk(2, -1)
        torch.mul(nn.functional.silu(gate), dy_NW, out=d_up)
        torch.ops.aten.silu_backward.grad_input(dy_NW * up, gate, grad_input=d_gate)
        return out

    def rotate(self, x_NXD: Tensor, cos_N1D: Tensor, sin_N1D: Tensor, sign: int) -> Tensor:
        """Rotate half-split heads by the angles of their positions, or back if sign is -1."""
        left, right = x_NXD.chunk(2, -1)
        out = torch.empty_like(x_NXD, memory_format=torch.contiguous_format)
        out_left, out_right = out.chunk(2, -1)
        torch.mul(left, cos_N1D, out=out_left).addcmul_(right, sin_N1D, value=-sign)
        torch.mul(right, cos_N1D, out=out_right).addcmul_(left, sin_N1D, value=sign)
        return out


class Tasks:
    """Rows sorted by prompt, in pieces that one thread processes together.

    Args:
        prompt_of_R: the index of each row's prompt.
    """

    def __init__(self, prompt_of_R: Sequence[int]) -> None:
        order = sorted(range(len(prompt_of_R)), key=prompt_of_R.__getitem__)
        tasks: list[list[int]] = []
        for place, row in enumerate(order):
            prompt = prompt_of_R[row]
            if tasks and tasks[-1][0] == prompt and place - tasks[-1][1] < _ROWS_OF_A_TASK:
                tasks[-1][2] = place + 1
            else:
                tasks.append([prompt, place, place + 1])
        self.layout = torch.tensor(tasks, dtype=torch.int64), torch.tensor(order, dtype=torch.int64)
        """[tasks, 3] prompt, and start and end of its rows in the second tensor; [R] the rows in order."""


class LowRank:
    """The adapters of joint projections, in the memory layout of `Kernels.add_low_rank`.

    Args:
        downs: A of each adapter, [r, I].
        ups: B of each adapter, [O, r].
        scales: the factor of each adapter.
        starts: the first column of each adapter in the joint result.

    Raises:
        ValueError: the shapes do not match.
    """

    def __init__(
        self, downs: Sequence[Tensor], ups: Sequence[Tensor], scales: Sequence[float], starts: Sequence[int]
    ) -> None:
        for down, up, start in zip(downs, ups, starts, strict=True):
            shape = len(down), downs[0].shape[-1]
            if down.shape != shape or up.shape != (len(up), len(down)) or start < 0:
                raise ValueError(
                    f"A is {tuple(down.shape)}, the first A {tuple(downs[0].shape)}, B {tuple(up.shape)} at "
                    f"column {start}"
                )
        down_rI = torch.cat([down.detach().to("cpu", torch.float32) for down in downs])
        turned = [
            (up.detach().to("cpu", torch.float32) * scale).T.flatten()
            for up, scale in zip(ups, scales, strict=True)
        ]
        parts, rank, begin = [], 0, 0
        for up, start in zip(ups, starts, strict=True):
            parts.append([start, up.shape[0], rank, up.shape[1], begin])
            rank, begin = rank + up.shape[1], begin + up.numel()
        self.inputs = down_rI.shape[1]
        self.outputs = max(part[0] + part[1] for part in parts)
        """Minimum number of columns of the result."""
        self.layout = (
            nn.functional.pad(down_rI.T, (0, -rank % _LANES)).contiguous(),
            nn.functional.pad(torch.cat(turned), (0, _LANES)),
            torch.tensor(parts),
        )
        """A transposed; all B transposed and scaled; and for each part its first column, number of columns,
        first rank, number of ranks, and start of its B."""


def _halves(joint_N2W: Tensor) -> tuple[Tensor, int]:
    """Return rows of two halves side by side, and the width of a half."""
    joint = dense("gate and up", joint_N2W)
    if joint.dim() != 2 or joint.shape[1] % 2:
        raise ValueError(f"gate and up are {tuple(joint.shape)}, not rows of two halves")
    return joint, joint.shape[1] // 2


def _room(keys_and_values: tuple[Tensor, Tensor]) -> int:
    """Return the capacity in tokens; -1, which matches no shape, if these are not keys and values."""
    keys = keys_and_values[0]
    return keys.shape[2] if isinstance(keys, Tensor) and keys.dim() == 4 else -1


def _must_have_code(size: int, heads: int, key_heads: int) -> None:
    if size not in HEAD_SIZES:
        raise ValueError(f"there is code for heads of {sorted(HEAD_SIZES)} alone, not of {size}")
    if key_heads < 1 or heads % key_heads:
        raise ValueError(f"{heads} query heads cannot share {key_heads} key heads")
