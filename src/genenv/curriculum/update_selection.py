"""Selects the data that the simulator and the agent train on, and measures what the simulator wrote.

Shapes: N = generations of one update.
"""

from __future__ import annotations

import math
import random
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import fmean

import numpy as np

from genenv.curriculum.scoring import Unit, in_band, tasks_of, units_of, whole
from genenv.curriculum.settings import CurriculumConfig
from genenv.curriculum.simulator_rewards import handed_out
from genenv.types import (
    Generation,
    Group,
    Rejection,
    RejectReason,
    SimulatorSample,
    Task,
    TaskBatch,
    accepted,
    leading,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Selection:
    """The weighted generations of one simulator update; empty if none was selected."""

    samples: tuple[SimulatorSample, ...] = ()
    """[N] valid generations; the weights sum to 1."""
    env_rewards: tuple[float, ...] = ()
    """[N] reward from which each weight was computed."""
    dropped: int = 0
    """Number of batches (at task scope: tasks) outside the band or without rollouts."""
    weight_contrast: float = 1.0
    """Largest weight / smallest weight."""
    effective_samples: float = 0.0
    """Kish's effective sample size, at most N."""


def select(batches: Sequence[TaskBatch], config: CurriculumConfig, rng: random.Random) -> Selection:
    """Select and weight the generations that the simulator trains on (GenEnv section 2.3).

    At batch scope every valid generation of a batch has the batch's reward. At task scope each has its
    individual reward. Units outside the band are dropped if the filter is on. Rejected generations are not
    trained on, nor are tasks with an unknown success rate. With `full_novelty`, a generation nearer than that
    to the archive earns only the share novelty / full_novelty of its reward. Near-copies of a seed are valid
    and easy to write; full rewards for them would train the simulator to copy.

    Args:
        batches: the tasks of a round with their rollouts.
        config: scope, filter, reward and weighting.
        rng: in the shuffled-reward control, decides whose filter, reward and novelty each unit receives.
    """
    units = [unit for batch in batches for unit in units_of(batch, config)]
    known = [unit for unit in units if unit.is_measured(config)]
    kept = [
        (unit, paid)
        for unit, paid in zip(known, handed_out(known, config, rng), strict=True)
        if not config.band_filter or paid.passes_filter(config)
    ]
    dropped = len(units) - len(kept)
    newness = {p.generation.id: _newness(p.novelty, config) for batch in batches for p in batch.proposals}
    pairs = [
        (generation, paid.reward(config) * share)
        for unit, paid in kept
        for generation, share in zip(unit.generations, _shares(unit, paid, newness), strict=True)
    ]
    if not pairs:
        return Selection(dropped=dropped)
    rewards = [reward for _, reward in pairs]
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
    """Return [N] weights that sum to 1.

    With `rwr_within = "context"` rewards are compared within each context only. The total weight of a context
    is then proportional to its number of generations.
    """
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


def _shares(unit: Unit, paid: Unit, newness: Mapping[str, float]) -> list[float]:
    """Return the share of the reward that each generation keeps; in the control that of the other unit."""
    if unit is paid:
        return [newness[generation.id] for generation in unit.generations]
    return [fmean(newness[generation.id] for generation in paid.generations)] * len(unit.generations)


def _newness(novelty: float | None, config: CurriculumConfig) -> float:
    """Return the share of its reward that a generation keeps: 1 from a novelty of `full_novelty` on."""
    if novelty is None or not config.full_novelty:
        return 1.0
    return min(1.0, novelty / config.full_novelty)


def trained_groups(groups: Sequence[Group], new: Sequence[Task], config: CurriculumConfig) -> Sequence[Group]:
    """Return the groups that the agent trains on.

    Args:
        groups: the rollouts of a round, without those that only score their task (`not_only_scored`).
        new: its new tasks; with `agent_band` those outside the band are left out.
        config: `agent_band` and the band.
    """
    if not config.agent_band:
        return groups
    names = {task.id for task in new}
    kept = [one for one in leading(groups) if one.task.id not in names or _inside(one, config)]
    if not groups or not groups[0].seat:
        return kept
    trained = {group.task.id for group in kept}
    return [group for group in groups if group.task.id in trained]


def not_only_scored(groups: Sequence[Group], generations: Sequence[Generation]) -> Sequence[Group]:
    """Return the groups without those of tasks that are only scored, on which no agent ever trains."""
    scored = {one.id for one in generations if one.scored_only}
    return [group for group in groups if group.task.lineage.generation_id not in scored] if scored else groups


def _inside(group: Group, config: CurriculumConfig) -> bool:
    tried = len(group.valid)
    return tried > 0 and in_band(group.successes / tried, config.alpha, config.k_min)


def band_divides(attempts: int, alpha: float, k_min: float) -> bool:
    """Return whether p_hat of this many rollouts can be inside the band and can be outside.

    p_hat is one of 0, 1/n, ... 1. If all or none of these are inside the band, the share of batches in the
    band carries no information. With alpha 0.5 and k_min 0.1, for example, p_hat of three rollouts is never
    inside.
    """
    inside = [in_band(k / attempts, alpha, k_min) for k in range(attempts + 1)] if attempts else []
    return any(inside) and not all(inside)


def rwr_weights(env_rewards: Sequence[float], *, rwr_lambda: float, standardise: bool = False) -> list[float]:
    r"""Return the reward-weighted regression weights of the simulator's tasks.

    w_i = exp(lambda * R_i) / sum_j exp(lambda * R_j), of GenEnv (arXiv:2512.19682, section 2.3). With lambda
    = 0 all weights are equal and the update is plain supervised fine-tuning.

    After the band filter all R_i are within 2% of each other, and so are the weights. With `standardise`, R_i
    is replaced by (R_i - mean) / std, so lambda is per standard deviation. If all rewards agree, all weights
    are equal.

    Args:
        env_rewards: [N] rewards R_i in [0, 1], one per generation. Dimensionless.
        rwr_lambda: the paper's lambda, >= 0. Dimensionless.
        standardise: whether to subtract the mean and divide by the (population) standard deviation first.

    Returns:
        [N] weights in [0, 1], in input order, summing to 1.

    Raises:
        ValueError: no rewards, a reward that is not finite, or a negative lambda.
    """
    if not env_rewards:
        raise ValueError("there are no rewards to weigh")
    if not all(map(math.isfinite, env_rewards)):
        raise ValueError(f"every reward must be finite, got {list(env_rewards)}")
    if not 0 <= rwr_lambda < math.inf:
        raise ValueError(f"rwr_lambda must be finite and >= 0, got {rwr_lambda}")
    rewards_N = np.asarray(env_rewards, dtype=np.float64)
    centred_N = rewards_N - rewards_N.max()  # the largest exponent is 0, so nothing overflows
    if standardise:
        spread = float(rewards_N.std())
        equal = spread <= 1e-12 * max(1.0, float(np.abs(rewards_N).max()))
        centred_N = np.zeros_like(rewards_N) if equal else centred_N / spread
    weights_N = np.exp(rwr_lambda * centred_N)
    return (weights_N / weights_N.sum()).tolist()


def weight_contrast(weights: Sequence[float]) -> float:
    """Return largest weight / smallest weight: 1 if all are equal, up to about 1e307 if one vanishes.

    Raises:
        ValueError: no weights.
    """
    if not weights:
        raise ValueError("there are no weights to compare")
    return max(weights) / max(min(weights), sys.float_info.min)  # finite: it is logged as JSON


def effective_samples(weights: Sequence[float]) -> float:
    """Return Kish's effective sample size, (sum w)^2 / sum w^2.

    It is N if all weights agree, 1 if one weight has the whole sum, and 0 without weights.
    """
    squares = math.fsum(weight**2 for weight in weights)
    return math.fsum(weights) ** 2 / squares if squares > 0 else 0.0


def curriculum_metrics(
    batches: Sequence[TaskBatch], selection: Selection, config: CurriculumConfig
) -> dict[str, float]:
    """Return the metrics of a round's generations. A mean over nothing is left out.

    p_hat is measured at both scopes, whichever is in use. A round without generations has no such metric:
    nobody writes tasks.
    """
    proposals = [proposal for batch in batches for proposal in batch.proposals]
    if not proposals:
        return {}
    tasks = accepted(proposals)
    reasons = Counter(p.outcome.reason for p in proposals if isinstance(p.outcome, Rejection))
    by_batch = [unit for batch in batches if (unit := whole(batch)).attempts]
    by_task = [unit for batch in batches for unit in tasks_of(batch, config) if unit.attempts]
    counted = config.model_copy(update={"posterior": False})
    return {
        "tasks/checked": float(len(proposals)),
        **_mean_of("simulator/valid_rate", (isinstance(p.outcome, Task) for p in proposals)),
        **{f"simulator/rejected/{reason}": float(reasons[reason]) for reason in RejectReason},
        **_mean_of("simulator/in_band_rate", in_band_flags(by_batch, config)),
        **_mean_of("simulator/in_band_rate_task", in_band_flags(by_task, config)),
        **_mean_of("simulator/env_reward", (b.env_reward for b in batches if not _passed_over(b))),
        **_mean_of(
            "simulator/novelty",
            (p.novelty for p in proposals if isinstance(p.outcome, Task) and p.novelty is not None),
        ),
        "simulator/selected": float(len(selection.samples)),
        "simulator/dropped": float(selection.dropped),
        "simulator/weight_contrast": selection.weight_contrast,
        "simulator/effective_samples": selection.effective_samples,
        **_mean_of("curriculum/p_hat_mean", (unit.successes / unit.attempts for unit in by_batch)),
        "curriculum/p_hat_batches": float(len(by_batch)),
        **_mean_of("curriculum/p_hat_task_agree", (unit.successes in (0, unit.attempts) for unit in by_task)),
        **_mean_of("curriculum/regret", (r for one in by_task if (r := one.regret(counted)) is not None)),
        **_spread("curriculum/p_hat_spread", [unit.successes / unit.attempts for unit in by_batch]),
        **_spread("curriculum/p_hat_task_spread", [unit.successes / unit.attempts for unit in by_task]),
        **_skill_shares(tasks),
    }


def _passed_over(batch: TaskBatch) -> bool:
    """Return whether a batch has tasks, but none of them was rolled out."""
    return not batch.groups and any(isinstance(p.outcome, Task) for p in batch.proposals)


def in_band_flags(units: Sequence[Unit], config: CurriculumConfig) -> list[bool]:
    """Return whether p_hat is in the band, for each unit with enough rollouts to fall on either side."""
    alpha, k_min = config.alpha, config.k_min
    telling = [unit for unit in units if band_divides(unit.attempts, alpha, k_min)]
    return [in_band(unit.successes / unit.attempts, alpha, k_min) for unit in telling]


def _mean_of(name: str, values: Iterable[float]) -> Mapping[str, float]:
    collected = [float(value) for value in values]
    return {name: fmean(collected)} if collected else {}


def _spread(name: str, values: Sequence[float]) -> Mapping[str, float]:
    if not values:
        return {}
    mean = fmean(values)
    return {name: math.sqrt(fmean((value - mean) ** 2 for value in values))}


def _skill_shares(tasks: Sequence[Task]) -> Mapping[str, float]:
    """Return the share of new tasks that need each skill. A share near 1 indicates a loss of diversity."""
    if not tasks:
        return {}
    counts = Counter(skill for task in tasks for skill in set(task.skills))
    shares = {f"tasks/share/{skill}": count / len(tasks) for skill, count in sorted(counts.items())}
    return {**shares, **({"curriculum/skill_share_max": max(shares.values())} if shares else {})}
