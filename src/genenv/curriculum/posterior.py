# pyright: standard
"""What is known of a success rate after some attempts: a Beta posterior, without sampling."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Self

import numpy as np
from numpy.typing import NDArray

_NODES = 64


@dataclass(frozen=True, slots=True)
class BetaPosterior:
    """Beta(a, b) over a success rate p in [0, 1]; both > 0. Beta(1, 1) is "nothing known"."""

    a: float
    b: float

    def __post_init__(self) -> None:
        """Refuse what is not a distribution."""
        if not (0 < self.a < math.inf and 0 < self.b < math.inf):
            raise ValueError(f"a Beta distribution needs a > 0 and b > 0, got {self.a} and {self.b}")

    @classmethod
    def of(cls, successes: float, attempts: float, prior: tuple[float, float] = (1.0, 1.0)) -> Self:
        """The posterior after `successes` of `attempts`; both may be decayed counts.

        Raises:
            ValueError: not 0 <= successes <= attempts, or a prior that is not positive.
        """
        if not 0 <= successes <= attempts:
            raise ValueError(f"successes must be in [0, attempts], got {successes} of {attempts}")
        return cls(prior[0] + successes, prior[1] + attempts - successes)

    @property
    def mean(self) -> float:
        """E[p]."""
        return self.a / (self.a + self.b)

    @property
    def variance(self) -> float:
        """Var[p]."""
        return self.mean * (1 - self.mean) / (self.a + self.b + 1)

    def expectation(self, function: Callable[[NDArray[np.float64]], NDArray[np.float64]]) -> float:
        """E[f(p)] for a smooth f, by Gauss-Jacobi quadrature (exact for polynomials up to degree 127).

        Args:
            function: takes the nodes in (0, 1) as an array and returns f at each.
        """
        nodes, weights = _gauss_jacobi(self.a, self.b)
        return float(weights @ function(nodes))


@functools.lru_cache(maxsize=512)
def _gauss_jacobi(a: float, b: float) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Nodes and weights (summing to 1) of the quadrature for Beta(a, b): Golub and Welsch (1969).

    The nodes are the eigenvalues of the symmetric tridiagonal matrix of the Jacobi recurrence.
    """
    from scipy import linalg  # takes a while to load

    left, right = b - 1, a - 1  # exponents of (1 - t) and (1 + t) after p = (1 + t) / 2
    n = np.arange(1, _NODES, dtype=np.float64)
    total = 2 * n + left + right
    diagonal = np.empty(_NODES)
    diagonal[0] = (right - left) / (left + right + 2)
    diagonal[1:] = (right - left) * (right + left) / (total * (total + 2))
    squared = np.empty(_NODES - 1)
    squared[0] = 4 * (1 + left) * (1 + right) / ((2 + left + right) ** 2 * (3 + left + right))
    m, t = n[1:], total[1:]
    squared[1:] = 4 * m * (m + left) * (m + right) * (m + left + right) / (t**2 * (t + 1) * (t - 1))
    off = np.sqrt(squared)
    values, vectors = linalg.eigh_tridiagonal(diagonal, off)
    nodes, weights = np.clip((1 + values) / 2, 0, 1), vectors[0] ** 2
    weights /= weights.sum()
    nodes.setflags(write=False)
    weights.setflags(write=False)
    return nodes, weights
