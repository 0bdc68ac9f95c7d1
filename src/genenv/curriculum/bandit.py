# pyright: standard
"""The task bandit (`History`): predicts success rates from earlier rollouts on the same skills.

Shapes: K = kinds (different sets of skills), S = skills.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError

from genenv.curriculum.settings import CurriculumConfig
from genenv.curriculum.task_choice import Predicted, distance
from genenv.errors import DataError
from genenv.types import Group, JsonObject, Task

Floats = NDArray[np.float64]

_SEPARATOR = " + "
_SKILL_PENALTY = 1.0
"""Weight of (a^2 + |w|^2) / 2 relative to the log-likelihood of tasks, each counted once, in nats."""
_FORGOTTEN = 0.01
"""A kind is dropped if the decayed number of its tasks is below this."""


class _Tried(BaseModel, extra="forbid"):
    solved: float = Field(ge=0, allow_inf_nan=False)
    tasks: float = Field(ge=0, allow_inf_nan=False)


class _HistoryState(BaseModel, extra="forbid"):
    kinds: dict[str, _Tried]


class History:
    """Predicts success rates from earlier rollouts of tasks with the same skills, without model calls.

    A logistic regression on a task's skills (kinds of operations, length, number of calls) is fitted after
    each round to all rollouts so far, with decaying weights:

        logit p = a + sum of w_s over the task's skills s        penalised by (a^2 + |w|^2) / 2

    It distinguishes kinds of tasks, not single tasks. Applied to random variations as candidates it is the
    task bandit, the baseline for a trained simulator.

    Args:
        config: `profile_decay`, the factor by which older rollouts lose weight each round.
    """

    def __init__(self, config: CurriculumConfig) -> None:
        self._decay = config.profile_decay
        self._kinds: dict[str, _Tried] = {}
        self._offset, self._weights = 0.0, dict[str, float]()

    def predict(self, tasks: Sequence[Task]) -> Predicted:
        """Return predicted success rates; 0.5 for every task before any rollout."""
        return Predicted(rates={task.id: self._rate(task) for task in tasks})

    def _rate(self, task: Task) -> float:
        logit = self._offset + math.fsum(self._weights.get(skill, 0.0) for skill in set(task.skills))
        return 1 / (1 + math.exp(-logit))

    def observe(self, predicted: Predicted, groups: Sequence[Group]) -> Mapping[str, float]:
        """Fit to the rollouts of a round; call it once per round.

        Args:
            predicted: predictions for these tasks, made before the rollouts.
            groups: rollouts; those without a valid trace are ignored.

        Returns:
            `probe/error` of the predictions for these rollouts; empty if there were none.
        """
        for one in self._kinds.values():
            one.solved *= self._decay
            one.tasks *= self._decay
        tried = [group for group in groups if group.valid]
        for group in tried:
            name = _SEPARATOR.join(sorted(set(group.task.skills)))
            kind = self._kinds.setdefault(name, _Tried(solved=0, tasks=0))
            kind.solved += group.successes / len(group.valid)
            kind.tasks += 1
        self._kinds = {name: one for name, one in self._kinds.items() if one.tasks >= _FORGOTTEN}
        self._fit()
        return distance(predicted, tried)

    def _fit(self) -> None:
        names = sorted({skill for kind in self._kinds for skill in _skills(kind)})
        place = {name: index for index, name in enumerate(names)}
        x_KS = np.zeros((len(self._kinds), len(names)))
        for row, kind in enumerate(self._kinds):
            x_KS[row, [place[skill] for skill in _skills(kind)]] = 1.0
        counts_K2 = np.array([(one.solved, one.tasks) for one in self._kinds.values()], dtype=np.float64)
        self._offset, weights_S = fitted_skills(x_KS, counts_K2.reshape(-1, 2))
        self._weights = dict(zip(names, weights_S.tolist(), strict=True))

    def state_dict(self) -> JsonObject:
        """Return the state for `load_state_dict`, as JSON."""
        return _HistoryState(kinds=self._kinds).model_dump(mode="json")

    def load_state_dict(self, state: JsonObject) -> None:
        """Restore the state that `state_dict` returned.

        Raises:
            DataError: the state is damaged.
        """
        try:
            self._kinds = _HistoryState.model_validate(state).kinds
        except ValidationError as error:
            what = error.errors()[0]["msg"]
            raise DataError(f"the history of attempts in this run's store is damaged: {what}") from error
        self._fit()


def fitted_skills(x_KS: Floats, counts_K2: Floats) -> tuple[float, Floats]:
    """Return (a, w) of the logistic regression, by penalised maximum likelihood.

    Args:
        x_KS: 1 if a kind has a skill, else 0.
        counts_K2: per kind: the sum of the success rates of its tasks, and the number of tasks.
    """
    x_KS = np.hstack([np.ones((len(x_KS), 1)), x_KS])
    w_S = fitted_logistic(x_KS, counts_K2, np.full(x_KS.shape[1], _SKILL_PENALTY))
    return float(w_S[0]), w_S[1:]


def fitted_logistic(x_NF: Any, counts_N2: Floats, penalty_F: Floats) -> Floats:  # noqa: ANN401 - may be sparse
    """Return w that maximizes the log-likelihood of logit p = x w minus sum of penalty w^2 / 2. Nats.

    Args:
        x_NF: features, dense or sparse.
        counts_N2: per row: the successes, which need not be whole, and how much the row counts.
        penalty_F: the weight of each w^2.
    """
    from scipy import optimize  # takes a while to load

    solved_N, tried_N = counts_N2.T

    def loss(w_F: Floats) -> tuple[float, Floats]:
        z_N = x_NF @ w_F
        value = (tried_N * np.logaddexp(0.0, z_N) - solved_N * z_N).sum() + (penalty_F * w_F**2).sum() / 2
        excess_N = tried_N / (1 + np.exp(-z_N)) - solved_N
        return float(value), x_NF.T @ excess_N + penalty_F * w_F

    return optimize.minimize(loss, np.zeros(len(penalty_F)), jac=True, method="L-BFGS-B").x


def _skills(kind: str) -> list[str]:
    return kind.split(_SEPARATOR) if kind else []
