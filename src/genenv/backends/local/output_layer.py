# pyright: standard
"""From last hidden states to scores: the output layer, and what some models do to its result.

    scores = c tanh(f W h / c)      f is 1 and there is no cap c, unless the model's configuration has them

Shapes: M = rows, W = width, V = vocabulary.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Shaping:
    """What becomes of the output layer's result."""

    factor: float = 1.0
    cap: float | None = None
    """Scores stay within plus and minus this number, smoothly."""

    @property
    def is_nothing(self) -> bool:
        """Whether scores are the output layer's own."""
        return self.factor == 1.0 and self.cap is None

    def __call__(self, scores: Tensor) -> Tensor:
        """[M, V] the model's scores out of those of its output layer."""
        if self.factor != 1.0:
            scores = scores * self.factor
        return scores if self.cap is None else self.cap * torch.tanh(scores / self.cap)


def shaping(config: Any) -> Shaping:  # noqa: ANN401
    """What a configuration of transformers says of it, under the three names in use."""
    text = config.get_text_config()
    factor = (getattr(text, "logit_scale", None) or 1.0) / (getattr(text, "logits_scaling", None) or 1.0)
    return Shaping(factor=factor, cap=getattr(text, "final_logit_softcapping", None))


def scores_of(causal: Any, hidden: Tensor) -> Tensor:  # noqa: ANN401
    """[M, V] scores of all tokens, from last hidden states [M, W]."""
    return shaping(causal.config)(causal.get_output_embeddings()(hidden))
