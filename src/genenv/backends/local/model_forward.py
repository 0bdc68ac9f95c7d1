# pyright: standard
"""Original forward passes of transformers, logits, and the checks that faster code gives the same results.

Before a model is used, its logits on a small input with packed attention, in training and in sampling, are
compared with those of its original forward pass. Windows of attention may be longer than the small input, so
they are read from the masks of the layers. A model whose attention cannot be replaced keeps its original
forward pass, which is slower. Each rollout is then a separate padded sequence, so a prompt is prefilled once
per completion. Sampling uses the model's own KV cache.

    scores = c tanh(f W h / c)      f is 1 and there is no cap c, unless the model's configuration has them

Shapes: M = rows scored, W = width, V = vocabulary, N = tokens in the flat row, S = sequences, L = longest
sequence, R = rows, T = tokens so far.
"""

from __future__ import annotations

import contextlib
import functools
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from genenv.backends.local import attention
from genenv.backends.local.attention import (
    AnyLayout,
    DecodeLayout,
    Layout,
    OwnLayout,
    OwnTokens,
    PromptCache,
    prompt_mask,
)
from genenv.backends.local.cpu.kernels import Kernels
from genenv.backends.local.fused_decoder import FusedDecoder, Sizes, why_not
from genenv.backends.local.packing import Bundle, Packed, Slots
from genenv.backends.settings import PolicyConfig
from genenv.errors import UsageError, first_line

if TYPE_CHECKING:
    from genenv.backends.local.engine import Engine, Row

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaping:
    """The scaling and soft cap that some models apply to the output layer's results."""

    factor: float = 1.0
    cap: float | None = None
    """Logits are smoothly limited to plus and minus this number; None: no cap."""

    @property
    def is_nothing(self) -> bool:
        """Whether logits are the unchanged results of the output layer."""
        return self.factor == 1.0 and self.cap is None

    def __call__(self, scores: Tensor) -> Tensor:
        """Return [M, V] the model's logits from the results of its output layer."""
        if self.factor != 1.0:
            scores = scores * self.factor
        return scores if self.cap is None else self.cap * torch.tanh(scores / self.cap)


def shaping(config: Any) -> Shaping:  # noqa: ANN401
    """Read the scaling and cap from a transformers configuration, under the three names in use."""
    text = config.get_text_config()
    factor = (getattr(text, "logit_scale", None) or 1.0) / (getattr(text, "logits_scaling", None) or 1.0)
    return Shaping(factor=factor, cap=getattr(text, "final_logit_softcapping", None))


def scores_of(causal: Any, hidden: Tensor) -> Tensor:  # noqa: ANN401
    """Return [M, V] logits of all tokens, from last hidden states [M, W]."""
    return shaping(causal.config)(causal.get_output_embeddings()(hidden))


def setting_that_reads_weights(config: PolicyConfig) -> str:
    """Return the setting that asks for code which reads the base's weights itself, or "" if none does."""
    if config.decoder == "fused":
        return "decoder"
    return "packed_weights" if config.packed_weights is True else ""


def sizes_of(config: Any) -> Sizes:  # noqa: ANN401
    """Read the sizes from a transformers configuration."""
    text = config.get_text_config()
    heads = text.num_attention_heads
    size = getattr(text, "head_dim", None) or text.hidden_size // heads
    return Sizes(
        layers=text.num_hidden_layers,
        width=text.hidden_size,
        queries=heads * size,
        keys=(getattr(text, "num_key_value_heads", None) or heads) * size,
        inner=getattr(text, "intermediate_size", None) or 4 * text.hidden_size,
    )


def quantized_token_bytes(sizes: Sizes, dtype: torch.dtype) -> float:
    """Return the bytes per token for `hardware.microbatch_tokens` on a quantized base.

    Such bases are for small memories: with recomputed layers, activations then fill a quarter of the device.
    """
    return 2.0 * sizes.kept_when_recomputed * dtype.itemsize


@contextlib.contextmanager
def layers_recomputed(decoder: Any) -> Iterator[None]:  # noqa: ANN401
    """Context manager: layers keep only their inputs for the backward pass, which recomputes the rest."""
    layers = list(getattr(decoder, "layers", ()))
    before = [vars(layer).get("forward") for layer in layers]
    for layer in layers:
        layer.forward = functools.partial(recomputed, layer.forward)
    try:
        yield
    finally:
        for layer, own in zip(layers, before, strict=True):
            if own is None:
                del layer.forward  # that of the class
            else:
                layer.forward = own


