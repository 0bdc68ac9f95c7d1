# pyright: standard
"""KV caches in sampling without CUDA: of prompts, of completions, of conversations between turns.

A prompt's keys and values are stored once for all its completions. A conversation's cache may be kept between
turns, so that the next turn only prefills new tokens. (On CUDA: `cuda.kv_pages`.)

Shapes: B = prompts, R = completions (rows; each continues a prompt), L = layers, P = longest prompt, S = most
new tokens, T = tokens of a row or conversation so far, K = key/value heads, D = head size.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

_FIRST_TOKENS = 32
"""Initial capacity of the buffers for sampled tokens; it doubles when it is used up."""


def additive_mask(unseen: Tensor, dtype: torch.dtype) -> Tensor:
    """Return a mask to add to attention scores: -inf where `unseen` is True, 0 elsewhere."""
    return torch.zeros(unseen.shape, dtype=dtype, device=unseen.device).masked_fill_(unseen, float("-inf"))


class PromptCache:
    """The KV cache of a batch, per layer: of prompts, and of the tokens sampled after them.

    Prompts are padded on the right. Rows may have different lengths, because they are admitted at different
    times.
    """

    def __init__(self) -> None:
        self.keys: dict[int, Tensor] = {}  # layer -> [B, K, P, D]
        self.values: dict[int, Tensor] = {}
        self._new_keys: dict[int, Tensor] = {}  # layer -> [R, K, room, D]
        self._new_values: dict[int, Tensor] = {}

    def append(self, layer: int, own: OwnTokens, key_RKD: Tensor, value_RKD: Tensor) -> tuple[Tensor, Tensor]:
        """Write this step's keys and values; return views of all tokens so far, [R, K, longest + 1, D]."""
        end = own.longest + 1
        stores = self.room(layer, own, key_RKD)
        for buffer, new in zip(stores, (key_RKD, value_RKD), strict=True):
            if own.mask_R111T is None:
                buffer[:, :, own.longest] = new
            else:
                buffer[own.rows_R, :, own.seen_R] = new
        return stores[0][:, :, :end], stores[1][:, :, :end]

    def room(self, layer: int, own: OwnTokens, like_RKD: Tensor) -> tuple[Tensor, Tensor]:
        """Return the buffers of sampled tokens, [R, K, room, D], enlarged if this step's do not fit."""
        for store in (self._new_keys, self._new_values):
            buffer = store.get(layer)
            if buffer is None or buffer.shape[2] <= own.longest:
                store[layer] = self._larger(buffer, like_RKD)
        return self._new_keys[layer], self._new_values[layer]

    @staticmethod
    def _larger(buffer: Tensor | None, new_RKD: Tensor) -> Tensor:
        """Return a new or doubled buffer, [R, K, room, D]. New places are 0, as NaN would pass the mask."""
        rows, heads, size = new_RKD.shape
        if buffer is None:
            return new_RKD.new_zeros(rows, heads, _FIRST_TOKENS, size)
        return torch.cat([buffer, torch.zeros_like(buffer)], 2)

    def keep(self, rows: Tensor, prompts: Tensor) -> None:
        """Drop all rows and prompts but those with these indices, so that finished ones cost nothing."""
        for store in (self._new_keys, self._new_values):
            for layer, buffer in store.items():
                store[layer] = buffer.index_select(0, rows)
        for store in (self.keys, self.values):
            for layer, own in store.items():
                if len(prompts) < len(own):
                    store[layer] = own.index_select(0, prompts)

    def extend(self, others: Sequence[PromptCache], rows: int = 0) -> None:
        """Move the prompts of other caches into this one, and make room for rows that will continue them."""
        present = [cache for cache in (self, *others) if cache.keys]
        for layer in list(present[0].keys):  # layer by layer, so that not all tensors exist twice
            self.keys[layer] = _stacked([cache.keys.pop(layer) for cache in present])
            self.values[layer] = _stacked([cache.values.pop(layer) for cache in present])
        for store in (self._new_keys, self._new_values):
            for layer, buffer in store.items():
                store[layer] = torch.cat([buffer, buffer.new_zeros(rows, *buffer.shape[1:])])

    @property
    def bytes_per_token(self) -> int:
        """Bytes of the keys and values of one token in all layers."""
        return sum(
            store[layer].shape[1] * store[layer].shape[3] * store[layer].element_size()
            for store in (self.keys, self.values)
            for layer in store
        )

    def conversation(self, prompt: int, prompt_tokens: int, row: int, own_tokens: int) -> Tensor:
        """Return [L, 2, K, T, D] copies of the keys and values of a prompt and of the row after it.

        Args:
            prompt: index of the prompt.
            prompt_tokens: length of the prompt.
            row: index of the row.
            own_tokens: how many of the row's tokens have keys and values.
        """
        layers = []
        for layer in self.keys:
            for first, new in ((self.keys, self._new_keys), (self.values, self._new_values)):
                pieces = [first[layer][prompt, :, :prompt_tokens]]
                if own_tokens:
                    pieces.append(new[layer][row, :, :own_tokens])
                layers.append(torch.cat(pieces, 1))
        whole = torch.stack(layers)
        return whole.view(-1, 2, *whole.shape[1:])


