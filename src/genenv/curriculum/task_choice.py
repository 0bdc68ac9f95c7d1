# pyright: standard
"""Chooses which candidate tasks of a round are rolled out, by the reward of their predicted success rates.

The predictions come from `predictors.Probe` (likelihood of a task's demonstration under the agent),
`predictors.History` (earlier rollouts on the task's skills) or `predictors.TextModel` (of similar texts).
"""

from __future__ import annotations

import itertools
import math
import random
from collections import ChainMap, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from genenv.curriculum.settings import CurriculumConfig
from genenv.curriculum.simulator_rewards import progress_reward, reward_at
from genenv.types import Group, Proposal, Task

FRONTIER = (0.25, 0.75)
"""Success rates of informative tasks."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Predicted:
    """Predicted success rates of tasks, before any rollout."""

    rates: Mapping[str, float]
    """Predicted success rate by task id."""
    likelihoods: Mapping[str, float] = field(default_factory=dict[str, float])
    """Log-likelihood L of the demonstration by task id, nats. Empty if the rates come from rollouts."""
    earlier: Mapping[str, float] = field(default_factory=dict[str, float])
    """Predicted success rate under an older version of the agent, by task id. Empty if none was asked."""
    tokens: int = 0
    """Tokens of the scored demonstrations, without prompts, as tokens of rollouts are counted."""
    read: int = 0
    """Tokens processed for the scores, including prompts."""

    @property
    def progress(self) -> Mapping[str, float]:
        """p_now - p_then by task id; 0 if no older version was asked, as in the first round."""
        return {name: rate - self.earlier.get(name, rate) for name, rate in self.rates.items()}

    def noted(self, proposals: Sequence[Proposal]) -> list[Proposal]:
        """Return the proposals with `predicted_rate` and `progress` set for those that became tasks."""
        risen = self.progress
        return [
            replace(one, predicted_rate=self.rates.get(one.outcome.id), progress=risen.get(one.outcome.id))
            if isinstance(one.outcome, Task)
            else one
            for one in proposals
        ]

    def metrics(self, written: Sequence[Task], attempted: Sequence[Task]) -> dict[str, float]:
        """Return the metrics of the predictions.

        Args:
            written: new tasks.
            attempted: tasks chosen for rollouts, new or not.
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
        if self.earlier:
            risen = self.progress
            for name, tasks in (("probe/progress", attempted), ("probe/progress_new", written)):
                if own := [risen[task.id] for task in tasks if task.id in risen]:
                    found[name] = fmean(own)
        return found


def joined(found: Sequence[Predicted]) -> Predicted:
    """Return the predictions for the tasks of several agents as one."""
    if len(found) == 1:
        return found[0]
    return Predicted(
        rates=ChainMap(*[dict(one.rates) for one in found]),
        likelihoods=ChainMap(*[dict(one.likelihoods) for one in found]),
        earlier=ChainMap(*[dict(one.earlier) for one in found]),
        tokens=sum(one.tokens for one in found),
        read=sum(one.read for one in found),
    )


def distance(predicted: Predicted, tried: Sequence[Group]) -> dict[str, float]:
    """Return the error of the predictions.

    Args:
        predicted: predictions made before the rollouts.
        tried: rollouts, with at least one valid trace each. Tasks without a prediction are left out.

    Returns:
        `probe/error`, the mean absolute difference from the measured success rates; empty if there is none.
    """
    off = [
        abs(predicted.rates[group.task.id] - group.successes / len(group.valid))
        for group in tried
        if group.task.id in predicted.rates
    ]
    return {"probe/error": fmean(off)} if off else {}


