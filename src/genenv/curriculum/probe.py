"""A success rate foretold without an attempt: from how likely the agent finds the solution that is known.

Every task comes with a solution that was executed and checked. The likelihood of its tokens under the agent,
exp(L) at the temperature of the sampling, is the chance that an attempt is that solution to the letter: a lower
bound of the success rate, equal to it where no other reply is right. One pass over a known reply costs a
small part of G attempts, so that many tasks can be looked at for each that is attempted.

What the bound misses is learned from what was attempted:

    logit p = a + b logit exp(L),    (a, b) near (0, 1) until there is data that says otherwise

by penalised maximum likelihood (binomial), over the latest attempts.

PROPEL (arXiv:2606.18284) foretells success rates from the model's hidden states; here no weights are added.
"""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from genenv.types import Group, JsonObject

_KEPT = 512
"""Attempted tasks that the calibration is fitted to, the latest."""
_PENALTY = 1.0
"""Of the squared distance from (0, 1)."""
_FARTHEST = 12.0
"""Logits beyond this are cut."""
_NEWTON_STEPS = 20


class Probe:
    """The calibration from likelihoods to success rates."""

    def __init__(self) -> None:
        self._seen: list[tuple[float, int, int]] = []
        self._line = (0.0, 1.0)

    def foretell(self, likelihoods: Sequence[float]) -> list[float]:
        """Success rates.

        Args:
            likelihoods: L of each task, nats, <= 0.
        """
        offset, slope = self._line
        return [1 / (1 + math.exp(-(offset + slope * _logit(one)))) for one in likelihoods]

    def observe(self, likelihoods: Mapping[str, float], groups: Sequence[Group]) -> None:
        """Learn from the attempts at tasks whose likelihoods were taken before."""
        for group in groups:
            if (one := likelihoods.get(group.task.id)) is not None and (valid := group.valid):
                self._seen.append((_logit(one), sum(trace.success for trace in valid), len(valid)))
        self._seen = self._seen[-_KEPT:]
        if self._seen:
            self._line = _fitted(np.array(self._seen, dtype=np.float64))

    def state_dict(self) -> JsonObject:
        """What `load_state_dict` restores."""
        return {"seen": [list(one) for one in self._seen], "line": list(self._line)}

    def load_state_dict(self, state: JsonObject) -> None:
        """Restore what `state_dict` gave."""
        self._seen = [(float(x), int(k), int(n)) for x, k, n in state["seen"]]  # type: ignore
        self._line = tuple(state["line"])  # type: ignore


def chosen(rewards: Sequence[float], n: int, *, temperature: float, rng: random.Random) -> list[int]:
    """n places drawn without replacement, each with a chance proportional to exp(temperature * reward).

    Drawn by adding Gumbel noise and taking the largest (Efraimidis and Spirakis 2006; Kool et al.,
    arXiv:1903.06059). In ascending order.
    """
    noisy = [temperature * reward - math.log(-math.log(rng.random() or 1e-300)) for reward in rewards]
    return sorted(sorted(range(len(rewards)), key=lambda place: -noisy[place])[:n])


def _logit(likelihood: float) -> float:
    rate = math.exp(min(0.0, likelihood))
    if rate <= 0.0:
        return -_FARTHEST
    return max(-_FARTHEST, min(_FARTHEST, math.log(rate) - math.log1p(-min(rate, 1 - 1e-9))))


def _fitted(seen: NDArray[np.float64]) -> tuple[float, float]:
    x, k, n = seen.T
    line = np.array([0.0, 1.0])
    start = line.copy()
    design = np.stack([np.ones_like(x), x], axis=1)
    for _ in range(_NEWTON_STEPS):
        p = 1 / (1 + np.exp(-np.clip(design @ line, -30, 30)))
        gradient = design.T @ (k - n * p) - _PENALTY * (line - start)
        hessian = (design * (n * p * (1 - p))[:, None]).T @ design + _PENALTY * np.eye(2)
        step = np.linalg.solve(hessian, gradient)
        line = line + np.clip(step, -1, 1)
        if np.abs(step).max() < 1e-6:
            break
    return float(line[0]), float(line[1])
