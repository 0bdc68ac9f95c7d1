# pyright: standard
"""Models whose attention cannot be replaced, in transformers' own forward pass: slower, and right.

Every attempt is a padded sequence of its own, so a prompt is read once for each of its completions. Sampling
uses the cache that comes with the model.

Shapes: N = tokens in the flat row, S = sequences, L = longest sequence, R = rows, T = tokens so far.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from genenv.backends.local.layouts import AnyLayout, Layout, OwnLayout
from genenv.backends.local.packing import Packed

_PREFILLS = 16
"""Rows begin together with so many times the prompt tokens that packed sampling reads at a time."""

if TYPE_CHECKING:
    from genenv.backends.local.engine import Engine, Row


def own_hidden(
    decoder: Any,  # noqa: ANN401
    ids: Tensor,
    positions: Tensor,
    layout: AnyLayout,
    *,
    tokens: int = 1024,
) -> Tensor:
    """Last hidden states, [N, width] of a flat row or [R, width] of the last tokens of rows.

    Args:
        decoder: the model without its output layer.
        ids: [1, N] of a flat row, or [R, T] of what is new.
        positions: likewise.
        layout: a `Layout` without a cache, or an `OwnLayout`.
        tokens: so many tokens of a flat row's sequences at a time, padding included (one may be longer). With
            gradients, pieces are calculated again in the backward pass.

    Raises:
        TypeError: the layout is made for replaced attention.
    """
    if isinstance(layout, OwnLayout):
        output = decoder(
            input_ids=ids,
            attention_mask=layout.seen_RT,
            position_ids=positions,
            past_key_values=layout.cache,
            use_cache=True,
        )
        layout.cache = output.past_key_values
        return output.last_hidden_state[:, -1]
    if not isinstance(layout, Layout) or layout.cache is not None:
        raise TypeError("a model's own forward pass takes a Layout without a cache, or an OwnLayout")

    def states_of(ids_SL: Tensor, real_SL: Tensor) -> Tensor:
        return decoder(input_ids=ids_SL, attention_mask=real_SL, use_cache=False).last_hidden_state

    at_SL, real_SL, first_N = _unpacked(layout.packed)
    rows = max(1, tokens // at_SL.shape[1])
    pieces = list(zip(ids[0][at_SL].split(rows), real_SL.split(rows), strict=True))
    if len(pieces) > 1 and torch.is_grad_enabled():
        states = [checkpoint(states_of, *piece, use_reentrant=False) for piece in pieces]
    else:
        states = [states_of(*piece) for piece in pieces]
    return torch.cat(states).flatten(0, 1).index_select(0, first_N)


def _unpacked(packed: Packed) -> tuple[Tensor, Tensor, Tensor]:
    """[S, L] where a sequence's tokens are in the flat row, [S, L] 1 for real ones, and [N] the way back."""
    prompts = [at[real].tolist() for at, real in zip(packed.prompt_at_BP, packed.prompt_real_BP, strict=True)]
    rows = [at[real].tolist() for at, real in zip(packed.row_at_RC, packed.row_real_RC, strict=True)]
    of_row = packed.bundle_of_R.tolist()
    sequences = [prompts[b] + row for b, row in zip(of_row, rows, strict=True)]
    sequences += [prompt for b, prompt in enumerate(prompts) if b not in of_row]
    width = max(len(sequence) for sequence in sequences)
    first: dict[int, int] = {}
    for s, sequence in enumerate(sequences):
        for t, place in enumerate(sequence):
            first.setdefault(place, s * width + t)
    device = packed.device
    padded = torch.tensor([sequence + [0] * (width - len(sequence)) for sequence in sequences], device=device)
    lengths = torch.tensor([len(sequence) for sequence in sequences], device=device)
    real = (torch.arange(width, device=device) < lengths[:, None]).long()
    return padded, real, torch.tensor([first[n] for n in range(len(first))], device=device)


def left_padded(prompts: Sequence[Sequence[int]], device: torch.device) -> tuple[Tensor, Tensor, OwnLayout]:
    """[R, T] tokens and [R, T] positions of prompts that end in the same column, and their layout."""
    width = max(len(prompt) for prompt in prompts)
    ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=device)
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    seen_RT = (torch.arange(width, device=device) >= width - lengths[:, None]).long()
    return ids, (seen_RT.cumsum(1) - 1).clamp_(min=0), OwnLayout(seen_RT=seen_RT)


def next_positions(layout: OwnLayout) -> Tensor:
    """[R, 1] positions of one more token of each row, for which the layout makes room."""
    layout.seen_RT = torch.cat([layout.seen_RT, layout.seen_RT.new_ones(len(layout.seen_RT), 1)], 1)
    return layout.seen_RT.sum(1, keepdim=True) - 1


def keep_rows(layout: OwnLayout, rows: Tensor) -> None:
    """Drop all rows but those with these indices."""
    layout.seen_RT = layout.seen_RT[rows]
    layout.cache.reorder_cache(rows)  # the one way to choose rows that every kind of layer has


class OwnBatch:
    """Rows that begin together. Those that are done leave; others come when all are done."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.rows: list[Row] = []

    def room(self, waiting: Sequence[Row]) -> int:
        """How many of the waiting rows may come now: their prompts are read at once."""
        if self.rows:
            return 0
        count = width = 0
        for row in waiting:
            width = max(width, len(row.request.prompt_ids))
            if count and (count + 1) * width > _PREFILLS * self._engine.prefill_tokens:
                break
            count += 1
        return min(count, self._engine.max_rows)

    def admit(self, rows: Sequence[Row]) -> None:
        """Take in requests, and read their prompts."""
        self.rows = list(rows)
        ids, positions, self._layout = left_padded(
            [row.request.prompt_ids for row in rows], self._engine.device
        )
        self._states = self._engine.hidden(ids, positions, self._layout)

    def close(self) -> None:
        """Nothing is held beyond the batch."""

    def step(self) -> tuple[list[Row], int]:
        """One token for each row; those that are done leave and are returned, with how many were drawn."""
        count = len(self.rows)
        tokens_R = self._engine.choose(self.rows, self._engine.head(self._states))
        left = [row for row in self.rows if row.done]
        going = [index for index, row in enumerate(self.rows) if not row.done]
        self.rows = [self.rows[index] for index in going]
        if not going:
            return left, count
        layout = self._layout
        if left:
            kept = torch.tensor(going, device=tokens_R.device)
            tokens_R = tokens_R[kept]
            keep_rows(layout, kept)
        self._states = self._engine.hidden(tokens_R[:, None], next_positions(layout), layout)
        return left, count
