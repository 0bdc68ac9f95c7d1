# pyright: standard
"""Attention over packed sequences, in training and in sampling with KV caches.

A sequence attends only to its bundle: one prompt and its completions (`packing.Bundle`). A layout describes
the tokens of a call to attention: the bundle of each token, and the cached keys and values. Attention runs in
torch or in compiled code (`cpu.kernels`).

A prompt's keys and values are stored once for all its completions. A conversation's cache may be kept between
turns, so that the next turn only prefills new tokens. (On CUDA: `cuda.kv_pages`.)

Gradients flow back through gathers with repeated indices, so these use `index_select`. On a CPU with several
threads, the backward pass of `tensor[index]` adds up repeated indices in a random order.

Shapes: N = tokens in the flat row, B = bundles (prompts, conversations), R = completions (rows; each
continues a prompt), L = layers, P = longest prompt, C = longest completion, S = most completions of a bundle
or most new tokens of a conversation, T = tokens of a row or conversation so far, H = query heads,
K = key/value heads, Q = H / K, D = head size.
"""

from __future__ import annotations

import functools
from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from typing import Any, TypeGuard

import torch
from torch import Tensor, nn

from genenv.backends.local.cpu.kernels import HEAD_SIZES, Kernels, Tasks
from genenv.backends.local.packing import Packed, Slots, grid

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


@dataclass(slots=True, kw_only=True)
class Layout:
    """Layout of a flat row of whole sequences, for prefill and training."""

    packed: Packed
    cache: PromptCache | None = None
    """Receives the prompts' keys and values; None: they are not kept."""
    kernels: Kernels | None = None
    """Compiled code for attention; None: torch."""
    window: int | None = None
    """Set by attention in a check: the narrowest window of the layers' masks. Tokens."""


