"""The project's own nouns for tasks that nobody reads: what the curriculum's code is given in the laboratory.

They are frozen, so they are made once and shared: all successes are one trace, and so are all failures.
"""

from __future__ import annotations

from functools import lru_cache
from typing import cast

import numpy as np

from genenv.research.simulation.learner import Floats
from genenv.types import (
    Context,
    Generation,
    Group,
    Lineage,
    Origin,
    Profile,
    Proposal,
    Seed,
    StopReason,
    Task,
    Trace,
)

_ENVIRONMENT = "lab"


def _trace(*, success: bool) -> Trace:
    return Trace(
        id="lab",
        task_id="lab",
        token_ids=(),
        sampled=(),
        logprobs=(),
        prompt_tokens=0,
        messages=(),
        reward=float(success),
        success=success,
        explanation="",
        stop_reason=StopReason.DONE,
        readable=True,
    )


_SUCCESS, _FAILURE = _trace(success=True), _trace(success=False)


@lru_cache(maxsize=4096)
def tag(skill: int, level: int) -> str:
    """The name that the agent's profile counts a task under."""
    return f"skill {skill} level {level}"


@lru_cache(maxsize=4096)
def seed(skill: int, level: int) -> Seed:
    """The one seed of a skill and a level."""
    spec = {"skill": skill, "level": level}
    return Seed(id=f"seed-{skill}-{level}", environment=_ENVIRONMENT, spec=spec, skills=(tag(skill, level),))


def place(of: Seed | Task) -> tuple[int, int]:
    """Skill and level of a seed or a task."""
    return cast(int, of.spec["skill"]), cast(int, of.spec["level"])


@lru_cache(maxsize=65536)
def context(round_: int, index: int, skill: int, level: int) -> Context:
    """What the simulator is told about a seed."""
    return Context(id=f"r{round_:04}-c{index:02}", round=round_, seed=seed(skill, level), messages=())


@lru_cache(maxsize=4096)
def base_task(skill: int, level: int) -> Task:
    """The task of a seed itself."""
    name = seed(skill, level).id
    return _task(f"base-{name}", skill, level, Lineage(origin=Origin.SEED, seed_id=name))


@lru_cache(maxsize=65536)
def proposal(context_id: str, variation: int, skill: int, level: int) -> Proposal:
    """What a simulator wrote, accepted by the gate; no two of a run have one id."""
    name = f"{context_id}-g{variation}"
    lineage = Lineage(origin=Origin.GENERATED, context_id=context_id, generation_id=name)
    generation = Generation(
        id=name,
        context_id=context_id,
        prompt_ids=(),
        token_ids=(level,),
        logprobs=(0.0,),
        text=str(level),
        finished=True,
    )
    return Proposal(generation=generation, outcome=_task(f"task-{name}", skill, level, lineage))


def _task(name: str, skill: int, level: int, lineage: Lineage) -> Task:
    return Task(
        id=name,
        environment=_ENVIRONMENT,
        skills=(tag(skill, level),),
        messages=(),
        spec={"skill": skill, "level": level},
        payload={},
        oracle=(),
        lineage=lineage,
    )


@lru_cache(maxsize=4096)
def traces(successes: int, attempts: int) -> tuple[Trace, ...]:
    """So many attempts, so many of them right."""
    return (_SUCCESS,) * successes + (_FAILURE,) * (attempts - successes)


def group(task: Task, successes: int, attempts: int) -> Group:
    """The attempts at a task."""
    return Group(task=task, traces=traces(successes, attempts))


def solved_levels(profile: Profile, skills: int, levels: int) -> Floats:
    """[S] how many levels of each skill the agent solves, as far as its profile tells.

    The area under its curve of success over difficulty: between levels that were tried the curve is
    interpolated, beyond them it goes on as it ends. Without any attempt at a skill it is half of them.
    """
    areas, known = np.full(skills, levels / 2), profile.success
    for skill in range(skills):
        tried = [level for level in range(levels) if tag(skill, level) in known]
        if tried:
            rates = [known[tag(skill, level)] for level in tried]
            areas[skill] = np.interp(np.arange(levels), tried, rates).sum()
    return areas
