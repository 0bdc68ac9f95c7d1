# pyright: standard
"""Predicts success rates from the words of tasks (`TextModel`), without model calls or names of skills.

Shapes: N = tasks with rollouts, F = features.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError

from genenv.curriculum.bandit import Floats, fitted_logistic
from genenv.curriculum.settings import CurriculumConfig
from genenv.curriculum.task_choice import Predicted, distance
from genenv.errors import DataError
from genenv.types import Group, JsonObject, Task

FEATURES = 1 << 14
"""Number of features. A word or a pair of words is one of them by its hash, so some share a feature."""
_KEPT = 512
"""Number of tasks, the latest with rollouts, to which the weights are fitted."""
_LONGEST = 4000
"""Characters of a text that are read, from its end."""
_PENALTY = 0.1
"""Weight of |w|^2 / 2 relative to the log-likelihood of tasks, each counted once, in nats."""
_OFFSET_PENALTY = 1e-3
"""The same for a^2, so that a is finite if all rollouts agree."""
_WORD = re.compile(r"\w+|[^\w\s]")


class _Tried(BaseModel, extra="forbid"):
    text: str
    solved: float = Field(ge=0, le=1, allow_inf_nan=False)
    weight: float = Field(gt=0, le=1, allow_inf_nan=False)


class _TextState(BaseModel, extra="forbid"):
    tried: list[_Tried]


class TextModel:
    """Predicts the success rate of a task from the words of its last message.

    A logistic regression is fitted after each round to the latest 512 tasks with rollouts, with decaying
    weights:

        logit p = a + sum of w_f over its features, divided by the root of their number

    The features are words and signs, and pairs of neighbors, hashed to 16,384 numbers. |w|^2 is penalized, a
    hardly. Unlike the likelihood of a demonstration (`Probe`) it needs no solution and no model call. Unlike
    the task bandit (`History`) it distinguishes single tasks, and needs no names of skills.

    Args:
        config: `profile_decay`, the factor by which older rollouts lose weight each round.
    """

    def __init__(self, config: CurriculumConfig) -> None:
        self._decay = config.profile_decay
        self._tried: list[_Tried] = []
        self._offset, self._weights_F = 0.0, np.zeros(FEATURES)

    def predict(self, tasks: Sequence[Task]) -> Predicted:
        """Return predicted success rates; 0.5 for every task before any rollout."""
        return Predicted(rates={task.id: self._rate(text_of(task)) for task in tasks})

    def _rate(self, text: str) -> float:
        places = features(text)
        logit = self._offset + float(self._weights_F[places].sum()) / math.sqrt(max(1, len(places)))
        return 1 / (1 + math.exp(-logit))

    def observe(self, predicted: Predicted, groups: Sequence[Group]) -> Mapping[str, float]:
        """Fit to the rollouts of a round; call it once per round.

        Args:
            predicted: predictions for these tasks, made before the rollouts.
            groups: rollouts; those without a valid trace are ignored.

        Returns:
            `probe/error` of the predictions for these rollouts; empty if there were none.
        """
        tried = [group for group in groups if group.valid]
        older = [one.model_copy(update={"weight": one.weight * self._decay}) for one in self._tried]
        new = [
            _Tried(text=text_of(group.task), solved=group.successes / len(group.valid), weight=1.0)
            for group in tried
        ]
        self._tried = [one for one in (*older, *new)[-_KEPT:] if one.weight > 0]
        self._fit()
        return distance(predicted, tried)

    def _fit(self) -> None:
        from scipy import sparse  # takes a while to load

        if not self._tried:
            return
        each = [features(one.text) for one in self._tried]
        rows = np.repeat(np.arange(len(each)), [len(places) for places in each])
        values = np.concatenate([np.full(len(own), 1 / math.sqrt(max(1, len(own)))) for own in each])
        seen, columns = np.unique(np.concatenate(each), return_inverse=True)
        x_NF = sparse.csr_matrix((values, (rows, columns)), shape=(len(each), len(seen)), dtype=np.float64)
        solved_N = np.array([one.solved for one in self._tried])
        weights_N = np.array([one.weight for one in self._tried])
        self._weights_F = np.zeros(FEATURES)
        self._offset, self._weights_F[seen] = fitted_words(x_NF, solved_N, weights_N)

    def state_dict(self) -> JsonObject:
        """Return the state for `load_state_dict`, as JSON."""
        return _TextState(tried=self._tried).model_dump(mode="json")

    def load_state_dict(self, state: JsonObject) -> None:
        """Restore the state that `state_dict` returned.

        Raises:
            DataError: the state is damaged.
        """
        try:
            self._tried = _TextState.model_validate(state).tried
        except ValidationError as error:
            what = error.errors()[0]["msg"]
            raise DataError(f"the texts of rollouts in this run's store are damaged: {what}") from error
        self._fit()


def text_of(task: Task) -> str:
    """Return the text that the model reads: the end of the task's last message."""
    return task.messages[-1].content[-_LONGEST:]


def features(text: str) -> NDArray[np.int64]:
    """Return the features of a text: each word, sign and pair of neighbors once, by hash, in order."""
    words = _WORD.findall(text)
    parts = {*words, *(f"{left} {right}" for left, right in pairwise(words))}
    return np.array(sorted({zlib.crc32(part.encode()) % FEATURES for part in parts}), dtype=np.int64)


def fitted_words(x_NF: Any, solved_N: Floats, weights_N: Floats) -> tuple[float, Floats]:  # noqa: ANN401 - scipy
    """Return (a, w) of the logistic regression, by penalized maximum likelihood. a has a tiny penalty.

    Args:
        x_NF: a sparse matrix of features.
        solved_N: the success rate of each task, in [0, 1].
        weights_N: how much each task counts.
    """
    from scipy import sparse  # takes a while to load

    x_NF = sparse.hstack([np.ones((x_NF.shape[0], 1)), x_NF], format="csr")
    penalty_F = np.full(x_NF.shape[1], _PENALTY)
    penalty_F[0] = _OFFSET_PENALTY
    w_F = fitted_logistic(x_NF, np.stack([weights_N * solved_N, weights_N], 1), penalty_F)
    return float(w_F[0]), w_F[1:]
