"""The shift test: how far a variant falls when the world changes, and how soon it is where it was.

A run has recovered in the first measured round whose held-out success in the other world is at least the
level that it had right before, or a share of that level. A run that never gets there is censored: all that
is known is that it takes longer than the rounds it has had. Means over seeds count it with those rounds, and
are lower bounds: the restricted mean (Irwin 1949).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from genenv.research.sweeps.readings import Reading
from genenv.statistics import LEVEL, Difference, difference, holm, mean_interval

SHARES = (0.9, 1.0)
"""Of the level right before the shift, to which a run may be back."""
_ROUNDING = 1e-9

Interval = tuple[float, float, float]
"""Mean over seeds, and its 95% interval."""


@dataclass(frozen=True, slots=True)
class Fall:
    """One run in the other world."""

    seed: int
    round: int
    """The first one there."""
    before: float
    """Held-out success at the last measurement in the first world."""
    at: float
    """Held-out success in the other world, before anything was learned there."""
    after: Sequence[tuple[int, float, float]]
    """Rounds played there, attempts spent there, and held-out success then; ascending."""

    @property
    def rounds(self) -> int:
        """How many it has had."""
        return self.after[-1][0]

    def back(self, share: float) -> tuple[int, float] | None:
        """Rounds and attempts until success was that share of the level before; None if it never was."""
        level = share * self.before - _ROUNDING
        return next((taken[:2] for taken in self.after if taken[2] >= level), None)

    def lasted(self, share: float, most: int) -> int:
        """Rounds until it was back, at most so many."""
        found = self.back(share)
        return most if found is None else min(most, found[0])


@dataclass(frozen=True, slots=True)
class Back:
    """When the runs of a variant were back at a share of their level."""

    share: float
    rounds: Interval
    """Runs that never were count with the rounds they had."""
    attempts: Interval
    """Likewise."""
    never: int
    """How many were not."""
    within: int
    """The most rounds that one of those had; 0 where there is none."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """One variant."""

    variant: str
    falls: Sequence[Fall]
    before: Interval
    at: Interval
    drop: Interval
    back: Sequence[Back]
    """For each of `SHARES`."""


@dataclass(frozen=True, slots=True)
class Sooner:
    """Two variants, paired by seed: rounds of one minus those of the other until they were back."""

    one: str
    other: str
    share: float
    difference: Difference
    adjusted: float
    """Its p-value after Holm, over all pairs at this share."""
    never: tuple[int, int]
    """Seeds in which one, and the other, was not back; they count with the rounds that both had."""

    def verdict(self) -> str:
        """In words."""
        if self.difference.seeds < 2:
            return "one seed: nothing can be said of seeds"
        if self.adjusted < LEVEL:
            return f"{self.one} is {'sooner' if self.difference.value < 0 else 'later'}"
        return "within noise"


def fall_of(run: Reading) -> Fall | None:
    """How a run has got over its shift; None where it has not come to one, or was not measured around it."""
    there, shift = run.in_last_world(), run.config.shift.round
    before = run.measured[: len(run.measured) - len(there)]
    if not before or len(there) < 2:
        return None
    start = there[0].spent["attempts"]
    after = [(one.round - shift + 1, one.spent["attempts"] - start, one.mean) for one in there]
    return Fall(run.seed, shift, before[-1].mean, there[0].mean, after)


def recoveries(variants: Mapping[str, Sequence[Reading]]) -> list[Recovery]:
    """Of each variant that has runs with a shift."""
    found: list[Recovery] = []
    for name, runs in variants.items():
        falls = [fall for fall in map(fall_of, runs) if fall is not None]
        if falls:
            before, at = ([getattr(fall, part) for fall in falls] for part in ("before", "at"))
            drop = mean_interval([fall.before - fall.at for fall in falls])
            back = [_back(falls, share) for share in SHARES]
            found.append(Recovery(name, falls, mean_interval(before), mean_interval(at), drop, back))
    return found


def _back(falls: Sequence[Fall], share: float) -> Back:
    taken = [(fall.back(share) or fall.after[-1][:2]) for fall in falls]
    late = [fall.rounds for fall in falls if fall.back(share) is None]
    rounds, attempts = ([float(one[part]) for one in taken] for part in (0, 1))
    return Back(share, mean_interval(rounds), mean_interval(attempts), len(late), max(late, default=0))


def sooner(pairs: Mapping[tuple[str, str], Sequence[tuple[Reading, Reading]]]) -> list[Sooner]:
    """How pairs of variants differ in rounds to recovery.

    Args:
        pairs: by their names, the runs of both that have a seed in common.
    """
    found: list[Sooner] = []
    for share in SHARES:
        rows: list[Sooner] = []
        for names, runs in pairs.items():
            both = [(fall_of(one), fall_of(other)) for one, other in runs]
            falls = [(one, other) for one, other in both if one is not None and other is not None]
            if falls:
                rows.append(_sooner(names, share, falls))
        adjusted = holm([row.difference.p for row in rows])
        found += [
            Sooner(row.one, row.other, row.share, row.difference, p, row.never)
            for row, p in zip(rows, adjusted, strict=True)
        ]
    return found


def _sooner(names: tuple[str, str], share: float, falls: Sequence[tuple[Fall, Fall]]) -> Sooner:
    lasted = [
        [[fall.lasted(share, min(one.rounds for one in both))] for fall in both] for both in falls
    ]  # [S, 2, 1]
    rounds_2S1 = np.array(lasted, dtype=np.float64).swapaxes(0, 1)
    apart = difference(rounds_2S1[0], rounds_2S1[1])
    one, other = (sum(both[side].back(share) is None for both in falls) for side in (0, 1))
    return Sooner(*names, share, apart, apart.p, (one, other))
