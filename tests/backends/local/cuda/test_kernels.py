"""The Triton kernels say what their meaning in torch says: in Triton's interpreter, or on a CUDA device."""

from __future__ import annotations

import pytest
import torch

from genenv.backends.local.cuda.kv_pages import PAGE, RowState, Seat, pages_for
from torch_ops import TorchOps

ops_module = pytest.importorskip("genenv.backends.local.cuda.kernels", reason="Triton is not here")
CUDA = torch.cuda.is_available()
DEVICE = torch.device("cuda" if CUDA else "cpu")
RANK, WIDTH, INNER, CONTEXT = 4, 48, 96, 200


HEADS = [(4, 2, 32), (7, 1, 64), (2, 2, 32)]


@pytest.fixture(params=HEADS, ids=str)
def setting(request):
    torch.manual_seed(0)
    heads = ops_module.Heads(queries=request.param[0], keys=request.param[1], size=request.param[2])
    lengths = [(0, 1), (3, 5), (3, 70), (64, 64), (130, 2), (3, 1)]
    rows = len(lengths) + 2
    state = RowState(rows, pages_for(CONTEXT) + 2, 100, heads.rows_of_a_tile, DEVICE)
    prompts: dict[int, list[int]] = {}
    page = iter(range(1, 64))
    seats = []
    for prompt, drawn in lengths:
        own = prompts.setdefault(prompt, [next(page) for _ in range(pages_for(prompt))])
        pages = [*own, *(next(page) for _ in range(pages_for(drawn)))]
        seats.append(
            Seat(token=prompt + drawn, drawn=drawn, left=3, prompt_tokens=prompt, pages=pages, prompt=own,
                 temperature=1.0, choices=False)
        )  # fmt: skip
    state.seat(seats, rows)
    pages = tuple(torch.randn(64, heads.keys, PAGE, heads.size, device=DEVICE) for _ in range(2))
    return heads, state, pages, len(lengths)


def both(setting):
    heads = setting[0]
    return ops_module.TritonOps(heads, RANK), TorchOps(heads, RANK)


def test_heads_are_normed_turned_and_written_to_their_pages(setting):
    heads, state, pages, rows = setting
    total = (heads.queries + 2 * heads.keys) * heads.size
    joint = torch.randn(rows + 2, total + 3 * RANK, device=DEVICE)
    up = torch.randn(total, RANK, device=DEVICE)
    norms = (*(torch.randn(heads.size, device=DEVICE) for _ in range(2)), 1e-5)
    angles = tuple(torch.randn(CONTEXT + 1, heads.size // 2, device=DEVICE) for _ in range(2))
    for own_norms in (norms, None):
        found = []
        for ops in both(setting):
            store = tuple(page.clone() for page in pages)
            query = ops.split(joint, up, own_norms, angles, store, state)
            found.append((query[:rows], *(s[1:] for s in store)))  # page 0 is of nobody
        for one, other in zip(*found, strict=True):
            torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)


@pytest.mark.long
def test_attention_sees_the_prompt_and_the_row_itself(setting, monkeypatch):
    heads, state, pages, rows = setting
    query = torch.randn(rows + 2, heads.queries, heads.size, device=DEVICE)
    for programs in (1, 256):  # in one piece, and split over the length
        monkeypatch.setattr(ops_module, "_PROGRAMS", programs)
        one, other = (ops.attend(query, pages, state, 0.3)[:rows] for ops in both(setting))
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)


def test_residual_norm_and_gate(setting):
    state = setting[1]
    rows = 5
    joint = torch.randn(rows, WIDTH + RANK, device=DEVICE)
    up, weight = torch.randn(RANK, WIDTH, device=DEVICE), torch.randn(WIDTH, device=DEVICE)
    embedding = torch.randn(300, WIDTH, device=DEVICE)
    wide, second = (
        torch.randn(rows, 2 * INNER + 2 * RANK, device=DEVICE),
        torch.randn(2 * INNER, RANK, device=DEVICE),
    )
    found = []
    for ops in both(setting):
        residual = torch.empty(rows, WIDTH, device=DEVICE)
        first = ops.embed(embedding, state, residual, (weight, 1e-5))
        then = ops.join(joint, up, residual, (weight, 1e-5))
        found.append((first, then, residual, ops.gate(wide, second, INNER)))
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, atol=2e-5, rtol=1e-4)


@pytest.mark.long
@pytest.mark.parametrize("held", [False, True])
def test_drawing(monkeypatch, held):
    monkeypatch.setattr(ops_module, "_CHUNK", 64)
    torch.manual_seed(1)
    rows, vocabulary = 40, 300
    heads = ops_module.Heads(queries=2, keys=1, size=32)
    scores = 3 * torch.randn(rows, vocabulary, device=DEVICE)
    found = []
    for ops in (ops_module.TritonOps(heads, RANK), TorchOps((2, 1, 32), RANK)):
        state = RowState(rows, 2, vocabulary, heads.rows_of_a_tile, DEVICE)
        seats = [
            Seat(token=1, drawn=3, left=i % 3, prompt_tokens=2, pages=[1], prompt=None,
                 temperature=(0.0, 0.7, 1.0)[i % 3 if i < 30 else 1], choices=i % 5 == 0)
            for i in range(rows)
        ]  # fmt: skip
        state.seat(seats, rows)
        generator = torch.Generator().manual_seed(2)
        state.put_uniform(torch.rand(rows, 2, generator=generator).numpy())
        state.mask_RV.copy_(
            torch.randint(-(2**31), 2**31, state.mask_RV.shape, generator=generator, dtype=torch.int64)
        )
        state.least_R[::4] = -1.0
        state.end_at({17, *range(0, vocabulary, 9), -1, vocabulary})
        for step in range(2):
            ops.draw(scores, state, step, 0, held=held)
        found.append(
            (state.out_token_SR[:2], state.token_R, state.drawn_R, state.left_R, state.out_logprob_SR[:2])
        )
    (*exact, one), (*wanted, other) = found
    for a, b in zip(exact, wanted, strict=True):
        assert a.tolist() == b.tolist()
    drawn = exact[0] >= 0
    torch.testing.assert_close(one[drawn], other[drawn], atol=1e-4, rtol=1e-4)
