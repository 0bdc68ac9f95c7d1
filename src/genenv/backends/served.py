"""What a model that is served to others is asked, and what it answers. Numbers only: no torch, no HTTP.

Shapes: N = tokens of a sequence, K = targets of a position, T = tokens of a completion.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from genenv.sampling import SamplingParams

Numbers = npt.NDArray[np.float32]
Whole = npt.NDArray[np.int64]

LOSSES = ("cross_entropy", "importance_sampling", "ppo", "cispo", "dro")
"""What a sequence may be learned by; `backends.local.served.summed` has their formulas."""

LORA_ALPHA = 32.0
"""Scale of served adapters: their output is multiplied by this / rank."""


@dataclass(frozen=True, slots=True, kw_only=True)
class AdapterShape:
    """Which adapter a client asks for."""

    rank: int
    mlp: bool = True
    """Whether the layers between those of attention have one."""
    attention: bool = True
    """Whether the layers of attention have one."""
    unembed: bool = False
    """Whether the output layer has one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Example:
    """One sequence to learn from or to score."""

    ids: tuple[int, ...]  # [N]
    targets: Whole
    """[N] or [N, K]: what is to be predicted in each place, from the tokens up to it."""
    inputs: Mapping[str, Numbers]
    """By name, each of the targets' shape: `weights`, `advantages`, `logprobs`, ..."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """How examples are learned."""

    name: str
    """One of `LOSSES`."""
    config: Mapping[str, float]
    """Its numbers, by name; those left out have defaults."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored:
    """What became of examples."""

    loss: float
    """The sum over all targets."""
    logprobs: Sequence[Numbers]
    """Of each example's targets, in their shape. Nats."""
    losses: Sequence[Numbers]
    """What each target adds to the loss."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Adam:
    """A step of AdamW."""

    learning_rate: float = 1e-4
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-12
    weight_decay: float = 0.0
    grad_clip_norm: float = 0.0
    """Gradients longer than this are scaled down to it; 0: no limit."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked(SamplingParams):
    """Completions wanted of one prompt, or what its own tokens' likelihoods are."""

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
    """Of so many tokens that are the likeliest in each place of the prompt."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampled:
    """One completion."""

    ids: tuple[int, ...]  # [T] what stopped it included
    logprobs: Numbers
    """[T] at temperature 1, among all tokens. Nats."""
    stopped: bool
    """False when the most tokens came first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answered:
    """What is said to an `Asked`."""

    sequences: Sequence[Sampled]
    prompt_logprobs: Numbers | None = None
    """[N] NaN for the first token, which nothing predicts."""
    top_prompt_logprobs: tuple[npt.NDArray[np.int32], Numbers] | None = None
    """[N, K] tokens and [N, K] their log-probabilities; 0 and -99999 for the first place."""
