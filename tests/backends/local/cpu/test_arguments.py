"""Whatever compiled code is given, it reads nothing but the tensors: what does not fit is one sentence."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from torch import Tensor

from genenv.backends.local.cpu.kernels import LowRank, Tasks
from tensors import DTYPES, compiled, random

R, H, K, D, B, P, T, W = 3, 4, 2, 16, 2, 5, 6, 20
"""Rows, query heads, key heads, head size, prompts, prompt tokens, room for own tokens, width."""
LEAST, MOST = -(2**63), 2**63 - 1
CALLS = {
    "norm": lambda kernels, *given: kernels.norm(*given, 1e-5),
    "norm_back": lambda kernels, *given: kernels.norm_back(*given),
    "swiglu_back": lambda kernels, *given: kernels.swiglu_back(*given),
    "rotate": lambda kernels, *given: kernels.rotate(*given, 1),
    "low_rank": lambda kernels, y, x: kernels.add_low_rank(y, x, adapter()),
    "decode": lambda kernels, q, k, v, pk, pv, ok, ov, before, own: kernels.decode(
        q, k, v, (pk, pv), (ok, ov), (before, own), Tasks([0, 1, 1]), 0.2
    ),
    "prefill": lambda kernels, q, pk, pv, at: kernels.prefill(q, (pk, pv), at, R, 0.2),
}
"""How each function is called with its tensors."""
FREE = {("norm", 0, 0), ("rotate", 0, 1)}
"""What may have any size: (function, tensor, dimension)."""
ROOM = {("low_rank", 0, 1), ("prefill", 0, 0)}
"""What may be larger than it must be."""


def adapter() -> LowRank:
    return LowRank([random(3, W, seed=1)], [random(7, 3, seed=2)], [0.5], [2])


def tensors_of(name: str, dtype: torch.dtype) -> list[Tensor]:
    """What a function may be given."""

    def some(*shape: int) -> Tensor:
        return random(*shape, seed=len(shape), dtype=dtype)

    prompts, own, heads = [some(B, K, P, D)] * 2, [some(R, K, T, D), some(R, K, T, D)], some(R, H, D)
    return {
        "norm": [some(R, W), some(W)],
        "norm_back": [some(R, W), some(W), random(R, 1, seed=3), some(R, W)],
        "swiglu_back": [some(R, 2 * W), some(R, W)],
        "rotate": [heads, some(R, 1, D // 2), some(R, 1, D // 2)],
        "low_rank": [some(R, 9), some(R, W)],
        "decode": [
            *(heads, some(R, K, D), some(R, K, D), *prompts, *own),
            *(torch.tensor([P, 2]), torch.tensor([0, 1, T - 1])),
        ],
        "prefill": [heads, *prompts, torch.tensor([[0, 2], [2, 1], [3, 0]])],
    }[name]


def spoilt(tensor: Any, how: str, dim: int) -> object:
    """Something else in a tensor's place."""
    if how == "shorter":
        return tensor.narrow(dim, 0, tensor.shape[dim] - 1).contiguous()
    if how == "longer":
        return torch.cat([tensor, tensor.narrow(dim, 0, 1)], dim)
    other = torch.int32 if tensor.dtype == torch.int64 else torch.float16
    changes: dict[str, Callable[[], object]] = {
        "format": lambda: tensor.to(other),
        "double": lambda: tensor.double(),
        "flat": lambda: tensor.flatten()[:1].squeeze(),
        "deeper": lambda: tensor[None, None, None],
        "list": tensor.tolist,
        "nothing": lambda: None,
        "elsewhere": lambda: tensor.to("meta"),
        "sparse": tensor.to_sparse,
    }
    return changes[how]()


HOW = ("shorter", "longer", "format", "double", "flat", "deeper", "list", "nothing", "elsewhere", "sparse")


@compiled
@given(st.data(), st.sampled_from(sorted(CALLS)), st.sampled_from(DTYPES), st.sampled_from(HOW))
def test_a_tensor_that_does_not_fit_the_others_is_refused(kernels, data, name, dtype, how):
    tensors: list[Any] = tensors_of(name, dtype)
    CALLS[name](kernels, *(tensor.clone() for tensor in tensors))  # as they are, they are taken
    place = data.draw(st.integers(0, len(tensors) - 1))
    dim = data.draw(st.integers(0, tensors[place].dim() - 1))
    assume(not ((name, place, dim) in FREE and how in ("shorter", "longer")))
    assume(not ((name, place, dim) in ROOM and how == "longer"))
    assume(not (name == "norm" and place == 0 and how == "deeper"))  # of whatever dimensions
    tensors[place] = spoilt(tensors[place], how, dim)
    with pytest.raises((TypeError, ValueError)):
        CALLS[name](kernels, *tensors)


