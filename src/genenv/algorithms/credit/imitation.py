"""Imitation: what known solutions teach, and what an agent's own successes teach.

The two supervised ways for an agent to learn, beside `grpo`: of the same attempts and the same solutions.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from genenv.algorithms.credit.readings import readings
from genenv.algorithms.datum import Datum, Lesson, Objective
from genenv.algorithms.settings import GrpoConfig
from genenv.types import Choices, Group, Trace


def imitate(solution: Trace) -> list[Datum]:
    """A known solution, played as a trace: the replies count, what the environment says does not.

    At temperature 1, whatever the sampling: imitated below it, the scores would flatten until what is sampled
    is as random as the model was at 1.
    """
    return [_imitated(one) for one in readings(solution)]


def _imitated(solution: Trace) -> Datum:
    start = solution.prompt_tokens
    return Datum(
        prompt_ids=solution.token_ids[:start],
        completion_ids=solution.token_ids[start:],
        weights=tuple(map(float, solution.sampled[start:])),
        loss="nll",
        choices=choices_of(solution),
    )


def choices_of(trace: Trace) -> tuple[Choices, ...]:
    """What a trace's replies were held to, by place in its completion: the policy that acts is that one."""
    return tuple(replace(one, start=one.start - trace.prompt_tokens) for one in trace.choices)


def imitation_credit(
    groups: Sequence[Group], solutions: Mapping[str, Trace], config: GrpoConfig, *, temperature: float
) -> Lesson:
    """`sft`: known solutions alone. Attempts are made, measured, and teach nothing.

    Args:
        groups: attempts.
        solutions: by the id of their task.
        config: how many steps.
        temperature: of the sampling; imitation is at 1.
    """
    return _lesson([imitate(solution) for solution in solutions.values()], config)


def rejection_credit(
    groups: Sequence[Group], solutions: Mapping[str, Trace], config: GrpoConfig, *, temperature: float
) -> Lesson:
    """`rft`: the agent's own successes, each different one of a task once, and known solutions if asked for.

    Rejection sampling fine-tuning (Yuan et al., arXiv:2308.01825; RAFT, arXiv:2304.06767).

    Args:
        groups: attempts; of those that succeed the first with its tokens counts.
        solutions: by the id of their task.
        config: how many steps.
        temperature: of the sampling; imitation is at 1.
    """
    own = [
        trace
        for group in groups
        for trace in {trace.token_ids: trace for trace in reversed(group.valid) if trace.success}.values()
    ]
    return _lesson([imitate(trace) for trace in [*own, *solutions.values()]], config)


def steps_of(units: int, config: GrpoConfig) -> int:
    """Optimizer steps of a pass over so many groups or solutions."""
    return -(-units // config.groups_per_step) if config.groups_per_step else config.updates_per_epoch


def _lesson(units: Sequence[Sequence[Datum]], config: GrpoConfig) -> Lesson:
    return Lesson(
        units=units,
        objective=Objective(kl_coefficient=config.kl_coefficient, kl="k3"),
        steps=steps_of(len(units), config),
        epochs=config.epochs,
        coefficients={"nll": 1.0},
    )
