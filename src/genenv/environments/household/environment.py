"""The household environment: text games in the style of ALFWorld, from specs that a simulator writes.

Its modules: `spec` (the spec and its grammar), `seeds` (base data), `layout` (spec to room), `build` (spec to
task), `planning` (shortest plans), `engine` (the game, which also plays ALFWorld's recorded games) and
`check` (episodes, verdicts and the audit).
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from typing import ClassVar, cast

from pydantic import BaseModel

from genenv.environments.base import Episode, Options
from genenv.environments.common import asked_for, held_out_tasks, request, seeds_of
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
from genenv.environments.household.spec import (
    SIZES,
    HouseholdConfig,
    HouseholdSpec,
    Size,
    TaskName,
    lines,
    spec_schema,
)
from genenv.types import JsonObject, Lineage, Message, Profile, Rejection, RejectReason, Seed, Task, Verdict


class HouseholdParameters(BaseModel, frozen=True, extra="forbid"):
    """The parameters of a household task; a subset of the fields of `HouseholdSpec`."""

    task: TaskName
    size: Size
    hidden: bool
    target: str


class Household:
    """The household environment; implements `Environment` and `HasParameters`."""

    name: ClassVar[str] = NAME
    spec: ClassVar[type[BaseModel]] = HouseholdSpec
    config: ClassVar[type[BaseModel]] = HouseholdConfig
    parameters: ClassVar[type[BaseModel]] = HouseholdParameters

    def __init__(self, settings: HouseholdConfig | None = None) -> None:
        self.settings = settings or HouseholdConfig()

    def seeds(self) -> Sequence[Seed]:
        """Return the base data: 320 seeds in a fixed order."""
        return seeds_of(self, training_specs(), skills_of)

    def held_out(self) -> Sequence[Task]:
        """Return 500 tasks for evaluation; no seed has their phrasings or their pairs of object and goal."""
        return list(_held_out(self.settings))

    def spec_schema(self, seed: Seed) -> JsonObject:
        """Return the JSON schema for variations of a seed, limited to the objects named in its prompt."""
        return spec_schema(offered_for(seed))

    def simulator_messages(self, seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
        """Return the prompt that asks the simulator for a variation of a seed."""
        offered = offered_for(seed)
        system = (
            "Write a household game as JSON: difficulty, the object, where it starts, where it must go, the "
            f"other places with what is in them, and the wording. The player should solve {target:.0%}.\n"
            f"Room: {offered.room}. Places: {', '.join(offered.places)}.\n"
            f"Objects to ask for: {', '.join(offered.targets)}. Others: {', '.join(offered.distractors)}."
        )
        return request(system, seed.spec, profile, seed.skills, thing="game")

    def variation(self, seed: Seed, rng: random.Random) -> JsonObject:
        """Return a new spec in the seed's kind of room."""
        return variation(seed, rng)

    def build(
        self, spec: BaseModel, *, task_id: str, lineage: Lineage, rng: random.Random
    ) -> Task | Rejection:
        """Furnish the room and find the shortest plan, which is the ground truth."""
        return build(cast(HouseholdSpec, spec), self.settings, task_id=task_id, lineage=lineage, rng=rng)

    def audit(self, task: Task, rng: random.Random) -> Rejection | None:
        """Check that the wording states the task and that two independent checkers agree."""
        return audit(task, rng, self.settings)

    def check(self, task: Task, replies: Sequence[str]) -> Verdict:
        """Replay the commands and return whether they reach the goal."""
        return check(task, replies, self.settings)

    def random_replies(self, task: Task, rng: random.Random) -> tuple[str, ...]:
        """Return well-formed commands drawn at random."""
        return random_replies(task, rng, self.settings)

    # by parameters

    def parameter_options(self, seed: Seed) -> Options:
        """Return all parameters that suit a seed: for each of four objects, every task that is possible.

        The seed gives the kind of room and the objects. A combination without a possible start is left out.
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
        """Return the instruction, the room and its objects, and the agent's success rates."""
        offered = offered_for(seed)
        objects = ", ".join(offered.targets)
        system = (
            "Set up a household game, as JSON: task (pick, look, clean, heat, cool, two), size (small, "
            "medium, large), hidden (does the object start in a closed place), target (the object). "
            f"The player should solve {target:.0%}. Room: {offered.room}. Objects: {objects}."
        )
        return asked_for(system, profile, seed.skills, thing="game")

    def drawn(self, parameters: BaseModel, seed: Seed, rng: random.Random) -> BaseModel | Rejection:
        """Return a spec with these parameters, furnished and worded at random like the base data."""
        wanted = cast(HouseholdParameters, parameters)
        plan = Plan(offered=offered_for(seed), **wanted.model_dump())
        if wanted.target not in plan.offered.targets or not ways(plan):
            sentence = f"There is no such task with a {wanted.target} in the {plan.offered.room}."
            return Rejection(RejectReason.INCONSISTENT, sentence)
        return draft(plan, rng)

    def episode(self, task: Task) -> Episode:
        """Return a new episode of a task."""
        single = task.payload["mode"] == "single"
        return one_step(task, self.settings) if single else HouseholdEpisode(task, self.settings)

    @property
    def main_held_out(self) -> int:
        """The number of held-out tasks, from the first, that an evaluation uses by default."""
        return N_MAIN

    def steps(self, task: Task) -> int:
        """Return the number of commands in the shortest plan, even if the task requires only one of them."""
        return int(str(task.payload["steps"]))

    def surface(self, task: Task) -> str:
        """Return the wording and the room, for comparisons of novelty."""
        spec = HouseholdSpec.model_validate(task.spec)
        return "\n".join([spec.wording, f"{spec.task} {spec.target}", *lines(spec)])


@functools.lru_cache(maxsize=4)
def _held_out(settings: HouseholdConfig) -> tuple[Task, ...]:
    """Build the held-out tasks once per process and settings."""
    return tuple(held_out_tasks(Household(settings), held_out_specs()))