def _stacked(prompts: Sequence[Tensor]) -> Tensor:
    """Concatenate tensors [B, K, P, D] along B, padded to the same P."""
    if len(prompts) == 1:
        return prompts[0]
    width = max(tensor.shape[2] for tensor in prompts)
    return torch.cat([nn.functional.pad(tensor, (0, 0, 0, width - tensor.shape[2])) for tensor in prompts])


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class KeptCache:
    """The KV cache of a conversation, kept for its next turn while someone references it."""

    weights: Hashable
    """Identifies the weights that computed it; other weights give other keys and values."""
    token_ids: tuple[int, ...]
    kept: Tensor
    """[L, 2, K, T, D] keys and values of the tokens in `token_ids`."""

    def shared(self, prompt_ids: Sequence[int], weights: Hashable) -> KeptCache | None:
        """Return the cache of the common beginning with a prompt, if it was computed with these weights.

        The beginning of a conversation may change: templates drop old thoughts, and prompts list the present
        options. None if less than half of the prompt is cached, which is hardly worth a separate prefill. At
        least one token of the prompt is left to prefill.
        """
        if weights != self.weights:
            return None
        most = min(len(self.token_ids), len(prompt_ids) - 1)
        pairs = zip(self.token_ids[:most], prompt_ids, strict=False)
        length = next((at for at, (known, new) in enumerate(pairs) if known != new), most)
        if 2 * length < len(prompt_ids):
            return None
        if length == len(self.token_ids):
            return self
        return KeptCache(weights=weights, token_ids=self.token_ids[:length], kept=self.kept[..., :length, :])


class OwnTokens:
    """The number of sampled tokens in the cache of each row, with the derived indices and mask.

    Args:
        lengths: [R] number of tokens after the prompt that the model has processed.
        dtype: of the attention scores.
        device: of all tensors.
    """

    def __init__(self, lengths: Sequence[int], dtype: torch.dtype, device: torch.device) -> None:
        self.longest, self._dtype = max(lengths), dtype
        self.seen_R = torch.tensor(lengths, device=device)
        self._even = min(lengths) == self.longest

    @functools.cached_property
    def rows_R(self) -> Tensor:
        """[R] 0, 1, 2, ..."""
        return torch.arange(len(self.seen_R), device=self.seen_R.device)

    @functools.cached_property
    def mask_R111T(self) -> Tensor | None:
        """[R, 1, 1, 1, T] 0 at the row's tokens with this step's, else -inf; None if lengths are equal."""
        if self._even:
            return None
        unseen_RT = torch.arange(self.longest + 1, device=self.seen_R.device) > self.seen_R[:, None]
        return additive_mask(unseen_RT, self._dtype)[:, None, None, None]
