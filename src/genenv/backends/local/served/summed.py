# pyright: standard
"""The losses that clients of the Tinker protocol name, as sums over targets: `losses.WIRE_LOSSES` on tensors.

`logprobs` are those of the policy that sampled, `advantages` and `weights` as everywhere. Under all but
`cross_entropy`, `weights` or `mask` multiply where they are given. Log-ratios are not bounded, as Thinking
Machines documents for Tinker.

Shapes: M = targets.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from torch import Tensor

from genenv.algorithms.losses import CLIP, WIRE_LOSSES, LossTerms
from genenv.backends.served import Example, Loss, Numbers
from genenv.errors import UsageError, unknown_name

_OF_SAMPLES = ("advantages", "logprobs")
_FACTORS = ("weights", "mask")


def checked(loss: Loss) -> dict[str, float]:
    """The numbers of a loss, with its defaults.

    Raises:
        UsageError: there is no such loss, or no such number of it.
    """
    if loss.name not in WIRE_LOSSES:
        raise unknown_name("loss", loss.name, WIRE_LOSSES)
    known = WIRE_LOSSES[loss.name].settings
    for name in loss.config:
        if name not in known:
            raise unknown_name(f"setting of the loss {loss.name}", name, known)
    config = {**known, **loss.config}
    if missing := [name for name, value in config.items() if not np.isfinite(value)]:
        raise UsageError(f"the loss {loss.name} needs a finite {missing[0]!r} in its loss_fn_config")
    return config


def check_example(example: Example, loss: Loss, place: int) -> None:
    """Hold an example to what its loss reads.

    Raises:
        UsageError: something is missing, left over, of another shape or not finite; names it.
    """
    shape = example.targets.shape
    if shape[:1] != (len(example.ids),) or len(shape) > 2 or not example.targets.size:
        raise UsageError(
            f"datum {place}: target_tokens of shape {list(shape)} do not fit an input of {len(example.ids)} "
            "tokens; there is one (or one row) for each"
        )
    needed = () if loss.name == "cross_entropy" else _OF_SAMPLES
    for name in needed:
        if name not in example.inputs:
            raise UsageError(f"datum {place}: the loss {loss.name} needs {name!r} in loss_fn_inputs")
    known = {*needed, *_FACTORS, *(CLIP if WIRE_LOSSES[loss.name].settings is CLIP else ())}
    for name, values in example.inputs.items():
        if name not in known:
            raise unknown_name(f"input of the loss {loss.name} in datum {place}", name, known)
        if values.shape != shape:
            raise UsageError(
                f"datum {place}: {name} of shape {list(values.shape)} beside target_tokens of "
                f"{list(shape)}; the two must be equal"
            )
        counts = np.isfinite(values) if name != "logprobs" else np.isfinite(values) | ~counting(example, loss)
        if not counts.all():
            raise UsageError(f"datum {place}: {name} holds numbers that are not finite (NaN or infinity)")


def counting(example: Example, loss: Loss) -> np.ndarray:
    """Which targets have a gradient."""
    if loss.name == "cross_entropy":
        return _factor(example) != 0
    counts = _factor(example) != 0
    return counts if loss.name == "dro" else counts & (example.inputs["advantages"] != 0)


def _factor(example: Example) -> Numbers:
    """What multiplies each target's loss."""
    factor = np.ones(example.targets.shape, dtype=np.float32)
    for name in _FACTORS:
        if name in example.inputs:
            factor = factor * example.inputs[name]
    return factor


class Terms:
    """What the losses need of the targets of a micro-batch that count."""

    def __init__(self, name: str, config: Mapping[str, float], device: torch.device) -> None:
        self.name, self._config, self._device = name, config, device
        self._columns: dict[str, list[np.ndarray]] = {}

    def add(self, example: Example, counts: np.ndarray) -> None:
        """Take in an example; `counts` says which of its targets count."""
        columns: dict[str, Numbers] = {"factor": _factor(example)}
        if self.name != "cross_entropy":
            columns |= {name: example.inputs[name] for name in _OF_SAMPLES}
        columns |= {
            name: example.inputs.get(name, np.full(example.targets.shape, self._config[name], np.float32))
            for name in CLIP
            if name in self._config
        }
        for name, values in columns.items():
            self._columns.setdefault(name, []).append(values[counts])

    def losses(self, logprobs_M: Tensor) -> Tensor:
        """[M] what each target adds to the loss."""
        column = {
            name: torch.from_numpy(np.concatenate(parts)).to(self._device)
            for name, parts in self._columns.items()
        }
        of_samples = self.name != "cross_entropy"
        terms = LossTerms(
            logprob=logprobs_M,
            old=column["logprobs"] if of_samples else None,
            advantage=column["advantages"] if of_samples else None,
            low=column.get("clip_low_threshold"),
            high=column.get("clip_high_threshold"),
            sequence_mean=lambda values_M: values_M,
            beta=self._config.get("beta", 0.0),
            bounded=False,
        )
        return WIRE_LOSSES[self.name].function(terms) * column["factor"]
