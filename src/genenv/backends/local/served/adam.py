# pyright: standard
"""AdamW as a training service offers it: every step says all of its numbers."""

from __future__ import annotations

import math

import torch
from torch import nn

from genenv.algorithms.settings import OptimizerConfig
from genenv.backends.local.optimizer import Optimizer
from genenv.backends.local.served.weights import ServedWeights
from genenv.backends.served import Adam
from genenv.errors import UsageError

_NAME = "adapter"
"""Of the adapter in a file: it may be called otherwise where it is read again."""


class AdamSteps(Optimizer):
    """AdamW over the weights of an adapter."""

    def __init__(self, weights: ServedWeights) -> None:
        super().__init__(
            [(_plain(name, str(weights.adapter)), own) for name, own in weights.parameters()],
            OptimizerConfig(),
        )

    def apply(self, adam: Adam) -> float:
        """One step along the gradient, which is then forgotten; without a gradient nothing moves.

        Returns:
            The norm of the gradient, before it is clipped.

        Raises:
            UsageError: it is not finite; nothing is changed but that it is forgotten.
        """
        norm = float(nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None]))
        if not math.isfinite(norm):
            self.clear()
            raise UsageError(
                "the gradient is not finite: it is thrown away, and no weight is changed; take a smaller "
                "learning rate, or look for extreme weights, advantages or log-probabilities in the data"
            )
        if adam.grad_clip_norm:
            nn.utils.clip_grads_with_norm_(self.parameters, adam.grad_clip_norm, torch.tensor(norm))
        for group in self._adamw.param_groups:
            group |= {
                "lr": adam.learning_rate,
                "betas": (adam.beta1, adam.beta2),
                "eps": adam.eps,
                "weight_decay": adam.weight_decay,
            }
        self._move()
        self.clear()
        return norm

    def start_again(self) -> None:
        """Forget gradients and moments."""
        self.clear()
        self.keep("none")


def _plain(name: str, adapter: str) -> str:
    return name.replace(f".{adapter}.", f".{_NAME}.")
