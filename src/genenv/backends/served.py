"""Requests and results of a model that genenv serves by the Tinker protocol: plain data, no torch, no HTTP.

Shapes: N = tokens of a sequence, K = candidate targets per position.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np
import numpy.typing as npt
from pydantic import Field

from genenv.sampling import Completion, SamplingParams

Numbers = npt.NDArray[np.float32]
Whole = npt.NDArray[np.int64]
Positive = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Divisor = Annotated[float, Field(ge=2.0**-126, allow_inf_nan=False)]
"""At least the smallest normal number of 32 bits; a smaller one may become zero."""
Share = Annotated[float, Field(ge=0, lt=1, allow_inf_nan=False)]

LORA_ALPHA = 32.0
"""LoRA alpha of served adapters: their output is multiplied by alpha / rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterShape:
    """The shape of an adapter that a client requests: its rank, and which layers are adapted."""

    rank: int
    train_mlp: bool = True
    train_attn: bool = True
    train_unembed: bool = False
    """Whether the output layer (LM head) is adapted."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One sequence to train on or to score."""

    ids: tuple[int, ...]  # [N]
    targets: Whole
    """[N] or [N, K]: the tokens to predict at each position, from the tokens up to that position."""
    inputs: Mapping[str, Numbers]
    """Per-target inputs of the loss by name, in the shape of `targets`: `weights`, `advantages`, `logprobs`,
    ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """A loss function by name, with its parameters."""

    name: str
    """One of `genenv.algorithms.losses.WIRE_LOSSES`."""
    config: Mapping[str, float]
    """Parameters of the loss by name; missing ones have default values."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ForwardResult:
    """The result of a forward pass over examples."""

    loss: float
    """Sum of the loss over all targets."""
    logprobs: Sequence[Numbers]
    """The log-probability of each target, per example in the shape of its `targets`. Nats."""
    losses: Sequence[Numbers]
    """The loss of each target, per example in the shape of its `targets`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdamParams:
    """All hyperparameters of one AdamW step, with their bounds for requests."""

    learning_rate: Positive = 1e-4
    beta1: Share = 0.9
    beta2: Share = 0.95
    eps: Divisor = 1e-12
    weight_decay: Positive = 0.0
    grad_clip_norm: Positive = 0.0
    """Gradients with a larger norm are scaled down to this norm; 0: no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptRequest(SamplingParams):
    """A request to complete one prompt, or to return the log-probabilities of the prompt's tokens."""

    prompt_ids: tuple[int, ...]  # [N]
    samples: int = 1
    max_tokens: int | None = None
    """None: as many as the context window has room for."""
    top_k: int = -1
    """Draw among this many most probable tokens; -1: among all."""
    stop_ids: tuple[int, ...] = ()
    stop_texts: tuple[str, ...] = ()
    seed: int | None = None
    """Equal seeds draw equal tokens; None: a random seed."""
    prompt_logprobs: bool = False
    top_prompt_logprobs: int = 0
    """Return this many of the most probable tokens at each position of the prompt; 0: none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptResult:
    """The result of a `PromptRequest`."""

    sequences: Sequence[Completion]
    """The completions; log-probabilities are at temperature 1 over all tokens, whatever the sampling
    parameters."""
    prompt_logprobs: Numbers | None = None
    """[N] log-probability of each prompt token; NaN for the first, which nothing predicts. Nats."""
    top_prompt_logprobs: tuple[npt.NDArray[np.int32], Numbers] | None = None
    """The most probable tokens [N, K] and their log-probabilities [N, K]; the first position has 0 and
    -99999."""
