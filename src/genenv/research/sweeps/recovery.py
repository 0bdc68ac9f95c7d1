"""The shift test: how far success drops when the environment changes, and how soon it recovers.

A run has recovered in the first measured round whose held-out success in the new environment is at least
the level right before the shift, or a share of that level. A run that never recovers is censored: its
recovery takes longer than the rounds it had. Means over seeds count it with those rounds, so they are lower
bounds: the restricted mean (Irwin 1949).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar

import numpy as np

from genenv.research.sweeps.readings import MeasuredRun, Pair
from genenv.statistics import ROUNDING, Contrast, counted, difference, mean_interval, p_word, with_holm

SHARES = (0.9, 1.0)
"""Shares of the level before the shift at which a run counts as recovered."""

Interval = tuple[float, float, float]
"""The mean over seeds, and the bounds of its 95% interval."""


@dataclass(frozen=True, slots=True)
class ShiftedRun:
    """One run's held-out success around a shift of the environment."""

    seed: int
    round: int
    """The first round in the new environment."""
    before: float
    """Held-out success at the last measurement before the shift."""
    at: float
    """Held-out success in the new environment, before any training in it."""
    after: Sequence[tuple[int, float, float]]
    """Rounds and rollouts since the shift, and held-out success then; ascending."""

    @property
    def rounds(self) -> int:
        """Return the number of rounds since the shift."""
        return self.after[-1][0]

    def back(self, share: float) -> tuple[int, float] | None:
        """Return rounds and rollouts until success was a share of the level before; None if it never was."""
        level = share * self.before - ROUNDING
        return next((taken[:2] for taken in self.after if taken[2] >= level), None)

    def lasted(self, share: float, most: int) -> int:
        """Return the rounds until recovery, at most `most`."""
        found = self.back(share)
        return most if found is None else min(most, found[0])


@dataclass(frozen=True, slots=True)
class RecoveryTime:
    """The recovery of a variant's runs to a share of the level before the shift."""

    share: float
    rounds: Interval
    """Rounds until recovery; a run that never recovered counts with the rounds it had."""
    attempts: Interval
    """Rollouts until recovery; a run that never recovered counts with the rollouts it had."""
    never: int
    """The number of runs that never recovered."""
    within: int
    """The most rounds that a run without recovery had; 0 if all recovered."""


@dataclass(frozen=True, slots=True)
class Recovery:
    """One variant's drop at the shift and its recovery."""

    variant: str
    shifted: Sequence[ShiftedRun]
    before: Interval
    at: Interval
    drop: Interval
    back: Sequence[RecoveryTime]
    """One entry for each of `SHARES`."""


@dataclass(frozen=True, slots=True)
class RecoveryContrast(Contrast):
    """The difference between two variants in rounds until recovery, paired by seed."""

    share: float
    never: tuple[int, int]
    """The numbers of seeds in which `one`, and `other`, never recovered; they count with shared rounds."""

    more_less: ClassVar[tuple[str, str]] = ("later", "sooner")


def shifted_run(run: MeasuredRun) -> ShiftedRun | None:
    """Return a run's results around its shift; None without a shift or measurements on both sides of it."""
    there, shift = run.in_last_world(), run.config.shift.round
    before = run.measured[: len(run.measured) - len(there)]
    if not before or len(there) < 2:
        return None
    start = there[0].spent["attempts"]
    after = [(one.round - shift + 1, one.spent["attempts"] - start, one.mean) for one in there]
    return ShiftedRun(run.seed, shift, before[-1].mean, there[0].mean, after)


def recoveries(variants: Mapping[str, Sequence[MeasuredRun]]) -> list[Recovery]:
    """Return the recovery of each variant that has runs with a shift."""
    found: list[Recovery] = []
    for name, runs in variants.items():
        shifted = [run for run in map(shifted_run, runs) if run is not None]
        if shifted:
            before, at = ([getattr(run, part) for run in shifted] for part in ("before", "at"))
            drop = mean_interval([run.before - run.at for run in shifted])
            back = [_back(shifted, share) for share in SHARES]
            found.append(Recovery(name, shifted, mean_interval(before), mean_interval(at), drop, back))
    return found


def _back(shifted: Sequence[ShiftedRun], share: float) -> RecoveryTime:
    taken = [(run.back(share) or run.after[-1][:2]) for run in shifted]
    late = [run.rounds for run in shifted if run.back(share) is None]
    rounds, attempts = ([float(one[part]) for one in taken] for part in (0, 1))
    return RecoveryTime(
        share, mean_interval(rounds), mean_interval(attempts), len(late), max(late, default=0)
    )


