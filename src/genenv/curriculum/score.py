"""From attempts to the simulator's lesson: p_hat and R_env of each batch, then the weighted generations.

Shapes: N = generations of one update.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

from genenv.curriculum.settings import CurriculumConfig
from genenv.curriculum.simulator_rewards import ENV_REWARDS, handed_out
from genenv.curriculum.stats import BetaPosterior
from genenv.curriculum.weighing import (
    band_divides,
    effective_samples,
    in_band,
    rwr_weights,
    weight_contrast,
)
from genenv.types import (
    Context,
    Generation,
    Group,
    Proposal,
    Rejection,
    RejectReason,
    Scored,
    SimulatorSample,
    Task,
    TaskBatch,
    Trace,
)

_LEAST = 0.01
"""Of a prior's pseudo-counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """What the simulator learns from in one update; empty when nothing survived."""

    samples: tuple[SimulatorSample, ...] = ()
    """[N] valid generations; the weights sum to 1."""
    env_rewards: tuple[float, ...] = ()
    """[N] the reward behind each weight."""
    dropped: int = 0
    """Batches (or tasks, at task scope) outside the band, or without any attempt."""
    weight_contrast: float = 1.0
    """Largest weight over smallest."""
    effective_samples: float = 0.0
    """Kish's effective sample size, at most N."""


@dataclass(frozen=True, slots=True)
class _Unit:
    """What has one success rate: a batch, or a single task."""

    successes: int
    attempts: int
    rewards: tuple[float, ...]
    """[attempts] what the agent is trained on."""
    generations: tuple[Generation, ...]
    foretold: float | None = None
    """The success rate that a probe foretold; None where it does not count."""

    @property
    def is_known(self) -> bool:
        """Whether anything is known of its success rate."""
        return self.attempts > 0 or self.foretold is not None

    def reward(self, config: CurriculumConfig) -> float:
        if not self.is_known:
            return 0.0
        name = config.env_reward if self.attempts or config.env_reward != "variance" else "learnability"
        return ENV_REWARDS[name](self.successes, self.attempts, self.rewards, self._informed(config))

    def rate(self, config: CurriculumConfig) -> float:
        """The share of successes, a foretold rate counting as so many attempts as it does."""
        weight = config.foretold_attempts if self.foretold is not None else 0.0
        return (self.successes + weight * (self.foretold or 0.0)) / (self.attempts + weight)

    def passes_filter(self, config: CurriculumConfig) -> bool:
        """By the posterior's mean, if so set: with few attempts it lies nearer to the prior's than p_hat."""
        if not self.is_known:
            return False
        config = self._informed(config)
        posterior = BetaPosterior.of(self.successes, self.attempts, config.prior)
        rate = posterior.mean if config.posterior else self.successes / self.attempts
        return in_band(rate, config.alpha, config.k_min)

    def _informed(self, config: CurriculumConfig) -> CurriculumConfig:
        """The settings with a prior that says what was foretold, as so many attempts would."""
        if self.foretold is None:
            return config
        counts = (rate * config.foretold_attempts for rate in (self.foretold, 1 - self.foretold))
        prior = tuple(max(_LEAST, count) for count in counts)
        return config.model_copy(update={"prior": prior, "posterior": True})


def score_batch(
    context: Context, proposals: Sequence[Proposal], groups: Sequence[Group], config: CurriculumConfig
) -> TaskBatch:
    """Score what the simulator wrote for one context: p_hat and R_env over the whole batch (GenEnv eq. 2, 3).

    Args:
        context: what the simulator was told.
        proposals: everything it wrote for that context; rejected ones have no attempts.
        groups: the attempts at those that became tasks. Attempts that ended in an error or a timeout do not
        count.
        config: `env_reward` names the reward; `posterior` decides between that of p_hat and its expectation.

    Raises:
        ValueError: a proposal of another context, or a group whose task none of the proposals became.
    """
    if strangers := [p.generation.id for p in proposals if p.generation.context_id != context.id]:
        raise ValueError(f"generations of another context than {context.id}: {', '.join(strangers)}")
    own = {proposal.outcome.id for proposal in proposals if isinstance(proposal.outcome, Task)}
    if strangers := [group.task.id for group in groups if group.task.id not in own]:
        raise ValueError(f"tasks that no proposal of {context.id} became: {', '.join(strangers)}")
    return _scored(context, proposals, groups, config)


def _scored(
    context: Context, proposals: Sequence[Proposal], groups: Sequence[Group], config: CurriculumConfig
) -> TaskBatch:
    unit = _unit([trace for group in groups for trace in group.valid], ())
    return TaskBatch(
        context=context,
        proposals=tuple(proposals),
        groups=tuple(groups),
        p_hat=unit.successes / unit.attempts if unit.attempts else None,
        env_reward=unit.reward(config),
    )


