# pyright: standard
"""Predicts success rates from the likelihood of demonstrations under the agent (`Probe`), without rollouts.

Shapes: N = tasks with rollouts.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from genenv.curriculum.task_choice import Predicted, distance
from genenv.errors import DataError
from genenv.types import Group, JsonObject

Floats = NDArray[np.float64]


_KEPT = 512
"""So many tasks, the latest that were rolled out, tell how to correct the bound."""
_PROBE_PENALTY = 1.0
"""Weight of the squared distance of (a, b) from (0, 1), against the rollouts' log-likelihood in nats."""
_FARTHEST = 12.0
"""Logits are cut here."""


class _ProbeState(BaseModel, extra="forbid"):
    offset: float
    slope: float
    seen: list[tuple[float, int, int]]
    """Logit of the likelihood, successes, rollouts."""


class Probe:
    """Predicts success rates from how likely the agent finds demonstrations.

    Every task comes with a solution that was executed and checked. The likelihood of its tokens under the
    agent, exp(L) at the sampling temperature, is the chance that a rollout is that solution to the letter. It
    is a lower bound of the success rate, and equal to it where no other reply is right. Scoring a known reply
    costs a small part of G rollouts. What the bound misses is fitted to past rollouts:

        logit p = a + b logit exp(L)        (a, b) near (0, 1) until rollouts say otherwise

    PROPEL (arXiv:2606.18284) trains a predictor of success rates for the same end. SPEED (arXiv:2506.09016)
    and DAPO (arXiv:2503.14476) roll out more tasks than they learn from. Here only a and b are fitted.
    """

    def __init__(self) -> None:
        self._state = _ProbeState(offset=0.0, slope=1.0, seen=[])

    def predict(self, likelihoods: Mapping[str, float], tokens: int = 0, read: int = 0) -> Predicted:
        """Success rates.

        Args:
            likelihoods: by task id, L of its demonstration, nats, <= 0.
            tokens: of those solutions.
            read: tokens that were read to know them.
        """
        offset, slope = self._state.offset, self._state.slope
        rates = {
            name: 1 / (1 + math.exp(-(offset + slope * _logit(likelihood))))
            for name, likelihood in likelihoods.items()
        }
        return Predicted(likelihoods=likelihoods, rates=rates, tokens=tokens, read=read)

    def observe(self, predicted: Predicted, groups: Sequence[Group]) -> Mapping[str, float]:
        """Learn from the rollouts of tasks whose likelihoods were taken before.

        Args:
            predicted: of these tasks, before they were rolled out.
            groups: rollouts; those at other tasks say nothing.

        Returns:
            `probe/error` of what was predicted for these rollouts, and the calibration from here on.
        """
        likelihoods = predicted.likelihoods
        tried = [group for group in groups if group.task.id in likelihoods and group.valid]
        if not tried:
            return {}
        seen = [(_logit(likelihoods[g.task.id]), g.successes, len(g.valid)) for g in tried]
        seen = [*self._state.seen, *seen][-_KEPT:]
        offset, slope = fitted_line(np.array(seen, dtype=np.float64))
        self._state = _ProbeState(offset=offset, slope=slope, seen=seen)
        return {**distance(predicted, tried), "probe/offset": offset, "probe/slope": slope}

    def state_dict(self) -> JsonObject:
        """What `load_state_dict` restores."""
        return self._state.model_dump(mode="json")

    def load_state_dict(self, state: JsonObject) -> None:
        """Continue from what `state_dict` gave.

        Raises:
            DataError: the state is damaged.
        """
        try:
            self._state = _ProbeState.model_validate(state)
        except ValidationError as error:
            what = error.errors()[0]["msg"]
            raise DataError(f"the probe's state in this run's store is damaged: {what}") from error


def fitted_line(seen_N3: Floats) -> tuple[float, float]:
    """(a, b) that make rollouts likeliest: penalised maximum likelihood of a binomial.

    Args:
        seen_N3: logit of the likelihood, successes and rollouts of each task.
    """
    from scipy import optimize  # takes a while to load

    x_N, k_N, n_N = seen_N3.T
    start = np.array([0.0, 1.0])

    def loss(line: Floats) -> tuple[float, Floats]:
        z_N = line[0] + line[1] * x_N
        off = line - start
        value = (n_N * np.logaddexp(0.0, z_N) - k_N * z_N).sum() + _PROBE_PENALTY / 2 * (off**2).sum()
        excess_N = n_N / (1 + np.exp(-z_N)) - k_N
        return float(value), np.array([excess_N.sum(), (excess_N * x_N).sum()]) + _PROBE_PENALTY * off

    offset, slope = optimize.minimize(loss, start, jac=True, method="BFGS").x
    return float(offset), float(slope)


def _logit(likelihood: float) -> float:
    """log(p / (1 - p)) of p = exp(L), from L, cut."""
    if likelihood >= -math.exp(-_FARTHEST):
        return _FARTHEST
    return max(-_FARTHEST, likelihood - math.log(-math.expm1(likelihood)))
