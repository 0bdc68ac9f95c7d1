"""What a trainer is: something that executes credit. It never sees a task.

The calls are those of training services (`forward_backward`, `optim_step`, `save_state` of Tinker), so that
one of these can stand behind them. All are coroutines: two players on two devices can learn at the same time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Protocol

from genenv.algorithms.datum import Datum, Objective
from genenv.algorithms.settings import Moments


class Trainer(Protocol):
    """Updates the weights of one player. A step applies whole, or raises `UpdateSkipped` and changes none."""

    async def forward_backward(self, data: Sequence[Datum], objective: Objective) -> Mapping[str, float]:
        """Accumulate the gradient of the loss over data.

        Returns:
            `loss` (KL term included), `tokens` that count; and where there is such a thing `kl` to the
            reference and `entropy` (nats per token), `clip_rate`, and `old_kl`: KL(pi_old || pi) by k3 over
            the tokens of `ppo` data, summed with their weights.

        Raises:
            UpdateSkipped: the loss is not finite; no gradient is kept.
        """
        ...

    async def step(self, learning_rate: float) -> Mapping[str, float]:
        """One step along the accumulated gradient, which is then forgotten.

        Returns:
            `grad_norm`, before it is clipped.

        Raises:
            UpdateSkipped: the gradient is not finite.
        """
        ...

    async def watch(self, data: Sequence[Datum]) -> None:
        """From here on `moved` measures how far the weights go, by what they would sample in these places."""
        ...

    async def moved(self) -> float:
        """Mean KL(now || when `watch` was called) over the tokens of its data, exact. Nats."""
        ...

    async def shorten(self, fraction: float) -> None:
        """Take part of the last step back: the weights are then where `fraction` of it leads.

        AdamW's step is linear in the learning rate, so that is the step of a smaller one.
        """
        ...

    async def logprobs(self, data: Sequence[Datum], *, reference: bool = False) -> list[tuple[float, ...]]:
        """[T] of each datum: log-probabilities of its completion, now or under the reference. Nats."""
        ...

    async def anchor(self, moments: Moments) -> None:
        """Make the present weights the reference, and go on with these moments: the warm-up is over."""
        ...

    async def publish(self) -> int:
        """Let the sampler see the present weights; returns their version, one more than before."""
        ...

    async def save(self, folder: Path) -> None:
        """Write weights, reference, optimizer and version into a folder."""
        ...

    async def load(self, folder: Path) -> None:
        """Restore exactly what `save` wrote.

        Raises:
            DataError: the folder is damaged, or of another model.
        """
        ...
