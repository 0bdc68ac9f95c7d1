# pyright: standard
"""What a decode step reads and writes, in tensors that stay where they are: a captured step knows addresses.

Shapes: R = rows, P = pages of a row, S = steps between two looks at what was drawn, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

STEPS = 8
"""Tokens that are drawn on the device before the host looks: what is done leaves after at most so many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """What the device must know of a row."""

    token: int
    """The last one that was drawn."""
    drawn: int
    """How many were."""
    left: int
    """How many may follow."""
    prompt_tokens: int
    pages: Sequence[int]
    """Of its prompt, then of its own."""
    prompt: object
    """Rows of one prompt have the same."""
    temperature: float
    """0: the most probable token."""
    choices: bool
    """Whether its log-probabilities are those among what is allowed."""


class RowState:
    """The state of all rows.

    Args:
        rows: the most there can be.
        pages: the most a row can have.
        vocabulary: how many tokens there are.
        rows_of_a_tile: so many rows of one prompt read it together.
        device: where it all is.
    """

    def __init__(
        self, rows: int, pages: int, vocabulary: int, rows_of_a_tile: int, device: torch.device
    ) -> None:
        def numbers(*shape: int, dtype: torch.dtype = torch.int32, value: float = 0) -> Tensor:
            return torch.full(shape, value, dtype=dtype, device=device)

        self.rows_of_a_tile, self.device = rows_of_a_tile, device
        self.token_R = numbers(rows, dtype=torch.int64)
        self.drawn_R, self.left_R, self.prompt_R = numbers(rows, value=1), numbers(rows), numbers(rows)
        self.table_RP = numbers(rows, pages)
        self.tiles_RM = numbers(rows, rows_of_a_tile, value=-1)
        """Rows of one prompt; -1 where there are no more."""
        self.temperature_R = numbers(rows, dtype=torch.float32, value=1)
        self.least_R = numbers(rows, dtype=torch.float32, value=float("-inf"))
        """Scores below are not drawn."""
        self.greedy_R, self.among_R = numbers(rows), numbers(rows)
        self.uniform_RS = numbers(rows, STEPS, dtype=torch.float32)
        self.mask_RV = numbers(rows, -(-vocabulary // 32), value=-1)
        """Bit masks of what may be drawn."""
        self.out_token_SR = numbers(STEPS, rows, value=-1)
        """What was drawn; -1 where a row was done before."""
        self.out_logprob_SR = numbers(STEPS, rows, dtype=torch.float32)

    def seat(self, seats: Sequence[Seat], rows: int) -> None:
        """Give rows their places; the next ones up to `rows` are empty.

        Args:
            seats: the rows, in order.
            rows: how many a step works on.
        """
        empty = rows - len(seats)
        self._put(self.token_R, [seat.token for seat in seats] + [0] * empty)
        self._put(self.drawn_R, [seat.drawn for seat in seats] + [1] * empty)
        self._put(self.left_R, [seat.left for seat in seats] + [0] * empty)
        self._put(self.prompt_R, [seat.prompt_tokens for seat in seats] + [0] * empty)
        self._put(self.temperature_R, [seat.temperature or 1.0 for seat in seats] + [1.0] * empty)
        self._put(self.greedy_R, [int(seat.temperature == 0.0) for seat in seats] + [0] * empty)
        self._put(self.among_R, [int(seat.choices) for seat in seats] + [0] * empty)
        table = np.zeros((rows, self.table_RP.shape[1]), dtype=np.int32)
        for row, seat in enumerate(seats):
            table[row, : len(seat.pages)] = seat.pages
        self._put(self.table_RP, table)
        self._put(self.tiles_RM, _tiles([seat.prompt for seat in seats], rows, self.rows_of_a_tile))

    def _put(self, tensor: Tensor, values: Sequence[float] | np.ndarray) -> None:
        new = torch.as_tensor(values, dtype=tensor.dtype)
        tensor[: len(new)].copy_(new, non_blocking=True)

    def put_uniform(self, uniform_RS: np.ndarray) -> None:
        """The random numbers of the next steps, [rows, steps]."""
        rows, steps = uniform_RS.shape
        self.uniform_RS[:rows, :steps].copy_(torch.from_numpy(uniform_RS), non_blocking=True)

    def drawn(self, rows: int, steps: int) -> tuple[list[list[int]], list[list[float]]]:
        """Tokens and log-probabilities of the last steps, a list for each row; waits for the device."""
        tokens = self.out_token_SR[:steps, :rows].T.tolist()
        return tokens, self.out_logprob_SR[:steps, :rows].T.tolist()


def _tiles(prompts: Sequence[object], rows: int, most: int) -> np.ndarray:
    """[rows, most] rows of one prompt together."""
    members: dict[int, list[int]] = {}
    for row, prompt in enumerate(prompts):
        members.setdefault(id(prompt), []).append(row)
    tiles = np.full((rows, most), -1, dtype=np.int32)
    pieces = (own[at : at + most] for own in members.values() for at in range(0, len(own), most))
    for tile, piece in enumerate(pieces):
        tiles[tile, : len(piece)] = piece
    return tiles
