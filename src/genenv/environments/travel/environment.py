"""The travel environment: the simulator writes a request, a solver finds the cheapest plan, the agent plans.

Its modules: `spec` and `seeds` (requests, base data, grammar), `check` (verdicts and the audit), `solver`
(the oracle) and `constraints` (the benchmark's checker). This module builds tasks and holds episodes. The
idea, the form of the database and the 13 constraints are TravelPlanner's (arXiv:2402.01622).
"""

from __future__ import annotations

import functools
import json
import math
import random
from collections.abc import Mapping, Sequence
from typing import ClassVar, Literal, cast, get_args

from pydantic import BaseModel, Field, ValidationError

from genenv.environments.base import Ask, Options, OutOfTurns
from genenv.environments.common import OneQuestion, asked_for, once, seeds_of
from genenv.environments.travel.check import audit, check, random_replies
from genenv.environments.travel.check import query_of as asked_query
from genenv.environments.travel.constraints import total_cost
from genenv.environments.travel.database import Database, load_database
from genenv.environments.travel.prompts import (
    CHARS_PER_TOKEN,
    agent_system,
    answer,
    lookups,
    reference,
    simulator_messages,
)
from genenv.environments.travel.query import MISSING, Plan, Query, is_final, without_missing_day
from genenv.environments.travel.sandbox import CUISINES, DATES, sandbox
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
from genenv.environments.travel.solver import solve
from genenv.environments.travel.spec import (
    HOUSE_RULES,
    ROOM_TYPES,
    Slack,
    TravelConfig,
    TravelSpec,
    filled,
    wordings,
)
from genenv.environments.travel.trips import Trip, read_trip, written
from genenv.errors import first_problem
from genenv.types import (
    Json,
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

FACTORS: Mapping[Slack, float] = {"tight": 1.1, "fair": 1.4, "loose": 2.0}
"""Slack -> the budget as a multiple of the cost of the cheapest plan."""
_MOST: Mapping[Slack, float] = {"tight": 1.25, "fair": 1.7}
"""Slack -> the largest multiple that an explicit budget may have; larger ones are loose."""
NAME = "travel"
"""The environment's name."""
_ROUND_USD = 10


def query_of(spec: TravelSpec, budget: float = math.inf) -> Query:
    """Return the structured query of a spec."""
    return Query(
        origin=spec.origin,
        destination=spec.destination,
        days=spec.days,
        cities=spec.cities,
        dates=DATES[spec.start - 1 : spec.start - 1 + spec.days],
        people=spec.people,
        budget=budget,
        house_rule=HOUSE_RULES[spec.room_rule] if spec.room_rule else None,
        cuisines=spec.cuisines,
        room_type=ROOM_TYPES[spec.room_type] if spec.room_type else None,
        transport=spec.transport,
    )


def budget_for(cheapest: float, slack: Slack, *, fixed: float = 0.0) -> int:
    """Return the budget in USD: fixed + factor * (cheapest - fixed), rounded up to the next 10.

    Args:
        cheapest: cost of the cheapest plan.
        slack: selects the factor.
        fixed: the part of that cost which the agent cannot change.
    """
    return max(math.ceil((fixed + (cheapest - fixed) * FACTORS[slack]) / _ROUND_USD), 1) * _ROUND_USD


def skills_of(spec: TravelSpec) -> tuple[str, ...]:
    """Return the skills of a spec: days, slack and limits."""
    return (f"days:{spec.days}", spec.slack, *spec.given)


def _inconsistent(
    spec: TravelSpec, lineage: Lineage, atlas: Atlas, settings: TravelConfig
) -> Rejection | None:
    """Return a rejection if a spec is invalid before it is solved, else None."""
    data = atlas.database
    state = data.state_of(spec.destination)
    problem = None
    if spec.limits != len(spec.given):
        problem = f"limits is {spec.limits}, but {len(spec.given)} are given"
    elif spec.days > settings.longest:
        problem = f"trips have at most {settings.longest} days"
    elif spec.start + spec.days - 1 > len(DATES):
        problem = f"{spec.days} days from March {spec.start} do not end in March"
    elif data.state_of(spec.origin) is None:
        problem = f"there is no city {spec.origin[:40]!r}"
    elif spec.days == 3 and state is None:
        problem = f"there is no city {spec.destination[:40]!r}, and 3 days go to a city"
    elif spec.days > 3 and not data.cities_of(spec.destination):
        problem = f"there is no state {spec.destination[:40]!r}, and {spec.days} days go through a state"
    elif data.state_of(spec.origin) in (state, spec.destination):
        problem = f"{spec.origin} is in the state that the trip goes to"
    elif len(set(spec.cuisines)) < len(spec.cuisines) or not set(spec.cuisines) <= set(CUISINES):
        problem = f"cuisines are some of {', '.join(CUISINES)}, each once"
    if problem is not None:
        return Rejection(RejectReason.INCONSISTENT, f"{problem[0].upper()}{problem[1:]}.")
    for place in (spec.destination, spec.origin):
        if place in atlas.reserved and lineage.origin is not Origin.HELD_OUT:
            return Rejection(RejectReason.HELD_OUT, f"{place} is kept for held-out tasks.")
    return None


def _fixed_cost(query: Query, trip: Trip, missing: int | None, atlas: Atlas) -> float:
    """Return the cost in USD of the plan without its missing day; 0 for a whole plan."""
    if missing is None:
        return 0.0
    rest = without_missing_day(written(trip), missing, trip.days[missing].cities[0])
    return total_cost(query, rest, atlas.database)


def _wrong_budget(spec: TravelSpec, cheapest: float, fixed: float) -> Rejection | None:
    """Return a rejection if a given budget is too small for any plan or contradicts `slack`, else None."""
    if spec.budget is None:
        return None
    if spec.budget < cheapest:
        sentence = f"The cheapest plan costs ${cheapest:,.0f}, more than the budget of ${spec.budget:,}."
        return Rejection(RejectReason.EXECUTION, sentence)
    largest = {slack: fixed + (cheapest - fixed) * most for slack, most in _MOST.items()}
    fitting = next((slack for slack, most in largest.items() if spec.budget <= most), "loose")
    if fitting != spec.slack and spec.budget != budget_for(cheapest, spec.slack, fixed=fixed):
        sentence = (
            f"A budget of ${spec.budget:,} is {fitting}, not {spec.slack}: one can do with ${cheapest:,.0f}."
        )
        return Rejection(RejectReason.INCONSISTENT, sentence)
    return None


def _oracle(trip: Trip, query: Query, missing: int | None, settings: TravelConfig) -> tuple[str, ...]:
    """Return the demonstration: the calls in mode tools, then the plan or the missing day."""
    plan = written(trip)
    answer: Json = plan
    if missing is not None:
        answer = {field: _short(str(plan[missing][field])) for field in MISSING}
    final = json.dumps(answer, ensure_ascii=False, separators=(",", ":"))
    return (*lookups(trip, query), final) if settings.mode == "tools" else (final,)


def _short(entry: str) -> str:
    """Return `Name` from `Name, City;`."""
    return entry.rstrip(";").rsplit(", ", 1)[0]


def _messages(
    text: str, query: Query, trip: Trip, missing: int | None, atlas: Atlas, settings: TravelConfig
) -> tuple[Message, ...]:
    """Return the system message and the user message: information, query, and the plan so far."""
    data = atlas.database
    city = trip.days[missing].cities[0] if missing is not None else None
    parts: list[str] = []
    if settings.mode == "sole":
        tokens = settings.reference_tokens
        left_out = () if query.destination in atlas.reserved else atlas.reserved
        parts.append(reference(query, trip, data, tokens=tokens, city=city, left_out=left_out))
    elif query.days > 3:
        parts.append(f"Cities in {query.destination}: {', '.join(data.cities_of(query.destination))}.")
    parts.append(text)
    if missing is not None:
        parts.append(_rest_of_plan(query, trip, missing, atlas))
    system = Message(role="system", content=agent_system(query, settings))
    return system, Message(role="user", content="\n".join(parts))


def _rest_of_plan(query: Query, trip: Trip, missing: int, atlas: Atlas) -> str:
    """Return the plan without the missing day, and its cost."""
    city = trip.days[missing].cities[0]
    rest = without_missing_day(written(trip), missing, city)
    lines = [
        f"Day {day['days']}: " + "; ".join(str(day[field]) for field in _TOLD if day[field] != "-")
        for day in rest
    ]
    lines[missing] = f"Day {missing + 1}: {city}; missing"
    nights = sum(day.accommodation is not None and day.cities[-1] == city for day in trip.days)
    cost = _fixed_cost(query, trip, missing, atlas)
    wanted = f"Choose day {missing + 1}, and the room in {city} for {nights} night{'s' * (nights > 1)}."
    return "\n".join(["The plan so far:", *lines, f"It costs {cost:g}. {wanted}"])


_TOLD = ("current_city", "transportation", "breakfast", "lunch", "dinner", "accommodation")


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

    @once
    def seeds(self) -> Sequence[Seed]:
        """Return the base data: 360 seeds in a fixed order."""
        return seeds_of(self, training_specs(self.atlas, self.settings.longest), skills_of)

    @once
    def held_out(self) -> Sequence[Task]:
        """Return the tasks for evaluation only: 120, or those that can be solved with the user's tables.

        Seeds and variations have neither their destinations nor their phrasings.
        """
        specs = held_out_specs(self.atlas, self.settings.longest)
        lineage = Lineage(origin=Origin.HELD_OUT)
        built = (
            self.build(spec, task_id=name, lineage=lineage, rng=random.Random(name)) for name, spec in specs
        )
        return [task for task in built if isinstance(task, Task) and self._hidden(task) is None]

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
        """Solve a spec, with or without blanks or a budget; the cheapest plan is the ground truth.

        Only held-out tasks may go to a held-out destination.
        """
        spec, atlas, settings = cast(TravelSpec, spec), self.atlas, self.settings
        problem = _inconsistent(spec, lineage, atlas, settings)
        if problem is not None:
            return problem
        query = query_of(spec)
        solution = solve(query, atlas.database)
        if solution is None:
            return Rejection(
                RejectReason.EXECUTION, "No plan fits: no way to travel, no room, or no such meals."
            )
        missing = rng.choice([i for i, day in enumerate(solution.trip.days) if len(day.cities) == 1])
        missing = missing if settings.form == "day" else None
        fixed = _fixed_cost(query, solution.trip, missing, atlas)
        budget = spec.budget or budget_for(solution.cost, spec.slack, fixed=fixed)
        if (problem := _wrong_budget(spec, solution.cost, fixed)) is not None:
            return problem
        text = filled(spec.query, wordings(spec, budget))
        if text is None:
            return Rejection(
                RejectReason.INCONSISTENT, "The query has a blank for which the spec has no value."
            )
        try:
            spec = TravelSpec.model_validate({**spec.model_dump(), "query": text.strip()})
        except ValidationError as error:
            return Rejection(RejectReason.SCHEMA, f"The query, blanks filled in: {first_problem(error)}.")
        query = query_of(spec, budget)
        payload: dict[str, Json] = {
            "query": query.to_json(),
            "cheapest": solution.cost,
            "missing": missing,
            "plan": written(solution.trip),
        }
        return Task(
            id=task_id,
            environment=NAME,
            skills=skills_of(spec),
            messages=_messages(spec.query, query, solution.trip, missing, atlas, settings),
            spec=spec.model_dump(mode="json"),
            payload=payload,
            oracle=_oracle(solution.trip, query, missing, settings),
            lineage=lineage,
        )

    def audit(self, task: Task, rng: random.Random) -> Rejection | None:
        """Check that the query states exactly the spec and that two independent checkers agree."""
        return audit(task, rng, self.atlas) or self._hidden(task)

    def _hidden(self, task: Task) -> Rejection | None:
        """Reject a task whose known plan has an entry that the results of its calls cut off."""
        if self.settings.mode != "tools":
            return None
        query, chars = asked_query(task), self.settings.result_tokens * CHARS_PER_TOKEN
        trip = read_trip(query, cast("Plan", task.payload["plan"]), self.database)
        shown = "\n".join(answer(call, self.database, chars=chars) for call in lookups(trip, query))
        rooms = [day.accommodation for day in trip.days if day.accommodation is not None]
        sights = [row for day in trip.days for row in day.attractions]
        names = [row.name.strip() for row in (*trip.restaurants, *sights, *rooms)]
        names += [way.flight.number for _, way in trip.ways if way.flight is not None]
        hidden = next((name for name in names if name not in shown), None)
        if hidden is None:
            return None
        limit = f"environment.result_tokens is {self.settings.result_tokens}"
        sentence = f"No result shows {hidden[:60]!r} of the known plan; {limit}."
        return Rejection(RejectReason.UNSTATED, sentence)

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
