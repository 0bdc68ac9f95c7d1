"""Learning-rate schedules: over the rounds of a run, and over the steps of a supervised warm-up."""

from __future__ import annotations

from genenv.algorithms.settings import Schedule

LOWEST = 0.1
"""The factor of the learning rate at the end of every decreasing schedule."""


def lr_scale(schedule: Schedule, round_: int, rounds: int) -> float:
    """Return the learning-rate factor of a round: always 1, or falling linearly from 1 to 0.1.

    Rounds are numbered from 1; the last round has the factor 0.1.
    """
    if schedule == "constant":
        return 1.0
    return _between(1 - (round_ - 1) / max(1, rounds - 1))


def warmup_lr_scale(decay: float, step: int, steps: int) -> float:
    """Return the learning-rate factor of a warm-up step: 1, then falling linearly to 0.1 at the last step.

    Args:
        decay: share of the steps, at the end, over which the factor falls; 0 for none.
        step: number of the step, from 1.
        steps: total number of steps.
    """
    return _between(min(1.0, (steps - step) / (steps * decay)) if decay else 1.0)


def _between(left: float) -> float:
    """Interpolate linearly from 1, if the whole way is left, to `LOWEST`, if none is."""
    return LOWEST + (1 - LOWEST) * max(0.0, left)
