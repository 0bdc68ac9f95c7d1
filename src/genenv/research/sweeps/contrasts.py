"""Two variants of a sweep held against each other: paired by seed, p-values adjusted, outcome in words."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, TypeVar

from genenv.research.sweeps.readings import MeasuredRun
from genenv.statistics import LEVEL, Difference, holm

ROUNDING = 1e-9
"""The mean of three times 0.8 is more than 0.8."""
ONE_SEED, WITHIN_NOISE = "one seed", "within noise"

Pair = tuple[MeasuredRun, MeasuredRun]
"""Runs of two variants with the same seed."""


@dataclass(frozen=True, slots=True)
class Contrast:
    """Two variants, paired by seed."""

    one: str
    other: str
    difference: Difference
    """The one minus the other."""
    adjusted: float
    """Its p-value after Holm, over all pairs that are compared in the same way."""

    more_less: ClassVar[tuple[str, str]] = ("higher", "lower")
    """What the one is where the difference is above zero, and where it is below."""

    def outcome(self) -> str:
        """What is shown of the one against the other."""
        if self.difference.seeds < 2:
            return ONE_SEED
        if self.adjusted >= LEVEL:
            return WITHIN_NOISE
        more, less = self.more_less
        return more if self.difference.value > 0 else less

    def verdict(self) -> str:
        """The outcome in words."""
        outcome = self.outcome()
        if outcome == ONE_SEED:
            return "one seed: nothing can be said of seeds"
        return outcome if outcome == WITHIN_NOISE else f"{self.one} is {outcome}"

    def cells(self, digits: str, *, scale: float = 1.0) -> tuple[str, ...]:
        """The cells of `CELLS`: the difference and its interval times `scale`, with digits such as `.1f`."""
        value, low, high = (
            f"{scale * part:+{digits}}"
            for part in (self.difference.value, self.difference.low, self.difference.high)
        )
        return value, f"{low} to {high}", p_word(self.adjusted), str(self.difference.seeds), self.outcome()


CELLS = ("difference", "95% interval", "p (Holm)", "seeds", "verdict")
_ContrastT = TypeVar("_ContrastT", bound=Contrast)


def with_holm(rows: Sequence[_ContrastT]) -> list[_ContrastT]:
    """Contrasts that are compared in the same way, with their p-values adjusted for how many they are."""
    adjusted = holm([row.difference.p for row in rows])
    return [replace(row, adjusted=p) for row, p in zip(rows, adjusted, strict=True)]


def p_word(value: float) -> str:
    """A p-value; a dash where there is none."""
    return "–" if math.isnan(value) else "< 0.001" if value < 0.001 else f"{value:.3f}"


def counted(number: int, noun: str) -> str:
    """A number of things: `1 seed`, `2 seeds`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
