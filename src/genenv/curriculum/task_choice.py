# pyright: standard
"""Which candidate tasks of a round are rolled out: drawn by the reward of their predicted success rates.

The rates come from `likelihood.Probe` (how likely the agent finds a task's demonstration) or from
`bandit.History` (success on a task's skills in earlier rollouts).
"""

from __future__ import annotations

import math
import random
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from genenv.curriculum.settings import CurriculumConfig
from genenv.curriculum.simulator_rewards import reward_at
from genenv.types import Group, Proposal, Task

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
