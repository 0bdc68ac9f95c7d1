"""The simulator by GRPO: what was written for one context is compared with each other.

    A_i = r_i - mean(r), or that over std(r):  r_i in [0, 1] what generation i has earned, 0 if it is no task
    L_t = -min(rho_t A, clip(rho_t) A),        rho_t = pi(t) / pi_old(t), among the tokens the grammar allows

The mean over a context is the baseline, so that no generation is paid for the seed it was given. A grammar
leaves most tokens of a spec no choice: these have probability 1 and no gradient. What was drawn at random
(`simulator.explore`) is learned where it is better than the mean, and teaches nothing where it is worse: it
was not the simulator that wrote it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from genenv.algorithms.credit.grpo import group_advantages
from genenv.algorithms.datum import Datum, Lesson, Objective
from genenv.algorithms.settings import SimulatorLearningConfig
from genenv.types import JsonObject, Scored, SimulatorSample


def context_grpo_credit(
    samples: Sequence[SimulatorSample],
    schemas: Mapping[str, JsonObject],
    config: SimulatorLearningConfig,
    *,
    temperature: float,
    scored: Sequence[Scored] = (),
) -> Lesson:
    """What the generations of a round teach, those that are no tasks included.

    Args:
        samples: what the curriculum has chosen and weighed, which this algorithm does not look at.
        schemas: of the specs that were written for a context, by its id; none: freely.
        config: how rewards are compared, how many steps, and how far they may go.
        temperature: of the sampling.
        scored: the round.

    Returns:
        The generations of each context whose rewards differ.
    """
    contexts: dict[str, list[Scored]] = {}
    for one in scored:
        if one.generation.token_ids:
            contexts.setdefault(one.generation.context_id, []).append(one)
    units: list[list[Datum]] = []
    for members in contexts.values():
        rewards = [one.reward for one in members]
        advantages = group_advantages(rewards, normalise=config.advantage == "normalised")
        if any(advantages):
            pairs = zip(members, advantages, strict=True)
            taught = [(one, value) for one, value in pairs if value > 0 or not one.generation.drawn]
            units.append([_datum(one, value, schemas, temperature) for one, value in taught])
    written = sum(len(unit) for unit in units)
    return Lesson(
        units=units,
        objective=Objective(
            clip_low=config.clip_low,
            clip_high=config.clip_high,
            kl_coefficient=config.kl_coefficient,
            kl="exact",
        ),
        steps=max(1, min(len(units), -(-written // config.batch))),
        epochs=config.epochs,
        coefficients={"ppo": 1.0},
        cap=config.kl_cap,
        cap_retries=config.kl_retries,
    )


def _datum(one: Scored, advantage: float, schemas: Mapping[str, JsonObject], temperature: float) -> Datum:
    tokens = len(one.generation.token_ids)
    return Datum(
        prompt_ids=one.generation.prompt_ids,
        completion_ids=one.generation.token_ids,
        weights=(1.0,) * tokens,
        advantages=(advantage,) * tokens,
        loss="ppo",
        temperature=temperature,
        schema=schemas.get(one.generation.context_id),
    )