def score_batches(
    contexts: Sequence[Context],
    proposals: Sequence[Proposal],
    groups: Sequence[Group],
    config: CurriculumConfig,
) -> list[TaskBatch]:
    """Score what was written in a round, context by context; groups of other tasks are left out."""
    attempted = {group.task.id: group for group in groups}
    written: dict[str, list[Proposal]] = {context.id: [] for context in contexts}
    for proposal in proposals:
        if (own := written.get(proposal.generation.context_id)) is not None:
            own.append(proposal)
    batches: list[TaskBatch] = []
    for context in contexts:
        own = written[context.id]
        tasks = [p.outcome.id for p in own if isinstance(p.outcome, Task)]
        tried = [attempted[name] for name in tasks if name in attempted]
        batches.append(_scored(context, own, tried, config))
    return batches


def select(batches: Sequence[TaskBatch], config: CurriculumConfig, rng: random.Random) -> Selection:
    """Choose the generations that the simulator learns from, and weigh them (GenEnv section 2.3).

    At batch scope every valid generation of a batch has that batch's reward; at task scope each has its own.
    Units outside the band are dropped when the filter is on. Rejected generations earn 0 and are not
    imitated, and a task that was never attempted to an end shows nothing, so it is not imitated either.
    With `full_novelty` a generation that is closer than that to another of the archive earns the share
    novelty / full_novelty of its reward: near-copies of a seed are valid and easy to write, and imitating
    them alike teaches the simulator to copy.

    Args:
        batches: what a round wrote and how the agent did on it.
        config: scope, filter, reward and weighting.
        rng: hands the rewards out where they are to be shuffled (the control).
    """
    units = [unit for batch in batches for unit in _units(batch, config)]
    kept = [
        unit for unit in units if unit.is_known and (not config.band_filter or unit.passes_filter(config))
    ]
    dropped = len(units) - len(kept)
    paid = handed_out([unit.reward(config) for unit in kept], config, rng)
    pairs = [(g, reward) for unit, reward in zip(kept, paid, strict=True) for g in unit.generations]
    if not pairs:
        return Selection(dropped=dropped)
    novelty = {p.generation.id: p.novelty for batch in batches for p in batch.proposals}
    rewards = [reward * _newness(novelty[generation.id], config) for generation, reward in pairs]
    weights = _weights([generation.context_id for generation, _ in pairs], rewards, config)
    return Selection(
        samples=tuple(
            SimulatorSample(generation=generation, weight=weight)
            for (generation, _), weight in zip(pairs, weights, strict=True)
        ),
        env_rewards=tuple(rewards),
        dropped=dropped,
        weight_contrast=weight_contrast(weights),
        effective_samples=effective_samples(weights),
    )


def _weights(contexts: Sequence[str], rewards: Sequence[float], config: CurriculumConfig) -> list[float]:
    """[N] weights that sum to 1; within contexts: each has the same share of it, by how much it wrote."""
    shared = contexts if config.rwr_within == "context" else [""] * len(contexts)
    members: dict[str, list[int]] = {}
    for place, name in enumerate(shared):
        members.setdefault(name, []).append(place)
    weights = [0.0] * len(rewards)
    for places in members.values():
        own = [rewards[place] for place in places]
        found = rwr_weights(own, rwr_lambda=config.rwr_lambda, standardise=config.standardise_rewards)
        for place, weight in zip(places, found, strict=True):
            weights[place] = weight * len(places) / len(rewards)
    return weights


def scored(batches: Sequence[TaskBatch], config: CurriculumConfig, rng: random.Random) -> list[Scored]:
    """Every generation of a round with its own reward, whatever the scope: for algorithms that compare them.

    One that is no task has 0. Left out is what nothing is known of: a task without attempts, which no probe
    looked at.

    Args:
        batches: what a round wrote and how the agent did on it.
        config: reward, and whether a foretold rate counts.
        rng: hands the rewards out where they are to be shuffled (the control).
    """
    known = [unit for batch in batches for unit in _tasks(batch, config) if unit.is_known]
    paid = handed_out([unit.reward(config) for unit in known], config, rng)
    rewards = {unit.generations[0].id: reward for unit, reward in zip(known, paid, strict=True)}
    rates = {unit.generations[0].id: unit.rate(config) for unit in known}
    for batch in batches:
        rewards |= {p.generation.id: 0.0 for p in batch.proposals if isinstance(p.outcome, Rejection)}
    return [
        Scored(generation=p.generation, reward=rewards[p.generation.id], rate=rates.get(p.generation.id))
        for batch in batches
        for p in batch.proposals
        if p.generation.id in rewards
    ]


def taught(groups: Sequence[Group], new: Sequence[Task], config: CurriculumConfig) -> Sequence[Group]:
    """The groups that the agent learns from: all, or of the new tasks those inside the band."""
    if not config.agent_band:
        return groups
    names = {task.id for task in new}
    return [group for group in groups if group.task.id not in names or _inside(group, config)]


