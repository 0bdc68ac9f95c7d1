# pyright: standard
"""Predicts success rates of tasks before their rollouts: `History`, `Probe` and `TextModel`.

`History` is the task bandit: it predicts from earlier rollouts on the same skills. `Probe` predicts from the
likelihood of demonstrations under the agent, `TextModel` from the words of tasks.

Shapes: K = kinds (different sets of skills), S = skills, N = tasks with rollouts, F = features.
"""

from __future__ import annotations

import math
import re
import zlib
from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Any, ClassVar, Generic, TypeVar

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field

from genenv.curriculum.settings import CurriculumConfig
from genenv.curriculum.stats import restored
from genenv.curriculum.task_choice import Predicted, distance
from genenv.types import Group, JsonObject, Task

Floats = NDArray[np.float64]
StateT = TypeVar("StateT", bound=BaseModel)

_SEPARATOR = " + "
_SKILL_PENALTY = 1.0
"""Weight of (a^2 + |w|^2) / 2 relative to the log-likelihood of tasks, each counted once, in nats."""
_FORGOTTEN = 0.01
"""A kind is dropped if the decayed number of its tasks is below this."""
_KEPT = 512
"""Number of tasks, the latest with rollouts, to which `Probe` and `TextModel` are fitted."""
_PROBE_PENALTY = 1.0
"""Weight of the squared distance of (a, b) from (0, 1), relative to the log-likelihood of rollouts, nats."""
_FARTHEST = 12.0
"""Logits are clamped to [-12, 12]."""
FEATURES = 1 << 14
"""Number of features. A word or a pair of words is one of them by its hash, so some share a feature."""
_LONGEST = 4000
"""Characters of a text that are read, from its end."""
_PENALTY = 0.1
"""Weight of |w|^2 / 2 relative to the log-likelihood of tasks, each counted once, in nats."""
_OFFSET_PENALTY = 1e-3
"""The same for a^2, so that a is finite if all rollouts agree."""
_WORD = re.compile(r"\w+|[^\w\s]")


class Predictor(Generic[StateT]):
    """Base of the predictors: a state that is stored with each round."""

    key: ClassVar[str]
    """Name of the state in the store of a run."""
    named: ClassVar[str]
    """The state in the sentence about a damaged one."""

    def __init__(self, state: StateT) -> None:
        self._state = state

    def state_dict(self) -> JsonObject:
        """Return the state for `load_state_dict`, as JSON."""
        return self._state.model_dump(mode="json")

    def load_state_dict(self, state: JsonObject) -> None:
        """Restore the state that `state_dict` returned.

        Raises:
            DataError: the state is damaged.
        """
        self._state = restored(type(self._state), state, self.named)
        self._fit()

    def _fit(self) -> None:
        """Compute what follows from the state."""


class _FromRollouts(Predictor[StateT]):
    """A predictor that is fitted to earlier rollouts of other tasks.

    Args:
        config: `profile_decay`, the factor by which older rollouts lose weight each round.
    """

    def __init__(self, state: StateT, config: CurriculumConfig) -> None:
        super().__init__(state)
        self._decay = config.profile_decay

    def predict(self, tasks: Sequence[Task]) -> Predicted:
        """Return predicted success rates; 0.5 for every task before any rollout."""
        return Predicted(rates={task.id: 1 / (1 + math.exp(-self._logit(task))) for task in tasks})

    def observe(self, predicted: Predicted, groups: Sequence[Group]) -> Mapping[str, float]:
        """Fit to the rollouts of a round; call it once per round.

        Args:
            predicted: predictions for these tasks, made before the rollouts.
            groups: rollouts; those without a valid trace are ignored.

        Returns:
            `probe/error` of the predictions for these rollouts; empty if there were none.
        """
        tried = [group for group in groups if group.valid]
        self._add(tried)
        self._fit()
        return distance(predicted, tried)

    def _logit(self, task: Task) -> float:
        """Return the logit of a task's predicted success rate."""
        raise NotImplementedError

    def _add(self, tried: Sequence[Group]) -> None:
        """Reduce the weight of older rollouts, and add those of a round to the state."""
        raise NotImplementedError


class _Tried(BaseModel, extra="forbid"):
    solved: float = Field(ge=0, allow_inf_nan=False)
    tasks: float = Field(ge=0, allow_inf_nan=False)


class _HistoryState(BaseModel, extra="forbid"):
    kinds: dict[str, _Tried]


