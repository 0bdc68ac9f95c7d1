"""Compiled code says what torch says."""

from __future__ import annotations

import time

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from genenv.backends.local.cpu.kernels import HEAD_SIZES, InTorch, LowRank, Tasks
from genenv.backends.local.fused_decoder import _Norm, _Rotate, _SwiGlu
from genenv.backends.local.next_token import _chunk_sums
from genenv.backends.local.packing import Bundle, Packed
from genenv.sampling import SampleRequest
from tensors import DTYPES, close, compiled, random


@compiled
@given(
    rows=st.integers(1, 5),
    width=st.integers(1, 70),
    dtype=st.sampled_from(DTYPES),
    seed=st.integers(0, 99),
)
def test_norm_and_activation_equal_those_of_torch_forwards_and_backwards(kernels, rows, width, dtype, seed):
    weight, dy = random(width, seed=seed, dtype=dtype), random(rows, width, seed=seed + 1, dtype=dtype)
    narrow = random(rows, 2 * width, seed=seed + 2, dtype=dtype)
    cases = [
        (narrow[:, width:], lambda x, code: _Norm.apply(x, weight, 1e-5, code)),  # rows that are not dense
        (narrow, lambda x, code: _SwiGlu.apply(x, code)),
    ]
    for value, function in cases:
        results = []
        for code in (kernels, InTorch()):
            x = (
                value.clone().detach().requires_grad_()
                if code is not kernels
                else value.detach().requires_grad_()
            )
            y = function(x, code)
            results.append((y.detach(), torch.autograd.grad(y, x, dy)[0]))
        for found, expected in zip(*results, strict=True):
            close(found, expected)


@compiled
@given(
    rows=st.integers(1, 4), heads=st.integers(1, 3), half=st.integers(1, 40), dtype=st.sampled_from(DTYPES)
)
def test_rotation_equals_that_of_torch_forwards_and_backwards(kernels, rows, heads, half, dtype):
    wide = random(rows, heads + 2, 2 * half, seed=rows, dtype=dtype)
    angles = random(rows, 1, 2 * half, seed=heads)
    cos, sin = (function(angles).to(dtype)[..., :half] for function in (torch.cos, torch.sin))
    results = []
    for code in (kernels, InTorch()):
        x = wide[:, :heads].detach().requires_grad_()
        y = _Rotate.apply(x, cos, sin, code)
        results.append((y.detach(), torch.autograd.grad(y, x, torch.ones_like(y))[0]))
    for found, expected in zip(*results, strict=True):
        close(found, expected)


@compiled
@given(
    rows=st.integers(1, 20),
    inputs=st.integers(1, 50),
    ranks=st.lists(st.integers(1, 20), min_size=1, max_size=3),
    dtype=st.sampled_from(DTYPES),
)
def test_an_adapters_share_equals_that_of_torch(kernels, rows, inputs, ranks, dtype):
    outputs = [7 + 12 * part for part in range(len(ranks))]
    downs = [random(rank, inputs, seed=rank) for rank in ranks]
    ups = [random(width, rank, seed=width) for width, rank in zip(outputs, ranks, strict=True)]
    x, y = random(rows, inputs, seed=1, dtype=dtype), random(rows, 80, seed=2, dtype=dtype)
    starts = [3, 15, 40][: len(ranks)]
    expected = y.float()
    for start, down, up in zip(starts, downs, ups, strict=True):
        expected[:, start : start + len(up)] += 0.5 * (x.float() @ down.T) @ up.T
    kernels.add_low_rank(y, x, LowRank(downs, ups, [0.5] * len(ranks), starts))
    close(y, expected)


