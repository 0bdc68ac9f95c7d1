# pyright: standard
"""AdamW over the weights of one policy: gradients are clipped, steps can be ramped up or shortened."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from genenv.algorithms.settings import Moments, OptimizerConfig
from genenv.backends.served import AdamParams
from genenv.errors import DataError, UpdateSkipped, UsageError

FILE = "optimizer.safetensors"


class Optimizer:
    """AdamW over one policy's parameters."""

    def __init__(self, parameters: Sequence[tuple[str, nn.Parameter]], settings: OptimizerConfig) -> None:
        self.names = [name for name, _ in parameters]
        self.parameters = [parameter for _, parameter in parameters]
        self.settings, self.ramped = settings, False
        self._adamw = torch.optim.AdamW(
            self.parameters,
            lr=0.0,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
            fused=_all_on_gpus(self.parameters) or None,
        )
        for parameter in self.parameters:
            self._adamw.state[parameter] = _fresh_state(parameter)
        self._before: list[Tensor] = []
        self._fraction = 1.0

    def clear(self) -> None:
        """Drop the gradients."""
        self._adamw.zero_grad(set_to_none=True)

    def step(self, lr: float, *, keep_before: bool = False) -> float:
        """Apply the gradients, scaled down to the largest allowed norm, and forget them.

        Args:
            lr: the learning rate; times `ramp` where the optimizer began without moments.
            keep_before: copy the parameters first, so that the step can be shortened.

        Returns:
            The norm before.

        Raises:
            UpdateSkipped: it is not finite; nothing is changed.
        """
        norm = self._clip(self.settings.max_grad_norm)
        if not math.isfinite(norm):
            self.clear()
            raise UpdateSkipped("the gradient is not finite")
        self._before = [p.detach().clone() for p in self.parameters] if keep_before else []
        self._fraction = 1.0
        self._move(lr=lr * (self.ramp() if self.ramped else 1.0))
        return norm

    def apply(self, params: AdamParams) -> float:
        """Apply the gradients in a step that states all of its numbers, and forget them.

        Without a gradient nothing moves.

        Returns:
            The norm of the gradient before it is clipped.

        Raises:
            UsageError: it is not finite; the gradient is forgotten, and nothing else is changed.
        """
        norm = self._clip(params.grad_clip_norm)
        if not math.isfinite(norm):
            self.clear()
            raise UsageError(
                "the gradient is not finite: it is thrown away, and no weight is changed; take a smaller "
                "learning rate, or look for extreme weights, advantages or log-probabilities in the data"
            )
        betas = (params.beta1, params.beta2)
        self._move(lr=params.learning_rate, betas=betas, eps=params.eps, weight_decay=params.weight_decay)
        return norm

    def _clip(self, max_norm: float) -> float:
        """Scale the gradients down to a norm (0: leave them), and return the norm before."""
        norm = nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        if max_norm:
            nn.utils.clip_grads_with_norm_(self.parameters, max_norm, norm)
        return float(norm)

    def _move(self, **numbers: object) -> None:
        """One step of AdamW with these numbers; gradients are forgotten."""
        for group in self._adamw.param_groups:
            group |= numbers
        self._adamw.step()
        self.clear()
        # a fused step does not say that the weights are others now, which those who copied them must know
        torch.autograd.graph.increment_version(self.parameters)

    @torch.no_grad()
    def shorten(self, fraction: float) -> None:
        """Go to where `fraction` of the last step leads, which kept what was before; its moments stay.

        Both the step of AdamW and its weight decay are linear in the learning rate.

        Args:
            fraction: of the whole step, in [0, 1]; not more than it was shortened to already.
        """
        for parameter, before in zip(self.parameters, self._before, strict=True):
            parameter.copy_(torch.lerp(before, parameter, fraction / self._fraction))
        self._fraction = fraction

    @torch.no_grad()
    def keep(self, kept: Moments) -> None:
        """Go on to another objective with some of the moments; the others start again from zero.

        The first moment still points where the old gradients did, and moves every weight that way for about
        1 / (1 - beta1) steps, whatever the new gradients say. The second is the scale of the old gradients:
        kept, steps are shorter than the learning rate says where the new ones are smaller. With the second
        alone the step count stays, and the first moment grows from zero by itself.
        """
        for state in self._adamw.state.values():
            if kept != "both":
                state["exp_avg"].zero_()
            if kept == "none":
                state["exp_avg_sq"].zero_()
                state["step"].zero_()
        self.ramped = kept == "none"

    def ramp(self) -> float:
        """1 - beta1^t for the coming step t, which undoes the bias correction of the first moment.

        With it the first step of fresh moments moves a weight by (1 - beta1) of the learning rate, and no
        step that sees noise alone is longer than those that come later. Without, the first one moves every
        weight by the whole learning rate, whatever its gradient: 4.4 times the later ones at beta1 = 0.9.
        """
        steps = float(self._adamw.state[self.parameters[0]]["step"])
        return 1 - self._adamw.param_groups[0]["betas"][0] ** (steps + 1)

    def save(self, folder: Path) -> None:
        """Write the moments and step counts (the parameters are the policy's to save)."""
        state = {name: tensor.contiguous() for name, tensor in self._moments().items()}
        safetensors.torch.save_file(state, folder / FILE)

    def load(self, folder: Path) -> None:
        """Restore what `save` wrote.

        Raises:
            DataError: it is missing, damaged, or of another model.
        """
        try:
            state = safetensors.torch.load_file(folder / FILE)
        except (OSError, safetensors.SafetensorError) as error:
            raise DataError(f"the optimizer state in {folder} cannot be read: {error}") from error
        own = self._moments()
        if {k: v.shape for k, v in own.items()} != {k: v.shape for k, v in state.items()}:
            raise DataError(f"the optimizer state in {folder} belongs to another model or other settings")
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(state[name])

    def _moments(self) -> dict[str, Tensor]:
        return {
            f"{name}.{key}": value
            for name, parameter in zip(self.names, self.parameters, strict=True)
            for key, value in self._adamw.state[parameter].items()
        }


def _all_on_gpus(parameters: Sequence[Tensor]) -> bool:
    return all(parameter.is_cuda for parameter in parameters)


def _fresh_state(parameter: nn.Parameter) -> dict[str, Tensor]:
    return {
        "step": torch.zeros(
            (), device=parameter.device if parameter.is_cuda else None
        ),  # where fused code reads it
        "exp_avg": torch.zeros_like(parameter),
        "exp_avg_sq": torch.zeros_like(parameter),
    }
