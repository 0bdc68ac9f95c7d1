"""The travel environment: the simulator writes a request, a solver finds the cheapest plan, the agent plans.

Its modules: `spec` and `seeds` (requests, base data, grammar), `build` (spec to task), `check` (verdicts and
the audit), `solver` (the oracle) and `constraints` (the benchmark's checker). The idea, the form of the
database and the 13 constraints are TravelPlanner's (arXiv:2402.01622).
"""

from __future__ import annotations

import functools
import random
from collections.abc import Sequence
from typing import ClassVar, Literal, cast, get_args

from pydantic import BaseModel, Field

from genenv.environments.base import Ask, Options, OutOfTurns
from genenv.environments.common import OneQuestion, asked_for, seeds_of
from genenv.environments.travel.build import NAME, build, skills_of
from genenv.environments.travel.check import audit, check, random_replies
from genenv.environments.travel.database import Database, load_database
from genenv.environments.travel.prompts import CHARS_PER_TOKEN, answer, simulator_messages
from genenv.environments.travel.query import is_final
from genenv.environments.travel.sandbox import sandbox
from genenv.environments.travel.seeds import (
    Atlas,
    Choices,
    able,
    held_out_specs,
    requested,
    spec_schema,
    training_specs,
    variation,
)
from genenv.environments.travel.spec import Slack, TravelConfig, TravelSpec
from genenv.types import (
    JsonObject,
    Lineage,
    Message,
    Origin,
    Profile,
    Rejection,
    RejectReason,
    Seed,
    Task,
    Verdict,
)

_LENGTHS = (3, 5, 7)
_MOST_PEOPLE = 8
_DRAWS = 20


class TravelParameters(BaseModel, frozen=True, extra="forbid"):
    """The parameters of a travel request; a subset of the fields of `TravelSpec`."""

    days: Literal[3, 5, 7]
    limits: Literal[0, 1, 2, 3, 4]
    slack: Slack
    people: int = Field(ge=1, le=_MOST_PEOPLE)


