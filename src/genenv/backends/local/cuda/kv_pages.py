# pyright: standard
"""What a captured decode step reads and writes: KV pages and the state of rows, at fixed addresses.

Keys and values of sampled sequences are in pages of one store that is allocated once. A prompt has pages of
its own, once for all completions of it; a completion has the pages that come after them. Page 0 belongs to
nobody: what unused rows write goes there.

Shapes: L = layers, P = pages (of the store, or of a row), K = key/value heads, D = head size, B = prompts,
T = tokens, R = rows, S = steps between two looks at what was drawn, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from genenv.backends.local.attention import PromptCache

PAGE = 64
"""Tokens of a page, and of one step of the attention kernel."""


def pages_for(tokens: int) -> int:
    """How many pages hold so many tokens."""
    return -(-tokens // PAGE)


class PagePool:
    """The store, and which of its pages are free.

    Args:
        layers: of the model.
        heads: of keys in a layer.
        size: of a head.
        pages: how many there are, page 0 among them.
        dtype: of keys and values.
        device: where they are.
    """

    def __init__(
        self, layers: int, heads: int, size: int, pages: int, dtype: torch.dtype, device: torch.device
    ) -> None:
        shape = layers, pages, heads, PAGE, size
        # Zeros: an unused place is masked, but must be a number.
        self.keys_LPKTD = torch.zeros(shape, dtype=dtype, device=device)
        self.values_LPKTD = torch.zeros(shape, dtype=dtype, device=device)
        self._pages = pages
        self.clear()

    def clear(self) -> None:
        """All pages are free: one batch at a time has them."""
        self._free = list(range(self._pages - 1, 0, -1))

    @property
    def free(self) -> int:
        """How many pages nobody has."""
        return len(self._free)

    @property
    def bytes_per_token(self) -> int:
        """What a token takes in all layers."""
        layers, _, heads, _, size = self.keys_LPKTD.shape
        return 2 * layers * heads * size * self.keys_LPKTD.element_size()

    def take(self, count: int) -> list[int]:
        """Pages for somebody who gives them back.

        Raises:
            IndexError: so many are not free.
        """
        if count > len(self._free):
            raise IndexError(f"{count} pages of keys and values are wanted, and {len(self._free)} are free")
        return [self._free.pop() for _ in range(count)]

    def give(self, pages: Sequence[int]) -> None:
        """Take pages back."""
        self._free.extend(pages)

    def write(self, cache: PromptCache, pages_of_B: Sequence[Sequence[int]]) -> None:
        """Move prompts into their pages.

        Args:
            cache: their keys and values, layer by layer; empty afterwards.
            pages_of_B: the pages of each prompt, as many as its tokens need.
        """
        counts = [len(pages) for pages in pages_of_B]
        width, device = max(counts), self.keys_LPKTD.device
        pages = torch.tensor([page for own in pages_of_B for page in own], device=device)
        at = [b * width + i for b, count in enumerate(counts) for i in range(count)]
        places = None if len(at) == width * len(counts) else torch.tensor(at, device=device)
        for store, found in ((self.keys_LPKTD, cache.keys), (self.values_LPKTD, cache.values)):
            for layer in range(len(store)):
                blocks = _blocks(found.pop(layer), width)
                store[layer].index_copy_(0, pages, blocks if places is None else blocks[places])

    @staticmethod
    def places(pages: Sequence[int], tokens: int) -> np.ndarray:
        """[T] where the tokens of a sequence stand, counted through all pages."""
        at = np.arange(tokens)
        return np.asarray(pages)[at // PAGE] * PAGE + at % PAGE

    def keeper(self, at_T: Tensor, places_T: Tensor) -> Callable[[int, Tensor, Tensor], None]:
        """A function that writes a layer's keys and values, [N, K, D] each.

        Args:
            at_T: which of the N tokens are written.
            places_T: where to, see `places`.
        """
        page_T, inside_T = places_T // PAGE, places_T % PAGE

        def keep(layer: int, keys_NKD: Tensor, values_NKD: Tensor) -> None:
            self.keys_LPKTD[layer][page_T, :, inside_T] = keys_NKD[at_T]
            self.values_LPKTD[layer][page_T, :, inside_T] = values_NKD[at_T]

        return keep

    def read(self, prompt: tuple[Sequence[int], int], own: tuple[Sequence[int], int]) -> Tensor:
        """[L, 2, K, T, D] copies of the keys and values of a prompt and of what follows it.

        Args:
            prompt: its pages, and how many tokens they hold.
            own: the pages behind them, and how many tokens.
        """
        pieces = [self._tokens(*part) for part in (prompt, own) if part[1]]
        return torch.cat(pieces, 3)

    def _tokens(self, pages: Sequence[int], tokens: int) -> Tensor:
        at = torch.tensor(list(pages)[: pages_for(tokens)], device=self.keys_LPKTD.device)
        both = torch.stack([store[:, at] for store in (self.keys_LPKTD, self.values_LPKTD)], 1)
        layers, two, count, heads, _, size = both.shape
        flat = both.transpose(2, 3).reshape(layers, two, heads, count * PAGE, size)
        return flat[:, :, :, :tokens]


def _blocks(tensor_BKTD: Tensor, width: int) -> Tensor:
    """[B * width, K, PAGE, D]: sequences cut into pages, padded or cut to so many each."""
    rows, heads, length, size = tensor_BKTD.shape
    room = width * PAGE
    if length < room:
        tensor_BKTD = nn.functional.pad(tensor_BKTD, (0, 0, 0, room - length))
    cut = tensor_BKTD[:, :, :room].reshape(rows, heads, width, PAGE, size)
    return cut.transpose(1, 2).reshape(rows * width, heads, PAGE, size)


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