def recovery_contrasts(
    pairs: Mapping[tuple[str, str], Sequence[Pair]],
) -> list[RecoveryContrast]:
    """Return the differences between pairs of variants in rounds until recovery.

    Args:
        pairs: the runs with a common seed, by the pair's names.
    """
    found: list[RecoveryContrast] = []
    for share in SHARES:
        rows: list[RecoveryContrast] = []
        for names, runs in pairs.items():
            both = [(shifted_run(one), shifted_run(other)) for one, other in runs]
            shifted = [(one, other) for one, other in both if one is not None and other is not None]
            if shifted:
                rows.append(_recovery_contrast(names, share, shifted))
        found += with_holm(rows)
    return found


def _recovery_contrast(
    names: tuple[str, str], share: float, shifted: Sequence[tuple[ShiftedRun, ShiftedRun]]
) -> RecoveryContrast:
    lasted = [
        [[run.lasted(share, min(one.rounds for one in both))] for run in both] for both in shifted
    ]  # [S, 2, 1]
    rounds_2S1 = np.array(lasted, dtype=np.float64).swapaxes(0, 1)
    apart = difference(rounds_2S1[0], rounds_2S1[1])
    one, other = (sum(both[side].back(share) is None for both in shifted) for side in (0, 1))
    return RecoveryContrast(*names, apart, apart.p, share, (one, other))


def recovery_text(one: Recovery) -> str:
    """Return a sentence about a variant's drop at the shift and its recovery."""
    rounds = sorted({run.round for run in one.shifted})
    value, low, high = (100 * part for part in one.drop)
    within = "" if math.isnan(low) else f", {low:+z.1f} to {high:+z.1f}"
    return (
        f"{one.variant} at the shift (round {', '.join(map(str, rounds))}): {one.before[0]:.1%} before, "
        f"{one.at[0]:.1%} in the other world, a drop of {value:.1f} points "
        f"({counted(len(one.shifted), 'seed')}{within}). "
        f"Back at {'; back at '.join(_back_text(back, len(one.shifted)) for back in one.back)}."
    )


def recovery_contrast_text(one: RecoveryContrast) -> str:
    """Return a sentence about which of two variants recovers sooner."""
    found = one.difference
    missing = [
        f"{name} was not in {counted(count, 'seed')}"
        for name, count in zip((one.one, one.other), one.never, strict=True)
        if count
    ]
    left = f"; {', '.join(missing)}: these count with all their rounds" if missing else ""
    return (
        f"{one.one} against {one.other}, rounds until back at {_level(one.share)}: {found.value:+z.1f} "
        f"({found.interval('z.1f')}, p {p_word(one.adjusted)}, "
        f"{counted(found.seeds, 'seed')}{left}): {one.verdict()}."
    )


def recovery_rows(recoveries: Sequence[Recovery]) -> Iterator[Sequence[object]]:
    """Yield a header and a row for each run; cells of recoveries that did not happen are empty."""
    of_level = [f"{what} to {share:.0%}" for share in SHARES for what in ("rounds", "attempts")]
    yield ("variant", "seed", "shift in round", "before", "at shift", "drop", *of_level, "rounds after")
    for one in recoveries:
        for run in one.shifted:
            back = [part for share in SHARES for part in run.back(share) or ("", "")]
            drop = run.before - run.at
            yield (one.variant, run.seed, run.round, run.before, run.at, drop, *back, run.rounds)


def _back_text(back: RecoveryTime, seeds: int) -> str:
    level = _level(back.share)
    if not back.never:
        return f"{level}: after {_rounds(back.rounds)}, {back.attempts[0]:,.0f} attempts"
    late = f"{level}: not within {counted(back.within, 'round')} in {back.never} of {counted(seeds, 'seed')}"
    if back.never == seeds:
        return late
    return f"{late}, so after at least {_rounds(back.rounds)}, {back.attempts[0]:,.0f} attempts"


def _level(share: float) -> str:
    return "the level before" if share == 1 else f"{share:.0%} of the level before"


def _rounds(rounds: Interval) -> str:
    value, low, high = rounds
    return f"{value:.1f} rounds" + ("" if math.isnan(low) else f" ({max(0.0, low):.1f} to {high:.1f})")