@compiled
@given(
    prompts=st.lists(st.integers(1, 40), min_size=1, max_size=3),
    rows=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 20)), min_size=1, max_size=20),
    size=st.sampled_from(sorted(HEAD_SIZES)),
    heads=st.sampled_from([(1, 1), (3, 3), (6, 2), (9, 3)]),
    dtype=st.sampled_from(DTYPES),
)
def test_attention_of_a_new_token_equals_that_of_torch(kernels, prompts, rows, size, heads, dtype):
    queries, kv = heads
    of_row = [b % len(prompts) for b, _ in rows]
    seen = [count for _, count in rows]
    q = random(len(rows), queries, size, seed=1, dtype=dtype)
    k, v = (random(len(rows), kv, size, seed=seed, dtype=dtype) for seed in (2, 3))
    before = tuple(random(len(prompts), kv, max(prompts), size, seed=seed, dtype=dtype) for seed in (4, 5))
    own = tuple(random(len(rows), kv, max(seen) + 3, size, seed=seed, dtype=dtype) for seed in (6, 7))
    for i in (0, 1):  # must not be read
        for b, length in enumerate(prompts):
            before[i][b, :, length:] = float("nan")
        for r, count in enumerate(seen):
            own[i][r, :, count:] = float("nan")
    found = kernels.decode(
        q,
        k,
        v,
        before,
        own,
        (torch.tensor(prompts), torch.tensor(seen)),
        Tasks(of_row),
        0.2,
    )
    for r, (b, count) in enumerate(zip(of_row, seen, strict=True)):
        keys, values = (
            torch.cat([before[i][b, :, : prompts[b]], own[i][r, :, :count], new[r, :, None]], 1).float()
            for i, new in enumerate((k, v))
        )
        scores = q[r].float().view(kv, -1, size) @ keys.transpose(1, 2) * 0.2
        close(found[r], (scores.softmax(-1) @ values).view(queries, size))
        assert torch.equal(own[0][r, :, count], k[r])
        assert torch.equal(own[1][r, :, count], v[r])


