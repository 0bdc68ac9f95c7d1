"""The household: text games of ALFWorld's kind, from specs that a simulator writes.

This module joins the parts: `spec` (what can be written), `seeds` (the base data), `layout` (spec to room),
`build` (spec to task), `planning` (the oracle), `engine` (the game and its commands, also for
ALFWorld's recorded games) and `check` (episodes, verdicts and the audit).
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from typing import ClassVar, cast

from pydantic import BaseModel

from genenv.environments.base import Episode, Options
from genenv.environments.common import held_out_tasks, request, seeds_of
from genenv.environments.household.build import NAME, build, skills_of
from genenv.environments.household.check import HouseholdEpisode, audit, check, one_step, random_replies
from genenv.environments.household.seeds import (
    N_MAIN,
    Plan,
    draft,
    held_out_specs,
    offered_for,
    training_specs,
    variation,
    ways,
)
from genenv.environments.household.settings import HouseholdConfig
from genenv.environments.household.spec import SIZES, HouseholdSpec, Size, TaskName, lines, spec_schema
from genenv.environments.simulator_prompts import asked_for
from genenv.types import JsonObject, Lineage, Message, Profile, Rejection, RejectReason, Seed, Task, Verdict


class HouseholdParameters(BaseModel, frozen=True, extra="forbid"):
    """What a household task is to be like. The fields are those of `HouseholdSpec`."""

    task: TaskName
    size: Size
    hidden: bool
    target: str


class Household:
    """The household environment, with its settings."""

    name: ClassVar[str] = NAME
    spec: ClassVar[type[BaseModel]] = HouseholdSpec
    config: ClassVar[type[BaseModel]] = HouseholdConfig
    parameters: ClassVar[type[BaseModel]] = HouseholdParameters

    def __init__(self, settings: HouseholdConfig | None = None) -> None:
        self.settings = settings or HouseholdConfig()

    def seeds(self) -> Sequence[Seed]:
        """The base data: 320 specs in a fixed order."""
        return seeds_of(self, training_specs(), skills_of)

    def held_out(self) -> Sequence[Task]:
        """500 tasks for measuring; seeds have neither their phrasings nor their pairs of object and goal."""
        return list(_held_out(self.settings))

    def spec_schema(self, seed: Seed) -> JsonObject:
        """The JSON schema under whose grammar the simulator varies a seed, with the objects in its prompt."""
        return spec_schema(offered_for(seed))

    def simulator_messages(self, seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
        """The conversation that asks the simulator for a variation of a seed."""
        offered = offered_for(seed)
        system = (
            "Write a household game as JSON: difficulty, the object, where it starts, where it must go, the "
            f"other places with what is in them, and the wording. The player should solve {target:.0%}.\n"
            f"Room: {offered.room}. Places: {', '.join(offered.places)}.\n"
            f"Objects to ask for: {', '.join(offered.targets)}. Others: {', '.join(offered.distractors)}."
        )
        return request(system, seed.spec, profile, seed.skills, thing="game")

    def variation(self, seed: Seed, rng: random.Random) -> JsonObject:
        """A new spec in the seed's kind of room."""
        return variation(seed, rng)

    def build(
        self, spec: BaseModel, *, task_id: str, lineage: Lineage, rng: random.Random
    ) -> Task | Rejection:
        """Furnish the room and plan: the shortest plan is the ground truth."""
        return build(cast(HouseholdSpec, spec), self.settings, task_id=task_id, lineage=lineage, rng=rng)

    def audit(self, task: Task, rng: random.Random) -> Rejection | None:
        """The wording says what the task is, and two checks agree."""
        return audit(task, rng, self.settings)

    def check(self, task: Task, replies: Sequence[str]) -> Verdict:
        """Replay the commands: is the goal reached?"""
        return check(task, replies, self.settings)

    def random_replies(self, task: Task, rng: random.Random) -> tuple[str, ...]:
        """Well-formed commands drawn at random."""
        return random_replies(task, rng, self.settings)

    # by parameters

    def parameter_options(self, seed: Seed) -> Options:
        """All parameters that go with a seed: what can be done with each object, where there are ways to it.

        The seed gives the kind of room and four objects.
        """
        offered, sizes = offered_for(seed), list(SIZES)
        found: list[dict[str, list[str] | list[bool] | list[Size]]] = []
        for target in offered.targets:
            for task in offered.tasks(target):
                plans = [
                    Plan(offered=offered, task=task, target=target, size="small", hidden=h)
                    for h in (False, True)
                ]
                hidden = [plan.hidden for plan in plans if ways(plan)]
                if hidden:
                    found.append({"task": [task], "size": sizes, "hidden": hidden, "target": [target]})
        return found

    def parameter_messages(self, seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
        """The job, the room and its objects, and how the agent does."""
        offered = offered_for(seed)
        objects = ", ".join(offered.targets)
        system = (
            "Set up a household game, as JSON: task (pick, look, clean, heat, cool, two), size (small, "
            "medium, large), hidden (does the object start in a closed place), target (the object). "
            f"The player should solve {target:.0%}. Room: {offered.room}. Objects: {objects}."
        )
        return asked_for(system, profile, seed.skills, thing="game")

    def drawn(self, parameters: BaseModel, seed: Seed, rng: random.Random) -> BaseModel | Rejection:
        """A room in which there is such a task, furnished and worded as the base data are."""
        wanted = cast(HouseholdParameters, parameters)
        plan = Plan(offered=offered_for(seed), **wanted.model_dump())
        if wanted.target not in plan.offered.targets or not ways(plan):
            sentence = f"There is no such task with a {wanted.target} in the {plan.offered.room}."
            return Rejection(RejectReason.INCONSISTENT, sentence)
        return draft(plan, rng)

    def episode(self, task: Task) -> Episode:
        """A fresh episode."""
        single = task.payload["mode"] == "single"
        return one_step(task, self.settings) if single else HouseholdEpisode(task, self.settings)

    @property
    def main_held_out(self) -> int:
        """The first 120 held-out tasks: what a measurement takes by default."""
        return N_MAIN

    def steps(self, task: Task) -> int:
        """Commands of the shortest plan, also where only one of them is asked for."""
        return int(str(task.payload["steps"]))

    def surface(self, task: Task) -> str:
        """The text by which tasks are compared for novelty: the wording and the room."""
        spec = HouseholdSpec.model_validate(task.spec)
        return "\n".join([spec.wording, f"{spec.task} {spec.target}", *lines(spec)])


@functools.lru_cache(maxsize=4)
def _held_out(settings: HouseholdConfig) -> tuple[Task, ...]:
    """Made once a process, which may open many runs."""
    return tuple(held_out_tasks(Household(settings), held_out_specs()))
