"""What a shift test has found, in words and as rows."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from genenv.research.sweeps.recovery import SHARES, Back, Interval, Recovery, Sooner
from genenv.research.sweeps.wording import counted, p_word


def fell(one: Recovery) -> str:
    """How far a variant fell, and when it was back."""
    rounds = sorted({fall.round for fall in one.falls})
    value, low, high = (100 * part for part in one.drop)
    within = "" if math.isnan(low) else f", {low:+.1f} to {high:+.1f}"
    return (
        f"{one.variant} at the shift (round {', '.join(map(str, rounds))}): {one.before[0]:.1%} before, "
        f"{one.at[0]:.1%} in the other world, a drop of {value:.1f} points "
        f"({counted(len(one.falls), 'seed')}{within}). "
        f"Back at {'; back at '.join(_back(back, len(one.falls)) for back in one.back)}."
    )


def sooner(one: Sooner) -> str:
    """Which of two variants is back sooner."""
    found = one.difference
    missing = [
        f"{name} was not in {counted(count, 'seed')}"
        for name, count in zip((one.one, one.other), one.never, strict=True)
        if count
    ]
    left = f"; {', '.join(missing)}: these count with all their rounds" if missing else ""
    return (
        f"{one.one} against {one.other}, rounds until back at {_level(one.share)}: {found.value:+.1f} "
        f"({found.low:+.1f} to {found.high:+.1f}, p {p_word(one.adjusted)}, "
        f"{counted(found.seeds, 'seed')}{left}): {one.verdict()}."
    )


def rows(recoveries: Sequence[Recovery]) -> Iterator[Sequence[object]]:
    """A row for each run; what never came is empty."""
    of_level = [f"{what} to {share:.0%}" for share in SHARES for what in ("rounds", "attempts")]
    yield ("variant", "seed", "shift in round", "before", "at shift", "drop", *of_level, "rounds after")
    for one in recoveries:
        for fall in one.falls:
            back = [part for share in SHARES for part in fall.back(share) or ("", "")]
            drop = fall.before - fall.at
            yield (one.variant, fall.seed, fall.round, fall.before, fall.at, drop, *back, fall.rounds)


def _back(back: Back, seeds: int) -> str:
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
