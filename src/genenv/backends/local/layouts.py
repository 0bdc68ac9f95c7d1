# pyright: standard
"""What attention must know of the tokens it is looking at: who belongs to whom, and what is remembered.

Shapes: N = tokens in the flat row, B = conversations, R = rows, P = longest prompt, S = most new tokens of a
conversation, T = tokens of a row so far.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from genenv.backends.local.cpu.kernels import Kernels, Tasks
from genenv.backends.local.kv_cache import OwnTokens, PromptCache, Remembered, additive_mask
from genenv.backends.local.packing import Packed, Slots, grid


@dataclass(slots=True, kw_only=True)
class Layout:
    """What attention must know of the flat row it is looking at."""

    packed: Packed
    cache: PromptCache | None = None
    """Filled with the prompts' keys and values when given."""
    kernels: Kernels | None = None
    """Compiled code, where it may be used."""
    window: int | None = None
    """Left here by attention: the narrowest sliding window that a layer asked for. Tokens."""


@dataclass(slots=True, kw_only=True)
class DecodeLayout:
    """One new token per row, after a prompt and earlier new tokens."""

    cache: PromptCache
    slots: Slots
    own: OwnTokens
    prompt_mask_R1P: Tensor
    """[R, 1, 1, P] 0 where the row's prompt has a token, -inf where it is padded."""
    compiled: CompiledDecode | None = None
    """What compiled code must know; None where there is none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledDecode:
    """Compiled code, and which rows continue which prompt."""

    kernels: Kernels
    tasks: Tasks
    prompt_lengths_B: Tensor


class TurnLayout:
    """What is new in conversations whose beginnings are remembered.

    Args:
        prompts: all token ids of each conversation, and the beginning that is remembered.
        cache: filled with the keys and values of the whole prompts.
        kernels: compiled code, where it may be used.

    All of it on the device of what is remembered.
    """

    def __init__(
        self,
        prompts: Sequence[tuple[Sequence[int], Remembered]],
        cache: PromptCache,
        kernels: Kernels | None = None,
    ) -> None:
        first = prompts[0][1].kept
        layers, two, heads, _, size = first.shape
        device = first.device
        starts = [len(known.token_ids) for _, known in prompts]
        new = [len(ids) - start for (ids, _), start in zip(prompts, starts, strict=True)]
        length = max(len(ids) for ids, _ in prompts)
        self.cache, self.kernels = cache, kernels
        self.kept = first.new_zeros(layers, two, len(prompts), heads, length, size)
        for b, (_, known) in enumerate(prompts):
            self.kept[:, :, b, :, : starts[b]] = known.kept
        self.ids_1N = torch.tensor(
            [[token for (ids, _), start in zip(prompts, starts, strict=True) for token in ids[start:]]],
            device=device,
        )
        self.prompt_N = torch.tensor([b for b, n in enumerate(new) for _ in range(n)], device=device)
        places = [start + t for start, n in zip(starts, new, strict=True) for t in range(n)]
        self.positions_1N = torch.tensor([places], device=device)
        new_B = torch.tensor(new)
        self.queries_3B = torch.stack([new_B.cumsum(0) - new_B, new_B, torch.tensor(starts)])
        self.last_of_prompt_B = (new_B.cumsum(0) - 1).to(device)
        self.at_BS, self.real_BS = grid(new, 0, device)

    @functools.cached_property
    def mask_B1SP(self) -> Tensor:
        """0 where a new token sees a token of its conversation, -inf elsewhere."""
        places_BS = self.positions_1N[0][self.at_BS]
        unseen_BSP = torch.arange(self.kept.shape[4], device=self.kept.device) > places_BS[..., None]
        return additive_mask(unseen_BSP, self.kept.dtype)[:, None]


@dataclass(slots=True, kw_only=True)
class OwnLayout:
    """The next tokens of rows in the model's own forward pass, with the cache that comes with it."""

    seen_RT: Tensor
    """1 where a row has a token, the new ones included, and 0 where it is padded on the left (T tokens)."""
    cache: Any = None
    """What the model made of the tokens before."""


AnyLayout = Layout | TurnLayout | DecodeLayout | OwnLayout
