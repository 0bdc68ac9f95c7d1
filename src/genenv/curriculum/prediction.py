# pyright: standard
"""Predicted success rates of tasks before anybody rolls them out, and the choice of candidates by them.

Two predictors. `Probe` reads how likely the agent finds each task's demonstration; `History` regresses the
success rate on a task's skills, from earlier rollouts. `draw_candidates` samples the tasks of a round by the
reward of their predicted rates.

Shapes: N = tasks with rollouts, K = kinds (different sets of skills), S = skills.
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError

from genenv.curriculum.settings import CurriculumConfig
from genenv.curriculum.simulator_rewards import reward_at
from genenv.errors import DataError
from genenv.types import Group, JsonObject, Proposal, Task

FRONTIER = (0.25, 0.75)
"""Success rates of tasks from which much can be learned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """What is known of tasks before any rollout."""

    rates: Mapping[str, float]
    """By task id: the success rate."""
    likelihoods: Mapping[str, float] = field(default_factory=dict[str, float])
    """By task id: L of its demonstration, nats; empty where none was read."""
    tokens: int = 0
    """Of those solutions: counted as those of rollouts are, without prompts."""
    read: int = 0
    """Tokens that were read to know it, prompts included."""

    def noted(self, proposals: Sequence[Proposal]) -> list[Proposal]:
        """Proposals with the rates of those that are tasks."""
        return [
            replace(one, predicted_rate=self.rates.get(one.outcome.id))
            if isinstance(one.outcome, Task)
            else one
            for one in proposals
        ]

    def metrics(self, written: Sequence[Task], attempted: Sequence[Task]) -> dict[str, float]:
        """What was predicted.

        Args:
            written: new tasks.
            attempted: those tasks, new or not, that were chosen.
        """
        low, high = FRONTIER
        found = {
            "probe/candidates": float(len(self.rates)),
            "tokens/agent_probed": float(self.tokens),
            "tokens/agent_read": float(self.read),
        }
        if own := [self.rates[task.id] for task in attempted if task.id in self.rates]:
            found["probe/foretold"] = fmean(own)
        if own := [self.rates[task.id] for task in written if task.id in self.rates]:
            found["probe/foretold_new"] = fmean(own)
            found["probe/frontier"] = fmean(low <= rate <= high for rate in own)
        return found


def distance(predicted: Predicted, tried: Sequence[Group]) -> dict[str, float]:
    """How far off it was.

    Args:
        predicted: of tasks, before they were rolled out.
        tried: rollouts, with at least one valid trace each; a task without a predicted rate is left out.

    Returns:
        `probe/error`, the mean distance from the rates that were found; empty without any.
    """
    off = [
        abs(predicted.rates[group.task.id] - group.successes / len(group.valid))
        for group in tried
        if group.task.id in predicted.rates
    ]
    return {"probe/error": fmean(off)} if off else {}


def worth_most(rates: Mapping[str, float], n: int, rng: random.Random, config: CurriculumConfig) -> set[str]:
    """So many of the tasks, or all there are, drawn one after the other without replacement.

    Of those that are left each has a chance proportional to exp(candidate_temperature * reward). Drawn by
    adding Gumbel's noise and taking the largest (Kool et al., arXiv:1903.06059). For `candidate_explore`
    of the places all that are left then have the same chance.

    Args:
        rates: predicted success rates by task id.
        n: how many.
        rng: the same state gives the same choice.
        config: `candidate_reward`, `candidate_temperature`, `candidate_explore` and what the reward reads.
    """
    name = config.candidate_reward
    paid = [reward_at(rate, name, config) for rate in rates.values()]
    if name == "shuffled":
        paid = rng.sample(paid, len(paid))
    noisy = {
        task: config.candidate_temperature * reward - math.log(rng.expovariate(1.0))
        for task, reward in zip(rates, paid, strict=True)
    }
    ranked, blind = sorted(noisy, key=lambda task: -noisy[task]), round(config.candidate_explore * n)
    left = ranked[n - blind :]
    return {*ranked[: n - blind], *rng.sample(left, min(blind, len(left)))}


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


Floats = NDArray[np.float64]

_SEPARATOR = " + "
_SKILL_PENALTY = 1.0
"""Weight of |w|^2 / 2 against the log-likelihood of tasks, each counted once, nats."""
_FORGOTTEN = 0.01
"""A kind whose tasks count less than this together is dropped."""


