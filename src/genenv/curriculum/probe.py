# pyright: standard
"""Success rates foretold without an attempt: from how likely the agent finds the solutions that are known.

Every task comes with a solution that was executed and checked. The likelihood of its tokens under the agent,
exp(L) at the temperature of the sampling, is the chance that an attempt is that solution to the letter: a
lower bound of the success rate, and equal to it where no other reply is right. Reading a known reply costs a
small part of G attempts, so that many tasks can be looked at for each one that is attempted.

What the bound misses is learned from what was attempted:

    logit p = a + b logit exp(L),    (a, b) near (0, 1) until attempts say otherwise

PROPEL (arXiv:2606.18284) trains a predictor of success rates for the same end; SPEED (arXiv:2506.09016) and
DAPO (arXiv:2503.14476) attempt more tasks than they learn from. Here nothing is trained but a and b, as known
solutions say more.

Shapes: N = attempted tasks.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from genenv.curriculum.foretold import Foretold, distance
from genenv.errors import DataError
from genenv.types import Group, JsonObject

Floats = NDArray[np.float64]

_KEPT = 512
"""So many tasks, the latest that were attempted, tell how to correct the bound."""
_PENALTY = 1.0
"""Weight of the squared distance of (a, b) from (0, 1), against the attempts' log-likelihood in nats."""
_FARTHEST = 12.0
"""Logits are cut here."""


class _State(BaseModel, extra="forbid"):
    offset: float
    slope: float
    seen: list[tuple[float, int, int]]
    """Logit of the likelihood, successes, attempts."""


class Probe:
    """What likelihoods say about success rates."""

    def __init__(self) -> None:
        self._state = _State(offset=0.0, slope=1.0, seen=[])

    def foretell(self, likelihoods: Mapping[str, float], tokens: int = 0, read: int = 0) -> Foretold:
        """Success rates.

        Args:
            likelihoods: by task id, L of its known solution, nats, <= 0.
            tokens: of those solutions.
            read: tokens that were read to know them.
        """
        offset, slope = self._state.offset, self._state.slope
        rates = {
            name: 1 / (1 + math.exp(-(offset + slope * _logit(likelihood))))
            for name, likelihood in likelihoods.items()
        }
        return Foretold(likelihoods=likelihoods, rates=rates, tokens=tokens, read=read)

    def observe(self, foretold: Foretold, groups: Sequence[Group]) -> Mapping[str, float]:
        """Learn from the attempts at tasks whose likelihoods were taken before.

        Args:
            foretold: of these tasks, before they were attempted.
            groups: attempts; those at other tasks say nothing.

        Returns:
            `probe/error` of what was foretold for these attempts, and the calibration from here on.
        """
        likelihoods = foretold.likelihoods
        tried = [group for group in groups if group.task.id in likelihoods and group.valid]
        if not tried:
            return {}
        seen = [(_logit(likelihoods[g.task.id]), g.successes, len(g.valid)) for g in tried]
        seen = [*self._state.seen, *seen][-_KEPT:]
        offset, slope = fitted(np.array(seen, dtype=np.float64))
        self._state = _State(offset=offset, slope=slope, seen=seen)
        return {**distance(foretold, tried), "probe/offset": offset, "probe/slope": slope}

    def state_dict(self) -> JsonObject:
        """What `load_state_dict` restores."""
        return self._state.model_dump(mode="json")

    def load_state_dict(self, state: JsonObject) -> None:
        """Continue from what `state_dict` gave.

        Raises:
            DataError: the state is damaged.
        """
        try:
            self._state = _State.model_validate(state)
        except ValidationError as error:
            what = error.errors()[0]["msg"]
            raise DataError(f"the probe's state in this run's store is damaged: {what}") from error


def fitted(seen_N3: Floats) -> tuple[float, float]:
    """(a, b) that make attempts likeliest: penalised maximum likelihood of a binomial.

    Args:
        seen_N3: logit of the likelihood, successes and attempts of each task.
    """
    from scipy import optimize  # takes a while to load

    x_N, k_N, n_N = seen_N3.T
    start = np.array([0.0, 1.0])

    def loss(line: Floats) -> tuple[float, Floats]:
        z_N = line[0] + line[1] * x_N
        off = line - start
        value = (n_N * np.logaddexp(0.0, z_N) - k_N * z_N).sum() + _PENALTY / 2 * (off**2).sum()
        excess_N = n_N / (1 + np.exp(-z_N)) - k_N
        return float(value), np.array([excess_N.sum(), (excess_N * x_N).sum()]) + _PENALTY * off

    offset, slope = optimize.minimize(loss, start, jac=True, method="BFGS").x
    return float(offset), float(slope)


def _logit(likelihood: float) -> float:
    """log(p / (1 - p)) of p = exp(L), from L, cut."""
    if likelihood >= -math.exp(-_FARTHEST):
        return _FARTHEST
    return max(-_FARTHEST, likelihood - math.log(-math.expm1(likelihood)))
