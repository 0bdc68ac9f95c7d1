# pyright: standard
"""Before a model is used: it must say what its own forward pass says, in packed attention or without."""

from __future__ import annotations

import logging
from typing import Any, Literal

import torch
from torch import Tensor

from genenv.backends.local import attention
from genenv.backends.local.cpu.kernels import Kernels
from genenv.backends.local.fused_decoder import FusedDecoder, why_not
from genenv.backends.local.layouts import Layout
from genenv.backends.local.model_forward import keep_rows, left_padded, next_positions, own_hidden
from genenv.backends.local.output_layer import scores_of
from genenv.backends.local.packing import Bundle, Packed
from genenv.errors import UsageError, first_line

log = logging.getLogger(__name__)

PROMPT_TOKENS, ROW_TOKENS = 9, (4, 6)
_ERRORS = (TypeError, ValueError, RuntimeError, AttributeError, KeyError)
"""What a model raises that is not made for the way it is called."""


@torch.no_grad()
def use_packed_attention(
    causal: Any,  # noqa: ANN401
    source: str,
    context_tokens: int,
    wanted: Literal["auto", "packed", "own"] = "auto",
) -> bool:
    """Switch a model to packed attention, where that says what the model says on a small input.

    Args:
        causal: the model.
        source: its name.
        context_tokens: the longest that a sequence may be.
        wanted: the setting `policy.attention`.

    Returns:
        False, with a logged sentence, where the model stays in its own forward pass.

    Raises:
        UsageError: that is not possible either, or packed attention is wanted and not for this model.
    """
    attention.register()
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


def _why_not_packed(causal: Any, bundle: Bundle, expected: Tensor, context_tokens: int) -> str | None:  # noqa: ANN401
    """Why packed attention is not for a model; None where it is. Leaves the model with packed attention."""
    packed = Packed([bundle], expected.device)
    layout = Layout(packed=packed)
    try:
        causal.get_decoder().set_attn_implementation(attention.ATTENTION)
        output = causal.get_decoder()(
            input_ids=packed.ids_1N, position_ids=packed.positions_1N, use_cache=False, layout=layout
        )
        found = scores_of(causal, output.last_hidden_state[0][packed.targets()[0]])
    except _ERRORS as error:
        return first_line(error)
    off = _apart(found.float(), expected)
    if not off < _tolerance(causal):
        return f"its attention is not the usual one (off by {off:.3g})"
    # The comparison cannot notice a window that is wider than its small input.
    chunk = getattr(causal.config.get_text_config(), "attention_chunk_size", None)
    window = min((width for width in (layout.window, chunk) if width is not None), default=context_tokens)
    if window < context_tokens:
        return (
            f"some of its layers see only the last {window} tokens, and sequences may have {context_tokens} "
            f"(policy.context_tokens of {window} or less avoids this)"
        )
    return None


def _own_forward_is_off(causal: Any, bundle: Bundle, expected: Tensor) -> float:  # noqa: ANN401
    """How far learning and sampling in the model's own forward pass are from it."""
    decoder = causal.get_decoder()
    packed = Packed([bundle], expected.device)
    states = own_hidden(decoder, packed.ids_1N, packed.positions_1N, Layout(packed=packed))
    off = _apart(scores_of(causal, states[packed.targets()[0]]).float(), expected)
    # As rows are sampled: both, which differ in length, then the second alone.
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
    """Mean over positions of the total difference between two distributions given by their scores."""
    return (found.softmax(-1) - expected.softmax(-1)).abs().sum(-1).mean().item()


def _tolerance(causal: Any) -> float:  # noqa: ANN401
    return 1e-3 if next(causal.parameters()).dtype == torch.float32 else 0.1


@torch.no_grad()
def fused_decoder(
    causal: Any,  # noqa: ANN401
    source: str,
    activation_bytes: float = float("inf"),
    kernels: Kernels | None = None,
    packed_bytes: float = 0.0,
    must: bool = False,
) -> FusedDecoder | None:
    """A fused decoder that says what the model says, on a small input; None, with a logged sentence, else.

    Raises:
        UsageError: it `must` be, and cannot.
    """
    reason = why_not(causal)
    if reason is None:
        device = next(causal.parameters()).device
        packed = Packed([_small_input(causal.config.get_text_config().vocab_size)], device)
        own = causal.get_decoder()(
            input_ids=packed.ids_1N,
            position_ids=packed.positions_1N,
            use_cache=False,
            layout=Layout(packed=packed),
        ).last_hidden_state[0]
        fused = FusedDecoder(causal, activation_bytes, kernels, packed_bytes)
        found = fused.hidden(packed.ids_1N, packed.positions_1N, Layout(packed=packed), None)
        off = _apart(fused.scores(found).float(), scores_of(causal, own).float())
        if off < _tolerance(causal):
            return fused
        reason = f"its results and those of the fused layers differ by {off:.3g}"
    if must:
        raise UsageError(f"policy.decoder is 'fused', and that is not for {source}: {reason}")
    log.info("%s runs in the layers of transformers, which are slower: %s", source, reason)
    return None
