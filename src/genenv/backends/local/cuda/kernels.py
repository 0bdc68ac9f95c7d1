# pyright: basic, reportArgumentType=false, reportCallIssue=false, reportOperatorIssue=false
# pyright: reportGeneralTypeIssues=false
"""Triton kernels of a decode step: the operations between matrix products, attention, and drawing.

Each is one launch that reads its inputs once. `TritonOps` chooses launch grids and block sizes. Tests compare
it with the same operations in torch.

Shapes: R = rows, W = width, I = inner width, O = outputs, r = rank of the adapters, H = query heads,
K = key/value heads, D = head size, G = H / K, V = vocabulary, C = chunks of it, P = pages.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
import triton
import triton.language as tl
from torch import Tensor

from genenv.backends.local.cuda.kv_pages import PAGE, RowState


@triton.jit
def _low_rank(low, up, row_R, live_R, column_C, inside_C, low_stride, rank: tl.constexpr, RP: tl.constexpr):
    """[R, C]: low-rank products low [R, r] x up [C, r]^T, in float32."""
    j = tl.arange(0, RP)
    a = tl.load(
        low + row_R[:, None] * low_stride + j[None, :], mask=live_R[:, None] & (j < rank)[None, :], other=0.0
    )
    b = tl.load(
        up + column_C[None, :] * rank + j[:, None], mask=(j < rank)[:, None] & inside_C[None, :], other=0.0
    )
    return tl.dot(a, b, input_precision="ieee")


@triton.jit(do_not_specialize=["rows"])
def heads_kernel(
    joint, up, norm_q, norm_k, cosine, sine, query, keys, values, table, prompt_R, drawn_R, rows,
    joint_stride, table_stride, page_stride, eps, H: tl.constexpr, K: tl.constexpr, D: tl.constexpr,
    rank: tl.constexpr, RP: tl.constexpr, PAGE: tl.constexpr, NORMS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Queries, keys, values of one token per row: add adapters, norm heads, rotate, write to pages."""
    half: tl.constexpr = D // 2
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    head = tl.program_id(1)
    live = row < rows
    d = tl.arange(0, half)
    inside = d < half
    dtype = joint.dtype.element_ty
    # index of the head's projection, whose adapter product is at the end of joint
    part = (head >= H).to(tl.int32) + (head >= H + K).to(tl.int32)
    low = joint + (H + 2 * K) * D + part * rank
    column = head * D + d
    left = tl.load(joint + row[:, None] * joint_stride + column[None, :], mask=live[:, None], other=0.0).to(
        tl.float32
    )
    right = tl.load(
        joint + row[:, None] * joint_stride + half + column[None, :], mask=live[:, None], other=0.0
    ).to(tl.float32)
    left += _low_rank(low, up, row, live, column, inside, joint_stride, rank, RP)
    right += _low_rank(low, up, row, live, column + half, inside, joint_stride, rank, RP)
    left = left.to(dtype).to(tl.float32)
    right = right.to(dtype).to(tl.float32)
    prompt = tl.load(prompt_R + row, mask=live, other=0)
    own = tl.load(drawn_R + row, mask=live, other=1) - 1
    if head < H + K:
        if NORMS:
            inverse = tl.rsqrt((tl.sum(left * left, 1) + tl.sum(right * right, 1)) / D + eps)
            weight = norm_q if head < H else norm_k
            left = (left * inverse[:, None]).to(dtype).to(tl.float32) * tl.load(weight + d)[None, :].to(
                tl.float32
            )
            right = (right * inverse[:, None]).to(dtype).to(tl.float32) * tl.load(weight + half + d)[
                None, :
            ].to(tl.float32)
            left = left.to(dtype).to(tl.float32)
            right = right.to(dtype).to(tl.float32)
        place = (prompt + own)[:, None] * half + d[None, :]
        cos = tl.load(cosine + place, mask=live[:, None], other=1.0).to(tl.float32)
        sin = tl.load(sine + place, mask=live[:, None], other=0.0).to(tl.float32)
        turned = left * cos - right * sin
        right = right * cos + left * sin
        left = turned
    if head < H:
        to = query + row[:, None] * (H * D) + column[None, :]
        tl.store(to, left.to(dtype), mask=live[:, None])
        tl.store(to + half, right.to(dtype), mask=live[:, None])
    else:
        before = (prompt + PAGE - 1) // PAGE
        page = tl.load(table + row * table_stride + before + own // PAGE, mask=live, other=0).to(tl.int64)
        kv = (head - H) % K
        at = page * page_stride + (kv * PAGE + own % PAGE) * D
        store = keys if head < H + K else values
        place = at[:, None] + d[None, :]
        tl.store(store + place, left.to(dtype), mask=live[:, None])
        tl.store(store + place + half, right.to(dtype), mask=live[:, None])


@triton.jit
def _attend_pages(
    q, m, l, acc, keys, values, table_row, page_stride, kv, first, last, tokens, mine_M, scale,
    D: tl.constexpr, PAGE: tl.constexpr,
):  # fmt: skip
    """Continue attention over the pages first..last - 1 of a sequence with this many tokens."""
    t = tl.arange(0, PAGE)
    d = tl.arange(0, D)
    for block in range(first, last):
        page = tl.load(table_row + block).to(tl.int64)
        at = page * page_stride + kv * PAGE * D
        real = block * PAGE + t < tokens
        k = tl.load(keys + at + t[None, :] * D + d[:, None], mask=real[None, :], other=0.0)
        x = tl.dot(q, k, input_precision="ieee") * scale
        x = tl.where(real[None, :] & mine_M[:, None], x, float("-inf"))
        m_new = tl.maximum(m, tl.max(x, 1))
        safe = tl.where(m_new == float("-inf"), 0.0, m_new)
        p = tl.exp2(x - safe[:, None])
        shrink = tl.exp2(m - safe)
        v = tl.load(values + at + t[:, None] * D + d[None, :], mask=real[:, None], other=0.0)
        acc = acc * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision="ieee")
        l = l * shrink + tl.sum(p, 1)
        m = m_new
    return m, l, acc