@dataclass(slots=True, kw_only=True)
class DecodeLayout:
    """Layout of a decode step: one new token per row, after a prompt and earlier sampled tokens."""

    cache: PromptCache
    slots: Slots
    own: OwnTokens
    prompt_mask_R1P: Tensor
    """[R, 1, 1, P] 0 at tokens of the row's prompt, -inf at padding."""
    compiled: CompiledDecode | None = None
    """Inputs of compiled code; None: torch."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledDecode:
    """Inputs of compiled code for a decode step: the kernels, and which rows continue which prompt."""

    kernels: Kernels
    tasks: Tasks
    prompt_lengths_B: Tensor


class TurnLayout:
    """Layout of the new tokens of conversations whose beginnings are in a KV cache.

    Args:
        prompts: all token ids of each conversation, and the cache of its beginning.
        cache: receives the keys and values of the whole prompts.
        kernels: compiled code for attention; None: torch.

    All tensors are on the device of the given caches.
    """

    def __init__(
        self,
        prompts: Sequence[tuple[Sequence[int], KeptCache]],
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
        """[B, 1, S, P] 0 if a new token attends to a token of its conversation, -inf otherwise."""
        places_BS = self.positions_1N[0][self.at_BS]
        unseen_BSP = torch.arange(self.kept.shape[4], device=self.kept.device) > places_BS[..., None]
        return additive_mask(unseen_BSP, self.kept.dtype)[:, None]


@dataclass(slots=True, kw_only=True)
class OwnLayout:
    """Layout of the next tokens of rows in the model's original forward pass, with transformers' cache."""

    seen_RT: Tensor
    """[R, T] 1 at tokens, including the new ones, and 0 at padding on the left."""
    cache: Any = None
    """The cache of transformers for the tokens so far."""


AnyLayout = Layout | TurnLayout | DecodeLayout | OwnLayout


ATTENTION = "genenv_packed"
"""The name under which `packed_attention` is registered in transformers."""
CHECKED = "genenv_packed_checked"
"""The same for checks of a model: here layers get `_window` as their mask, otherwise no mask."""


def packed_attention(  # noqa: PLR0913 - the signature is transformers'
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    layout: AnyLayout | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **_: object,
) -> tuple[Tensor, None]:
    """Attention over a flat row, in the calling convention of transformers' `AttentionInterface`.

    Args:
        module: the attention layer; only its `layer_idx` is read.
        query: [1, H, N, D].
        key: [1, K, N, D].
        value: [1, K, N, D].
        attention_mask: None, as the layout determines the mask; in a check `_window`. A window is not
            applied, only noted in the layout, so that loading can refuse the model.
        scaling: factor of the attention scores; None: 1 / sqrt(D).
        layout: of the flat row.
        softcap: a cap on attention scores, which is not supported.
        s_aux: attention sinks, which are not supported.

    Returns:
        [1, N, H, D], and None in place of the attention weights.

    Raises:
        TypeError: there is no layout, or the layer needs an unsupported feature.
    """
    if layout is None:
        raise TypeError("packed attention needs a layout")
    if softcap is not None or s_aux is not None:
        raise TypeError("it caps its attention scores" if s_aux is None else "it has attention sinks")
    if attention_mask is not None:
        if attention_mask.numel() > 1:
            raise TypeError("it has an attention mask of its own")
        if isinstance(layout, Layout):
            layout.window = min(int(attention_mask), layout.window or int(attention_mask))
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    q_NHD, k_NKD, v_NKD = (tensor[0].transpose(0, 1) for tensor in (query, key, value))
    layer = int(module.layer_idx)  # type: ignore[arg-type]
    return attend(layout, layer, q_NHD, k_NKD, v_NKD, scale)[None], None


def attend(
    layout: AnyLayout, layer: int, q_NHD: Tensor, k_NKD: Tensor, v_NKD: Tensor, scale: float
) -> Tensor:
    """Return [N, H, D]: attention of one layer over a flat row.

    Args:
        layout: of the flat row.
        layer: index of the layer, from 0, for the KV cache.
        q_NHD: queries.
        k_NKD: keys.
        v_NKD: values.
        scale: factor of the attention scores.
    """
    if isinstance(layout, DecodeLayout):
        return _decode(layout, layer, q_NHD, k_NKD, v_NKD, scale)
    if isinstance(layout, TurnLayout):
        return _next_turn(layout, layer, q_NHD, k_NKD, v_NKD, scale)
    if isinstance(layout, OwnLayout):
        raise TypeError("packed attention cannot use the layout of a model's own forward pass")
    return _prefill(layout, layer, q_NHD, k_NKD, v_NKD, scale)


def _compiled(kernels: Kernels | None, q_NHD: Tensor, v_NKD: Tensor) -> TypeGuard[Kernels]:
    """Return whether compiled code can run this attention: it needs a known head size and no gradients."""
    size = q_NHD.shape[2]
    return (
        kernels is not None and size in HEAD_SIZES and size == v_NKD.shape[2] and not torch.is_grad_enabled()
    )


def _prefill(layout: Layout, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    packed = layout.packed
    k_BKPD, v_BKPD = (_take(tensor, packed.prompt_at_BP).transpose(1, 2) for tensor in (k, v))
    if layout.cache is not None:
        k_BKPD, v_BKPD = k_BKPD.contiguous(), v_BKPD.contiguous()
        layout.cache.keys[layer], layout.cache.values[layer] = k_BKPD, v_BKPD
    if _compiled(layout.kernels, q, v):
        prompts_NHD = layout.kernels.prefill(
            q, (k_BKPD, v_BKPD), packed.queries_3B, packed.prompt_tokens, scale
        )
    else:
        q_BHPD = _take(q, packed.prompt_at_BP).transpose(1, 2)
        out_BHPD = _grouped(q_BHPD, k_BKPD, v_BKPD, scale)
        prompts_NHD = out_BHPD.transpose(1, 2).flatten(0, 1).index_select(0, packed.prompt_owner_N)
    if packed.slots is None:
        return prompts_NHD
    q_RHCD, k_RKCD, v_RKCD = (_take(tensor, packed.row_at_RC).transpose(1, 2) for tensor in (q * scale, k, v))
    rows = packed.row_at_RC.shape[1]
    causal_CC = torch.full((rows, rows), float("-inf"), dtype=q.dtype, device=q.device).triu(1)
    mask_R11P = prompt_mask(packed.prompt_real_BP, packed.bundle_of_R, q.dtype)
    out_RHCD = _attend(
        q_RHCD,
        (k_BKPD, v_BKPD),
        (k_RKCD, v_RKCD),
        packed.slots,
        (mask_R11P, causal_CC),
    )
    return torch.cat([prompts_NHD, out_RHCD.transpose(1, 2)[packed.row_real_RC]])


def _next_turn(layout: TurnLayout, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    keys_BKPD, values_BKPD = layout.kept[layer]
    keys_BKPD[layout.prompt_N, :, layout.positions_1N[0]] = k
    values_BKPD[layout.prompt_N, :, layout.positions_1N[0]] = v
    layout.cache.keys[layer], layout.cache.values[layer] = keys_BKPD, values_BKPD
    if _compiled(layout.kernels, q, v):
        return layout.kernels.prefill(q, (keys_BKPD, values_BKPD), layout.queries_3B, len(q), scale)
    q_BHSD = _take(q, layout.at_BS).transpose(1, 2)
    out_BHSD = _grouped(q_BHSD, keys_BKPD, values_BKPD, scale, layout.mask_B1SP)
    return out_BHSD.transpose(1, 2)[layout.real_BS]


def _grouped(
    q_BHSD: Tensor, k_BKPD: Tensor, v_BKPD: Tensor, scale: float, mask_B1SP: Tensor | None = None
) -> Tensor:
    """Return [B, H, S, D]: attention with grouped query heads; causal if there is no mask."""
    repeats = q_BHSD.shape[1] // k_BKPD.shape[1]
    return nn.functional.scaled_dot_product_attention(
        q_BHSD,
        k_BKPD.repeat_interleave(repeats, 1),
        v_BKPD.repeat_interleave(repeats, 1),
        attn_mask=mask_B1SP,
        is_causal=mask_B1SP is None,
        scale=scale,
    )


def _take(flat: Tensor, at: Tensor) -> Tensor:
    """Gather [N, ...] by indices [A, B] -> [A, B, ...]."""
    return flat.index_select(0, at.flatten()).view(*at.shape, *flat.shape[1:])


def _decode(layout: DecodeLayout, layer: int, q: Tensor, k: Tensor, v: Tensor, scale: float) -> Tensor:
    cache, compiled = layout.cache, layout.compiled
    if compiled is not None and _compiled(compiled.kernels, q, v):
        return compiled.kernels.decode(
            q,
            k,
            v,
            (cache.keys[layer], cache.values[layer]),
            cache.room(layer, layout.own, k),
            (compiled.prompt_lengths_B, layout.own.seen_R),
            compiled.tasks,
            scale,
        )
    new = cache.append(layer, layout.own, k, v)
    out_RH1D = _attend(
        (q * scale)[:, :, None],
        (cache.keys[layer], cache.values[layer]),
        new,
        layout.slots,
        (layout.prompt_mask_R1P, layout.own.mask_R111T),
    )
    return out_RH1D[:, :, 0]


def _attend(
    q_RHCD: Tensor,
    prompt: tuple[Tensor, Tensor],
    own: tuple[Tensor, Tensor],
    slots: Slots,
    masks: tuple[Tensor, Tensor | None],
) -> Tensor:
    """Attention of rows to their bundle's prompt (one product per bundle) and to their own tokens.

    Args:
        q_RHCD: scaled queries.
        prompt: keys and values of the prompts, [B, K, P, D].
        own: keys and values of the rows, [R, K, T, D].
        slots: the bundle of each row.
        masks: [R, 1, 1, P] for prompts, and [C, T] or [R, 1, 1, 1, T] for own tokens (None: no mask).

    Returns:
        [R, H, C, D].
    """
    rows, heads, steps, size = q_RHCD.shape
    kv = own[0].shape[1]
    per_kv = heads // kv
    width = slots.width

    def by_bundle(x: Tensor) -> Tensor:  # [R, H, C, X] -> [B, K, S * Q * C, X]
        grid = slots.spread(x.reshape(rows, kv, per_kv * steps, x.shape[-1]))
        return grid.transpose(1, 2).reshape(slots.bundles, kv, width * per_kv * steps, x.shape[-1])

    def by_row(x: Tensor) -> Tensor:  # the way back, to [R, K, Q * C, X]
        grid = x.view(slots.bundles, kv, width, per_kv * steps, x.shape[-1]).transpose(1, 2)
        return slots.gather(grid)

    q_RKQD = q_RHCD.reshape(rows, kv, per_kv * steps, size)
    to_prompt = by_row(by_bundle(q_RHCD) @ prompt[0].transpose(-1, -2)) + masks[0]
    to_own = q_RKQD @ own[0].transpose(-1, -2)
    if masks[1] is not None:
        to_own = (to_own.reshape(rows, kv, per_kv, steps, -1) + masks[1]).view(rows, kv, per_kv * steps, -1)
    weights = torch.cat([to_prompt, to_own], dim=-1).softmax(-1)
    length = prompt[0].shape[2]
    from_prompt = by_row(by_bundle(weights[..., :length]) @ prompt[1])
    out_RKQD = from_prompt + weights[..., length:] @ own[1]
    return out_RKQD.reshape(rows, heads, steps, size)


def prompt_mask(real_BP: Tensor, bundle_of_R: Tensor, dtype: torch.dtype) -> Tensor:
    """[R, 1, 1, P] additive mask of each row's prompt: 0 at real tokens, -inf at padding."""
    return additive_mask(~real_BP, dtype)[bundle_of_R, None, None]


def _window(*, device: torch.device, local_size: int | None = None, **_: object) -> Tensor | None:
    """Return [1, 1, 1, 1] the window of a layer's mask, or None, called as `AttentionMaskInterface` calls.

    Some layers have a window in their mask alone and do not pass it to the attention function.
    """
    return None if local_size is None else torch.full((1, 1, 1, 1), local_size, device=device)


def register() -> None:
    """Register `packed_attention` in transformers; repeated calls are harmless."""
    from transformers import AttentionInterface, AttentionMaskInterface

    for name in (ATTENTION, CHECKED):
        AttentionInterface.register(name, packed_attention)
    AttentionMaskInterface.register(CHECKED, _window)
