"""Learning-rate schedules: over the rounds of a run, and over the steps of a supervised warm-up."""

from __future__ import annotations

from genenv.algorithms.settings import Schedule

LOWEST = 0.1
"""Of the learning rate, at the end of any schedule."""


def lr_scale(schedule: Schedule, round_: int, rounds: int) -> float:
    """Factor of the learning rate in a round, from 1: stays 1, or falls evenly to a tenth in the last one."""
    if schedule == "constant":
        return 1.0
    return _between(1 - (round_ - 1) / max(1, rounds - 1))


def warmup_lr_scale(decay: float, step: int, steps: int) -> float:
    """Factor of the learning rate in a step, from 1: 1, then falling evenly to a tenth at the last step.

    Args:
        decay: share of the steps, the last ones, over which it falls; 0 for none.
        step: from 1.
        steps: how many there are at most.
    """
    return _between(min(1.0, (steps - step) / (steps * decay)) if decay else 1.0)


def _between(left: float) -> float:
    """From 1, with all of the way left, to the lowest factor, with none."""
    return LOWEST + (1 - LOWEST) * max(0.0, left)
