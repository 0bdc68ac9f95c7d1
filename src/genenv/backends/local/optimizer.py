# pyright: standard
"""One optimizer step made safe: accumulated in micro-batches, clipped, taken back when it goes wrong."""

from __future__ import annotations

import itertools
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TypeVar

import safetensors
import safetensors.torch
import torch
from torch import Tensor, nn

from genenv.backends.local.loading import release_memory
from genenv.backends.local.packing import Bundle, within_budget
from genenv.errors import DataError, UpdateSkipped, out_of_memory
from genenv.learning.settings import Moments

log = logging.getLogger(__name__)

T = TypeVar("T")

FILE = "optimizer.safetensors"


class Optimizer:
    """AdamW over one player's parameters, with snapshots."""

    def __init__(
        self,
        parameters: Sequence[tuple[str, nn.Parameter]],
        *,
        betas: tuple[float, float],
        weight_decay: float,
        max_grad_norm: float,
    ) -> None:
        self.names = [name for name, _ in parameters]
        self.parameters = [parameter for _, parameter in parameters]
        self.max_grad_norm = max_grad_norm
        self._adamw = torch.optim.AdamW(self.parameters, lr=0.0, betas=betas, weight_decay=weight_decay)
        for parameter in self.parameters:
            self._adamw.state[parameter] = _fresh_state(parameter)

    def clear(self) -> None:
        """Forget gradients."""
        self._adamw.zero_grad(set_to_none=True)

    def clip(self) -> float:
        """Scale gradients down to the largest allowed norm.

        Returns:
            The norm before.

        Raises:
            UpdateSkipped: it is not finite.
        """
        norm = float(torch.nn.utils.clip_grad_norm_(self.parameters, self.max_grad_norm))
        if not torch.isfinite(torch.tensor(norm)):
            self.clear()
            raise UpdateSkipped("the gradient is not finite")
        return norm

    def step(self, lr: float) -> None:
        """Apply the gradients, which are kept."""
        for group in self._adamw.param_groups:
            group["lr"] = lr
        self._adamw.step()

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

    def ramp(self) -> float:
        """1 - beta1^t for the coming step t, which undoes the bias correction of the first moment.

        With it the first step of fresh moments moves a weight by (1 - beta1) of the learning rate, and no
        step that sees noise alone is longer than those that come later. Without, the first one moves every
        weight by the whole learning rate, whatever its gradient: 4.4 times the later ones at beta1 = 0.9.
        """
        steps = float(self._adamw.state[self.parameters[0]]["step"])
        return 1 - self._adamw.param_groups[0]["betas"][0] ** (steps + 1)

    @torch.no_grad()
    def snapshot(self) -> dict[str, Tensor]:
        """Copies of parameters and moments."""
        return {name: tensor.detach().clone() for name, tensor in self._tensors().items()}

    @torch.no_grad()
    def restore(self, snapshot: dict[str, Tensor]) -> None:
        """Put a snapshot back, exactly."""
        for name, tensor in self._tensors().items():
            tensor.copy_(snapshot[name])

    def save(self, folder: Path) -> None:
        """Write the moments and step counts (the parameters are the policy's to save)."""
        state = {k: v.contiguous() for k, v in self._tensors().items() if not k.endswith(".value")}
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
        own = {k: v for k, v in self._tensors().items() if not k.endswith(".value")}
        if {k: v.shape for k, v in own.items()} != {k: v.shape for k, v in state.items()}:
            raise DataError(f"the optimizer state in {folder} belongs to another model or other settings")
        with torch.no_grad():
            for name, tensor in own.items():
                tensor.copy_(state[name])

    def _tensors(self) -> dict[str, Tensor]:
        tensors: dict[str, Tensor] = {}
        for name, parameter in zip(self.names, self.parameters, strict=True):
            tensors[f"{name}.value"] = parameter
            tensors |= {f"{name}.{key}": value for key, value in self._adamw.state[parameter].items()}
        return tensors


def _fresh_state(parameter: nn.Parameter) -> dict[str, Tensor]:
    return {
        "step": torch.tensor(0.0),
        "exp_avg": torch.zeros_like(parameter),
        "exp_avg_sq": torch.zeros_like(parameter),
    }


def micro_batches(
    items: Sequence[tuple[Bundle, Sequence[T]]], tokens: int
) -> list[list[tuple[Bundle, Sequence[T]]]]:
    """Cut bundles, and what belongs to each of their completions, into batches of at most `tokens` tokens.

    A bundle that is larger is cut into several with the same prompt; one completion is never cut, and pieces
    with a long prompt may have twice the budget. Sorted by length, so that padding in attention is small.
    What a prompt and the one before it begin with counts once.
    """
    pieces = [piece for bundle, rows in items for piece in _cut(bundle, rows, tokens)]
    pieces.sort(key=lambda piece: piece[0].tokens)
    return within_budget(pieces, tokens, lambda piece: (piece[0].prompt_ids, piece[0].tokens))


def evenly(items: Sequence[T], parts: int) -> list[Sequence[T]]:
    """Cut a sequence into that many parts, whose sizes differ by one at most; none of them is empty."""
    parts = min(parts, len(items))
    cuts = [len(items) * i // parts for i in range(parts + 1)] if parts else []
    return [items[start:end] for start, end in itertools.pairwise(cuts)]


def _cut(bundle: Bundle, rows: Sequence[T], tokens: int) -> list[tuple[Bundle, Sequence[T]]]:
    """A bundle as it is, or as several within the token budget, its completions sorted by length.

    A prompt is not read again for less than its own length in completions, if twice the budget allows that.
    """
    tokens = max(tokens, min(2 * len(bundle.prompt_ids), 2 * tokens))
    if bundle.tokens <= tokens:
        return [(bundle, rows)]
    pieces: list[tuple[list[Sequence[int]], list[T]]] = []
    size = 0
    for ids, row in sorted(zip(bundle.completions, rows, strict=True), key=lambda pair: len(pair[0])):
        if not pieces or size + len(ids) > tokens:
            pieces.append(([], []))
            size = len(bundle.prompt_ids)
        pieces[-1][0].append(ids)
        pieces[-1][1].append(row)
        size += len(ids)
    return [(Bundle(prompt_ids=bundle.prompt_ids, completions=ids), part) for ids, part in pieces]


def accumulate(optimizer: Optimizer, tokens: int, run: Callable[[int], None]) -> None:
    """Run a gradient accumulation; when memory runs out, start it again once with half the micro-batch.

    Args:
        optimizer: its gradients are cleared first, so that a broken-off accumulation leaves nothing behind.
        tokens: the micro-batch size.
        run: accumulates all gradients with micro-batches of the size it is given.
    """
    optimizer.clear()
    try:
        run(tokens)
    except RuntimeError as error:
        if not out_of_memory(error):
            raise
    else:
        return
    # Outside the handler: while it runs, the error's traceback keeps the tensors that did not fit.
    log.warning("an update ran out of memory; again with micro-batches of %d tokens", tokens // 2)
    optimizer.clear()
    release_memory(optimizer.parameters[0].device)
    run(tokens // 2)
