# pyright: standard
"""Sequences that share prompts, packed without padding.

A *bundle* is one prompt and the completions that continue it. All tokens of all bundles stand in one flat
row: a prompt goes through the model once however many completions it has, what several prompts begin with
goes through it once for all of them (the prompts form a prefix tree); matrix products see no padding. Only
inside attention (`attention`) are tokens laid out in padded rows again.

Shapes: N = tokens in the flat row, B = bundles, R = completions (rows), P = longest prompt, C = longest
completion, S = most completions of a bundle.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Bundle:
    """One prompt and the completions that continue it."""

    prompt_ids: Sequence[int]
    completions: Sequence[Sequence[int]] = ()

    @property
    def tokens(self) -> int:
        """How many tokens go through the model."""
        return len(self.prompt_ids) + sum(len(ids) for ids in self.completions)


class Packed:
    """A flat row of bundles, and where everything stands in it."""

    def __init__(self, bundles: Sequence[Bundle], device: torch.device) -> None:
        """Lay out bundles: all prompts, then all completions, in order; an empty one takes no row.

        Raises:
            ValueError: a prompt is empty: nothing would predict the first token after it.
        """
        prompts = [tuple(bundle.prompt_ids) for bundle in bundles]
        if not all(prompts):
            raise ValueError("a bundle needs at least one prompt token")
        rows = [(b, list(ids)) for b, bundle in enumerate(bundles) for ids in bundle.completions if len(ids)]
        tree = _PrefixTree(prompts)
        ids = tree.ids + [token for _, row in rows for token in row]
        positions = tree.positions + [len(prompts[b]) + t for b, row in rows for t in range(len(row))]
        self.device = device
        self.ids_1N = torch.tensor([ids], device=device)
        self.positions_1N = torch.tensor([positions], device=device)
        self.prompt_tokens = len(tree.ids)
        self.queries_3B = torch.tensor(tree.own).T.contiguous()
        """For `Kernels.prefill`, on the CPU: each prompt's tokens that no prompt before it has."""
        self.bundle_of_R = torch.tensor([b for b, _ in rows], dtype=torch.long, device=device)
        lengths = [len(prompt) for prompt in prompts]
        at_BP, self.prompt_real_BP = grid(lengths, 0, device)
        self.prompt_at_BP = torch.tensor(tree.at, device=device)[at_BP]
        width = self.prompt_at_BP.shape[1]
        self.prompt_owner_N = torch.tensor([b * width + t for b, t in tree.owners], device=device)
        self.last_of_prompt_B = self.prompt_at_BP.gather(
            1, torch.tensor(lengths, device=device)[:, None] - 1
        )[:, 0]
        self.row_at_RC, self.row_real_RC = grid([len(row) for _, row in rows], self.prompt_tokens, device)
        self.slots = Slots([b for b, _ in rows], len(prompts), device) if rows else None

    @property
    def tokens(self) -> int:
        """How many tokens go through the model."""
        return self.ids_1N.shape[1]

    def targets(self) -> tuple[Tensor, Tensor]:
        """What the completions' tokens are predicted from.

        Returns:
            [M] index in the flat row of the token before each completion token, and [M] the token itself;
            M = all completion tokens, row after row.
        """
        before_RC = self.row_at_RC.roll(1, dims=1)
        before_RC[:, :1] = self.last_of_prompt_B[self.bundle_of_R][:, None]
        return before_RC[self.row_real_RC], self.ids_1N[0][self.row_at_RC[self.row_real_RC]]


class _PrefixTree:
    """Prompts laid out so that a beginning which several of them share stands there once.

    In alphabetical order a prompt shares with the one before it all that it shares with any before it.
    """

    def __init__(self, prompts: Sequence[tuple[int, ...]]) -> None:
        self.ids: list[int] = []
        self.positions: list[int] = []
        self.owners: list[tuple[int, int]] = []
        """For each token of the tree, (prompt, position) of its first use."""
        self.own: list[tuple[int, int, int]] = [(0, 0, 0)] * len(prompts)
        """For each prompt, where in the tree its own tokens begin, how many, and the first one's position."""
        at: list[list[int]] = [[] for _ in prompts]
        before: tuple[int, ...] = ()
        path: list[int] = []
        for b in sorted(range(len(prompts)), key=prompts.__getitem__):
            prompt = prompts[b]
            shared = common_prefix(before, prompt)
            path = path[:shared] + list(range(len(self.ids), len(self.ids) + len(prompt) - shared))
            self.own[b] = len(self.ids), len(prompt) - shared, shared
            self.ids += prompt[shared:]
            self.positions += range(shared, len(prompt))
            self.owners += [(b, t) for t in range(shared, len(prompt))]
            at[b], before = path, prompt
        self.at = [index for own in at for index in own]
        """Where each token of each prompt, one prompt after the other, stands in the tree."""


def common_prefix(a: Sequence[int], b: Sequence[int]) -> int:
    """How many tokens two sequences begin with alike."""
    return next((t for t, (x, y) in enumerate(zip(a, b, strict=False)) if x != y), min(len(a), len(b)))


def within_budget(
    items: Iterable[_Item], tokens: int, cost: Callable[[_Item], tuple[Sequence[int], int]]
) -> list[list[_Item]]:
    """Cut a sequence of items into stretches of at most `tokens` tokens (one item may be more).

    Args:
        items: in order; what the prompts of neighbours begin with alike counts once.
        tokens: the budget.
        cost: an item's prompt, and all its tokens with the prompt.
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
        """[R, ...] -> [B, S, ...], zero where a bundle has fewer rows."""
        if not self.full:
            rows = rows.new_zeros(self.bundles * self.width, *rows.shape[1:]).index_copy(
                0, self.slot_of_R, rows
            )
        return rows.reshape(self.bundles, self.width, *rows.shape[1:])

    def gather(self, grid: Tensor) -> Tensor:
        """[B, S, ...] -> [R, ...]."""
        rows = grid.reshape(self.bundles * self.width, *grid.shape[2:])
        return rows if self.full else rows.index_select(0, self.slot_of_R)


def grid(lengths: Sequence[int], start: int, device: torch.device) -> tuple[Tensor, Tensor]:
    """[R, C] flat index of each token of each row (0 where padded), and [R, C] which are real."""
    lengths_R = torch.tensor(lengths, dtype=torch.long)
    width = int(lengths_R.max()) if len(lengths) else 0
    offsets_R = torch.cumsum(lengths_R, 0) - lengths_R + start
    steps_C = torch.arange(width)
    real_RC = steps_C[None] < lengths_R[:, None]
    at_RC = torch.where(real_RC, offsets_R[:, None] + steps_C[None], 0)
    return at_RC.to(device), real_RC.to(device)
