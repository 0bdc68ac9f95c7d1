# pyright: standard
"""AdamW over the weights of one policy: gradients are clipped, and steps can be ramped up or shortened."""

from __future__ import annotations

import contextlib
import json
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn
from torch.distributed.tensor import DTensor

from genenv.algorithms.settings import Moments, OptimizerConfig
from genenv.backends.local.sharding import put_state, whole_state
from genenv.backends.served import AdamParams
from genenv.errors import DataError, UpdateSkipped, UsageError

FILE = "optimizer.safetensors"
STATE = "trainer.json"
"""File in a policy's checkpoint with the version of its weights."""


def write_version(folder: Path, version: int) -> None:
    """Write the version of a policy's weights into its checkpoint."""
    (folder / STATE).write_text(json.dumps({"version": version}) + "\n", encoding="utf-8")


def read_version(folder: Path) -> int:
    """Return the version of the weights in a policy's checkpoint; 0 if it is an old one without a version.

    Raises:
        DataError: the file is damaged.
    """
    file = folder / STATE
    try:
        return int(json.loads(file.read_text("utf-8"))["version"]) if file.exists() else 0
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise DataError(f"{file} cannot be read: {error}") from error


class Optimizer:
    """AdamW over the trained parameters of one policy; used by the trainers."""

    def __init__(self, parameters: Sequence[tuple[str, nn.Parameter]], settings: OptimizerConfig) -> None:
        self.names = [name for name, _ in parameters]
        self.parameters = [parameter for _, parameter in parameters]
        self.settings, self.ramped = settings, False
        """Whether steps are scaled by `ramp`, as moments have been reset. It is a part of the state."""
        decayed = [one for one in self.parameters if one.ndim > 1]
        kept = [one for one in self.parameters if one.ndim < 2]  # norms, biases, standard deviations
        groups = [
            {"params": some, "weight_decay": decay}
            for some, decay in ((decayed, settings.weight_decay), (kept, 0.0))
            if some
        ]
        self._adamw = torch.optim.AdamW(
            groups if settings.weight_decay else self.parameters,
            lr=0.0,
            betas=settings.betas,
            weight_decay=settings.weight_decay,
            fused=_all_on_gpus(self.parameters) or None,
        )
        for parameter in self.parameters:
            self._adamw.state[parameter] = _fresh_state(parameter)
        self._before: list[Tensor] = []
        self._fraction = 1.0
        self.clear()  # what another trainer of these parameters has left

    def clear(self) -> None:
        """Drop the gradients."""
        self._adamw.zero_grad(set_to_none=True)

    @contextlib.contextmanager
    def adding(self) -> Iterator[None]:
        """Context manager: gradients of its body are added to the present ones, which stay if it fails."""
        before = [parameter.grad for parameter in self.parameters]
        self.clear()
        try:
            yield
        except BaseException:
            self.clear()
            raise
        finally:
            for parameter, old in zip(self.parameters, before, strict=True):
                if old is not None:
                    parameter.grad = old if parameter.grad is None else old.add_(parameter.grad)

    def step(self, lr: float, *, keep_before: bool = False) -> float:
        """Apply the gradients after clipping their norm, then drop them.

        Args:
            lr: the learning rate, which is multiplied by `ramp` if the optimizer started without moments.
            keep_before: copy the parameters first, so that the step can be shortened.

        Returns:
            The norm of the gradient before clipping.

        Raises:
            UpdateSkipped: the norm is not finite; no weight is changed.
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
        """Apply the gradients in a step with explicit hyperparameters, then drop them.

        Without a gradient no weight changes. During the step, copies of weights and moments are kept.

        Returns:
            The norm of the gradient before clipping.

        Raises:
            UsageError: the norm, a new weight or a new moment is not finite; the gradient is dropped, and
                weights and moments are as before.
        """
        norm = self._clip(params.grad_clip_norm)
        if not math.isfinite(norm):
            self.clear()
            raise UsageError(
                "the gradient is not finite: it is thrown away, and no weight is changed; take a smaller "
                "learning rate, or look for extreme weights, advantages or log-probabilities in the data"
            )
        betas = (params.beta1, params.beta2)
        with self._kept_unless_finite():
            self._move(lr=params.learning_rate, betas=betas, eps=params.eps, weight_decay=params.weight_decay)
        return norm

    @contextlib.contextmanager
    def _kept_unless_finite(self) -> Iterator[None]:
        """Undo a step that fails, or after which weights or moments are not finite.

        Raises:
            UsageError: the step is undone because a number is not finite.
        """
        state = [*(p.detach() for p in self.parameters), *self._moments().values()]
        before = [one.clone() for one in state]
        done = False
        try:
            try:
                yield
                done = bool(torch.stack([one.isfinite().all() for one in state]).all())
            except RuntimeError as error:
                if "without overflow" not in str(error):  # torch converts hyperparameters to 32 bits
                    raise
        finally:
            if not done:
                self.clear()
                for one, old in zip(state, before, strict=True):
                    one.copy_(old)
                torch.autograd.graph.increment_version(self.parameters)
        if not done:
            raise UsageError(
                "after this step weights would not be finite: it is undone, and its gradient is thrown away; "
                "take a smaller learning rate or weight decay, or a larger eps"
            )

    def _clip(self, max_norm: float) -> float:
        """Clip the gradients to a maximum norm (0: no limit), and return the norm before clipping."""
        norm = nn.utils.get_total_norm([p.grad for p in self.parameters if p.grad is not None])
        if isinstance(norm, DTensor):  # of shards
            norm = norm.full_tensor()
        if max_norm:
            nn.utils.clip_grads_with_norm_(self.parameters, max_norm, norm)
        return float(norm)

    def _move(self, **numbers: object) -> None:
        """Make one step of AdamW with these hyperparameters, then drop the gradients."""
        for group in self._adamw.param_groups:
            group |= numbers
        self._adamw.step()
        self.clear()
        # a fused step does not increase the weights' version, by which cached copies are invalidated
        torch.autograd.graph.increment_version(self.parameters)

    @torch.no_grad()
    def shorten(self, fraction: float) -> None:
        """Move to the point at `fraction` of the last step; needs `keep_before`. The moments do not change.

        Both the step of AdamW and its weight decay are linear in the learning rate.

        Args:
            fraction: of the whole step, in [0, 1]; at most the fraction of an earlier call.
        """
        for parameter, before in zip(self.parameters, self._before, strict=True):
            parameter.copy_(torch.lerp(before, parameter, fraction / self._fraction))
        self._fraction = fraction

    @torch.no_grad()
    def keep(self, kept: Moments) -> None:
        """Keep some of the moments for another objective; the others restart from zero.

        The first moment still points along the old gradients. It moves every weight that way for about 1 / (1
        - beta1) steps, whatever the new gradients are. The second moment is the scale of the old gradients.
        If it is kept and the new gradients are smaller, steps are shorter than the learning rate suggests. If
        only the second moment is kept, the step count stays, and the first moment grows from zero by itself.
        """
        for state in self._adamw.state.values():
            if kept != "both":
                state["exp_avg"].zero_()
            if kept == "none":
                state["exp_avg_sq"].zero_()
                state["step"].zero_()
        self.ramped = kept == "none"

    def ramp(self) -> float:
        """Return 1 - beta1^t for the coming step t, which undoes the bias correction of the first moment.

        With it the first step of fresh moments moves a weight by (1 - beta1) of the learning rate, and no
        step on pure noise is longer than the later ones. Without it the first step moves every weight by the
        whole learning rate, whatever its gradient: 4.4 times as far as later steps at beta1 = 0.9.
        """
        steps = float(self._adamw.state[self.parameters[0]]["step"])
        return 1 - self._adamw.param_groups[0]["betas"][0] ** (steps + 1)

    def save(self, folder: Path) -> None:
        """Write the moments and step counts; the parameters are saved with the policy.

        If they are sharded, all processes gather them, and rank 0 writes.
        """
        own = self._moments()
        sharded = any(isinstance(tensor, DTensor) for tensor in own.values())
        whole = whole_state(own) if sharded else own
        if whole is None:
            return
        state = {name: tensor.contiguous() for name, tensor in whole.items()}
        safetensors.torch.save_file(state, folder / FILE, metadata={_RAMPED: json.dumps(self.ramped)})

    def load(self, folder: Path) -> None:
        """Restore the state that `save` wrote, also that of an adapter with another name.

        Earlier versions did not write whether steps are ramped. Most runs do, and late steps are the same.

        Raises:
            DataError: the file is missing, damaged, or of another model.
        """
        try:
            with safetensors.safe_open(folder / FILE, "pt") as file:
                state = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no dictionary
                self.ramped = json.loads((file.metadata() or {}).get(_RAMPED, "true"))
        except (OSError, ValueError, safetensors.SafetensorError) as error:
            raise DataError(f"the optimizer state in {folder} cannot be read: {error}") from error
        try:
            put_state(_of_any_adapter(self._moments()), _of_any_adapter(state))
        except ValueError as error:
            raise DataError(
                f"the optimizer state in {folder} belongs to another model or other settings"
            ) from error

    def _moments(self) -> dict[str, Tensor]:
        return {
            f"{name}.{key}": value
            for name, parameter in zip(self.names, self.parameters, strict=True)
            for key, value in self._adamw.state[parameter].items()
        }


_RAMPED = "ramped"
_OF_ADAPTER = re.compile(r"(\.lora_\w+)\.[^.]+(?=\.)")


def _of_any_adapter(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Return tensors by their names without that of the adapter: one may begin with another's weights."""
    return {_OF_ADAPTER.sub(r"\1", name): tensor for name, tensor in tensors.items()}


def _all_on_gpus(parameters: Sequence[Tensor]) -> bool:
    return all(parameter.is_cuda for parameter in parameters)


def _fresh_state(parameter: nn.Parameter) -> dict[str, Tensor]:
    return {
        "step": torch.zeros(
            (), device=parameter.device if parameter.is_cuda else None
        ),  # the device where fused code reads it
        "exp_avg": torch.zeros_like(parameter),
        "exp_avg_sq": torch.zeros_like(parameter),
    }


@contextlib.contextmanager
def readable(place: Path) -> Iterator[None]:
    """Turn errors while weights are read into a DataError that names the place."""
    try:
        yield
    except (OSError, ValueError, RuntimeError, safetensors.SafetensorError) as error:
        raise DataError(f"the weights in {place} cannot be read: {error}") from error