@triton.jit
def attention_kernel(
    query, keys, values, out, part_out, part_max, part_sum, table, tiles, prompt_R, drawn_R,
    table_stride, page_stride, scale, H: tl.constexpr, K: tl.constexpr, D: tl.constexpr,
    PAGE: tl.constexpr, GR: tl.constexpr, M: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Attention of a tile of rows of one prompt: jointly to its pages, separately to their own pages.

    A program has the queries of up to GR rows that share a key head, so a prompt's keys are read once for
    them. With SPLITS > 1 it processes a part of the pages, and `merge_kernel` combines the parts.
    """
    G: tl.constexpr = H // K
    tile = tl.program_id(0)
    kv = tl.program_id(1)
    split = tl.program_id(2)
    leader = tl.load(tiles + tile * GR)
    if leader < 0:
        return
    i = tl.arange(0, M)
    d = tl.arange(0, D)
    member = i // G
    row = tl.load(tiles + tile * GR + member, mask=member < GR, other=-1)
    live = row >= 0
    at = row[:, None] * (H * D) + (kv * G + i % G)[:, None] * D + d[None, :]
    q = tl.load(query + at, mask=live[:, None], other=0.0)
    m = tl.full([M], float("-inf"), tl.float32)
    l = tl.zeros([M], tl.float32)
    acc = tl.zeros([M, D], tl.float32)
    prompt = tl.load(prompt_R + leader)
    pages = (prompt + PAGE - 1) // PAGE
    part = (pages + SPLITS - 1) // SPLITS
    m, l, acc = _attend_pages(
        q, m, l, acc, keys, values, table + leader * table_stride, page_stride, kv,
        split * part, tl.minimum((split + 1) * part, pages), prompt, live, scale, D, PAGE,
    )  # fmt: skip
    for j in range(tl.sum(live.to(tl.int32), 0) // G):
        one = tl.load(tiles + tile * GR + j)
        own = tl.load(drawn_R + one)
        pages_own = (own + PAGE - 1) // PAGE
        part = (pages_own + SPLITS - 1) // SPLITS
        m, l, acc = _attend_pages(
            q, m, l, acc, keys, values, table + one * table_stride + pages, page_stride, kv,
            split * part, tl.minimum((split + 1) * part, pages_own), own, member == j, scale, D, PAGE,
        )  # fmt: skip
    if SPLITS == 1:
        tl.store(
            out + at, (acc / tl.where(live, l, 1.0)[:, None]).to(out.dtype.element_ty), mask=live[:, None]
        )
    else:
        head = (row * SPLITS + split) * H + kv * G + i % G
        tl.store(part_max + head, m, mask=live)
        tl.store(part_sum + head, l, mask=live)
        tl.store(part_out + head[:, None] * D + d[None, :], acc, mask=live[:, None])


@triton.jit
def merge_kernel(
    part_out, part_max, part_sum, out, table, table_stride,
    H: tl.constexpr, D: tl.constexpr, SPLITS: tl.constexpr,
):  # fmt: skip
    """Combine the parts of a row's attention; one program per head."""
    row = tl.program_id(0)
    head = tl.program_id(1)
    if tl.load(table + row * table_stride) == 0:
        return  # page 0 is never assigned: an empty row
    d = tl.arange(0, D)
    s = tl.arange(0, SPLITS)
    at = (row * SPLITS + s) * H + head
    m = tl.load(part_max + at)
    top = tl.max(m, 0)
    top = tl.where(top == float("-inf"), 0.0, top)
    share = tl.exp2(m - top)
    total = tl.sum(share * tl.load(part_sum + at), 0)
    acc = tl.sum(share[:, None] * tl.load(part_out + at[:, None] * D + d[None, :]), 0)
    tl.store(out + row * (H * D) + head * D + d, (acc / total).to(out.dtype.element_ty))


@triton.jit
def join_kernel(
    joint, up, residual, weight, out, embedding, token_R, joint_stride, W, eps, rank: tl.constexpr,
    FIRST: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """Residual + (product with adapter), and its RMS norm; with FIRST the residual is the embedding.

    `up` is [r, W]: the adapter's second matrix, transposed.
    """
    row = tl.program_id(0).to(tl.int64)
    w = tl.arange(0, BLOCK)
    inside = w < W
    dtype = out.dtype.element_ty
    if FIRST:
        token = tl.load(token_R + row)
        x = tl.load(embedding + token * W + w, mask=inside, other=0.0)
    else:
        y = tl.load(joint + row * joint_stride + w, mask=inside, other=0.0).to(tl.float32)
        for j in tl.static_range(rank):
            low = tl.load(joint + row * joint_stride + W + j).to(tl.float32)
            y += low * tl.load(up + j * W + w, mask=inside, other=0.0).to(tl.float32)
        x = tl.load(residual + row * W + w, mask=inside, other=0.0)
        x = (x.to(tl.float32) + y.to(dtype).to(tl.float32)).to(dtype)
    tl.store(residual + row * W + w, x, mask=inside)
    wide = x.to(tl.float32)
    inverse = tl.rsqrt(tl.sum(wide * wide, 0) / W + eps)
    scaled = (wide * inverse).to(dtype).to(tl.float32) * tl.load(weight + w, mask=inside, other=0.0).to(
        tl.float32
    )
    tl.store(out + row * W + w, scaled.to(dtype), mask=inside)


@triton.jit(do_not_specialize=["rows"])
def gate_kernel(
    joint, up, out, rows, joint_stride, I, rank: tl.constexpr, RP: tl.constexpr, BLOCK: tl.constexpr,
    COLUMNS: tl.constexpr,
):  # fmt: skip
    """silu(gate) * up, of gate and up side by side, followed by the adapters' first products."""
    row = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    column = tl.program_id(1) * COLUMNS + tl.arange(0, COLUMNS)
    live, inside = row < rows, column < I
    both = live[:, None] & inside[None, :]
    dtype = out.dtype.element_ty
    at = joint + row.to(tl.int64)[:, None] * joint_stride + column[None, :]
    low = joint + 2 * I
    gate = tl.load(at, mask=both, other=0.0).to(tl.float32)
    gate += _low_rank(low, up, row, live, column, inside, joint_stride, rank, RP)
    value = tl.load(at + I, mask=both, other=0.0).to(tl.float32)
    value += _low_rank(low + rank, up + I * rank, row, live, column, inside, joint_stride, rank, RP)
    gate = gate.to(dtype).to(tl.float32)
    value = value.to(dtype).to(tl.float32)
    gate = (gate * tl.sigmoid(gate)).to(dtype).to(tl.float32)
    tl.store(out + row.to(tl.int64)[:, None] * I + column[None, :], (gate * value).to(dtype), mask=both)


@triton.jit
def chunk_kernel(
    scores, temperature_R, mask, least_R, top_RC, sum_RC, top_allowed_RC, sum_allowed_RC, V, C,
    scores_stride, mask_stride, HELD: tl.constexpr, CHUNK: tl.constexpr,
):  # fmt: skip
    """Per chunk of the vocabulary: largest score, sum of exp(score - largest); also of allowed tokens."""
    row = tl.program_id(0).to(tl.int64)
    chunk = tl.program_id(1)
    v = chunk * CHUNK + tl.arange(0, CHUNK)
    inside = v < V
    raw = tl.load(scores + row * scores_stride + v, mask=inside, other=float("-inf")).to(tl.float32)
    x = raw / tl.load(temperature_R + row)
    top = tl.max(x, 0)
    tl.store(top_RC + row * C + chunk, top)
    tl.store(sum_RC + row * C + chunk, tl.sum(tl.exp(x - tl.where(top == float("-inf"), 0.0, top)), 0))
    if HELD:
        word = tl.load(mask + row * mask_stride + v // 32, mask=inside, other=0)
        allowed = ((word >> (v % 32)) & 1) != 0
        x = tl.where(allowed & (raw >= tl.load(least_R + row)), x, float("-inf"))
        top = tl.max(x, 0)
        tl.store(top_allowed_RC + row * C + chunk, top)
        tl.store(
            sum_allowed_RC + row * C + chunk, tl.sum(tl.exp(x - tl.where(top == float("-inf"), 0.0, top)), 0)
        )


@triton.jit(do_not_specialize=["step"])
def draw_kernel(
    scores, temperature_R, mask, least_R, top_RC, sum_RC, top_allowed_RC, sum_allowed_RC, uniform,
    greedy_R, among_R, token_R, drawn_R, left_R, ends_V, out_token, out_logprob, step, V, C, scores_stride,
    mask_stride, uniform_stride, out_stride, HELD: tl.constexpr, CHUNK: tl.constexpr,
    CHUNKS: tl.constexpr,
):  # fmt: skip
    """Draw a token per row: first a chunk by its sum, then the token; store its log-probability.

    Rows that may draw no more tokens stay unchanged.
    """
    row = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, CHUNKS)
    inside = c < C
    left = tl.load(left_R + row)
    top_C = tl.load(top_RC + row * C + c, mask=inside, other=float("-inf"))
    sum_C = tl.load(sum_RC + row * C + c, mask=inside, other=0.0)
    top = tl.max(top_C, 0)
    norm = top + tl.log(tl.sum(sum_C * tl.exp(top_C - top), 0))
    if HELD:
        top_C = tl.load(top_allowed_RC + row * C + c, mask=inside, other=float("-inf"))
        sum_C = tl.load(sum_allowed_RC + row * C + c, mask=inside, other=0.0)
        top = tl.max(top_C, 0)
        among = tl.load(among_R + row) != 0
        norm = tl.where(among, top + tl.log(tl.sum(sum_C * tl.exp(top_C - top), 0)), norm)
    weight_C = sum_C * tl.exp(top_C - top)
    below_C = tl.cumsum(weight_C, 0)
    greedy = tl.load(greedy_R + row) != 0
    target = tl.load(uniform + row * uniform_stride + step) * tl.sum(weight_C, 0)
    possible = weight_C > 0
    found = tl.min(tl.where(possible & (below_C > target), c, CHUNKS), 0)
    last = tl.max(tl.where(possible, c, 0), 0)
    best = tl.min(tl.where(inside & (top_C == top), c, CHUNKS), 0)
    chunk = tl.where(greedy, best, tl.where(found < CHUNKS, found, last))
    chunk = tl.minimum(chunk, C - 1)  # other code detects logits that are not finite
    before = tl.sum(tl.where(c < chunk, weight_C, 0.0), 0)
    t = tl.arange(0, CHUNK)
    v = chunk * CHUNK + t
    real = v < V
    raw = tl.load(scores + row * scores_stride + v, mask=real, other=float("-inf")).to(tl.float32)
    x = raw / tl.load(temperature_R + row)
    held = x
    if HELD:
        word = tl.load(mask + row * mask_stride + v // 32, mask=real, other=0)
        allowed = ((word >> (v % 32)) & 1) != 0
        held = tl.where(allowed & (raw >= tl.load(least_R + row)), x, float("-inf"))
    share = tl.exp(held - top)
    below = tl.cumsum(share, 0)
    found = tl.min(tl.where((share > 0) & (below > target - before), t, CHUNK), 0)
    last = tl.max(tl.where(share > 0, t, 0), 0)
    best = tl.min(tl.where(held == tl.max(held, 0), t, CHUNK), 0)
    inner = tl.where(greedy, best, tl.where(found < CHUNK, found, last))
    token = tl.minimum(chunk * CHUNK + inner, V - 1)
    logprob = tl.sum(tl.where(t == inner, x, 0.0), 0) - norm
    tl.store(out_token + step * out_stride + row, tl.where(left > 0, token, -1))
    tl.store(out_logprob + step * out_stride + row, logprob)
    if left > 0:
        tl.store(token_R + row, token.to(tl.int64))
        tl.store(drawn_R + row, tl.load(drawn_R + row) + 1)
        tl.store(left_R + row, tl.where(tl.load(ends_V + token) != 0, 0, left - 1))


_LOG2_E = 1.4426950408889634
_CHUNK = 1024
"""Tokens of the vocabulary that one program sums."""
_ATTEND = {"num_warps": 4, "num_stages": 2}
_PROGRAMS = 256
"""Fewer programs than this leave much of a large GPU idle; attention is then split along the sequence."""


class Heads(NamedTuple):
    """The head counts and head size of a layer's attention."""

    queries: int
    keys: int
    size: int

    @property
    def grouped(self) -> int:
        """Number of query heads per key head."""
        return self.queries // self.keys

    @property
    def places(self) -> int:
        """Rows of a program's query matrix: at least 16, the minimum of tensor cores."""
        return max(16, _power(self.grouped))

    @property
    def rows_of_a_tile(self) -> int:
        """Number of rows of one prompt per program."""
        return self.places // self.grouped


class TritonOps:
    """Launches the kernels, on a CUDA device or in Triton's interpreter.

    Args:
        heads: (query heads, key heads, head size) of a layer's attention.
        rank: of the adapters.
    """

    def __init__(self, heads: tuple[int, int, int], rank: int) -> None:
        self.heads, self.rank, self._padded = Heads(*heads), rank, max(16, _power(rank))
        self.rows_of_a_tile = self.heads.rows_of_a_tile

    def split(
        self, joint: Tensor, up: Tensor, norms: tuple[Tensor, Tensor, float] | None,
        angles: tuple[Tensor, Tensor], pages: tuple[Tensor, Tensor], state: RowState,
    ) -> Tensor:  # fmt: skip
        """Split a joint QKV product: write keys and values to their pages, return queries [R, H, D]."""
        rows, own = len(joint), self.heads
        query = joint.new_empty(rows, own.queries, own.size)
        block = 16
        grid = _ceil(rows, block), own.queries + 2 * own.keys
        heads_kernel[grid](
            joint, up, *(norms or (up, up))[:2], *angles, query, *pages,
            state.table_RP, state.prompt_R, state.drawn_R,
            rows, joint.stride(0), state.table_RP.stride(0), pages[0].stride(0), norms[2] if norms else 0.0,
            H=own.queries, K=own.keys, D=own.size, rank=self.rank, RP=self._padded,
            PAGE=PAGE, NORMS=norms is not None, BLOCK=block, num_warps=4,
        )  # fmt: skip
        return query

    def attend(self, query: Tensor, pages: tuple[Tensor, Tensor], state: RowState, scale: float) -> Tensor:
        """Return [R, H * D]: attention of each row to its prompt and to its own tokens."""
        rows, own = len(query), self.heads
        out = query.new_empty(rows, own.queries * own.size)
        splits = 1
        while splits < 16 and rows * own.keys * splits < _PROGRAMS:
            splits *= 2
        parts = [out, out, out]
        if splits > 1:
            shape = rows, splits, own.queries
            parts = [query.new_empty(*shape, own.size, dtype=torch.float32)]
            parts += [query.new_empty(shape, dtype=torch.float32) for _ in range(2)]
        attention_kernel[rows, own.keys, splits](
            query, *pages, out, *parts, state.table_RP, state.tiles_RM, state.prompt_R, state.drawn_R,
            state.table_RP.stride(0), pages[0].stride(0), scale * _LOG2_E,
            H=own.queries, K=own.keys, D=own.size, PAGE=PAGE,
            GR=own.rows_of_a_tile, M=own.places, SPLITS=splits, **_ATTEND,
        )  # fmt: skip
        if splits > 1:
            merge_kernel[rows, own.queries](
                *parts,
                out,
                state.table_RP,
                state.table_RP.stride(0),
                H=own.queries,
                D=own.size,
                SPLITS=splits,
                num_warps=2,
            )
        return out

    def embed(
        self, embedding: Tensor, state: RowState, residual: Tensor, norm: tuple[Tensor, float]
    ) -> Tensor:
        """Write the embeddings of the rows' tokens to the residual; return them normed, [R, W]."""
        return self._join(residual, None, residual, norm, embedding, state.token_R, rank=0)

    def join(self, joint: Tensor, up: Tensor, residual: Tensor, norm: tuple[Tensor, float]) -> Tensor:
        """Add a product to the residual, in place; return the normed residual, [R, W]."""
        return self._join(joint, up, residual, norm, residual, residual, rank=self.rank)

    def _join(
        self, joint: Tensor, up: Tensor | None, residual: Tensor, norm: tuple[Tensor, float],
        embedding: Tensor, token: Tensor, *, rank: int,
    ) -> Tensor:  # fmt: skip
        rows, width = residual.shape
        out = torch.empty_like(residual)
        join_kernel[(rows,)](
            joint, residual if up is None else up, residual, norm[0], out, embedding, token,
            joint.stride(0), width, norm[1],
            rank=rank, FIRST=up is None, BLOCK=_power(width), num_warps=8 if width > 2048 else 4,
        )  # fmt: skip
        return out

    def gate(self, joint: Tensor, up: Tensor, inner: int) -> Tensor:
        """Return [R, I]: silu(gate) * up."""
        rows = len(joint)
        out = joint.new_empty(rows, inner)
        block, columns = 16, 128 if rows > 16 else 64
        gate_kernel[_ceil(rows, block), _ceil(inner, columns)](
            joint, up, out, rows, joint.stride(0), inner,
            rank=self.rank, RP=self._padded, BLOCK=block, COLUMNS=columns, num_warps=4,
        )  # fmt: skip
        return out

    def draw(self, scores: Tensor, state: RowState, step: int, first: int, *, held: bool) -> None:
        """Draw a token for each row of scores [R, V]; these rows start at row `first` of the state."""
        rows, vocabulary = scores.shape
        chunks = _ceil(vocabulary, _CHUNK)
        parts = [scores.new_empty(rows, chunks, dtype=torch.float32) for _ in range(4 if held else 2)]
        parts += parts[:2] * (not held)
        per_row = (state.temperature_R[first:], state.mask_RV[first:], state.least_R[first:])
        sizes = vocabulary, chunks, scores.stride(0), state.mask_RV.stride(0)
        chunk_kernel[rows, chunks](scores, *per_row, *parts, *sizes, HELD=held, CHUNK=_CHUNK, num_warps=4)
        draw_kernel[(rows,)](
            scores, *per_row, *parts, state.uniform_RS[first:], state.greedy_R[first:], state.among_R[first:],
            state.token_R[first:], state.drawn_R[first:], state.left_R[first:],
            state.ends_V, state.out_token_SR[:, first:], state.out_logprob_SR[:, first:], step,
            *sizes, state.uniform_RS.stride(0), state.out_token_SR.stride(0),
            HELD=held, CHUNK=_CHUNK, CHUNKS=_power(chunks), num_warps=4,
        )  # fmt: skip


def _ceil(whole: int, part: int) -> int:
    return -(-whole // part)


def _power(number: int) -> int:
    """Return the smallest power of two that is not smaller."""
    return 1 << (number - 1).bit_length()
