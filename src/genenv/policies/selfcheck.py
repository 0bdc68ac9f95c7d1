# pyright: standard
"""Before a model is used: packed attention must say what the model's own forward pass says."""

from __future__ import annotations

from typing import Any

import torch

from genenv.errors import UsageError
from genenv.policies import packing
from genenv.policies.packing import Bundle, Layout, Packed


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
    prompt, rows = (
        [(7 * i + 3) % size for i in range(9)],
        [[(5 * i + 1) % size for i in range(n)] for n in (4, 6)],
    )
    expected = torch.cat(
        [
            causal(torch.tensor([prompt + row], device=device)).logits[0, len(prompt) - 1 : -1].float()
            for row in rows
        ]
    )
    try:
        causal.set_attn_implementation(packing.ATTENTION)
        packed = Packed([Bundle(prompt_ids=prompt, completions=rows)], device)
        layout = Layout(packed=packed)
        output = causal.get_decoder()(
            input_ids=packed.ids_1N, position_ids=packed.positions_1N, use_cache=False, layout=layout
        )
        found = causal.get_output_embeddings()(output.last_hidden_state[0][packed.targets()[0]]).float()
    except (TypeError, ValueError, RuntimeError, AttributeError, KeyError) as error:
        raise UsageError(
            f"{source} cannot be sampled here: its attention is not replaceable ({error})"
        ) from error
    off = (found.softmax(-1) - expected.softmax(-1)).abs().sum(-1).mean().item()
    if not off < (1e-3 if found.dtype == next(causal.parameters()).dtype else 0.1):
        raise UsageError(
            f"{source} cannot be sampled here: its own forward pass and the packed one differ by {off:.3g} "
            "(it does something in attention, or to its scores, that is not supported yet)"
        )
    chunk = getattr(causal.config.get_text_config(), "attention_chunk_size", None)
    return min((width for width in (layout.window, chunk) if width is not None), default=None)


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
