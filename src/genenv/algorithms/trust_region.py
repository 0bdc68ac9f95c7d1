"""The KL cap: no update takes a player further than so many nats per token, whatever its gradients say.

How far is measured from where the update began, over all its steps. A step that goes too far is halved, and
halved again; after so many halvings it is taken back and counted as skipped.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from genenv.algorithms.datum import Datum
from genenv.algorithms.trainer import Trainer
from genenv.errors import UpdateSkipped

PROBE_TOKENS = 384
"""On how many completion tokens the distance is measured."""


@dataclass(slots=True, kw_only=True)
class TrustRegion:
    """Makes the steps of one update, after `Trainer.watch`."""

    cap: float
    """Mean KL(now || at the start of the update), nats per token."""
    retries: int
    """How often a step may be halved."""
    halved: int = 0
    """How often one was, so far."""
    moved: float = 0.0
    """How far the steps have gone, all together."""

    async def step(self, trainer: Trainer, learning_rate: float) -> Mapping[str, float]:
        """One step that stays within the cap.

        Raises:
            UpdateSkipped: the gradient is not finite, or even the smallest step goes too far.
        """
        measured = await trainer.step(learning_rate)
        for halvings in range(self.retries + 1):
            if halvings:
                self.halved += 1
                await trainer.shorten(0.5**halvings)
            moved = await trainer.moved()
            if moved <= self.cap:
                self.moved = moved
                return measured
        await trainer.shorten(0.0)
        raise UpdateSkipped(
            f"even the smallest step takes it further than {self.cap:g} nats per token in an update"
        )


def probe(data: Sequence[Datum]) -> list[Datum]:
    """Some of the data to measure the distance on: one of each prompt, the heaviest first, then a second one.

    Returns:
        At least one, and then as many as have `PROBE_TOKENS` tokens together.
    """
    seen: Counter[tuple[int, ...]] = Counter()
    turns: list[tuple[int, float, Datum]] = []
    for datum in sorted(data, key=lambda datum: -max(datum.weights)):
        turns.append((seen[datum.prompt_ids], -max(datum.weights), datum))
        seen[datum.prompt_ids] += 1
    some: list[Datum] = []
    for _, _, datum in sorted(turns, key=lambda turn: turn[:2]):
        if some and sum(len(s.completion_ids) for s in [*some, datum]) > PROBE_TOKENS:
            break
        some.append(datum)
    return some
