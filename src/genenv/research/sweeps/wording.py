"""Figures of comparisons in words."""

from __future__ import annotations

import math


def p_word(value: float) -> str:
    """A p-value; a dash where there is none."""
    return "–" if math.isnan(value) else "< 0.001" if value < 0.001 else f"{value:.3f}"


def counted(number: int, noun: str) -> str:
    """A number of things: `1 seed`, `2 seeds`."""
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