class Travel:
    """The travel environment; implements `Environment` and `HasParameters`."""

    name: ClassVar[str] = NAME
    spec: ClassVar[type[BaseModel]] = TravelSpec
    config: ClassVar[type[BaseModel]] = TravelConfig
    parameters: ClassVar[type[BaseModel]] = TravelParameters

    def __init__(self, settings: TravelConfig | None = None) -> None:
        self.settings = settings or TravelConfig()

    @functools.cached_property
    def atlas(self) -> Atlas:
        """The database with its possible trips, loaded or generated on first use.

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
        """Return the base data: 360 seeds in a fixed order."""
        return seeds_of(self, training_specs(self.atlas, self.settings.longest), skills_of)

    def held_out(self) -> Sequence[Task]:
        """Return the tasks for evaluation only: 120, or those that can be solved with the user's tables.

        Seeds and variations have neither their destinations nor their phrasings.
        """
        specs = held_out_specs(self.atlas, self.settings.longest)
        lineage = Lineage(origin=Origin.HELD_OUT)
        built = (
            self.build(spec, task_id=name, lineage=lineage, rng=random.Random(name)) for name, spec in specs
        )
        return [task for task in built if isinstance(task, Task)]

    def choices(self, seed: Seed) -> Choices:
        """Return the values that variations of a seed may have."""
        return self.atlas.choices(seed.id, TravelSpec.model_validate(seed.spec))

    def spec_schema(self, seed: Seed) -> JsonObject:
        """Return the schema for variations of a seed."""
        return spec_schema(seed, self.choices(seed), self.settings.longest)

    def simulator_messages(self, seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
        """Return the prompt that asks the simulator for a variation of a seed."""
        return simulator_messages(seed, self.choices(seed), profile, target)

    def variation(self, seed: Seed, rng: random.Random) -> JsonObject:
        """Return a spec with other places and dates among the seed's choices."""
        return variation(seed, self.choices(seed), self.settings.longest, rng)

    def build(
        self, spec: BaseModel, *, task_id: str, lineage: Lineage, rng: random.Random
    ) -> Task | Rejection:
        """Solve a spec; the cheapest plan is the ground truth."""
        return build(
            cast(TravelSpec, spec), self.atlas, self.settings, task_id=task_id, lineage=lineage, rng=rng
        )

    def audit(self, task: Task, rng: random.Random) -> Rejection | None:
        """Check that the query states exactly the spec and that two independent checkers agree."""
        return audit(task, rng, self.atlas)

    def check(self, task: Task, replies: Sequence[str]) -> Verdict:
        """Grade the plan by the 13 constraints."""
        return check(task, replies, self.database, self.settings)

    def random_replies(self, task: Task, rng: random.Random) -> tuple[str, ...]:
        """Return a plan of random entries from the right cities."""
        return random_replies(task, rng, self.database)

    # by parameters

    def parameter_options(self, seed: Seed) -> Options:
        """Return all parameters that suit a seed, which gives the possible origins and destinations."""
        short = TravelSpec.model_validate(seed.spec).days == _LENGTHS[0]
        days = [n for n in _LENGTHS if (n == _LENGTHS[0]) is short and n <= self.settings.longest]
        limits = range(len(able(self.choices(seed))) + 1)
        people = range(1, _MOST_PEOPLE + 1)
        return [
            {"days": days, "limits": list(limits), "slack": list(get_args(Slack)), "people": list(people)}
        ]

    def parameter_messages(self, seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
        """Return the instruction and the agent's success rates."""
        system = (
            "Set up a travel request, as JSON: days, limits (how many wishes it names), slack of the budget "
            f"(tight, fair, loose), people. A planner should solve {target:.0%}. "
            f"{'A trip to one city' if seed.spec['days'] == _LENGTHS[0] else 'A trip through a state'}."
        )
        return asked_for(system, profile, seed.skills, thing="request")

    def drawn(self, parameters: BaseModel, seed: Seed, rng: random.Random) -> BaseModel | Rejection:
        """Return a spec with these parameters; trip and wording are drawn at random like the base data."""
        wanted, choices = cast(TravelParameters, parameters), self.choices(seed)
        for _ in range(_DRAWS):  # some draws have fewer limits, because not all limits are compatible
            spec = requested(choices, rng, **wanted.model_dump())
            if spec.limits == wanted.limits:
                return spec
        sentence = f"No {wanted.limits} limits go together there."
        return Rejection(RejectReason.INCONSISTENT, sentence)

    def episode(self, task: Task) -> OneQuestion | TravelEpisode:
        """Return a new episode of a task."""
        return OneQuestion(task) if self.settings.mode == "sole" else TravelEpisode(task, self)

    def steps(self, task: Task) -> int:
        """Return the number of days."""
        return int(str(task.spec["days"]))

    def surface(self, task: Task) -> str:
        """Return the query, its places and its wishes, for comparisons of novelty."""
        spec = TravelSpec.model_validate(task.spec)
        wishes = [spec.room_rule, spec.room_type, *spec.cuisines, spec.transport]
        asked = " ".join(wish.replace(" ", "_") for wish in wishes if wish)
        return f"{spec.query}\n{spec.origin}_{spec.destination} march_{spec.start} {spec.slack} {asked}"


class TravelEpisode:
    """One rollout with tools: calls and results alternate until the agent gives a plan."""

    def __init__(self, task: Task, env: Travel) -> None:
        self._task, self._env = task, env
        self.max_turns = env.settings.max_turns

    async def run(self, ask: Ask) -> None:
        """Converse until the agent gives its plan or has used its turns."""
        messages: Sequence[Message] = self._task.messages
        chars = self._env.settings.result_tokens * CHARS_PER_TOKEN
        for _ in range(self.max_turns):
            reply = await ask(messages)
            if is_final(reply):
                return
            messages = [Message(role="tool", content=answer(reply, self._env.database, chars=chars))]
        raise OutOfTurns
