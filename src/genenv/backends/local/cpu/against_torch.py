# pyright: standard
"""Compiled code held to torch on small inputs, before it is used."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor, nn

from genenv.backends.local.cpu.kernels import Kernels, LowRank, Tasks


class WrongResult(Exception):
    """Compiled code says something else than torch."""


def check(kernels: Kernels) -> None:
    """Hold the functions to torch on small inputs of both number formats.

    Raises:
        WrongResult: one of them says something else.
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