class _Tried(BaseModel, extra="forbid"):
    solved: float = Field(ge=0, allow_inf_nan=False)
    tasks: float = Field(ge=0, allow_inf_nan=False)


class _HistoryState(BaseModel, extra="forbid"):
    kinds: dict[str, _Tried]


class History:
    """Predicts success rates from earlier rollouts of tasks with the same skills, without model calls.

    A logistic regression on a task's skills (kinds of operations, length, number of calls) is fitted after
    each round to all rollouts; older ones count less:

        logit p = a + sum of w_s over the task's skills s        penalised by |w|^2 / 2

    It tells kinds of tasks apart, not single tasks. With random variations to choose from it is the task
    bandit: the baseline of a trained simulator.

    Args:
        config: `profile_decay`, by which what is known counts less each round.
    """

    def __init__(self, config: CurriculumConfig) -> None:
        self._decay = config.profile_decay
        self._kinds: dict[str, _Tried] = {}
        self._offset, self._weights = 0.0, dict[str, float]()

    def predict(self, tasks: Sequence[Task]) -> Predicted:
        """Success rates; one half for all of them before any rollout."""
        return Predicted(rates={task.id: self._rate(task) for task in tasks})

    def _rate(self, task: Task) -> float:
        logit = self._offset + math.fsum(self._weights.get(skill, 0.0) for skill in set(task.skills))
        return 1 / (1 + math.exp(-logit))

    def observe(self, predicted: Predicted, groups: Sequence[Group]) -> Mapping[str, float]:
        """Learn from the rollouts of a round; call it once a round.

        Args:
            predicted: of these tasks, before they were rolled out.
            groups: rollouts; those that broke say nothing.

        Returns:
            `probe/error` of what was predicted for these rollouts, if any were.
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
        """What `load_state_dict` restores."""
        return _HistoryState(kinds=self._kinds).model_dump(mode="json")

    def load_state_dict(self, state: JsonObject) -> None:
        """Continue from what `state_dict` gave.

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
    """(a, w) that make what was found likeliest: penalised maximum likelihood of a logistic regression.

    Args:
        x_KS: 1 where a kind has a skill, else 0.
        counts_K2: tasks that were solved, as a sum of success rates, and tasks; of each kind.
    """
    from scipy import optimize  # takes a while to load

    solved_K, tasks_K = counts_K2.T
    x_KS = np.hstack([np.ones((len(x_KS), 1)), x_KS])

    def loss(w_S: Floats) -> tuple[float, Floats]:
        z_K = x_KS @ w_S
        value = (tasks_K * np.logaddexp(0.0, z_K) - solved_K * z_K).sum() + _SKILL_PENALTY / 2 * (
            w_S**2
        ).sum()
        excess_K = tasks_K / (1 + np.exp(-z_K)) - solved_K
        return float(value), x_KS.T @ excess_K + _SKILL_PENALTY * w_S

    w_S = optimize.minimize(loss, np.zeros(x_KS.shape[1]), jac=True, method="L-BFGS-B").x
    return float(w_S[0]), w_S[1:]


def _skills(kind: str) -> list[str]:
    return kind.split(_SEPARATOR) if kind else []


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The tasks of a round that are rolled out, new ones and base tasks."""

    new: Sequence[Task]
    base: Sequence[Task]
    _spare: Mapping[str, deque[Task]] = field(default_factory=dict[str, deque[Task]])
    """By the id of each candidate: others of its kind that are not rolled out yet."""

    def instead_of(self, groups: Sequence[Group]) -> list[Task]:
        """A candidate for each of the groups whose rollouts earned the same, as far as there are any.

        Args:
            groups: rollouts of tasks of this choice; others have none in their stead.
        """
        alike = [group.task.id for group in groups if len({trace.reward for trace in group.valid}) < 2]
        return [spare.popleft() for name in alike if (spare := self._spare.get(name))]


def by_attempts(places: Sequence[tuple[Sequence[Task], int]], rng: random.Random) -> Choice:
    """Any of the candidates first, all others to spare.

    Args:
        places: new tasks, then base tasks; each with how many of them are planned.
        rng: the same state gives the same choice.
    """
    spare: dict[str, deque[Task]] = {}
    first: list[Sequence[Task]] = []
    for tasks, most in places:
        mixed = rng.sample(tasks, len(tasks))
        others = deque(mixed[most:])
        spare |= dict.fromkeys((task.id for task in mixed), others)
        first.append(mixed[:most])
    return Choice(new=first[0], base=first[1], _spare=spare)
