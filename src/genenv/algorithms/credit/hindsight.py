"""The simulator in hindsight: what it wrote is a right answer to the request that asks for what came of it.

A context tells the simulator how the agent does and which success rate is wanted, one half say. A task that
the agent then solved at a rate of 0.9 was no good answer to that, but it is one to the same request with 90%
in the place of 50%. So every task whose rate is known is an example, whatever the rate:

    L = mean over tasks of -log pi(spec | seed, profile, rate achieved)

Goal-conditioned imitation with relabelled goals (Ghosh et al., arXiv:1912.06088; Andrychowicz et al.,
arXiv:1707.01495). No reward is needed, and none misleads: what is learned is which specs come to which rate.
A spec that is no task has no rate, and teaches nothing. Likelihoods are taken as in `rwr`, at the temperature
of the sampling and under the grammar: a policy that does not look at the rate stays as it is on average.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from genenv.algorithms.datum import Datum, Lesson, Objective
from genenv.algorithms.settings import SimulatorLearningConfig
from genenv.types import JsonObject, Scored, SimulatorSample


def hindsight_credit(
    samples: Sequence[SimulatorSample],
    schemas: Mapping[str, JsonObject],
    config: SimulatorLearningConfig,
    *,
    temperature: float,
    scored: Sequence[Scored] = (),
) -> Lesson:
    """What the tasks of a round teach.

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
        Datum(
            prompt_ids=one.asked,
            completion_ids=one.generation.token_ids,
            weights=(1.0,) * len(one.generation.token_ids),
            loss="nll",
            temperature=temperature,
            schema=schemas.get(one.generation.context_id),
        )
        for one in scored
        if one.asked is not None and one.generation.token_ids
    ]
    return Lesson(
        units=[[datum] for datum in data],
        objective=Objective(kl_coefficient=config.kl_coefficient, kl="exact"),
        steps=max(1, -(-len(data) // config.batch)),
        epochs=config.epochs,
        coefficients={"nll": 1.0},
        cap=config.kl_cap,
        cap_retries=config.kl_retries,
    )
