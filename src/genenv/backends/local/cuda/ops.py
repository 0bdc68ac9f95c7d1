# pyright: basic, reportCallIssue=false, reportArgumentType=false
"""The kernels of a decode step as functions of tensors, which choose launch grids and block sizes.

Shapes: see `kernels`.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from genenv.backends.local.cuda import kernels
from genenv.backends.local.cuda.kv_pages import PAGE, RowState

_LOG2_E = 1.4426950408889634
_CHUNK = 1024
"""Tokens of the vocabulary that one program sums."""
_ATTEND = {"num_warps": 4, "num_stages": 2}
_PROGRAMS = 256
"""Fewer programs than this leave much of a large GPU idle; attention is then split along the sequence."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Heads:
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
    """The operations of `decode.TorchOps` as Triton kernels, on a CUDA device or in Triton's interpreter."""

    def __init__(self, heads: Heads, rank: int) -> None:
        self.heads, self.rank, self._padded = heads, rank, max(16, _power(rank))

    def split(
        self, joint: Tensor, up: Tensor, norms: tuple[Tensor, Tensor, float] | None,
        angles: tuple[Tensor, Tensor], pages: tuple[Tensor, Tensor], state: RowState,
    ) -> Tensor:  # fmt: skip
        """Split a joint QKV product: write keys and values to their pages, return queries [R, H, D]."""
        rows, own = len(joint), self.heads
        query = joint.new_empty(rows, own.queries, own.size)
        block = 16
        grid = _ceil(rows, block), own.queries + 2 * own.keys
        kernels.heads_kernel[grid](
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
        kernels.attention_kernel[rows, own.keys, splits](
            query, *pages, out, *parts, state.table_RP, state.tiles_RM, state.prompt_R, state.drawn_R,
            state.table_RP.stride(0), pages[0].stride(0), scale * _LOG2_E,
            H=own.queries, K=own.keys, D=own.size, PAGE=PAGE,
            GR=own.rows_of_a_tile, M=own.places, SPLITS=splits, **_ATTEND,
        )  # fmt: skip
        if splits > 1:
            kernels.merge_kernel[rows, own.queries](
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

    def _join(  # noqa: PLR0913
        self, joint: Tensor, up: Tensor | None, residual: Tensor, norm: tuple[Tensor, float],
        embedding: Tensor, token: Tensor, *, rank: int,
    ) -> Tensor:  # fmt: skip
        rows, width = residual.shape
        out = torch.empty_like(residual)
        kernels.join_kernel[(rows,)](
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
        kernels.gate_kernel[_ceil(rows, block), _ceil(inner, columns)](
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
        kernels.chunk_kernel[rows, chunks](
            scores, *per_row, *parts, *sizes, HELD=held, CHUNK=_CHUNK, num_warps=4
        )
        kernels.draw_kernel[(rows,)](
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