def curriculum_metrics(
    batches: Sequence[TaskBatch], selection: Selection, config: CurriculumConfig
) -> dict[str, float]:
    """The metrics of what the simulator wrote in a round. A mean over nothing is left out.

    Both scopes of p_hat are measured, whichever is in use.
    """
    proposals = [proposal for batch in batches for proposal in batch.proposals]
    tasks = [proposal.outcome for proposal in proposals if isinstance(proposal.outcome, Task)]
    reasons = Counter(p.outcome.reason for p in proposals if isinstance(p.outcome, Rejection))
    by_batch = [unit for batch in batches if (unit := _whole(batch)).attempts]
    by_task = [unit for batch in batches for unit in _tasks(batch, config) if unit.attempts]
    return {
        **_mean("simulator/valid_rate", (isinstance(p.outcome, Task) for p in proposals)),
        **{f"simulator/rejected/{reason}": float(reasons[reason]) for reason in RejectReason},
        **_mean("simulator/in_band_rate", _in_band(by_batch, config)),
        **_mean("simulator/in_band_rate_task", _in_band(by_task, config)),
        **_mean("simulator/env_reward", (b.env_reward for b in batches if not _passed_over(b))),
        **_mean(
            "simulator/novelty",
            (p.novelty for p in proposals if isinstance(p.outcome, Task) and p.novelty is not None),
        ),
        "simulator/selected": float(len(selection.samples)),
        "simulator/dropped": float(selection.dropped),
        "simulator/weight_contrast": selection.weight_contrast,
        "simulator/effective_samples": selection.effective_samples,
        **_mean("curriculum/p_hat_mean", (unit.successes / unit.attempts for unit in by_batch)),
        "curriculum/p_hat_batches": float(len(by_batch)),
        **_mean("curriculum/p_hat_task_agree", (unit.successes in (0, unit.attempts) for unit in by_task)),
        **_spread("curriculum/p_hat_spread", [unit.successes / unit.attempts for unit in by_batch]),
        **_spread("curriculum/p_hat_task_spread", [unit.successes / unit.attempts for unit in by_task]),
        **_skill_shares(tasks),
    }


def _passed_over(batch: TaskBatch) -> bool:
    """Whether tasks were written, and none was chosen to be attempted."""
    return not batch.groups and any(isinstance(p.outcome, Task) for p in batch.proposals)


def _units(batch: TaskBatch, config: CurriculumConfig) -> list[_Unit]:
    """The parts of a batch that have a success rate of their own."""
    return _tasks(batch, config) if config.p_hat_scope == "task" else [_whole(batch)]


def _whole(batch: TaskBatch) -> _Unit:
    written = {p.outcome.id: p.generation for p in batch.proposals if isinstance(p.outcome, Task)}
    tried = {group.task.id: valid for group in batch.groups if (valid := group.valid)}
    together = [trace for valid in tried.values() for trace in valid]
    return _unit(together, tuple(written[name] for name in tried))


def _tasks(batch: TaskBatch, config: CurriculumConfig) -> list[_Unit]:
    tried = {group.task.id: group.valid for group in batch.groups}
    return [
        _unit(tried.get(p.outcome.id, ()), (p.generation,), p.foretold if config.foretold_attempts else None)
        for p in batch.proposals
        if isinstance(p.outcome, Task)
    ]


def _in_band(units: Sequence[_Unit], config: CurriculumConfig) -> list[bool]:
    """Whether p_hat itself lies in the band, for each unit with enough attempts to fall on either side."""
    alpha, k_min = config.alpha, config.k_min
    telling = [unit for unit in units if band_divides(unit.attempts, alpha, k_min)]
    return [in_band(unit.successes / unit.attempts, alpha, k_min) for unit in telling]


def _newness(novelty: float | None, config: CurriculumConfig) -> float:
    """The share of its reward that a generation keeps: all of it from `full_novelty` on."""
    if novelty is None or not config.full_novelty:
        return 1.0
    return min(1.0, novelty / config.full_novelty)


def _unit(
    valid: Sequence[Trace], generations: tuple[Generation, ...], foretold: float | None = None
) -> _Unit:
    rewards = tuple([trace.reward for trace in valid])
    return _Unit(sum([trace.success for trace in valid]), len(valid), rewards, generations, foretold)


def _mean(name: str, values: Iterable[float]) -> Mapping[str, float]:
    collected = [float(value) for value in values]
    return {name: fmean(collected)} if collected else {}


def _spread(name: str, values: Sequence[float]) -> Mapping[str, float]:
    if not values:
        return {}
    mean = fmean(values)
    return {name: math.sqrt(fmean((value - mean) ** 2 for value in values))}


def _skill_shares(tasks: Sequence[Task]) -> Mapping[str, float]:
    """The share of new tasks that exercise each skill. One that rises to 1 says that diversity is going."""
    if not tasks:
        return {}
    counts = Counter(skill for task in tasks for skill in set(task.skills))
    shares = {f"tasks/share/{skill}": count / len(tasks) for skill, count in sorted(counts.items())}
    return {**shares, **({"curriculum/skill_share_max": max(shares.values())} if shares else {})}


def _inside(group: Group, config: CurriculumConfig) -> bool:
    tried = len(group.valid)
    return tried > 0 and in_band(group.successes / tried, config.alpha, config.k_min)
