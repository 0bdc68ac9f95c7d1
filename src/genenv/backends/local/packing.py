# pyright: standard
"""Packing of sequences with shared prompts, without padding, as a flat row or a tree; and micro-batches.

A *bundle* is one prompt and the completions that continue it. All tokens of all bundles are in one flat row,
so matrix products process no padding. A prompt is processed once for all its completions. A common beginning
of several prompts is processed once for all of them: the prompts form a prefix tree. Only attention
(`attention`) lays tokens out in padded rows.

A `TokenTree` is the same row in depth-first order: completions are leaves, and each follows its prompt. The
tokens that continue a token are exactly those from its own position up to its `end`. So one comparison
decides which tokens attend to which:

    token q attends to token k    if and only if    k <= q < end[k]

The same comparison with the smallest and largest `end` of a block of keys says whether a whole block of
queries attends to that block. Fast attention kernels use this to skip blocks.

Shapes: N = tokens in the flat row (of a tree: padded to whole blocks), B = bundles, R = completions (rows),
P = longest prompt, C = longest completion, S = most completions of a bundle; of a tree M = completion tokens,
S = N / `BLOCK`.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

import numpy as np
import torch
from torch import Tensor

from genenv.algorithms.datum import Datum
from genenv.backends.local.hardware import release_memory
from genenv.errors import out_of_memory

log = logging.getLogger(__name__)

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """One prompt and the completions that continue it."""

    prompt_ids: Sequence[int]
    completions: Sequence[Sequence[int]] = ()

    @property
    def tokens(self) -> int:
        """Number of tokens to process."""
        return len(self.prompt_ids) + sum(len(ids) for ids in self.completions)


class Packed:
    """A flat row of bundles, with the index tensors that attention needs."""

    def __init__(self, bundles: Sequence[Bundle], device: torch.device) -> None:
        """Lay out bundles: all prompts, then all completions, in order; empty completions are skipped.

        Raises:
            ValueError: a prompt is empty, so that nothing would predict the first token after it.
        """
        prompts = [tuple(bundle.prompt_ids) for bundle in bundles]
        if not all(prompts):
            raise ValueError("a bundle needs at least one prompt token")
        rows = [(b, list(ids)) for b, bundle in enumerate(bundles) for ids in bundle.completions if len(ids)]
        walk = _Walk()
        at, own = [np.empty(0, np.int64)] * len(prompts), [(0, 0, 0)] * len(prompts)
        width = max(map(len, prompts))
        owners: list[np.ndarray] = []
        """For each token of the prompts' tree, its first use in a grid of prompts and positions."""
        for b in sorted(range(len(prompts)), key=prompts.__getitem__):
            start, length = walk.place, len(prompts[b])
            at[b] = walk.enter(prompts[b])
            new = walk.place - start
            own[b] = start, new, length - new
            owners.append(b * width + np.arange(length - new, length))
        ids = np.concatenate([*walk.ids, *(row for _, row in rows)])
        positions = [*walk.positions, *(len(prompts[b]) + np.arange(len(row)) for b, row in rows)]
        self.device = device
        self.ids_1N = on_device(ids, device)[None]
        self.positions_1N = on_device(np.concatenate(positions), device)[None]
        self.prompt_tokens = walk.place
        self.queries_3B = torch.tensor(own).T.contiguous()
        """For `Kernels.prefill`, on the CPU: start, number and first position of the tokens that each prompt
        adds to the tree."""
        self.bundle_of_R = torch.tensor([b for b, _ in rows], dtype=torch.long, device=device)
        lengths = [len(prompt) for prompt in prompts]
        at_BP, self.prompt_real_BP = grid(lengths, 0, device)
        self.prompt_at_BP = on_device(np.concatenate(at), device)[at_BP]
        self.prompt_owner_N = on_device(np.concatenate(owners), device)
        self.last_of_prompt_B = self.prompt_at_BP.gather(
            1, torch.tensor(lengths, device=device)[:, None] - 1
        )[:, 0]
        self.row_at_RC, self.row_real_RC = grid([len(row) for _, row in rows], self.prompt_tokens, device)
        self.slots = Slots([b for b, _ in rows], len(prompts), device) if rows else None

    @property
    def tokens(self) -> int:
        """Number of tokens to process."""
        return self.ids_1N.shape[1]

    def targets(self) -> tuple[Tensor, Tensor]:
        """Return the places from which the completions' tokens are predicted.

        Returns:
            [M] index in the flat row of the token before each completion token, and [M] the token itself; M =
                all completion tokens, row after row.
        """
        before_RC = self.row_at_RC.roll(1, dims=1)
        before_RC[:, :1] = self.last_of_prompt_B[self.bundle_of_R][:, None]
        return before_RC[self.row_real_RC], self.ids_1N[0][self.row_at_RC[self.row_real_RC]]


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """Return the length of the longest common prefix of two sequences."""
    return next((t for t, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def within_budget(
    items: Iterable[_Item], tokens: int, cost: Callable[[_Item], tuple[Sequence[int], int]]
) -> list[list[_Item]]:
    """Cut a sequence of items into stretches of at most `tokens` tokens; a single item may exceed this.

    Args:
        items: in order; a common beginning of the prompts of neighbors counts once.
        tokens: the budget.
        cost: returns an item's prompt, and its number of tokens including the prompt.
    """
    stretches: list[list[_Item]] = []
    size, before = 0, ()
    for item in items:
        prompt, own = cost(item)
        shared = common_prefix(before, prompt)
        if not stretches or size + own - shared > tokens:
            stretches.append([])
            size = shared = 0
        stretches[-1].append(item)
        size, before = size + own - shared, prompt
    return stretches


class Slots:
    """Rows of bundles laid out as a [B, S] grid, so that one product serves all rows of a bundle."""

    def __init__(self, bundle_of_R: Sequence[int], bundles: int, device: torch.device) -> None:
        counts = [0] * bundles
        slots = []
        for b in bundle_of_R:
            slots.append((b, counts[b]))
            counts[b] += 1
        self.bundles, self.width = bundles, max(counts)
        self.slot_of_R = torch.tensor([b * self.width + s for b, s in slots], device=device)
        self.full = [b * self.width + s for b, s in slots] == list(range(bundles * self.width))

    def spread(self, rows: Tensor) -> Tensor:
        """Lay out rows: [R, ...] -> [B, S, ...], zero if a bundle has fewer rows."""
        if not self.full:
            rows = rows.new_zeros(self.bundles * self.width, *rows.shape[1:]).index_copy(
                0, self.slot_of_R, rows
            )
        return rows.reshape(self.bundles, self.width, *rows.shape[1:])

    def gather(self, grid: Tensor) -> Tensor:
        """Undo `spread`: [B, S, ...] -> [R, ...]."""
        rows = grid.reshape(self.bundles * self.width, *grid.shape[2:])
        return rows if self.full else rows.index_select(0, self.slot_of_R)


def grid(lengths: Sequence[int], start: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """Return [R, C] the flat index of each token of each row (0 at padding), and [R, C] True at tokens."""
    lengths_R = torch.tensor(lengths, dtype=torch.long)
    width = int(lengths_R.max()) if len(lengths) else 0
    offsets_R = torch.cumsum(lengths_R, 0) - lengths_R + start
    steps_C = torch.arange(width)
    real_RC = steps_C[None] < lengths_R[:, None]
    at_RC = torch.where(real_RC, offsets_R[:, None] + steps_C[None], 0)
    return at_RC.to(device), real_RC.to(device)


BLOCK = 128
"""Tokens of a block: attention kernels process or skip this many keys and queries at once."""
_FEWEST_BLOCKS = 2
"""The compiler would treat a single block as a special case."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """The blocks of keys that each block of queries attends to, in the form of flex attention."""

    counts_S: Tensor
    """[1, 1, S] number of key blocks that each query block attends to, int32."""
    indices_SS: Tensor
    """[1, 1, S, S] all key blocks for each query block, first those that it attends to, int32."""

    @staticmethod
    def of(chosen_SS: Tensor) -> Blocks:
        """Convert a boolean matrix of blocks."""
        counts = chosen_SS.sum(-1, dtype=torch.int32)
        others = counts[:, None] + (~chosen_SS).cumsum(-1) - 1
        rank_SS = torch.where(chosen_SS, chosen_SS.cumsum(-1) - 1, others)
        places_SS = torch.arange(len(chosen_SS), dtype=torch.int32, device=counts.device).expand_as(chosen_SS)
        order = torch.empty_like(places_SS, memory_format=torch.contiguous_format).scatter_(
            1, rank_SS, places_SS
        )
        return Blocks(counts_S=counts[None, None], indices_SS=order[None, None])


class TokenTree:
    """A flat row of bundles in depth-first order.

    Args:
        bundles: prompts and completions; empty completions are skipped.
        device: of its tensors.

    Raises:
        ValueError: a prompt is empty, so that nothing would predict the first token after it.
    """

    def __init__(self, bundles: Sequence[Bundle], device: torch.device) -> None:
        if not all(len(bundle.prompt_ids) for bundle in bundles):
            raise ValueError("a bundle needs at least one prompt token")
        walk = _Walk()
        at_B: dict[int, np.ndarray] = {}
        before_R: dict[tuple[int, int], np.ndarray] = {}
        prompts = [tuple(bundle.prompt_ids) for bundle in bundles]
        for b in sorted(range(len(prompts)), key=prompts.__getitem__):
            at_B[b] = walk.enter(prompts[b])
            last = int(at_B[b][-1])
            for r, completion in enumerate(bundles[b].completions):
                if len(completion):
                    start = walk.leaf(completion)
                    before = np.arange(start - 1, start - 1 + len(completion))
                    before[0] = last
                    before_R[b, r] = before
        self.device = device
        self.prompts_at = [at_B[b] for b in range(len(bundles))]
        """For each prompt, the indices of its tokens."""
        self.tokens = walk.place
        """Number of tokens without padding."""
        walk.close(max(_FEWEST_BLOCKS, -(-walk.place // BLOCK)) * BLOCK)
        ids, positions, end = (np.concatenate(parts) for parts in (walk.ids, walk.positions, walk.ends))
        at = (
            np.concatenate([before_R[key] for key in sorted(before_R)]) if before_R else np.empty(0, np.int64)
        )
        tokens = [np.asarray(ids_) for bundle in bundles for ids_ in bundle.completions if len(ids_)]
        targets = np.concatenate(tokens) if tokens else np.empty(0, np.int64)
        length, count = len(ids), len(at)
        whole = on_device(np.concatenate([ids, positions, end, at, targets]), device)
        parts = whole.split([length, length, length, count, count])
        self.ids_N, self.positions_N = parts[:2]
        self.end_N = parts[2].to(torch.int32)
        self.at_M = parts[3]
        """Index of the token before each completion token, completion after completion in the given order."""
        self.tokens_M = parts[4]
        """The completion tokens."""

    @property
    def blocks(self) -> int:
        """Number of blocks in the row."""
        return len(self.ids_N) // BLOCK

    def partly_and_whole(self) -> tuple[Tensor, Tensor]:
        """Return [S, S] which query blocks attend to a part of a key block, and which to all of it."""
        end_SB = self.end_N.view(-1, BLOCK)
        first_S = torch.arange(self.blocks, device=self.device, dtype=torch.int32) * BLOCK
        before_SS = first_S[:, None] > first_S[None]
        whole_SS = before_SS & (end_SB.amin(1)[None] >= first_S[:, None] + BLOCK)
        some_SS = before_SS & (end_SB.amax(1)[None] > first_S[:, None])
        own_SS = first_S[:, None] == first_S[None]
        return (some_SS & ~whole_SS) | own_SS, whole_SS

    def attends_NN(self) -> Tensor:
        """Return [N, N] True if a query (row) attends to a key (column); only for tests and small inputs."""
        places_N = torch.arange(len(self.ids_N), device=self.device)
        return (places_N[None] <= places_N[:, None]) & (places_N[:, None] < self.end_N[None])


class _Walk:
    """Builds a prefix tree of prompts, so that a shared beginning is stored once, and writes completions.

    It visits prompts in alphabetical order: then a prompt's longest prefix shared with any earlier prompt is
    shared with the previous one.
    """

    def __init__(self) -> None:
        self.place = 0
        self.ids: list[np.ndarray] = []
        self.positions: list[np.ndarray] = []
        self.ends: list[np.ndarray] = []
        self._prompt: tuple[int, ...] = ()
        self._path = np.empty(0, np.int64)
        self._open: list[tuple[int, np.ndarray]] = []
        """Stretches of the present path, each with the path's length at its end and its still unwritten
        `end`s."""

    def enter(self, prompt: tuple[int, ...]) -> np.ndarray:
        """Go to a prompt, which must follow the last one alphabetically; return the indices of its tokens."""
        shared = common_prefix(self._prompt, prompt)
        self._leave(shared)
        new = len(prompt) - shared
        self._path = np.concatenate([self._path[:shared], np.arange(self.place, self.place + new)])
        self._prompt = prompt
        end = np.empty(new, np.int64)
        if new:
            self._open.append((len(prompt), end))
        self._write(prompt[shared:], shared, end)
        return self._path

    def leaf(self, completion: Sequence[int]) -> int:
        """Write a completion of the present prompt; return the index of its first token."""
        start = self.place
        self._write(completion, len(self._prompt), np.full(len(completion), start + len(completion)))
        return start

    def close(self, length: int) -> None:
        """Finish the tree and pad it; a padding token attends only to itself."""
        self._leave(0)
        places = np.arange(self.place, length)
        self.ids.append(np.zeros_like(places))
        self.positions.append(np.zeros_like(places))
        self.ends.append(places + 1)

    def _leave(self, kept: int) -> None:
        """End the part of the path beyond its first `kept` tokens: write its `end`s."""
        while self._open and self._open[-1][0] > kept:
            length, end = self._open[-1]
            begin = length - len(end)
            if begin >= kept:
                end[: len(end)] = self.place
                self._open.pop()
            else:
                end[kept - begin :] = self.place
                self._open[-1] = (kept, end[: kept - begin])
        self._path = self._path[:kept]

    def _write(self, ids: Sequence[int], position: int, end: np.ndarray) -> None:
        self.ids.append(np.asarray(ids, np.int64))
        self.positions.append(np.arange(position, position + len(ids)))
        self.ends.append(end)
        self.place += len(ids)


def on_device(values: np.ndarray, device: torch.device) -> Tensor:
    """Return a tensor of these values, copied to a GPU without blocking the host."""
    tensor = torch.from_numpy(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)


Piece = tuple[Bundle, Sequence[Datum]]
"""A prompt with completions, and the datum of each completion."""

_Row = TypeVar("_Row")
"""The item that belongs to a completion."""


def bundle_by_prompt(data: Sequence[Datum]) -> list[Piece]:
    """Group data by prompt into bundles; data without a nonzero weight are left out."""
    by_prompt: dict[tuple[int, ...], list[Datum]] = {}
    for datum in data:
        if datum.tokens:
            by_prompt.setdefault(datum.prompt_ids, []).append(datum)
    return [
        (Bundle(prompt_ids=prompt, completions=[datum.completion_ids for datum in rows]), rows)
        for prompt, rows in by_prompt.items()
    ]


def sample_of(rows: Sequence[Datum], most: int) -> list[Datum]:
    """Return data of one prompt for a measurement: about `most` tokens, never more than twice as many.

    If the first datum is longer, its completion is cut to `most` tokens. If the prompt is longer than `most`,
    the result is empty.

    Args:
        rows: data of one piece, including policy-gradient data.
        most: tokens.
    """
    begin = next(i for i, datum in enumerate(rows) if datum.is_policy_gradient)
    first, found = rows[begin], list[Datum]()
    prompt = len(first.prompt_ids)
    if prompt + len(first.completion_ids) > 2 * most:
        return [_beginning(first, most)] if prompt <= most else []
    room = most - prompt
    for datum in rows[begin:]:
        room -= len(datum.completion_ids)
        if not datum.is_policy_gradient or (found and room < 0):
            break
        found.append(datum)
    return found


def _beginning(datum: Datum, tokens: int) -> Datum:
    """Return a policy-gradient datum with its completion cut to a number of tokens."""
    return replace(
        datum,
        completion_ids=datum.completion_ids[:tokens],
        weights=datum.weights[:tokens],
        advantages=datum.advantages and datum.advantages[:tokens],
        old_logprobs=datum.old_logprobs and datum.old_logprobs[:tokens],
    )


def micro_batches(
    items: Sequence[tuple[Bundle, Sequence[_Row]]], tokens: int
) -> list[list[tuple[Bundle, Sequence[_Row]]]]:
    """Cut bundles with the items of their completions into micro-batches of at most `tokens` tokens.

    A larger bundle is cut into several with the same prompt. A completion is never cut, and pieces with a
    long prompt may have twice the budget. Bundles are sorted by length, so that attention needs little
    padding. A common beginning of successive prompts counts once.
    """
    pieces = [piece for bundle, rows in items for piece in _cut(bundle, rows, tokens)]
    pieces.sort(key=lambda piece: piece[0].tokens)
    return within_budget(pieces, tokens, lambda piece: (piece[0].prompt_ids, piece[0].tokens))


def _cut(bundle: Bundle, rows: Sequence[_Row], tokens: int) -> list[tuple[Bundle, Sequence[_Row]]]:
    """Return a bundle, or several within the token budget with completions sorted by length.

    A prompt is not repeated for fewer completion tokens than its own length, if twice the budget allows that.
    """
    tokens = max(tokens, min(2 * len(bundle.prompt_ids), 2 * tokens))
    if bundle.tokens <= tokens:
        return [(bundle, rows)]
    pieces: list[tuple[list[Sequence[int]], list[_Row]]] = []
    size = 0
    for ids, row in sorted(zip(bundle.completions, rows, strict=True), key=lambda pair: len(pair[0])):
        if not pieces or size + len(ids) > tokens:
            pieces.append(([], []))
            size = len(bundle.prompt_ids)
        pieces[-1][0].append(ids)
        pieces[-1][1].append(row)
        size += len(ids)
    return [(Bundle(prompt_ids=bundle.prompt_ids, completions=ids), part) for ids, part in pieces]


def within_memory(
    device: torch.device, tokens: int, run: Callable[[int], None], forget: Callable[[], None]
) -> None:
    """Run with micro-batches of this many tokens; if memory runs out, run once more with half as many.

    Args:
        device: whose memory is used.
        tokens: of a micro-batch.
        run: takes the maximum tokens of a micro-batch.
        forget: frees what the failed run has left.
    """
    try:
        run(tokens)
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
    else:
        return
    # Outside the handler: while it runs, the error's traceback keeps the tensors that did not fit.
    log.warning("an update ran out of memory; again with micro-batches of %d tokens", tokens // 2)
    forget()
    release_memory(device)
    run(tokens // 2)
