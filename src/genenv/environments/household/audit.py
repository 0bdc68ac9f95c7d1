"""The household's own gate: does the wording say what the task is, and do two checks agree?"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence

from genenv.environments.household.playing import check, check_by_facts, random_replies
from genenv.environments.household.settings import HouseholdConfig
from genenv.environments.household.spec import HouseholdSpec, goal_of
from genenv.environments.household.wording import problem_with
from genenv.types import Rejection, RejectReason, Task

_RANDOM_ATTEMPTS = 2


def audit(task: Task, rng: random.Random, settings: HouseholdConfig) -> Rejection | None:
    """None if all is well, else the first thing that is wrong."""
    spec = HouseholdSpec.model_validate(task.spec)
    if (problem := problem_with(spec.wording, spec.task, spec.target, goal_of(spec))) is not None:
        return Rejection(RejectReason(problem[0]), problem[1])
    for replies in _attempts(task, rng, settings):
        one, other = check(task, replies, settings).success, check_by_facts(task, replies, settings)
        if one != other:
            sentence = f"Of {list(replies)[:8]}, the game says {one} and the facts say {other}."
            return Rejection(RejectReason.CHECKS_DISAGREE, sentence)
    return None


def _attempts(task: Task, rng: random.Random, settings: HouseholdConfig) -> Iterator[Sequence[str]]:
    """The solution, the solution broken in every place, and uninformed attempts."""
    yield task.oracle
    for left_out in range(len(task.oracle)):
        yield (*task.oracle[:left_out], *task.oracle[left_out + 1 :])
    for _ in range(_RANDOM_ATTEMPTS):
        yield random_replies(task, rng, settings)
