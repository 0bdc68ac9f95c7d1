# pyright: standard
"""Before a model is used: packed attention must say what the model's own forward pass says."""

from __future__ import annotations

import logging
from typing import Any

import torch
from torch import Tensor

from genenv.errors import UsageError
from genenv.policies import packing
from genenv.policies.fused import FusedDecoder, why_not
from genenv.policies.native import Kernels
from genenv.policies.packing import Bundle, Layout, Packed

log = logging.getLogger(__name__)

PROMPT_TOKENS, ROW_TOKENS = 9, (4, 6)


@torch.no_grad()
def use_packed_attention(causal: Any, source: str) -> int | None:  # noqa: ANN401
    """Switch a model to packed attention, and hold it to the model's own attention on a small input.

    Returns:
        The narrowest sliding window of its layers, in tokens; None when all see everything.

    Raises:
        UsageError: the results differ: the model does something in attention that packing does not know.
    """
    packing.register()
    device = next(causal.parameters()).device
    size = causal.config.get_text_config().vocab_size
    bundle = _small_input(size)
    prompt, rows = list(bundle.prompt_ids), [list(row) for row in bundle.completions]
    expected = torch.cat(
        [
            causal(torch.tensor([prompt + row], device=device)).logits[0, len(prompt) - 1 : -1].float()
            for row in rows
        ]
    )
    try:
        causal.set_attn_implementation(packing.ATTENTION)
        packed = Packed([bundle], device)
        layout = Layout(packed=packed)
        output = causal.get_decoder()(
            input_ids=packed.ids_1N, position_ids=packed.positions_1N, use_cache=False, layout=layout
        )
        found = causal.get_output_embeddings()(output.last_hidden_state[0][packed.targets()[0]]).float()
    except (TypeError, ValueError, RuntimeError, AttributeError, KeyError) as error:
        raise UsageError(
            f"{source} cannot be sampled here: its attention is not replaceable ({error})"
        ) from error
    off = _apart(found, expected)
    if not off < _tolerance(causal):
        raise UsageError(
            f"{source} cannot be sampled here: its own forward pass and the packed one differ by {off:.3g} "
            "(it does something in attention, or to its scores, that is not supported yet)"
        )
    chunk = getattr(causal.config.get_text_config(), "attention_chunk_size", None)
    return min((width for width in (layout.window, chunk) if width is not None), default=None)


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
) -> FusedDecoder | None:
    """A fused decoder that says what the model says, on a small input; None, with a logged sentence, else."""
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
        off = _apart(fused.scores(found).float(), causal.get_output_embeddings()(own).float())
        if off < _tolerance(causal):
            return fused
        reason = f"its results and those of the fused layers differ by {off:.3g}"
    log.info("%s runs in the layers of transformers, which are slower: %s", source, reason)
    return None


def check_window(source: str, window: int | None, context_tokens: int) -> None:
    """Packed attention sees everything, so no sequence may be longer than the narrowest sliding window.

    The comparison at loading cannot notice a window that is wider than its small input.

    Raises:
        UsageError: sequences may be longer.
    """
    if window is not None and window < context_tokens:
        raise UsageError(
            f"{source} sees only the last {window} tokens in some layers, and sequences may have "
            f"{context_tokens}: set policy.context_tokens to {window} or less"
        )