def recomputed(forward: Any, *arguments: Any, **options: Any) -> Any:  # noqa: ANN401
    """Call a function whose intermediate results are computed again in the backward pass."""
    if torch.is_grad_enabled():
        return checkpoint(forward, *arguments, use_reentrant=False, **options)
    return forward(*arguments, **options)


_PREFILLS = 16
"""Limit of the prompt tokens that are admitted together, in units of the engine's `prefill_tokens`."""


def own_hidden(
    decoder: Any,  # noqa: ANN401
    ids: Tensor,
    positions: Tensor,
    layout: AnyLayout,
    *,
    tokens: int = 1024,
) -> Tensor:
    """Return last hidden states: [N, width] of a flat row, or [R, width] of the last tokens of rows.

    Args:
        decoder: the model without its output layer.
        ids: [1, N] of a flat row, or [R, T] new tokens.
        positions: in the shape of `ids`.
        layout: a `Layout` without a cache, or an `OwnLayout`.
        tokens: maximum tokens of a flat row's sequences per piece, padding included; one sequence may be
            longer. With gradients, pieces are recomputed in the backward pass.

    Raises:
        TypeError: the layout is for packed attention with caches.
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
    """Return [S, L] flat indices of sequences' tokens, [S, L] 1 at tokens, and [N] inverse indices."""
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
    """Return [R, T] tokens and [R, T] positions of prompts padded on the left, and their layout."""
    width = max(len(prompt) for prompt in prompts)
    ids = torch.tensor([[0] * (width - len(prompt)) + list(prompt) for prompt in prompts], device=device)
    lengths = torch.tensor([len(prompt) for prompt in prompts], device=device)
    seen_RT = (torch.arange(width, device=device) >= width - lengths[:, None]).long()
    return ids, (seen_RT.cumsum(1) - 1).clamp_(min=0), OwnLayout(seen_RT=seen_RT)


def next_positions(layout: OwnLayout) -> Tensor:
    """Return [R, 1] positions of one more token per row, and extend the layout by it."""
    layout.seen_RT = torch.cat([layout.seen_RT, layout.seen_RT.new_ones(len(layout.seen_RT), 1)], 1)
    return layout.seen_RT.sum(1, keepdim=True) - 1


def keep_rows(layout: OwnLayout, rows: Tensor) -> None:
    """Drop all rows but those with these indices."""
    layout.seen_RT = layout.seen_RT[rows]
    layout.cache.reorder_cache(rows)  # the only row selection that all cache types support


