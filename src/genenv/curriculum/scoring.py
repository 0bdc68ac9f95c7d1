"""Success rates and rewards of the simulator's tasks: p_hat and R_env per batch or per task.

They follow GenEnv eq. (2) and (3). A `Unit` is a set of generations with one common success rate: all
variations written for one context, or one task (`curriculum.p_hat_scope`).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from statistics import fmean
from typing import cast

from genenv.curriculum.settings import CurriculumConfig
from genenv.curriculum.simulator_rewards import (
    find_env_reward,
    handed_out,
    progress_reward,
    regret_reward,
    reward_at,
    variance,
)
from genenv.curriculum.stats import BetaPosterior
from genenv.settings import is_own
from genenv.types import (
    Context,
    Generation,
    Group,
    Proposal,
    Rejection,
    Scored,
    Task,
    TaskBatch,
)

BAND_TOLERANCE = 1e-9
"""Slack at the edge of the band, which belongs to the band: 0.5 - 0.4 is not 0.1 in binary."""
_LEAST = 0.01
"""Smallest pseudo-count of a prior."""


@dataclass(frozen=True, slots=True)
class Unit:
    """A set of generations with one common success rate: a batch, or a single task."""

    successes: int
    attempts: int
    by_group: tuple[tuple[float, ...], ...]
    """[groups][rollouts] rewards that the agent trains on: only differences in a group give an advantage."""
    generations: tuple[Generation, ...]
    predicted_rate: float | None = None
    """The predicted success rate; None if there is none or it does not count."""
    progress: float = 0.0
    """Mean rise of the predicted success rates since an older version of the agent; 0 if unknown."""
    by_agent: Mapping[str, Unit] = field(default_factory=dict[str, "Unit"])
    """With rollouts of several agents, those of each by name; empty with one agent."""

    @property
    def is_known(self) -> bool:
        """Whether there is a rollout or a prediction of the success rate."""
        return self.attempts > 0 or self.predicted_rate is not None

    @property
    def mixed(self) -> bool:
        """Whether some rollouts of one agent succeeded and some did not."""
        return any(0 < one.successes < one.attempts for one in self.by_agent.values() or (self,))

    def is_measured(self, config: CurriculumConfig) -> bool:
        """Return whether what the reward is of is known: the success rate, or the regret of two agents."""
        if self.by_agent and config.agents_reward == "regret":
            return self.regret(config) is not None
        return self.is_known

    def reward(self, config: CurriculumConfig) -> float:
        """Return R_env in [0, 1]; 0 if the success rate is unknown."""
        if not self.is_known:
            return 0.0
        if config.env_reward == "progress":
            return progress_reward(self.progress)
        if self.by_agent:
            return self._of_several(config)
        name = config.env_reward if self.attempts or config.env_reward != "variance" else "learnability"
        if not self.attempts and is_own(name):  # which is promised a rollout
            return reward_at(cast(float, self.predicted_rate), name, config)
        if name == "variance":
            return fmean(variance(rewards) for rewards in self.by_group)
        rewards = [reward for group in self.by_group for reward in group]
        return find_env_reward(name)(self.successes, self.attempts, rewards, self._informed(config))

    def _of_several(self, config: CurriculumConfig) -> float:
        """Return the mean or the minimum of the agents' rewards, or the regret of two agents."""
        if config.agents_reward == "regret":
            regret = self.regret(config)
            return 0.0 if regret is None else regret_reward(regret)
        rewards = [unit.reward(config) for unit in self.by_agent.values() if unit.is_known]
        return fmean(rewards) if config.agents_reward == "mean" else min(rewards)

    def regret(self, config: CurriculumConfig) -> float | None:
        """Return p_strong - p_weak, of posterior means with `posterior`; None if one has no rollout."""
        units = [self.by_agent.get(name) for name in config.regret_agents]
        rates = [_mean_rate(unit, config) for unit in units if unit is not None and unit.attempts]
        return rates[0] - rates[1] if len(rates) == 2 else None

    def rate(self, config: CurriculumConfig) -> float:
        """Return the share of successes; a prediction counts as `foretold_attempts` rollouts."""
        weight = config.foretold_attempts if self.predicted_rate is not None else 0.0
        return (self.successes + weight * (self.predicted_rate or 0.0)) / (self.attempts + weight)

    def passes_filter(self, config: CurriculumConfig) -> bool:
        """Return whether the success rate is in the band.

        With `posterior` the posterior mean is used. With few rollouts it is nearer to the prior mean than
        p_hat is.
        """
        if not self.is_known:
            return False
        return in_band(_mean_rate(self, self._informed(config)), config.alpha, config.k_min)

    def _informed(self, config: CurriculumConfig) -> CurriculumConfig:
        """Return settings whose prior contains the prediction as `foretold_attempts` rollouts."""
        if self.predicted_rate is None:
            return config
        counts = (rate * config.foretold_attempts for rate in (self.predicted_rate, 1 - self.predicted_rate))
        prior = tuple(max(_LEAST, count) for count in counts)
        return config.model_copy(update={"prior": prior, "posterior": True})


