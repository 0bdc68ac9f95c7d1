"""Build a task from a travel spec: check it, solve it, set the budget, write the messages."""

from __future__ import annotations

import json
import math
import random
from collections.abc import Mapping

from pydantic import ValidationError

from genenv.environments.travel.constraints import total_cost
from genenv.environments.travel.prompts import agent_system, lookups, reference
from genenv.environments.travel.query import MISSING, Query, without_missing_day
from genenv.environments.travel.sandbox import CUISINES, DATES
from genenv.environments.travel.seeds import Atlas
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
from genenv.environments.travel.trips import Trip, written
from genenv.types import Json, Lineage, Message, Origin, Rejection, RejectReason, Task

FACTORS: Mapping[Slack, float] = {"tight": 1.1, "fair": 1.4, "loose": 2.0}
"""Slack -> the budget as a multiple of the cost of the cheapest plan."""
_MOST: Mapping[Slack, float] = {"tight": 1.25, "fair": 1.7}
"""Slack -> the largest multiple that an explicit budget may have; larger ones are loose."""
NAME = "travel"
"""The environment's name."""
_ROUND_USD = 10


def build(
    spec: TravelSpec,
    atlas: Atlas,
    settings: TravelConfig,
    *,
    task_id: str,
    lineage: Lineage,
    rng: random.Random,
) -> Task | Rejection:
    """Solve a spec and make it a task with the cheapest plan, the budget, and the agent's messages.

    Args:
        spec: with or without blanks, with or without a budget.
        atlas: the database and the held-out split.
        settings: the settings of the environment.
        task_id: the id of the new task.
        lineage: the origin of the task; only held-out tasks may go to a held-out destination.
        rng: chooses the missing day.
    """
    problem = _inconsistent(spec, lineage, atlas, settings)
    if problem is not None:
        return problem
    query = query_of(spec)
    solution = solve(query, atlas.database)
    if solution is None:
        return Rejection(RejectReason.EXECUTION, "No plan fits: no way to travel, no room, or no such meals.")
    missing = rng.choice([i for i, day in enumerate(solution.trip.days) if len(day.cities) == 1])
    missing = missing if settings.form == "day" else None
    fixed = _fixed_cost(query, solution.trip, missing, atlas)
    budget = spec.budget or budget_for(solution.cost, spec.slack, fixed=fixed)
    if (problem := _wrong_budget(spec, solution.cost, fixed)) is not None:
        return problem
    text = filled(spec.query, wordings(spec, budget))
    if text is None:
        return Rejection(RejectReason.INCONSISTENT, "The query has a blank for which the spec has no value.")
    try:
        spec = TravelSpec.model_validate({**spec.model_dump(), "query": text.strip()})
    except ValidationError as error:
        return Rejection(RejectReason.SCHEMA, f"The query, blanks filled in: {error.errors()[0]['msg']}.")
    query = query_of(spec, budget)
    payload = _payload(query, solution.trip, solution.cost, missing)
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


def _payload(query: Query, trip: Trip, cheapest: float, missing: int | None) -> Mapping[str, Json]:
    return {
        "query": query.to_json(),
        "cheapest": cheapest,
        "missing": missing,
        "plan": written(trip),
    }


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
