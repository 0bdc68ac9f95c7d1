"""Reward-weighted regression: a simulator imitates its own tasks, by how well they matched the agent's level.

    L = sum_i w_i sum_t -log pi(y_it) / sum_i w_i T_i        (GenEnv, arXiv:2512.19682, section 2.3)

pi is what samples are drawn from: the policy at the temperature of the sampling, among the tokens that the
grammar allows. Equal rewards for all samples then move it nowhere on average: E[grad log pi(y)] = 0.
Imitating at 1 what was sampled below 1 would make the policy narrower with every update, whatever the
rewards; imitating without the grammar would make likelier what was written only because nothing else was
allowed, such as words that go on because the spec may not end yet. (The gate still selects: only tasks that
pass it have a weight.) With equal weights, and at temperature 1, it is the plain supervised loss.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from genenv.algorithms.datum import Datum, Lesson, Objective
from genenv.algorithms.settings import SimulatorLearningConfig
from genenv.types import JsonObject, Scored, SimulatorSample


def rwr_credit(
    samples: Sequence[SimulatorSample],
    schemas: Mapping[str, JsonObject],
    config: SimulatorLearningConfig,
    *,
    temperature: float,
    scored: Sequence[Scored] = (),
) -> Lesson:
    """What weighted generations teach.

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
    data = [
        Datum(
            prompt_ids=s.generation.prompt_ids,
            completion_ids=s.generation.token_ids,
            weights=(s.weight / total,) * len(s.generation.token_ids),
            loss="nll",
            temperature=temperature,
            schema=schemas.get(s.generation.context_id),
        )
        for s in kept
    ]
    return Lesson(
        units=[[datum] for datum in data],
        objective=Objective(kl_coefficient=config.kl_coefficient, kl="exact"),
        steps=steps,
        epochs=config.epochs,
        cap=config.kl_cap,
        cap_retries=config.kl_retries,
    )