@compiled
@pytest.mark.parametrize(("name", "place"), [("low_rank", 0), ("decode", 5), ("decode", 6), ("norm", 1)])
def test_what_is_written_or_read_as_a_whole_must_have_no_gaps(kernels, name, place):
    tensors = tensors_of(name, torch.float32)
    wide = torch.cat([tensors[place]] * 2, -1)
    tensors[place] = wide[..., ::2] if place == 1 else wide[..., : tensors[place].shape[-1]]
    with pytest.raises(ValueError, match="must be contiguous"):
        CALLS[name](kernels, *tensors)


@compiled
@pytest.mark.parametrize("how", ["format", "flat", "list", "nothing", "elsewhere", "sparse"])
@pytest.mark.parametrize("name", ["swiglu", "chunk_sums"])
def test_functions_of_one_tensor_take_rows_of_their_formats_alone(kernels, name, how):
    wrong = spoilt(random(R, W, seed=1), how, 0)
    with pytest.raises((TypeError, ValueError)):
        kernels.swiglu(wrong) if name == "swiglu" else kernels.chunk_sums(wrong, 5)


@compiled
def test_sizes_that_make_no_sense_are_refused(kernels):
    x, heads, prompts = random(R, W, seed=1), random(R, H, D, seed=2), (random(B, K, P, D, seed=3),) * 2
    at = torch.tensor([[0, 2], [2, 1], [3, 0]])
    for call, sentence in (
        (lambda: kernels.swiglu(x[:, :3]), "two halves"),
        (lambda: kernels.chunk_sums(x, 0), "chunks of 0"),
        (lambda: kernels.chunk_sums(x[:, :0], 3), "must have rows"),
        (lambda: kernels.rotate(heads[..., :3], heads[:, :1, :1], heads[:, :1, :1], 1), "no halves"),
        (lambda: kernels.prefill(heads, prompts, at, R + 1, 0.2), "4 of 3 queries"),
        (lambda: kernels.prefill(heads, prompts, at, -1, 0.2), "-1 of 3 queries"),
        (lambda: kernels.prefill(heads[:, :3], prompts, at, R, 0.2), "3 query heads cannot share 2"),
        (lambda: kernels.prefill(heads[..., :8], prompts, at, R, 0.2), "not of 8"),
        (lambda: LowRank([x], [random(7, 2, seed=1)], [1.0], [0]), r"A is \(3, 20\)"),
        (lambda: LowRank([x], [random(7, 3, seed=1)], [1.0], [-1]), "at column -1"),
        (lambda: LowRank([x, x[:, 1:]], [random(7, 3, seed=1)] * 2, [1.0] * 2, [0, 9]), r"A is \(3, 19\)"),
    ):
        with pytest.raises(ValueError, match=sentence):
            call()


anything = st.one_of(st.integers(-2, 8), st.integers(LEAST, MOST))


@compiled
@given(st.lists(anything, min_size=B, max_size=B), st.lists(anything, min_size=R, max_size=R))
def test_a_new_token_that_would_be_written_or_read_elsewhere_is_refused(kernels, prompts, own):
    *tensors, _, _ = tensors_of("decode", torch.float32)
    arguments = [*(tensor.clone() for tensor in tensors), torch.tensor(prompts), torch.tensor(own)]
    if all(0 <= length <= P for length in prompts) and all(0 <= length < T for length in own):
        CALLS["decode"](kernels, *arguments)
    else:
        with pytest.raises(ValueError, match="point beyond the tensors"):
            CALLS["decode"](kernels, *arguments)


@compiled
@given(st.lists(st.integers(-2, 4), min_size=R, max_size=R))
def test_rows_of_prompts_that_are_not_there_are_refused(kernels, of_row):
    q, k, v, pk, pv, ok, ov, before, own = tensors_of("decode", torch.float32)
    arguments = q, k, v, (pk, pv), (ok.clone(), ov.clone()), (before, own), Tasks(of_row), 0.2
    if all(0 <= prompt < B for prompt in of_row):
        kernels.decode(*arguments)
    else:
        with pytest.raises(ValueError, match="point beyond the tensors"):
            kernels.decode(*arguments)


@compiled
@given(st.lists(anything, min_size=3 * B, max_size=3 * B))
def test_queries_beyond_their_prompts_or_the_flat_row_are_refused(kernels, numbers):
    q, keys, values, _ = tensors_of("prefill", torch.float32)
    at = torch.tensor(numbers).view(3, B)
    fits = all(
        begin >= 0 and count >= 0 and begin + count <= R and first >= 0 and first + count <= P
        for begin, count, first in zip(*at.tolist(), strict=True)
    )
    if fits:
        kernels.prefill(q, (keys, values), at, R, 0.2)
    else:
        with pytest.raises(ValueError, match="point beyond the tensors"):
            kernels.prefill(q, (keys, values), at, R, 0.2)
