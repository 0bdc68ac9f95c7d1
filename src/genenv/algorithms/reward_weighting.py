"""The simulator's update batches: reward-weighted regression, GRPO within contexts, hindsight relabelling."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Protocol, cast

from genenv.algorithms.advantages import group_advantages, own_credit
from genenv.algorithms.datum import Datum, Objective, UpdateBatch
from genenv.algorithms.settings import SimulatorLearningConfig
from genenv.types import Generation, JsonObject, Scored, SimulatorSample


class SimulatorCredit(Protocol):
    """A function that builds the simulator's update batch from a round's tasks.

    `simulator.algorithm` names it: one of `ALGORITHMS`, or a user-defined function.
    """

    def __call__(
        self,
        samples: Sequence[SimulatorSample],
        schemas: Mapping[str, JsonObject],
        config: SimulatorLearningConfig,
        *,
        temperature: float,
        scored: Sequence[Scored] = (),
    ) -> UpdateBatch:
        """Return the update batch. The arguments are those of `rwr_credit`."""
        ...


def simulator_credit(config: SimulatorLearningConfig) -> SimulatorCredit:
    """Return the function that `simulator.algorithm` names."""
    if config.algorithm in ALGORITHMS:
        return ALGORITHMS[config.algorithm]
    takes = ("samples", "schemas", "config", "*", "temperature", "scored")
    return cast(SimulatorCredit, own_credit("simulator.algorithm", config.algorithm, takes))


def rwr_credit(
    samples: Sequence[SimulatorSample],
    schemas: Mapping[str, JsonObject],
    config: SimulatorLearningConfig,
    *,
    temperature: float,
    scored: Sequence[Scored] = (),
) -> UpdateBatch:
    """Reward-weighted regression on tasks that the simulator wrote (GenEnv, arXiv:2512.19682, section 2.3).

        L = sum_i w_i sum_t -log pi(y_it) / sum_i w_i T_i

    pi is the sampling policy: at the sampling temperature, masked by the grammar. Then equal rewards of all
    that was sampled do not move the policy on average, as E[grad log pi(y)] = 0. What the gate or the filter
    drops is missing in that average, so the policy learns to avoid it whatever the rewards. Training on
    samples at another temperature, or without the grammar, would narrow the policy whatever the rewards. At
    temperature 1 and with equal weights, L is the plain supervised loss.

    Args:
        samples: generations with their weights w_i, selected by the curriculum.
        schemas: JSON schema of the specs, by context id; a missing schema means free text.
        config: number of steps, and the KL coefficient and cap.
        temperature: sampling temperature of the generations.
        scored: all generations of the round; unused by this algorithm.

    Returns:
        A batch with one datum per generation of positive weight. The denominator is divided by the number of
        steps and not recomputed per step, so a step with small weights is a small step.
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
    """GRPO for the simulator: compare the generations of one context with each other.

        A_i = r_i - mean(r), or that over std(r)     r_i in [0, 1]: reward of generation i, 0 if it is no task
        L_t = -min(rho_t A, clip(rho_t) A)           rho_t = pi(t) / pi_old(t), masked by the grammar

    The mean over the context is the baseline, so the difficulty of the seed earns nothing. A spec drawn at
    random (`simulator.explore`) is included only if its advantage is positive, because the simulator did not
    sample it.

    Args:
        samples: selected and weighted generations; unused by this algorithm.
        schemas: JSON schema of the specs, by context id; a missing schema means free text.
        config: advantage function, number of steps, clipping, and the KL coefficient and cap.
        temperature: sampling temperature of the generations.
        scored: all generations of the round, with their rewards.

    Returns:
        A batch with the generations of each context of two or more whose rewards differ.
    """
    contexts: dict[str, list[Scored]] = {}
    for one in scored:
        if one.generation.token_ids:
            contexts.setdefault(one.generation.context_id, []).append(one)
    units: list[list[Datum]] = []
    for members in contexts.values():
        if len(members) == 1:
            continue  # nothing to compare it with; an own advantage function is promised two
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
    """Hindsight relabelling: train on each spec as the right answer to a request for its success rate.

        L = mean over tokens of -log pi(spec | seed, profile, rate achieved)

    Goal-conditioned imitation (Ghosh et al., arXiv:1912.06088; Andrychowicz et al., arXiv:1707.01495). It
    needs no reward: the simulator learns which specs lead to which success rate. A spec that did not become a
    task has no rate and is left out. Likelihoods are computed as in `rwr_credit`.

    Args:
        samples: selected and weighted generations; unused by this algorithm.
        schemas: JSON schema of the specs, by context id; a missing schema means free text.
        config: number of steps, and the KL coefficient and cap.
        temperature: sampling temperature of the generations.
        scored: all generations of the round. Those with relabelled `prompt_ids` are used.

    Returns:
        A batch with one datum per relabelled generation, all with equal weight per token.
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
"""The built-in algorithms of `simulator.algorithm`, by name."""