@compiled
@given(
    lengths=st.lists(st.tuples(st.integers(1, 150), st.integers(0, 150)), min_size=1, max_size=3),
    size=st.sampled_from(sorted(HEAD_SIZES)),
    heads=st.sampled_from([(1, 1), (3, 3), (6, 2), (9, 3)]),
    dtype=st.sampled_from(DTYPES),
)
def test_attention_of_prompts_equals_that_of_torch(kernels, lengths, size, heads, dtype):
    """The queries are those of each prompt's last tokens: others were seen before, or belong to another."""
    queries, kv = heads
    starts = [min(start, length) for length, start in lengths]
    counts = [length - start for (length, _), start in zip(lengths, starts, strict=True)]
    begins = [sum(counts[:b]) for b in range(len(counts))]
    q = random(sum(counts) + 2, queries + 3, size, seed=1, dtype=dtype)[:, :queries]
    longest = max(length for length, _ in lengths)
    before = tuple(random(len(lengths), kv, longest + 1, size, seed=seed, dtype=dtype) for seed in (2, 3))
    for part in before:
        for b, (length, _) in enumerate(lengths):
            part[b, :, length:] = float("nan")  # must not be read
    found = kernels.prefill(q, before, torch.tensor([begins, counts, starts]), sum(counts), 0.2)
    assert len(found) == sum(counts)
    for b, (length, _) in enumerate(lengths):
        if counts[b] == 0:
            continue
        own = slice(begins[b], begins[b] + counts[b])
        keys, values = (part[b, :, :length].float().repeat_interleave(queries // kv, 0) for part in before)
        scores = q[own].float().transpose(0, 1) @ keys.transpose(1, 2) * 0.2
        unseen = torch.ones(counts[b], length, dtype=torch.bool).triu(starts[b] + 1)
        weights = scores.masked_fill(unseen, float("-inf")).softmax(-1)
        close(found[own], (weights @ values).transpose(0, 1))


@compiled
@given(
    rows=st.integers(1, 4),
    vocabulary=st.integers(1, 700),
    chunk=st.integers(1, 300),
    least=st.sampled_from([-3.0, -300.0, float("-inf")]),
    dtype=st.sampled_from(DTYPES),
)
def test_sums_over_chunks_of_the_vocabulary_equal_those_of_torch(
    kernels, rows, vocabulary, chunk, least, dtype
):
    scores = random(rows, vocabulary, seed=vocabulary, dtype=dtype) * 4
    scores[:, 1::3] = least
    scores[:, : vocabulary // 2] = least
    scores[:, -1] = 2.0
    for found, expected in zip(kernels.chunk_sums(scores, chunk), _chunk_sums(scores, chunk), strict=True):
        close(found, expected)


@pytest.mark.long
@compiled
@pytest.mark.parametrize("kind", ["llama", "qwen2", "qwen3"])
def test_sampling_and_log_probabilities_are_the_same_with_and_without_compiled_code(tiny, kind):
    asked = [
        SampleRequest(prompt_ids=tuple(range(3, 9 + i % 4)), max_tokens=9 + i, stream=i) for i in range(9)
    ]
    found, logprobs = [], []
    for use in (True, False):
        player = tiny.player(kind, noise=0.05, compiled=use)
        assert (player.model.kernels is not None) is use
        found.append(player.sample_all(asked))
        packed = Packed([Bundle(prompt_ids=range(3, 30), completions=[range(9, 14)])], torch.device("cpu"))
        logprobs.append(player.weights.logprobs(packed))
    for one, other in zip(*found, strict=True):
        assert one.token_ids == other.token_ids
        assert one.logprobs == pytest.approx(other.logprobs, abs=1e-4)
    torch.testing.assert_close(*logprobs, atol=1e-5, rtol=0)


@pytest.mark.long
@compiled
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_the_number_of_threads_changes_no_sample(tiny, kind):
    """Attention alone has enough to do here for two threads; for the others see the next test."""
    before = torch.get_num_threads()
    asked = [SampleRequest(prompt_ids=tuple(range(3, 9 + i)), max_tokens=20, stream=i) for i in range(9)]
    found = []
    try:
        for threads in (1, 2):
            player = tiny.player(kind, noise=0.05, threads=threads)
            assert torch.get_num_threads() == threads
            found.append([(one.token_ids, one.logprobs) for one in player.sample_all(asked)])
    finally:
        torch.set_num_threads(before)
    for (ids, logprobs), (other_ids, other_logprobs) in zip(*found, strict=True):
        assert ids == other_ids
        assert logprobs == pytest.approx(other_logprobs, abs=1e-4)


@compiled
def test_the_number_of_threads_changes_no_number(kernels):
    before = torch.get_num_threads()
    x, weight = random(600, 130, seed=1), random(130, seed=2)
    adapter = LowRank([random(5, 130, seed=3)], [random(130, 5, seed=4)], [0.5], [0])
    found = []
    try:
        for threads in (1, 2):
            torch.set_num_threads(threads)
            y = x.clone()
            kernels.add_low_rank(y, x, adapter)
            found.append([y, *kernels.norm(x, weight, 1e-5), kernels.swiglu(x), *kernels.chunk_sums(x, 50)])
    finally:
        torch.set_num_threads(before)
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)


@compiled
def test_attention_of_prompts_is_compiled_as_fast_code(kernels):
    """Without the right instructions it takes fourteen times as long as torch, and says the same."""
    prompts, heads, key_heads, length, size = 4, 6, 2, 256, 64
    keys, values = (random(prompts, key_heads, length, size, seed=seed) for seed in (0, 1))
    queries = random(prompts * length, heads, size, seed=2)
    places_3B = torch.tensor([[b * length for b in range(prompts)], [length] * prompts, [0] * prompts])
    q_BHSD = queries.reshape(prompts, length, heads, size).transpose(1, 2)
    mask = torch.ones(length, length, dtype=torch.bool).tril()

    def ours():
        return kernels.prefill(queries, (keys, values), places_3B, len(queries), 0.1)

    def theirs():
        return torch.nn.functional.scaled_dot_product_attention(
            q_BHSD, keys, values, attn_mask=mask, enable_gqa=True, scale=0.1
        )

    close(ours(), theirs().transpose(1, 2).flatten(0, 1))
    least = [min(_own_time(work) for _ in range(5)) for work in (ours, theirs)]
    assert least[0] < 5 * least[1]


def _own_time(work) -> float:
    start = time.process_time()
    work()
    return time.process_time() - start