class History(_FromRollouts[_HistoryState]):
    """Predicts success rates from earlier rollouts of tasks with the same skills, without model calls.

    A logistic regression on a task's skills (kinds of operations, length, number of calls) is fitted after
    each round to all rollouts so far, with decaying weights:

        logit p = a + sum of w_s over the task's skills s        penalised by (a^2 + |w|^2) / 2

    It distinguishes kinds of tasks, not single tasks. Applied to random variations as candidates it is the
    task bandit, the baseline for a trained simulator.
    """

    key, named = "history", "the history of attempts in this run's store is"

    def __init__(self, config: CurriculumConfig) -> None:
        super().__init__(_HistoryState(kinds={}), config)
        self._offset, self._weights = 0.0, dict[str, float]()

    def _logit(self, task: Task) -> float:
        return self._offset + math.fsum(self._weights.get(skill, 0.0) for skill in set(task.skills))

    def _add(self, tried: Sequence[Group]) -> None:
        kinds = self._state.kinds
        for one in kinds.values():
            one.solved *= self._decay
            one.tasks *= self._decay
        for group in tried:
            name = _SEPARATOR.join(sorted(set(group.task.skills)))
            kind = kinds.setdefault(name, _Tried(solved=0, tasks=0))
            kind.solved += group.successes / len(group.valid)
            kind.tasks += 1
        self._state.kinds = {name: one for name, one in kinds.items() if one.tasks >= _FORGOTTEN}

    def _fit(self) -> None:
        kinds = self._state.kinds
        names = sorted({skill for kind in kinds for skill in _skills(kind)})
        place = {name: index for index, name in enumerate(names)}
        x_KS = np.zeros((len(kinds), len(names)))
        for row, kind in enumerate(kinds):
            x_KS[row, [place[skill] for skill in _skills(kind)]] = 1.0
        counts_K2 = np.array([(one.solved, one.tasks) for one in kinds.values()], dtype=np.float64)
        self._offset, weights_S = fitted_skills(x_KS, counts_K2.reshape(-1, 2))
        self._weights = dict(zip(names, weights_S.tolist(), strict=True))


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


class _ProbeState(BaseModel, extra="forbid"):
    offset: float
    slope: float
    seen: list[tuple[float, int, int]]
    """Per task: logit of the likelihood, successes, rollouts."""


class Probe(Predictor[_ProbeState]):
    """Predicts success rates from the likelihood of demonstrations under the agent.

    Every task has a demonstration that was executed and checked. The likelihood of its tokens under the
    agent, exp(L) at the sampling temperature, is the chance that a rollout equals it exactly. That is a lower
    bound of the success rate, and equal to it if no other reply is right. Scoring a known reply costs a small
    part of G rollouts. The gap to the bound is fitted to past rollouts:

        logit p = a + b logit exp(L)        (a, b) near (0, 1) until there is evidence from rollouts

    PROPEL (arXiv:2606.18284) trains a success predictor for the same purpose. SPEED (arXiv:2506.09016) and
    DAPO (arXiv:2503.14476) roll out more tasks than they train on. This class fits only a and b.
    """

    key, named = "probe", "the probe's state in this run's store is"

    def __init__(self) -> None:
        super().__init__(_ProbeState(offset=0.0, slope=1.0, seen=[]))

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


class _Text(BaseModel, extra="forbid"):
    text: str
    solved: float = Field(ge=0, le=1, allow_inf_nan=False)
    weight: float = Field(gt=0, le=1, allow_inf_nan=False)


class _TextState(BaseModel, extra="forbid"):
    tried: list[_Text]


class TextModel(_FromRollouts[_TextState]):
    """Predicts the success rate of a task from the words of its last message.

    A logistic regression is fitted after each round to the latest 512 tasks with rollouts, with decaying
    weights:

        logit p = a + sum of w_f over its features, divided by the root of their number

    The features are words and signs, and pairs of neighbors, hashed to 16,384 numbers. |w|^2 is penalized, a
    hardly. Unlike the likelihood of a demonstration (`Probe`) it needs no solution and no model call. Unlike
    the task bandit (`History`) it distinguishes single tasks, and needs no names of skills.
    """

    key, named = "text", "the texts of rollouts in this run's store are"

    def __init__(self, config: CurriculumConfig) -> None:
        super().__init__(_TextState(tried=[]), config)
        self._offset, self._weights_F = 0.0, np.zeros(FEATURES)

    def _logit(self, task: Task) -> float:
        places = features(text_of(task))
        return self._offset + float(self._weights_F[places].sum()) / math.sqrt(max(1, len(places)))

    def _add(self, tried: Sequence[Group]) -> None:
        older = [one.model_copy(update={"weight": one.weight * self._decay}) for one in self._state.tried]
        new = [
            _Text(text=text_of(group.task), solved=group.successes / len(group.valid), weight=1.0)
            for group in tried
        ]
        self._state.tried = [one for one in (*older, *new)[-_KEPT:] if one.weight > 0]

    def _fit(self) -> None:
        from scipy import sparse  # takes a while to load

        if not self._state.tried:
            return
        each = [features(one.text) for one in self._state.tried]
        rows = np.repeat(np.arange(len(each)), [len(places) for places in each])
        values = np.concatenate([np.full(len(own), 1 / math.sqrt(max(1, len(own)))) for own in each])
        seen, columns = np.unique(np.concatenate(each), return_inverse=True)
        x_NF = sparse.csr_matrix((values, (rows, columns)), shape=(len(each), len(seen)), dtype=np.float64)
        solved_N = np.array([one.solved for one in self._state.tried])
        weights_N = np.array([one.weight for one in self._state.tried])
        self._weights_F = np.zeros(FEATURES)
        self._offset, self._weights_F[seen] = fitted_words(x_NF, solved_N, weights_N)


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
