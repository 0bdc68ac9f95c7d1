"""The simulator's update batches: reward-weighted regression, GRPO within contexts, hindsight relabelling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol, cast

from genenv.algorithms.advantages import group_advantages
from genenv.algorithms.datum import Datum, Objective, UpdateBatch
from genenv.algorithms.settings import SimulatorLearningConfig
from genenv.plugins import own_part
from genenv.types import Generation, JsonObject, Scored, SimulatorSample


class SimulatorCredit(Protocol):
    """What `simulator.algorithm` names: the update batch of the simulator from a round's tasks."""

    def __call__(
        self,
        samples: Sequence[SimulatorSample],
        schemas: Mapping[str, JsonObject],
        config: SimulatorLearningConfig,
        *,
        temperature: float,
        scored: Sequence[Scored] = (),
    ) -> UpdateBatch:
        """See `rwr_credit`."""
        ...


def simulator_credit(config: SimulatorLearningConfig) -> SimulatorCredit:
    """The function that `simulator.algorithm` names."""
    if config.algorithm in ALGORITHMS:
        return ALGORITHMS[config.algorithm]
    takes = ("samples", "schemas", "config", "*", "temperature", "scored")
    return cast(SimulatorCredit, own_part("simulator.algorithm", config.algorithm, takes=takes))


def rwr_credit(
    samples: Sequence[SimulatorSample],
    schemas: Mapping[str, JsonObject],
    config: SimulatorLearningConfig,
    *,
    temperature: float,
    scored: Sequence[Scored] = (),
) -> UpdateBatch:
    """Reward-weighted regression of the simulator's own tasks (GenEnv, arXiv:2512.19682, section 2.3).

        L = sum_i w_i sum_t -log pi(y_it) / sum_i w_i T_i

    pi is the policy that samples: at the temperature of the sampling, among the tokens that the grammar
    allows. Equal rewards then move it nowhere on average, as E[grad log pi(y)] = 0. Imitating samples at
    another temperature, or without the grammar, would narrow the policy whatever the rewards. At temperature
    1 and with equal weights it is the plain supervised loss.

    Args:
        samples: generations, and their weights w_i.
        schemas: of the specs that were written for a context, by its id; none: freely.
        config: how many steps, and how far they may go.
        temperature: of the sampling.
        scored: the whole round, which this algorithm does not look at: the curriculum has chosen from it.

    Returns:
        A datum for each generation that has a weight. The sum is shared out among the steps: one of light
        samples is a light step.
    """
    kept = [s for s in samples if s.weight > 0 and s.generation.token_ids]
    steps = max(1, -(-len(kept) // config.batch))
    total = math.fsum(s.weight * len(s.generation.token_ids) for s in kept) / steps
    data = [_datum(s.generation, schemas, temperature, weight=s.weight / total) for s in kept]
    return _supervised_batch(data, config)


def context_grpo_credit(
    samples: Sequence[SimulatorSample],
    schemas: Mapping[str, JsonObject],
    config: SimulatorLearningConfig,
    *,
    temperature: float,
    scored: Sequence[Scored] = (),
) -> UpdateBatch:
    """GRPO of the simulator: what was written for one context is compared with each other.

        A_i = r_i - mean(r), or that over std(r)     r_i in [0, 1]: reward of generation i, 0 if it is no task
        L_t = -min(rho_t A, clip(rho_t) A)           rho_t = pi(t) / pi_old(t), among what the grammar allows

    The mean over a context is the baseline, so that no generation is paid for the seed it was given. What was
    drawn at random (`simulator.explore`) is learned where it is better than the mean, and left out where it
    is worse: the simulator did not write it.

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
        advantages = group_advantages(rewards, config.advantage, setting="simulator.advantage")
        if any(advantages):
            pairs = zip(members, advantages, strict=True)
            taught = [(one, value) for one, value in pairs if value > 0 or not one.generation.drawn]
            units.append(
                [_datum(one.generation, schemas, temperature, advantage=value) for one, value in taught]
            )
    written = sum(len(unit) for unit in units)
    return UpdateBatch(
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


def hindsight_credit(
    samples: Sequence[SimulatorSample],
    schemas: Mapping[str, JsonObject],
    config: SimulatorLearningConfig,
    *,
    temperature: float,
    scored: Sequence[Scored] = (),
) -> UpdateBatch:
    """Hindsight relabelling: each spec is a right answer to the request for the success rate it came to.

        L = mean over tasks of -log pi(spec | seed, profile, rate achieved)

    Goal-conditioned imitation (Ghosh et al., arXiv:1912.06088; Andrychowicz et al., arXiv:1707.01495). No
    reward is needed: what is learned is which specs come to which rate. A spec that is no task has no rate,
    and is left out. Likelihoods are taken as in `rwr_credit`.

    Args:
        samples: what the curriculum has chosen and weighed, which this algorithm does not look at.
        schemas: of the specs that were written for a context, by its id; none: freely.
        config: how many steps, and how far they may go.
        temperature: of the sampling.
        scored: the round; those with a prompt of their own count.

    Returns:
        A datum for each, all of the same weight.
    """
    data = [
        replace(_datum(one.generation, schemas, temperature), prompt_ids=one.prompt_ids)
        for one in scored
        if one.prompt_ids is not None and one.generation.token_ids
    ]
    return _supervised_batch(data, config, coefficients={"nll": 1.0})


def _datum(
    written: Generation,
    schemas: Mapping[str, JsonObject],
    temperature: float,
    *,
    weight: float = 1.0,
    advantage: float | None = None,
) -> Datum:
    """A generation to imitate, or with an advantage to learn from by a policy gradient."""
    tokens = len(written.token_ids)
    return Datum(
        prompt_ids=written.prompt_ids,
        completion_ids=written.token_ids,
        weights=(weight,) * tokens,
        advantages=None if advantage is None else (advantage,) * tokens,
        loss="nll" if advantage is None else "ppo",
        temperature=temperature,
        schema=schemas.get(written.context_id),
    )


def _supervised_batch(
    data: Sequence[Datum],
    config: SimulatorLearningConfig,
    coefficients: Mapping[str, float] | None = None,
) -> UpdateBatch:
    return UpdateBatch(
        units=[[datum] for datum in data],
        objective=Objective(kl_coefficient=config.kl_coefficient, kl="exact"),
        steps=max(1, -(-len(data) // config.batch)),
        epochs=config.epochs,
        coefficients=coefficients,
        cap=config.kl_cap,
        cap_retries=config.kl_retries,
    )


ALGORITHMS: Mapping[str, SimulatorCredit] = {
    "rwr": rwr_credit,
    "grpo": context_grpo_credit,
    "hindsight": hindsight_credit,
}
"""What `simulator.algorithm` names."""
