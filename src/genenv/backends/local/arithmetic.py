# pyright: standard
"""Choices that change the last digits of what is computed: made once, when a run starts, and then held to.

A sum in another order differs in its last digits, a sampled token then differs once in a while, and
with it all that is learned. So two runs with equal settings are equal only when these choices are.
"""

from __future__ import annotations

import torch

from genenv.backends.local import hardware
from genenv.backends.local.cpu import build
from genenv.backends.local.model import LocalModel
from genenv.backends.settings import PolicyConfig


def chosen(policy: PolicyConfig) -> PolicyConfig:
    """Device, number format, threads and compiled code that suit this machine, where they are automatic."""
    device = hardware.choose_device(policy.device)
    if device.type == "cpu":
        hardware.keep_freed_memory()  # before torch starts threads
    full = policy.tuning == "full" and policy.dtype == "auto"
    dtype = torch.float32 if full else hardware.choose_dtype(policy.dtype, device)
    compiled = policy.compiled  # on a GPU it says only whether compiled code is wanted at all
    if device.type == "cpu":
        compiled = build.wanted(policy.compiled, device) is not None
    return policy.model_copy(
        update={
            "device": device.type,
            "dtype": str(dtype).removeprefix("torch."),
            "compiled": compiled,
            "threads": policy.threads
            or hardware.choose_threads(dtype if device.type == "cpu" else torch.float32),
        }
    )


def settled(policy: PolicyConfig, *loaded: LocalModel) -> PolicyConfig:
    """The settings with what was decided while the players' models were loaded.

    Where two models stand on different sides, by their nature, `auto` stays: it decides the same again.
    Weights are packed in both or in none, because that was measured.
    """
    fused = [model.fused for model in loaded if model.fused is not None]
    packed = bool(fused) and all(decoder.packed for decoder in fused)
    for decoder in fused:
        if decoder.packed and not packed:
            decoder.unpack()
    attention = {"own" if model.own_forward else "packed" for model in loaded}
    decoders = {"transformers" if model.fused is None else "fused" for model in loaded}
    return policy.model_copy(
        update={
            "packed_weights": packed,
            "attention": attention.pop() if len(attention) == 1 else policy.attention,
            "decoder": decoders.pop() if len(decoders) == 1 else policy.decoder,
        }
    )
