"""Difficulty steered by feedback: no learning, one number. The baseline that any curriculum has to beat.

    level <- level + gain * (success rate of new tasks - alpha),  in [0, 1]

The seeds are ranked by how long their solutions are; those nearest to the level are varied.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from pydantic import BaseModel, Field, ValidationError

from genenv.errors import DataError
from genenv.types import Group, JsonObject, Seed

GAIN = 0.2
"""With alpha 0.5, a round that solves everything adds a tenth of the ranks: no more than it looks at."""
SHARE = 0.2
"""Of the seeds, those nearest to the level, from which a round's are drawn."""


class _State(BaseModel, extra="forbid", allow_inf_nan=False):
    level: float = Field(ge=0, le=1)


class Controller:
    """Chooses seeds by their rank in difficulty."""

    def __init__(self, difficulties: Mapping[str, tuple[float, ...]], *, alpha: float) -> None:
        """Start in the middle.

        Args:
            difficulties: by seed id, anything that can be ordered; equal ones share a rank.
            alpha: the success rate to steer to.
        """
        order = sorted(set(difficulties.values()))
        places = {value: place / max(1, len(order) - 1) for place, value in enumerate(order)}
        self._ranks = {name: places[value] for name, value in difficulties.items()}
        self._alpha, self.level = alpha, 0.5

    def choose(self, seeds: Sequence[Seed], n: int, rng: random.Random) -> list[Seed]:
        """Draw n different seeds of those nearest to the level."""
        shuffled = rng.sample(list(seeds), len(seeds))
        nearest = sorted(shuffled, key=lambda seed: abs(self._ranks.get(seed.id, 0.5) - self.level))
        return rng.sample(nearest[: max(n, int(SHARE * len(seeds)))], n)

    def observe(self, groups: Sequence[Group]) -> None:
        """Steer by the attempts at a round's new tasks."""
        attempts = sum(len(group.valid) for group in groups)
        if attempts:
            rate = sum(trace.success for group in groups for trace in group.valid) / attempts
            self.level = min(1.0, max(0.0, self.level + GAIN * (rate - self._alpha)))

    def state_dict(self) -> JsonObject:
        """What `load_state_dict` needs."""
        return {"level": self.level}

    def load_state_dict(self, state: JsonObject) -> None:
        """Continue from what `state_dict` gave.

        Raises:
            DataError: the state is damaged.
        """
        try:
            self.level = _State.model_validate(state).level
        except ValidationError as error:
            raise DataError(
                f"the controller's state in this run's store is damaged: {error.errors()[0]['msg']}"
            ) from error
