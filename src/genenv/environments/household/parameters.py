"""Household tasks by their parameters: what must happen, to what, in how large a room, hidden or not.

The seed gives the kind of room and four objects. Where things stand, and the words, are drawn as those of the
base data are (`seeds`).
"""

from __future__ import annotations

import random

from pydantic import BaseModel

from genenv.environments.household.seeds import Plan, draft, offered_for, ways
from genenv.environments.household.spec import SIZES, HouseholdSpec, Size, TaskName
from genenv.environments.parameters import Options, asked_for
from genenv.types import Message, Profile, Rejection, RejectReason, Seed


class HouseholdParameters(BaseModel, frozen=True, extra="forbid"):
    """What a household task is to be like. The fields are those of `HouseholdSpec`."""

    task: TaskName
    size: Size
    hidden: bool
    target: str


def options(seed: Seed) -> Options:
    """All parameters that go with a seed: what can be done with each object, where there are ways to it."""
    offered, sizes = offered_for(seed), list(SIZES)
    found: list[dict[str, list[str] | list[bool] | list[Size]]] = []
    for target in offered.targets:
        for task in offered.tasks(target):
            plans = [
                Plan(offered=offered, task=task, target=target, size="small", hidden=h) for h in (False, True)
            ]
            hidden = [plan.hidden for plan in plans if ways(plan)]
            if hidden:
                found.append({"task": [task], "size": sizes, "hidden": hidden, "target": [target]})
    return found


def drawn(parameters: HouseholdParameters, seed: Seed, rng: random.Random) -> HouseholdSpec | Rejection:
    """A room in which there is such a task."""
    plan = Plan(
        offered=offered_for(seed),
        task=parameters.task,
        target=parameters.target,
        size=parameters.size,
        hidden=parameters.hidden,
    )
    if parameters.target not in plan.offered.targets or not ways(plan):
        sentence = f"There is no such task with a {parameters.target} in the {plan.offered.room}."
        return Rejection(RejectReason.INCONSISTENT, sentence)
    return draft(plan, rng)


def messages(seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
    """The job, the room and its objects, and how the player does. Arguments as of `Environment`."""
    offered = offered_for(seed)
    system = (
        "Set up a household game, as JSON: task (pick, look, clean, heat, cool, two), size (small, "
        "medium, large), hidden (does the object start in a closed place), target (the object). "
        f"The player should solve {target:.0%}. Room: {offered.room}. Objects: {', '.join(offered.targets)}."
    )
    return asked_for(system, profile, seed.skills, thing="game")
