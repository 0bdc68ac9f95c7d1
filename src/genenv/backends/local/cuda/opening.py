# pyright: standard
"""Whether a model decodes in captured steps here, and with how much memory."""

from __future__ import annotations

import logging
import time
from typing import Any

import torch

from genenv.backends.local import hardware
from genenv.backends.local.cuda.decode import DecodeStep, Room, bytes_of_a_page, why_not
from genenv.backends.local.cuda.pages import PAGE, pages_for
from genenv.backends.local.cuda.state import Seat
from genenv.backends.local.fused_decoder import FusedDecoder
from genenv.backends.local.layouts import Layout
from genenv.backends.local.packing import Bundle, Packed
from genenv.backends.settings import PolicyConfig
from genenv.errors import first_line
from genenv.progress import advance

log = logging.getLogger(__name__)

_SHARE = 0.3
"""Of the memory that is free, for keys and values: learning needs the rest."""
_TOKENS, _ROWS = 5, 20
"""Of the sequence on which a step is compared with the model; and rows, of which kernels have variants."""


def captured_step(
    causal: Any,  # noqa: ANN401
    fused: FusedDecoder,
    config: PolicyConfig,
    context_tokens: int,
) -> DecodeStep | None:
    """A step that says what the model says; None, with a logged sentence, where there is none.

    Args:
        causal: the model.
        fused: its layers.
        config: has the rank of adapters, and how many rows there are at once.
        context_tokens: the longest sequence.
    """
    begun = time.monotonic()
    advance(note="compiling, once on a machine")
    try:
        reason = why_not(causal, fused)
        if reason is None:
            step = open_step(causal, fused, config, context_tokens, captured=True)
            off = difference(step, fused)
            if off < (1e-3 if step.pool.keys_LPKTD.dtype == torch.float32 else 0.1):
                log.info("kernels for sampling: ready after %.0f s", time.monotonic() - begun)
                advance(note=f"compiled in {time.monotonic() - begun:.0f} s")
                return step
            reason = f"its results and those of its captured step differ by {off:.3g}"
    except Exception as error:  # noqa: BLE001 - Triton's own errors have no common class below this one
        reason = first_line(error) or type(error).__name__
    log.warning("sampling runs layer by layer, several times slower: %s", reason)
    return None


def open_step(
    causal: Any,  # noqa: ANN401
    fused: FusedDecoder,
    config: PolicyConfig,
    context_tokens: int,
    *,
    captured: bool,
) -> DecodeStep:
    """A step with as many pages as all rows can need, or as the memory has room for."""
    rows = hardware.batch_rows(config.max_batch_rows, torch.device("cuda"))
    dtype = causal.get_output_embeddings().weight.dtype
    device = causal.get_output_embeddings().weight.device
    longest = pages_for(context_tokens) + 1
    hardware.release_memory(device)
    affordable = _SHARE * hardware.free_bytes(device) / bytes_of_a_page(fused.heads, len(fused.layers), dtype)
    pages = 1 + max(2 * longest, int(min(rows * longest, affordable)))
    log.info("sampling has pages for %d tokens, and at most %d rows at once", (pages - 1) * PAGE, rows)
    return DecodeStep(
        fused,
        causal,
        rank=config.lora_rank if config.tuning == "lora" else 1,
        room=Room(rows=rows, context_tokens=context_tokens, pages=pages),
        captured=captured,
    )


@torch.no_grad()
def difference(step: DecodeStep, fused: FusedDecoder) -> float:
    """Mean over tokens of the total difference between a step's distributions and the bare model's."""
    ids = [7 * i + 3 for i in range(_TOKENS)]
    packed = Packed([Bundle(prompt_ids=ids)], step.state.device)
    hidden = fused.hidden(packed.ids_1N, packed.positions_1N, Layout(packed=packed), None)
    expected = fused.scores(hidden).float().softmax(-1)
    page = step.pool.take(1)
    step.use(None, None)
    differences: list[float] = []
    for rows in {1, min(_ROWS, step.rows)}:
        found = []
        for drawn, token in enumerate(ids, 1):
            seat = Seat(
                token=token, drawn=drawn, left=1, prompt_tokens=0, pages=page,
                prompt=None, temperature=1.0, choices=False,
            )  # fmt: skip
            step.state.seat([seat] * rows, step.bucket(rows))  # they all write the same
            found.append(step.scores(rows)[rows - 1].float().clone())
        differences.append((torch.stack(found).softmax(-1) - expected).abs().sum(-1).mean().item())
    for held in (False, True):  # what cannot be compiled is found out here
        step.draw(step.scores(1), 0, -1, held=held)
    step.pool.give(page)
    return max(differences)
