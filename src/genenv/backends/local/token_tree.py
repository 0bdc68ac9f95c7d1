# pyright: standard
"""Sequences that share beginnings, as one flat row in depth-first order.

Prompts form a prefix tree, and completions are its leaves: each stands right behind its prompt. In this order
the tokens that continue a token are exactly those from its own place up to its `end`, so one comparison tells
who attends to whom:

    token q attends to token k    if and only if    k <= q < end[k]

A key that several prompts or completions share is in the row once. The same comparison on the smallest and
largest `end` of a block of keys says whether a whole block of queries attends to it, which is what fast
attention kernels skip blocks by.

Shapes: N = tokens in the flat row, padded to whole blocks; M = completion tokens; S = N / `BLOCK`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from genenv.backends.local.packing import Bundle, common_prefix

BLOCK = 128
"""Tokens of a block: kernels of attention decide for so many keys and queries at once."""
_FEWEST_BLOCKS = 2
"""Compiled code for any number of blocks would treat a single one as a case of its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Blocks:
    """Which blocks of a square of queries and keys are looked at, row by row."""

    counts_S: Tensor
    """[1, 1, S] how many, int32."""
    indices_SS: Tensor
    """[1, 1, S, S] which, those first, int32."""

    @staticmethod
    def of(chosen_SS: Tensor) -> Blocks:
        """Those that are True."""
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
        bundles: prompts and completions; empty completions take no room.
        device: where its tensors are.

    Raises:
        ValueError: a prompt is empty: nothing would predict the first token after it.
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
        """Where the tokens of each prompt are."""
        self.tokens = walk.place
        """Tokens that are real."""
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
        """Where the token before each completion token is, completion after completion as they were given."""
        self.tokens_M = parts[4]
        """The completion tokens themselves."""

    @property
    def blocks(self) -> int:
        """How many blocks the row has."""
        return len(self.ids_N) // BLOCK

    def partly_and_whole(self) -> tuple[Tensor, Tensor]:
        """[S, S] which blocks of queries attend to some of a block of keys, and which to all of it."""
        end_SB = self.end_N.view(-1, BLOCK)
        first_S = torch.arange(self.blocks, device=self.device, dtype=torch.int32) * BLOCK
        before_SS = first_S[:, None] > first_S[None]
        whole_SS = before_SS & (end_SB.amin(1)[None] >= first_S[:, None] + BLOCK)
        some_SS = before_SS & (end_SB.amax(1)[None] > first_S[:, None])
        own_SS = first_S[:, None] == first_S[None]
        return (some_SS & ~whole_SS) | own_SS, whole_SS

    def attends_NN(self) -> Tensor:
        """[N, N] True where a query (row) attends to a key (column): for tests, and few tokens."""
        places_N = torch.arange(len(self.ids_N), device=self.device)
        return (places_N[None] <= places_N[:, None]) & (places_N[:, None] < self.end_N[None])


class _Walk:
    """A walk through the tree that writes tokens down as it meets them."""

    def __init__(self) -> None:
        self.place = 0
        self.ids: list[np.ndarray] = []
        self.positions: list[np.ndarray] = []
        self.ends: list[np.ndarray] = []
        self._prompt: tuple[int, ...] = ()
        self._path = np.empty(0, np.int64)
        self._open: list[tuple[int, np.ndarray]] = []
        """Stretches of the present path: how long the path is with them, and their `end`, not written yet."""

    def enter(self, prompt: tuple[int, ...]) -> np.ndarray:
        """Go to a prompt, which comes after the last one in alphabetical order; where its tokens are."""
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
        """Write a completion of the present prompt down; where it begins."""
        start = self.place
        self._write(completion, len(self._prompt), np.full(len(completion), start + len(completion)))
        return start

    def close(self, length: int) -> None:
        """End the tree, and pad: a token of padding attends to itself alone."""
        self._leave(0)
        places = np.arange(self.place, length)
        self.ids.append(np.zeros_like(places))
        self.positions.append(np.zeros_like(places))
        self.ends.append(places + 1)

    def _leave(self, kept: int) -> None:
        """What of the path is longer than `kept` ends here."""
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
    """A tensor of these values, which a GPU fetches without making the program wait for it."""
    tensor = torch.from_numpy(values)
    return tensor.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else tensor.to(device)
