"""The interval of a rate that was measured on few trials, for reports and benchmarks alike."""

from __future__ import annotations

import math

_Z = 1.959963984540054
"""Of a two-sided 95% interval."""


def wilson(successes: float, trials: int) -> tuple[float, float]:
    """Wilson's score interval of a success rate, 95% (Wilson 1927, without continuity correction).

    Well-behaved at 0 and 1 and for few trials; NaN without any.
    """
    if trials == 0:
        return math.nan, math.nan
    p, z2 = successes / trials, _Z * _Z
    center = p + z2 / (2 * trials)
    spread = _Z * math.sqrt(p * (1 - p) / trials + z2 / (4 * trials * trials))
    scale = 1 + z2 / trials
    return max(0.0, (center - spread) / scale), min(1.0, (center + spread) / scale)
