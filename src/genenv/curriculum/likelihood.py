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
"""Number of tasks, the latest with rollouts, to which the correction of the bound is fitted."""
_PROBE_PENALTY = 1.0
"""Weight of the squared distance of (a, b) from (0, 1), relative to the log-likelihood of rollouts, nats."""
_FARTHEST = 12.0
"""Logits are clamped to [-12, 12]."""


class _ProbeState(BaseModel, extra="forbid"):
    offset: float
    slope: float
    seen: list[tuple[float, int, int]]
    """Per task: logit of the likelihood, successes, rollouts."""


class Probe:
    """Predicts success rates from the likelihood of demonstrations under the agent.

    Every task has a demonstration that was executed and checked. The likelihood of its tokens under the
    agent, exp(L) at the sampling temperature, is the chance that a rollout equals it exactly. That is a lower
    bound of the success rate, and equal to it if no other reply is right. Scoring a known reply costs a small
    part of G rollouts. The gap to the bound is fitted to past rollouts:

        logit p = a + b logit exp(L)        (a, b) near (0, 1) until there is evidence from rollouts

    PROPEL (arXiv:2606.18284) trains a success predictor for the same purpose. SPEED (arXiv:2506.09016) and
    DAPO (arXiv:2503.14476) roll out more tasks than they train on. This class fits only a and b.
    """

    def __init__(self) -> None:
        self._state = _ProbeState(offset=0.0, slope=1.0, seen=[])

    def predict(
        self,
        likelihoods: Mapping[str, float],
        tokens: int = 0,
        read: int = 0,
        older: Mapping[str, float] | None = None,
    ) -> Predicted:
        """Return predicted success rates. Those of an older version of the agent have the same a and b.

        Args:
            likelihoods: by task id, the log-likelihood L of its demonstration, nats, <= 0.
            tokens: tokens of the demonstrations.
            read: tokens processed for the scores, including prompts.
            older: L under an older version of the agent, by task id; None if it was not asked.
        """
        return Predicted(
            likelihoods=likelihoods,
            rates=self._rates(likelihoods),
            earlier=self._rates(older or {}),
            tokens=tokens,
            read=read,
        )

    def _rates(self, likelihoods: Mapping[str, float]) -> dict[str, float]:
        offset, slope = self._state.offset, self._state.slope
        return {
            name: 1 / (1 + math.exp(-(offset + slope * _logit(likelihood))))
            for name, likelihood in likelihoods.items()
        }

    def observe(self, predicted: Predicted, groups: Sequence[Group]) -> Mapping[str, float]:
        """Fit a and b to the rollouts of tasks whose likelihoods were scored before.

        Args:
            predicted: predictions for these tasks, made before the rollouts.
            groups: rollouts; those of other tasks are ignored.

        Returns:
            `probe/error` of the predictions for these rollouts, and the new calibration.
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
        """Return the state for `load_state_dict`, as JSON."""
        return self._state.model_dump(mode="json")

    def load_state_dict(self, state: JsonObject) -> None:
        """Restore the state that `state_dict` returned.

        Raises:
            DataError: the state is damaged.
        """
        try:
            self._state = _ProbeState.model_validate(state)
        except ValidationError as error:
            what = error.errors()[0]["msg"]
            raise DataError(f"the probe's state in this run's store is damaged: {what}") from error


def fitted_line(seen_N3: Floats) -> tuple[float, float]:
    """Return (a, b) of the binomial model, by penalised maximum likelihood.

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
    """Return log(p / (1 - p)) of p = exp(L), computed from L and clamped."""
    if likelihood >= -math.exp(-_FARTHEST):
        return _FARTHEST
    return max(-_FARTHEST, likelihood - math.log(-math.expm1(likelihood)))
