"""Success rates that are foretold, whoever foretells them, and the tasks that are chosen by them."""

from __future__ import annotations

import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean

from genenv.curriculum.rewards import reward_at
from genenv.curriculum.settings import CurriculumConfig
from genenv.types import Group, Proposal, Task

FRONTIER = (0.25, 0.75)
"""Success rates of tasks from which much can be learned."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Foretold:
    """What is known of tasks before anybody attempts them."""

    rates: Mapping[str, float]
    """By task id: the success rate."""
    likelihoods: Mapping[str, float] = field(default_factory=dict[str, float])
    """By task id: L of its known solution, nats; empty where none was read."""
    tokens: int = 0
    """Of those solutions: counted as those of attempts are, without prompts."""
    read: int = 0
    """Tokens that were read to know it, prompts included."""

    def noted(self, proposals: Sequence[Proposal]) -> list[Proposal]:
        """Proposals with the rates of those that are tasks."""
        return [
            replace(one, foretold=self.rates.get(one.outcome.id)) if isinstance(one.outcome, Task) else one
            for one in proposals
        ]

    def metrics(self, written: Sequence[Task], attempted: Sequence[Task]) -> dict[str, float]:
        """What was foretold.

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


def distance(foretold: Foretold, tried: Sequence[Group]) -> dict[str, float]:
    """How far off it was.

    Args:
        foretold: of tasks, before they were attempted.
        tried: attempts, with at least one valid trace each; a task without a foretold rate is left out.

    Returns:
        `probe/error`, the mean distance from the rates that were found; empty without any.
    """
    off = [
        abs(foretold.rates[group.task.id] - group.successes / len(group.valid))
        for group in tried
        if group.task.id in foretold.rates
    ]
    return {"probe/error": fmean(off)} if off else {}


def worth_most(rates: Mapping[str, float], n: int, rng: random.Random, config: CurriculumConfig) -> set[str]:
    """So many of the tasks, or all there are, drawn one after the other without replacement.

    Of those that are left each has a chance proportional to exp(candidate_temperature * reward). Drawn by
    adding Gumbel's noise and taking the largest (Kool et al., arXiv:1903.06059). For `candidate_explore`
    of the places all that are left then have the same chance.

    Args:
        rates: foretold success rates by task id.
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