def score_batches(
    contexts: Sequence[Context],
    proposals: Sequence[Proposal],
    groups: Sequence[Group],
    config: CurriculumConfig,
) -> list[TaskBatch]:
    """Score what was written in a round, context by context: p_hat and R_env (GenEnv eq. 2, 3).

    Args:
        contexts: what the simulator was told.
        proposals: everything it wrote for them; rejected ones have no rollouts.
        groups: rollouts, of which those of tasks that were written for a context count. Rollouts that ended
            in an error or a timeout do not count.
        config: `env_reward` names the reward; `posterior` decides between that of p_hat and its expectation;
            `agents_reward` combines the rewards of several agents. p_hat is over all of them.
    """
    attempted = _by_task(groups)
    written: dict[str, list[Proposal]] = {context.id: [] for context in contexts}
    for proposal in proposals:
        if (own := written.get(proposal.generation.context_id)) is not None:
            own.append(proposal)
    batches: list[TaskBatch] = []
    for context in contexts:
        own = written[context.id]
        tasks = {p.outcome.id: p for p in own if isinstance(p.outcome, Task)}
        tried = [group for name in tasks for group in attempted.get(name, ())]
        unit = _unit(tried, [tasks[name] for name in _valid_tasks(tried)])
        batches.append(
            TaskBatch(
                context=context,
                proposals=tuple(own),
                groups=tuple(tried),
                p_hat=unit.successes / unit.attempts if unit.attempts else None,
                env_reward=unit.reward(config),
            )
        )
    return batches


def scored(batches: Sequence[TaskBatch], config: CurriculumConfig, rng: random.Random) -> list[Scored]:
    """Return every generation of a round with its individual reward, for algorithms that compare them.

    Rejected generations have reward 0. Tasks with neither rollouts nor a prediction are left out. In the
    shuffled-reward control a task has all of this from another one: reward, success rate, mixed outcomes.

    Args:
        batches: the tasks of a round with their rollouts.
        config: the reward, and whether a prediction counts.
        rng: permutes the tasks in the shuffled-reward control.
    """
    known = [
        (batch.context.agent, unit)
        for batch in batches
        for unit in tasks_of(batch, config)
        if unit.is_measured(config)
    ]
    found: dict[str, Scored] = {}
    paid = handed_out([unit for _, unit in known], config, rng)
    for (agent, unit), other in zip(known, paid, strict=True):
        own = other.by_agent.get(agent)  # of the agent for whom the task was written
        rated = other if own is None or not own.is_known else own
        (generation,) = unit.generations
        found[generation.id] = Scored(
            generation=generation,
            reward=other.reward(config),
            rate=rated.rate(config),
            mixed=other.mixed if other.attempts else None,
        )
    for batch in batches:
        for proposal in batch.proposals:
            if isinstance(proposal.outcome, Rejection):
                found[proposal.generation.id] = Scored(generation=proposal.generation, reward=0.0)
    return [
        found[proposal.generation.id]
        for batch in batches
        for proposal in batch.proposals
        if proposal.generation.id in found
    ]


def units_of(batch: TaskBatch, config: CurriculumConfig) -> list[Unit]:
    """Return the units of a batch: its tasks, or the whole batch, depending on `curriculum.p_hat_scope`."""
    return tasks_of(batch, config) if config.p_hat_scope == "task" else [whole(batch)]


def whole(batch: TaskBatch) -> Unit:
    """Return a batch as one unit, with all its rollouts."""
    written = {p.outcome.id: p for p in batch.proposals if isinstance(p.outcome, Task)}
    return _unit(batch.groups, [written[name] for name in _valid_tasks(batch.groups)])


def tasks_of(batch: TaskBatch, config: CurriculumConfig) -> list[Unit]:
    """Return one unit for each task of a batch."""
    tried = _by_task(batch.groups)
    return [
        _unit(tried.get(p.outcome.id, ()), [p], p.predicted_rate if config.foretold_attempts else None)
        for p in batch.proposals
        if isinstance(p.outcome, Task)
    ]


def _by_task(groups: Sequence[Group]) -> dict[str, list[Group]]:
    found: dict[str, list[Group]] = {}
    for group in groups:
        found.setdefault(group.task.id, []).append(group)
    return found


def _valid_tasks(groups: Sequence[Group]) -> list[str]:
    """Return the ids of the tasks that have a valid rollout, each once."""
    return list(dict.fromkeys(group.task.id for group in groups if group.valid))


def _mean_rate(unit: Unit, config: CurriculumConfig) -> float:
    posterior = BetaPosterior.of(unit.successes, unit.attempts, config.prior)
    return posterior.mean if config.posterior else unit.successes / unit.attempts


def _unit(tried: Sequence[Group], proposals: Sequence[Proposal], predicted_rate: float | None = None) -> Unit:
    agents = dict.fromkeys(group.agent for group in tried)
    valid = [trace for group in tried for trace in group.valid]
    risen = [one.progress for one in proposals if one.progress is not None]
    return Unit(
        successes=sum([trace.success for trace in valid]),
        attempts=len(valid),
        by_group=tuple([tuple([trace.reward for trace in one.valid]) for one in tried if one.valid]),
        generations=tuple([one.generation for one in proposals]),
        predicted_rate=predicted_rate,
        progress=fmean(risen) if risen else 0.0,
        by_agent={name: _unit([one for one in tried if one.agent == name], proposals) for name in agents}
        if len(agents) > 1
        else {},
    )


def in_band(p_hat: float, alpha: float, k_min: float) -> bool:
    """Return whether a rate is in the band around the target: |p_hat - alpha| <= k_min (GenEnv section 2.3).

    The paper filters only the simulator's updates. `curriculum.agent_band` also filters the agent's. The edge
    counts as inside.
    """
    return abs(p_hat - alpha) <= k_min + BAND_TOLERANCE
