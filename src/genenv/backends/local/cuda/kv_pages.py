# pyright: standard
"""The memory of captured decode steps, at fixed addresses: KV pages and the state of rows.

Keys and values of sampled sequences are in pages of one store, which is allocated once. A prompt's pages are
shared by all its completions; a completion's tokens are in separate pages after them. Page 0 is never
assigned: unused rows write to it.

Shapes: L = layers, P = pages (of the store, or of a row), K = key/value heads, D = head size, B = prompts,
T = tokens, R = rows, S = steps between two reads of the drawn tokens, V = vocabulary.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from genenv.backends.local.attention import PromptCache

PAGE = 64
"""Tokens of a page, and of one iteration of the attention kernel."""


def pages_for(tokens: int) -> int:
    """Return how many pages this many tokens need."""
    return -(-tokens // PAGE)


class PagePool:
    """The store of pages, and the list of free ones.

    Args:
        layers: number of layers.
        heads: key heads of a layer.
        size: of a head.
        pages: number of pages, including page 0.
        dtype: of keys and values.
        device: of the store.
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
        """Mark all pages free; only one batch at a time uses them."""
        self._free = list(range(self._pages - 1, 0, -1))

    @property
    def free(self) -> int:
        """Number of free pages."""
        return len(self._free)

    @property
    def bytes_per_token(self) -> int:
        """Bytes of the keys and values of one token in all layers."""
        layers, _, heads, _, size = self.keys_LPKTD.shape
        return 2 * layers * heads * size * self.keys_LPKTD.element_size()

    def take(self, count: int) -> list[int]:
        """Take pages out of the free list; the caller must `give` them back.

        Raises:
            IndexError: not enough pages are free.
        """
        if count > len(self._free):
            raise IndexError(f"{count} pages of keys and values are wanted, and {len(self._free)} are free")
        return [self._free.pop() for _ in range(count)]

    def give(self, pages: Sequence[int]) -> None:
        """Return pages to the free list."""
        self._free.extend(pages)

    def write(self, cache: PromptCache, pages_of_B: Sequence[Sequence[int]]) -> None:
        """Move prompts into their pages.

        Args:
            cache: keys and values of the prompts, layer by layer; empty afterwards.
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
        """Return [T] the places of a sequence's tokens in its pages: page * PAGE + offset."""
        at = np.arange(tokens)
        return np.asarray(pages)[at // PAGE] * PAGE + at % PAGE

    def keeper(self, at_T: Tensor, places_T: Tensor) -> Callable[[int, Tensor, Tensor], None]:
        """Return a function that writes a layer's keys and values, [N, K, D] each, into pages.

        Args:
            at_T: indices of the tokens to write, among the N.
            places_T: their places, see `places`.
        """
        page_T, inside_T = places_T // PAGE, places_T % PAGE

        def keep(layer: int, keys_NKD: Tensor, values_NKD: Tensor) -> None:
            self.keys_LPKTD[layer][page_T, :, inside_T] = keys_NKD[at_T]
            self.values_LPKTD[layer][page_T, :, inside_T] = values_NKD[at_T]

        return keep

    def read(self, prompt: tuple[Sequence[int], int], own: tuple[Sequence[int], int]) -> Tensor:
        """Return [L, 2, K, T, D] copies of the keys and values of a prompt and of the tokens after it.

        Args:
            prompt: its pages and number of tokens.
            own: the pages and number of the tokens after it.
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
    """Cut sequences into pages, each padded or cut to `width` pages: [B * width, K, PAGE, D]."""
    rows, heads, length, size = tensor_BKTD.shape
    room = width * PAGE
    if length < room:
        tensor_BKTD = nn.functional.pad(tensor_BKTD, (0, 0, 0, room - length))
    cut = tensor_BKTD[:, :, :room].reshape(rows, heads, width, PAGE, size)
    return cut.transpose(1, 2).reshape(rows * width, heads, PAGE, size)


STEPS = 8
"""Tokens drawn on the device before the host reads them; a finished row leaves after at most this many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seat:
    """The state of one row, to be copied to the device."""

    token: int
    """The last drawn token."""
    drawn: int
    """Number of drawn tokens."""
    left: int
    """Maximum number of further tokens."""
    prompt_tokens: int
    pages: Sequence[int]
    """The pages of the prompt, then those of the row."""
    prompt: object
    """Identity of the prompt, equal for all its rows."""
    temperature: float
    """Sampling temperature; 0: greedy."""
    choices: bool
    """Whether log-probabilities are over the allowed tokens only, as for choices."""


class RowState:
    """The state of all rows in device tensors that kernels read and write.

    Args:
        rows: maximum number of rows.
        pages: maximum number of pages per row.
        vocabulary: size of the vocabulary.
        rows_of_a_tile: number of rows of one prompt that attend to it together.
        device: of the tensors.
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
        """[R, M] rows of one prompt per tile; -1 at unused places."""
        self.temperature_R = numbers(rows, dtype=torch.float32, value=1)
        self.least_R = numbers(rows, dtype=torch.float32, value=float("-inf"))
        """Minimum logit of tokens that may be drawn."""
        self.greedy_R, self.among_R = numbers(rows), numbers(rows)
        self.uniform_RS = numbers(rows, STEPS, dtype=torch.float32)
        self.mask_RV = numbers(rows, -(-vocabulary // 32), value=-1)
        """Bit masks of the tokens that may be drawn."""
        self.ends_V = numbers(vocabulary)
        """1 at the tokens that end a row; see `end_at`."""
        self.out_token_SR = numbers(STEPS, rows, value=-1)
        """Drawn tokens; -1 if the row was already done."""
        self.out_logprob_SR = numbers(STEPS, rows, dtype=torch.float32)

    def end_at(self, tokens: Collection[int]) -> None:
        """Set the tokens that end a row."""
        self.ends_V.zero_()
        self.ends_V[[token for token in tokens if 0 <= token < len(self.ends_V)]] = 1

    def seat(self, seats: Sequence[Seat], rows: int) -> None:
        """Copy the state of rows to the device; the remaining rows up to `rows` become empty.

        Args:
            seats: the state of each row, in order.
            rows: number of rows that a step processes.
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
        """Copy the random numbers of the next steps, [rows, steps], to the device."""
        rows, steps = uniform_RS.shape
        self.uniform_RS[:rows, :steps].copy_(torch.from_numpy(uniform_RS), non_blocking=True)

    def drawn(self, rows: int, steps: int) -> tuple[list[list[int]], list[list[float]]]:
        """Return tokens and log-probabilities of the last steps, a list per row; waits for the device."""
        tokens = self.out_token_SR[:steps, :rows].T.tolist()
        return tokens, self.out_logprob_SR[:steps, :rows].T.tolist()


def _tiles(prompts: Sequence[object], rows: int, most: int) -> np.ndarray:
    """Group rows by prompt into tiles, [rows, most]."""
    members: dict[int, list[int]] = {}
    for row, prompt in enumerate(prompts):
        members.setdefault(id(prompt), []).append(row)
    tiles = np.full((rows, most), -1, dtype=np.int32)
    pieces = (own[at : at + most] for own in members.values() for at in range(0, len(own), most))
    for tile, piece in enumerate(pieces):
        tiles[tile, : len(piece)] = piece
    return tiles
