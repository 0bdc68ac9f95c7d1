"""Travel plans: the simulator writes a request, a solver finds the cheapest plan, the agent must find one.

This module joins the parts: `build` (spec to task), `check` (replies to verdict), `audit` (the gate's own
checks), `choices` and `grammar` (what can be written), `seeds` (the base data), `solver` (the oracle) and
`constraints` (the benchmark's checker). The idea, the database's form and the 13 constraints are
TravelPlanner's (arXiv:2402.01622).
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from typing import ClassVar, cast

from pydantic import BaseModel

from genenv.environments.base import Ask, OutOfTurns
from genenv.environments.common import OneQuestion, seeds_of
from genenv.environments.parameters import Options
from genenv.environments.travel import parameters as by_parameters
from genenv.environments.travel.audit import audit
from genenv.environments.travel.build import NAME, build, skills_of
from genenv.environments.travel.check import check
from genenv.environments.travel.choices import Atlas, Choices
from genenv.environments.travel.database import Database
from genenv.environments.travel.grammar import spec_schema
from genenv.environments.travel.prompting import simulator_messages
from genenv.environments.travel.random_plans import random_replies
from genenv.environments.travel.reference import CHARS_PER_TOKEN
from genenv.environments.travel.replies import is_final
from genenv.environments.travel.sandbox import sandbox
from genenv.environments.travel.seeds import held_out_specs, training_specs, variation
from genenv.environments.travel.settings import TravelConfig
from genenv.environments.travel.spec import TravelSpec
from genenv.environments.travel.tables import load_database
from genenv.environments.travel.tools import answer
from genenv.types import JsonObject, Lineage, Message, Origin, Profile, Rejection, Seed, Task, Verdict


class Travel:
    """The travel environment, with its settings."""

    name: ClassVar[str] = NAME
    spec: ClassVar[type[BaseModel]] = TravelSpec
    config: ClassVar[type[BaseModel]] = TravelConfig
    parameters: ClassVar[type[BaseModel]] = by_parameters.TravelParameters

    def __init__(self, settings: TravelConfig | None = None) -> None:
        self.settings = settings or TravelConfig()

    @functools.cached_property
    def atlas(self) -> Atlas:
        """The database, read or made when it is first needed.

        Raises:
            UsageError: the user's tables cannot be read; the sentence names file and line.
        """
        folder = self.settings.database
        return Atlas(load_database(folder) if folder else sandbox())

    @property
    def database(self) -> Database:
        """The tables."""
        return self.atlas.database

    def seeds(self) -> Sequence[Seed]:
        """The base data: 360 specs in a fixed order."""
        return seeds_of(self, training_specs(self.atlas, self.settings.longest), skills_of)

    def held_out(self) -> Sequence[Task]:
        """Tasks for measuring only: 120 in the sandbox, what can be solved of them in the user's tables.

        They share no destination and no phrasing with seeds and variations (`choices` says what that means).
        """
        specs = held_out_specs(self.atlas, self.settings.longest)
        lineage = Lineage(origin=Origin.HELD_OUT)
        built = (
            self.build(spec, task_id=name, lineage=lineage, rng=random.Random(name)) for name, spec in specs
        )
        return [task for task in built if isinstance(task, Task)]

    def choices(self, seed: Seed) -> Choices:
        """What the variations of a seed may choose from."""
        return self.atlas.choices(seed.id, TravelSpec.model_validate(seed.spec))

    def spec_schema(self, seed: Seed) -> JsonObject:
        """The schema for the variations of a seed."""
        return spec_schema(seed, self.choices(seed), self.settings.longest)

    def simulator_messages(self, seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
        """The conversation that asks the simulator for a variation of a seed."""
        return simulator_messages(seed, self.choices(seed), profile, target)

    def variation(self, seed: Seed, rng: random.Random) -> JsonObject:
        """Other places and dates of the seed's choices."""
        return variation(seed, self.choices(seed), self.settings.longest, rng)

    def build(
        self, spec: BaseModel, *, task_id: str, lineage: Lineage, rng: random.Random
    ) -> Task | Rejection:
        """Solve a spec: the cheapest plan is the ground truth."""
        return build(
            cast(TravelSpec, spec), self.atlas, self.settings, task_id=task_id, lineage=lineage, rng=rng
        )

    def audit(self, task: Task, rng: random.Random) -> Rejection | None:
        """The query says what the spec says and no more, and two checks agree."""
        return audit(task, rng, self.atlas)

    def check(self, task: Task, replies: Sequence[str]) -> Verdict:
        """Hold the plan to the 13 constraints."""
        return check(task, replies, self.database, self.settings)

    def random_replies(self, task: Task, rng: random.Random) -> tuple[str, ...]:
        """A plan of entries of the right cities, drawn blindly."""
        return random_replies(task, rng, self.database)

    # by parameters

    parameter_messages = staticmethod(by_parameters.messages)

    def parameter_options(self, seed: Seed) -> Options:
        """See `HasParameters`."""
        return by_parameters.options(seed, self.choices(seed), self.settings.longest)

    def drawn(self, parameters: BaseModel, seed: Seed, rng: random.Random) -> BaseModel | Rejection:
        """See `HasParameters`."""
        return by_parameters.drawn(cast(by_parameters.TravelParameters, parameters), self.choices(seed), rng)

    def episode(self, task: Task) -> OneQuestion | TravelEpisode:
        """A fresh attempt."""
        return OneQuestion(task) if self.settings.mode == "sole" else TravelEpisode(task, self)

    def steps(self, task: Task) -> int:
        """Days."""
        return int(str(task.spec["days"]))

    def surface(self, task: Task) -> str:
        """The text by which tasks are compared for novelty: the query, and what it asks for."""
        spec = TravelSpec.model_validate(task.spec)
        wishes = [spec.room_rule, spec.room_type, *spec.cuisines, spec.transport]
        asked = " ".join(wish.replace(" ", "_") for wish in wishes if wish)
        return f"{spec.query}\n{spec.origin}_{spec.destination} march_{spec.start} {spec.slack} {asked}"


class TravelEpisode:
    """One attempt with tools: calls and their results in turn, until there is a plan."""

    def __init__(self, task: Task, env: Travel) -> None:
        self._task, self._env = task, env
        self.max_turns = env.settings.max_turns

    async def run(self, ask: Ask) -> None:
        """Converse until the agent gives its plan, or until its turns are used up."""
        messages: Sequence[Message] = self._task.messages
        chars = self._env.settings.result_tokens * CHARS_PER_TOKEN
        for _ in range(self.max_turns):
            reply = await ask(messages)
            if is_final(reply):
                return
            messages = [Message(role="tool", content=answer(reply, self._env.database, chars=chars))]
        raise OutOfTurns