def worth_most(
    rates: Mapping[str, float],
    n: int,
    rng: random.Random,
    config: CurriculumConfig,
    progress: Mapping[str, float] | None = None,
) -> set[str]:
    """Draw n tasks without replacement, with a preference for high rewards; return their ids.

    At each draw, a remaining task has a chance proportional to exp(candidate_temperature * reward). This is
    done by adding Gumbel noise and taking the largest (Kool et al., arXiv:1903.06059). A share of
    `candidate_explore` of the n tasks is instead drawn uniformly from the remaining tasks.

    Args:
        rates: predicted success rates by task id.
        n: number of tasks; all if there are fewer.
        rng: source of randomness; the same state gives the same choice.
        config: `candidate_reward`, `candidate_temperature`, `candidate_explore` and the reward's settings.
        progress: rise of each rate, for the reward `progress`.
    """
    ranked, blind = _ranked(rates, rng, config, progress or {}), round(config.candidate_explore * n)
    left = ranked[n - blind :]
    return {*ranked[: n - blind], *rng.sample(left, min(blind, len(left)))}


def worth_most_that_pass(
    rates: Mapping[str, float],
    n: int,
    rng: random.Random,
    config: CurriculumConfig,
    passes: Callable[[str], bool],
) -> None:
    """Draw like `worth_most` among the tasks that pass a check, and check only those that are drawn.

    Noise and check are independent. So the first n that pass, in the order of noisy rewards, have the same
    distribution as n drawn by `worth_most` from all that pass.

    Args:
        rates: predicted success rates by task id, before the check.
        n: number of tasks that are to pass.
        rng: source of randomness; the same state gives the same choice.
        config: as for `worth_most`.
        passes: checks a task; called once for a task, until n have passed or none is left.
    """
    ranked, blind = iter(_ranked(rates, rng, config, {})), round(config.candidate_explore * n)
    _first(n - blind, ranked, passes)
    left = list(ranked)
    _first(blind, rng.sample(left, len(left)) if blind else left, passes)


def _first(n: int, tasks: Iterable[str], passes: Callable[[str], bool]) -> None:
    """Check tasks until n have passed."""
    if n > 0:
        for _ in itertools.islice(filter(passes, tasks), n):
            pass


def _ranked(
    rates: Mapping[str, float], rng: random.Random, config: CurriculumConfig, progress: Mapping[str, float]
) -> list[str]:
    """Return the ids of tasks by reward plus Gumbel noise, the highest first."""
    name = config.candidate_reward
    if name == "progress":
        paid = [progress_reward(progress[task]) for task in rates]
    else:
        paid = [reward_at(rate, name, config) for rate in rates.values()]
    if name == "shuffled":
        paid = rng.sample(paid, len(paid))
    noisy = {
        task: config.candidate_temperature * reward - math.log(rng.expovariate(1.0))
        for task, reward in zip(rates, paid, strict=True)
    }
    return sorted(noisy, key=lambda task: -noisy[task])


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The new tasks and base tasks of a round that are rolled out, and substitutes for them."""

    new: Sequence[Task]
    base: Sequence[Task]
    _spare: Mapping[str, deque[Task]] = field(default_factory=dict[str, deque[Task]])
    """By candidate id: the queue of candidates of the same sort (new or base) that are not yet rolled out."""

    def instead_of(self, groups: Sequence[Group], has_signal: Callable[[Group], bool]) -> list[Task]:
        """Return a substitute for each group without a signal, as long as there are substitutes.

        Args:
            groups: rollouts of tasks of this choice. Other tasks get no substitute.
            has_signal: returns whether the rollouts of a group differ in what the agent learns from.
        """
        alike = [group.task.id for group in groups if not has_signal(group)]
        return [spare.popleft() for name in alike if (spare := self._spare.get(name))]


def by_attempts(kinds: Sequence[Sequence[tuple[Sequence[Task], int]]], rng: random.Random) -> Choice:
    """Choose candidates at random and keep the others as substitutes (DAPO's dynamic sampling).

    Args:
        kinds: new tasks, then base tasks: those of each agent with the planned number, or all with one.
        rng: source of randomness; the same state gives the same choice.
    """
    spare: dict[str, deque[Task]] = {}
    first: list[list[Task]] = []
    for places in kinds:
        first.append([])
        for tasks, most in places:
            mixed = rng.sample(tasks, len(tasks))
            others = deque(mixed[most:])
            spare |= dict.fromkeys((task.id for task in mixed), others)
            first[-1] += mixed[:most]
    return Choice(new=first[0], base=first[1], _spare=spare)