class OwnBatch:
    """A batch in the original forward pass: rows start together; new ones wait until all are done."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self.rows: list[Row] = []

    def room(self, waiting: Sequence[Row]) -> int:
        """Return how many of the waiting rows can be admitted now, limited by their padded prompts."""
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
        """Start with these rows, and prefill their prompts."""
        self.rows = list(rows)
        ids, positions, self._layout = left_padded(
            [row.request.prompt_ids for row in rows], self._engine.device
        )
        self._states = self._engine.hidden(ids, positions, self._layout)

    def close(self) -> None:
        """Do nothing: the batch holds no other resources."""

    def step(self) -> tuple[list[Row], int]:
        """Sample one token for each row; return the completed rows, which leave, and the token count."""
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


PROMPT_TOKENS, ROW_TOKENS = 9, (4, 6)
_ERRORS = (TypeError, ValueError, RuntimeError, AttributeError, KeyError)
"""Errors of models whose code does not fit the way they are called."""


@torch.no_grad()
def use_packed_attention(
    causal: Any,  # noqa: ANN401
    source: str,
    context_tokens: int,
    wanted: Literal["auto", "packed", "own"] = "auto",
) -> bool:
    """Switch a model to packed attention if that gives the model's own results on a small input.

    Args:
        causal: the model.
        source: name of the model.
        context_tokens: the longest sequence.
        wanted: the setting `policy.attention`.

    Returns:
        Whether packed attention is used; if not, the reason is logged.

    Raises:
        UsageError: neither way works, or `wanted` is "packed" and the model does not allow it.
    """
    attention.register()
    _check_positions(causal, source, context_tokens)
    bundle = _small_input(causal.config.get_text_config().vocab_size)
    device = next(causal.parameters()).device
    sequences = [[*bundle.prompt_ids, *row] for row in bundle.completions]
    expected = torch.cat(
        [
            causal(torch.tensor([ids], device=device)).logits[0, PROMPT_TOKENS - 1 : -1].float()
            for ids in sequences
        ]
    )
    decoder = causal.get_decoder()
    before = decoder.config._attn_implementation
    asked = "policy.attention is 'own'"
    reason = asked if wanted == "own" else _why_not_packed(causal, bundle, expected, context_tokens)
    if reason is None:
        return True
    if wanted == "packed":
        raise UsageError(f"policy.attention is 'packed', and that is not for {source}: {reason}")
    decoder.set_attn_implementation(before)
    try:
        off = _own_forward_is_off(causal, bundle, expected)
    except _ERRORS as error:
        raise UsageError(f"{source} cannot be sampled here: {reason}, and {first_line(error)}") from error
    if not off < _tolerance(causal):
        raise UsageError(
            f"{source} cannot be sampled here: it does something to its scores, or to its cache, that is not "
            f"supported yet (off by {off:.3g})"
        )
    log.warning(
        "%s runs in the forward pass of transformers, which is several times slower: %s", source, reason
    )
    return False


def _check_positions(causal: Any, source: str, context_tokens: int) -> None:  # noqa: ANN401
    """Refuse rotary positions that would depend on the longest sequence that is computed at the same time.

    Raises:
        UsageError: the model has such, and sequences may be longer than those of its first training.
    """
    config = causal.config.get_text_config()
    rope = getattr(config, "rope_parameters", None) or {}
    original = getattr(config, "original_max_position_embeddings", None)
    usual = rope.get("original_max_position_embeddings") or original or config.max_position_embeddings
    if rope.get("rope_type") in ("longrope", "dynamic") and context_tokens > usual:
        raise UsageError(
            f"the rotary embedding of {source} depends on the longest sequence of a batch beyond {usual:,} "
            f"tokens (rope_type {rope['rope_type']!r}): set policy.context_tokens to {usual} or less"
        )


def _why_not_packed(causal: Any, bundle: Bundle, expected: Tensor, context_tokens: int) -> str | None:  # noqa: ANN401
    """Return why packed attention does not suit a model, or None; packed attention stays switched on."""
    packed = Packed([bundle], expected.device)
    layout = Layout(packed=packed)
    try:
        causal.get_decoder().set_attn_implementation(attention.CHECKED)
        states = _packed_hidden(causal, packed.ids_1N, packed.positions_1N, layout)
        off = _apart(scores_of(causal, states[packed.targets()[0]]).float(), expected)
        causal.get_decoder().set_attn_implementation(attention.ATTENTION)
        off = max(off, _decoding_is_off(causal, bundle, expected))
    except _ERRORS as error:
        return first_line(error)
    if not off < _tolerance(causal):
        return f"its attention is not the usual one (off by {off:.3g})"
    # The comparison cannot detect a window that is wider than its small input.
    if layout.window is not None and layout.window < context_tokens:
        return (
            f"some of its layers see only the last {layout.window} tokens, and sequences may have "
            f"{context_tokens} (policy.context_tokens of {layout.window} or less avoids this)"
        )
    return None


def _packed_hidden(causal: Any, ids_1N: Tensor, positions_1N: Tensor, layout: AnyLayout) -> Tensor:  # noqa: ANN401
    """Return [N, W] the last hidden states of a flat row in the layers of transformers."""
    decoder = causal.get_decoder()
    output = decoder(input_ids=ids_1N, position_ids=positions_1N, use_cache=False, layout=layout)
    return output.last_hidden_state[0]


def _decoding_is_off(causal: Any, bundle: Bundle, expected: Tensor) -> float:  # noqa: ANN401
    """Return the deviation of two decode steps in packed attention from the expected logits."""
    device, of_row = expected.device, [0] * len(bundle.completions)
    prompt, cache = Packed([Bundle(prompt_ids=bundle.prompt_ids)], device), PromptCache()
    states = _packed_hidden(causal, prompt.ids_1N, prompt.positions_1N, Layout(packed=prompt, cache=cache))
    mask = prompt_mask(prompt.prompt_real_BP, torch.tensor(of_row, device=device), states.dtype)
    starts = torch.tensor([0, *ROW_TOKENS[:-1]]).cumsum(0)
    off = 0.0
    for step in range(2):
        layout = DecodeLayout(
            cache=cache,
            slots=Slots(of_row, 1, device),
            own=OwnTokens([step] * len(of_row), states.dtype, device),
            prompt_mask_R1P=mask,
        )
        ids = torch.tensor([[row[step] for row in bundle.completions]], device=device)
        states = _packed_hidden(causal, ids, torch.full_like(ids, PROMPT_TOKENS + step), layout)
        off = max(off, _apart(scores_of(causal, states).float(), expected[starts + step + 1]))
    return off


def _own_forward_is_off(causal: Any, bundle: Bundle, expected: Tensor) -> float:  # noqa: ANN401
    """Return the deviation of training and sampling in the original forward pass from the expected logits."""
    decoder = causal.get_decoder()
    packed = Packed([bundle], expected.device)
    states = own_hidden(decoder, packed.ids_1N, packed.positions_1N, Layout(packed=packed))
    off = _apart(scores_of(causal, states[packed.targets()[0]]).float(), expected)
    # As in sampling: first both rows, which differ in length, then only the second.
    prompts = [[*bundle.prompt_ids, *row] for row in bundle.completions]
    ends = torch.tensor(ROW_TOKENS).cumsum(0) - 1
    ids, positions, layout = left_padded([prompt[:-3] for prompt in prompts], expected.device)
    own_hidden(decoder, ids, positions, layout)
    new = torch.tensor([prompt[-3:-2] for prompt in prompts], device=expected.device)
    states = own_hidden(decoder, new, next_positions(layout), layout)
    apart = _apart(scores_of(causal, states).float(), expected[ends - 1])
    keep_rows(layout, torch.tensor([1], device=expected.device))
    new = torch.tensor([prompts[1][-2:-1]], device=expected.device)
    states = own_hidden(decoder, new, next_positions(layout), layout)
    return max(off, apart, _apart(scores_of(causal, states).float(), expected[ends[1:]]))


def _small_input(vocabulary: int) -> Bundle:
    return Bundle(
        prompt_ids=[(7 * i + 3) % vocabulary for i in range(PROMPT_TOKENS)],
        completions=[[(5 * i + 1) % vocabulary for i in range(n)] for n in ROW_TOKENS],
    )


def _apart(found: Tensor, expected: Tensor) -> float:
    """Return the mean L1 distance over positions between two distributions, given as logits."""
    return (found.softmax(-1) - expected.softmax(-1)).abs().sum(-1).mean().item()


def _tolerance(causal: Any) -> float:  # noqa: ANN401
    return 1e-3 if next(causal.parameters()).dtype == torch.float32 else 0.1


@torch.no_grad()
def fused_decoder(
    causal: Any,  # noqa: ANN401
    source: str,
    activation_bytes: float,
    kernels: Kernels | None,
    packed_bytes: float,
    *,
    must: bool,
) -> FusedDecoder | None:
    """Return a fused decoder if its results match the model's on a small input; else None, with a log entry.

    Raises:
        UsageError: `must` is set, and the fused decoder does not work.
    """
    reason = why_not(causal)
    if reason is None:
        device = next(causal.parameters()).device
        packed = Packed([_small_input(causal.config.get_text_config().vocab_size)], device)
        own = _packed_hidden(causal, packed.ids_1N, packed.positions_1N, Layout(packed=packed))
        fused = FusedDecoder(causal, activation_bytes, kernels, packed_bytes)
        found = fused.hidden(packed.ids_1N, packed.positions_1N, Layout(packed=packed), None)
        off = _apart(fused.head(found).float(), scores_of(causal, own).float())
        if off < _tolerance(causal):
            return fused
        reason = f"its results and those of the fused layers differ by {off:.3g}"
    if must:
        raise UsageError(f"policy.decoder is 'fused', and that is not for {source}: {reason}")
    log.info("%s runs in the layers of transformers, which are slower: %s", source, reason)
    return None
