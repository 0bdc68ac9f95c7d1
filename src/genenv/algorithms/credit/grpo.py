"""Group-relative policy optimisation: attempts at one task are compared with each other.

    A_i = r_i - mean(r)            "centred"     (Dr. GRPO, arXiv:2503.20783)
    A_i = (r_i - mean(r)) / std(r) "normalised"  (GRPO, arXiv:2402.03300)

Every sampled token of attempt i has advantage A_i, under the loss `ppo`. The weights say whether all tokens
of an update count alike ("token"), or all attempts ("sequence").

Shapes: G = attempts of a task.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Literal

from genenv.algorithms.credit.imitation import choices_of, imitate, steps_of
from genenv.algorithms.credit.readings import readings
from genenv.algorithms.datum import Datum, Lesson, Objective
from genenv.algorithms.settings import GrpoConfig
from genenv.types import Group, Trace


def grpo_credit(
    groups: Sequence[Group],
    solutions: Mapping[str, Trace],
    config: GrpoConfig,
    *,
    temperature: float,
) -> Lesson:
    """What attempts teach, and beside them a known solution of their task (DAPG, arXiv:1709.10087).

    Args:
        groups: attempts; those that broke off for no fault of the agent's do not count.
        solutions: of some tasks, by id; of tasks that were not attempted too. They teach what no attempt has
            found.
        config: how rewards are compared, and what counts alike.
        temperature: of the sampling.

    Returns:
        The data of each task that has something to teach.
    """
    left = dict(solutions)
    units: list[list[Datum]] = []
    for group in groups:
        advantages = _advantages(group, config)
        unit: list[Datum] = []
        if any(advantages) or (advantages and not config.skip_zero_advantage):
            pairs = zip(group.valid, advantages, strict=True)
            unit = [
                datum
                for trace, value in pairs
                for datum in _attempt(trace, value, config.loss_average, temperature)
            ]
        if (solution := left.pop(group.task.id, None)) is not None:
            unit += imitate(solution)
        units += [unit] if unit else []
    units += [imitate(solution) for solution in left.values()]
    return Lesson(
        units=units,
        objective=Objective(
            clip_low=config.clip_low,
            clip_high=config.clip_high,
            kl_coefficient=config.kl_coefficient,
            kl="k3",
            entropy_coefficient=config.entropy_coefficient,
        ),
        steps=steps_of(len(units), config),
        epochs=config.epochs,
        coefficients={"ppo": 1.0, "nll": config.guidance_coefficient},
        importance_cap=config.importance_cap or None,
    )


def group_advantages(rewards_G: Sequence[float], *, normalise: bool) -> list[float]:
    """Rewards minus their group mean, over their deviation when normalised; all zero when the group agrees.

    The standard deviation is the sample's (G - 1), with 1e-4 added, as TRL and the GRPO paper's code have it.
    """
    mean = math.fsum(rewards_G) / len(rewards_G)
    centred = [reward - mean for reward in rewards_G]
    if max(map(abs, centred)) < 1e-9:
        return [0.0] * len(rewards_G)
    if not normalise:
        return centred
    spread = math.sqrt(math.fsum(c * c for c in centred) / (len(centred) - 1))
    return [c / (spread + 1e-4) for c in centred]


def zero_advantage_rate(groups: Sequence[Group], config: GrpoConfig) -> float:
    """Share of the groups with something to compare whose rewards all agree; 0 where there is none."""
    compared = [row for group in groups if (row := _advantages(group, config))]
    return sum(not any(row) for row in compared) / len(compared) if compared else 0.0


def _advantages(group: Group, config: GrpoConfig) -> list[float]:
    """One for each valid attempt; none where there is nothing to compare."""
    of = config.advantage_of
    rewards = [float(trace.success) if of == "success" else trace.reward for trace in group.valid]
    return group_advantages(rewards, normalise=config.advantage == "normalised") if len(rewards) > 1 else []


def _attempt(
    trace: Trace, advantage: float, average: Literal["token", "sequence"], temperature: float
) -> list[Datum]:
    share = 1.0 if average == "token" else 1.0 / max(1, trace.response_tokens)
    return [
        Datum(
            prompt_ids=one.token_ids[: one.prompt_tokens],
            completion_ids=one.token_ids[one.prompt_tokens :],
            weights=tuple(share if flag else 0.0 for flag in one.sampled[one.prompt_tokens :]),
            advantages=(advantage,) * (len(one.token_ids) - one.prompt_tokens),
            old_logprobs=one.logprobs[one.prompt_tokens :],
            loss="ppo",
            temperature=temperature,
            choices=choices_of(one),
            version=one.version,
        )
        for one in readings(trace)
    ]
