"""Requests and results of a model that the Tinker server serves. Numbers only: no torch, no HTTP.

Shapes: N = tokens of a sequence, K = targets of a position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from genenv.sampling import Completion, SamplingParams

Numbers = npt.NDArray[np.float32]
Whole = npt.NDArray[np.int64]

LORA_ALPHA = 32.0
"""Scale of served adapters: their output is multiplied by this / rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterShape:
    """The adapter that a client wants: its rank, and which layers have one."""

    rank: int
    mlp: bool = True
    attention: bool = True
    unembed: bool = False
    """The output layer."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One sequence to train on or to score."""

    ids: tuple[int, ...]  # [N]
    targets: Whole
    """[N] or [N, K]: the tokens to predict at each position, from the tokens up to it."""
    inputs: Mapping[str, Numbers]
    """By name, each of the targets' shape: `weights`, `advantages`, `logprobs`, ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """The loss of examples."""

    name: str
    """One of `genenv.algorithms.losses.WIRE_LOSSES`."""
    config: Mapping[str, float]
    """Its numbers, by name; those left out have defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardResult:
    """What a forward pass over examples gives."""

    loss: float
    """The sum over all targets."""
    logprobs: Sequence[Numbers]
    """Of each example's targets, in their shape. Nats."""
    losses: Sequence[Numbers]
    """What each target adds to the loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamParams:
    """All numbers of one step of AdamW."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0
    """Gradients longer than this are scaled down to it; 0: no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRequest(SamplingParams):
    """Completions wanted of one prompt, or the log-probabilities of its own tokens."""

    prompt_ids: tuple[int, ...]  # [N]
    samples: int = 1
    max_tokens: int | None = None
    """None: as many as the context window has room for."""
    top_k: int = -1
    """Draw among so many tokens; -1: among all."""
    stop_ids: tuple[int, ...] = ()
    stop_texts: tuple[str, ...] = ()
    seed: int | None = None
    """Equal seeds draw equal tokens; None: fresh ones."""
    prompt_logprobs: bool = False
    top_prompt_logprobs: int = 0
    """Of so many tokens that are the likeliest at each position of the prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptResult:
    """The result of a `PromptRequest`."""

    sequences: Sequence[Completion]
    """Their log-probabilities are at temperature 1, among all tokens."""
    prompt_logprobs: Numbers | None = None
    """[N] NaN for the first token, which nothing predicts."""
    top_prompt_logprobs: tuple[npt.NDArray[np.int32], Numbers] | None = None
    """[N, K] tokens and [N, K] their log-probabilities; 0 and -99999 at the first position."""
