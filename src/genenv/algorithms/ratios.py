"""Ratios of probabilities, and what is estimated from them, held to bounds: a token at a time, no torch."""

from __future__ import annotations

import math

LOG_RATIO_MAX = 20.0
"""Beyond this, in nats, a ratio of probabilities counts no further: its exponential would overflow."""
K3_MAX = 10.0
"""The most that one token can add to a KL term, nats."""


def held(log_ratio: float) -> float:
    """A log-ratio within its bounds. Nats."""
    return min(max(log_ratio, -LOG_RATIO_MAX), LOG_RATIO_MAX)


def k3(own: float, other: float) -> float:
    """Estimate of KL(own || other) from a token that `own` sampled, d = other - own: e^d - 1 - d, in [0, 10].

    Args:
        own: log-probability under what sampled it. Nats.
        other: under the other. Nats.
    """
    difference = held(other - own)
    return min(K3_MAX, math.expm1(difference) - difference)
