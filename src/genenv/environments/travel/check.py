"""Verdicts on travel plans, random plans, and the audit of a task."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar, cast

from genenv.environments.travel.constraints import Score, score, total_cost
from genenv.environments.travel.database import Database
from genenv.environments.travel.query import (
    MEALS,
    NotAPlanError,
    Plan,
    Query,
    UnreadableError,
    is_final,
    name_and_city,
    read_plan,
)
from genenv.environments.travel.sandbox import CUISINES
from genenv.environments.travel.seeds import Atlas
from genenv.environments.travel.solver import fits
from genenv.environments.travel.spec import TravelConfig, TravelSpec, says, wordings
from genenv.environments.travel.trips import (
    Trip,
    TripDay,
    Way,
    broken_rule,
    cities_to_visit,
    fits_wishes,
    named,
    read_trip,
    way_text,
)
from genenv.types import Json, JsonObject, Rejection, RejectReason, Task, Verdict

_FOR_NAMES = 0.2
"""The reward of a missing day whose five fields all name existing entries."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """The result of all checks of a plan."""

    score: Score
    loophole: str | None
    """The violation of the strict rules, if those are required; None if there is none."""
    strict: bool
    real: float
    """The share of the plan's meals, rooms and attractions that are rows of the database."""
    one_day: bool = False
    """Whether the agent wrote only one day of the plan."""

    @property
    def success(self) -> bool:
        """Whether all constraints are met."""
        return self.score.passed and self.loophole is None

    @property
    def share(self) -> float:
        """The soft reward, in [0, 1].

        For a whole plan: 0 unless it has the information that each day needs (complete_information), else

            (commonsense met + hard met + strict met) / (commonsense asked + hard asked + strict asked)

        times the share of its meals, rooms and attractions that are rows of the database.

        For a missing day, whose plan meets most of that without the agent: 0 unless each of its five fields
        names something in the database (within_sandbox, complete_information and, if required, the strict
        rules are met), else

            0.2 + 0.8 * max(0, hard met - commonsense broken) / hard asked
        """
        return self._share_of_a_day if self.one_day else self._share_of_a_plan

    @property
    def _share_of_a_plan(self) -> float:
        if self.success:
            return 1
        (met, asked), (hard_met, hard_asked) = self.score.commonsense, self.score.hard
        if not self.score.delivered or "complete_information" in self.score.problems:
            return 0
        own = self.strict * (self.loophole is None)
        return self.real * (met + hard_met + own) / (asked + hard_asked + self.strict)

    @property
    def _share_of_a_day(self) -> float:
        if self.success:
            return 1
        if not self.score.judged_hard or self.loophole is not None:
            return 0
        (met, asked), (hard_met, hard_asked) = self.score.commonsense, self.score.hard
        return _FOR_NAMES + (1 - _FOR_NAMES) * max(hard_met - (asked - met), 0) / hard_asked

    @property
    def sentence(self) -> str:
        """The first violation, or a sentence that there is none."""
        if self.score.passed and self.loophole is not None:
            return f"The benchmark would let it pass, but {self.loophole}."
        return self.score.sentence


def judge(query: Query, plan: Plan, database: Database, *, strict: bool, one_day: bool = False) -> Judgement:
    """Check a plan against all constraints."""
    found, real = score(query, plan, database), _real(plan[: query.days], database)
    loophole = _loophole(query, plan, database, passed=found.passed) if strict and plan else None
    return Judgement(score=found, loophole=loophole, strict=strict, real=real, one_day=one_day)


def _real(plan: Plan, database: Database) -> float:
    """Return the share of the plan's entries that are exactly rows of the database; 0 without entries."""
    tables = dict.fromkeys(MEALS, database.restaurants)
    found: list[bool] = []
    for field, rows in {
        **tables,
        "accommodation": database.accommodations,
        "attraction": database.attractions,
    }.items():
        for text in (day.get(field) for day in plan):
            for piece in text.split(";") if isinstance(text, str) else ():
                name, city = name_and_city(piece)
                if piece.strip() not in ("", "-"):
                    found.append(any(row.name.strip() == name for row in rows(city)))
    return sum(found) / len(found) if found else 0


def _loophole(query: Query, plan: Plan, database: Database, *, passed: bool) -> str | None:
    """Return how a plan breaks the strict rules: an entry that cannot be read, or a rule unseen so far."""
    try:
        trip = read_trip(query, plan, database)
    except UnreadableError as error:
        return str(error)
    driven = any(way.car == "self-driving" for _, way in trip.ways)
    if driven and query.transport == "no self-driving":  # the evaluator misses it in lower case
        return "the query wants no self-driving"
    return broken_rule(query, trip, database) if passed else None


def check(task: Task, replies: Sequence[str], database: Database, settings: TravelConfig) -> Verdict:
    """Grade a rollout. Equal replies get equal verdicts."""
    reply = _final(replies, settings)
    if reply is None:
        return _unread("There is no plan among the replies.")
    try:
        plan = read_plan(reply, task.payload)
    except NotAPlanError as error:
        return _unread(str(error))
    one_day = isinstance(task.payload["missing"], int)
    found = judge(query_of(task), plan, database, strict=settings.strict, one_day=one_day)
    reward = found.share if settings.reward == "soft" else float(found.success)
    return Verdict(reward=reward, success=found.success, explanation=found.sentence)


def _unread(explanation: str) -> Verdict:
    return Verdict(reward=0, success=False, explanation=explanation, readable=False)


def query_of(task: Task) -> Query:
    """Return the structured query of a task."""
    return Query.from_json(cast(JsonObject, task.payload["query"]))


def _final(replies: Sequence[str], settings: TravelConfig) -> str | None:
    """Return the reply with the plan: the only reply, or in mode tools the first that is meant as a plan."""
    if settings.mode == "sole":
        return replies[0] if replies else None
    return next((reply for reply in replies[: settings.max_turns] if is_final(reply)), None)


_NIGHTS = 2
"""Nights per city in random plans, as in the benchmark's plans."""

_Item = TypeVar("_Item")


def random_replies(task: Task, rng: random.Random, database: Database) -> tuple[str, ...]:
    """Return one reply with a random plan or a random missing day."""
    query, missing = query_of(task), task.payload["missing"]
    if isinstance(missing, int):
        plan = cast(Sequence[JsonObject], task.payload["plan"])
        answer: Json = _city_day(str(plan[missing]["current_city"]), database, rng)
    else:
        answer = _plan(query, database, rng)
    return (json.dumps(answer, ensure_ascii=False, separators=(",", ":")),)


def _city_day(city: str, database: Database, rng: random.Random) -> dict[str, Json]:
    menu = database.restaurants(city)
    eaten = [row.name for row in rng.sample(menu, min(len(menu), len(MEALS)))]
    breakfast, lunch, dinner = [*eaten, *["-"] * (len(MEALS) - len(eaten))]
    sight = _one(database.attractions(city), rng)
    room = _one(database.accommodations(city), rng)
    return {
        "breakfast": breakfast,
        "attraction": sight.name if sight else "-",
        "lunch": lunch,
        "dinner": dinner,
        "accommodation": room.name if room else "-",
    }


def _one(rows: Sequence[_Item], rng: random.Random) -> _Item | None:
    """Return a random row, or None if there are no rows."""
    return rng.choice(rows) if rows else None


def _complete(city: str, database: Database) -> bool:
    """Return whether a city has everything that a day needs."""
    full = len(database.restaurants(city)) >= len(MEALS)
    return full and bool(database.attractions(city) and database.accommodations(city))


def _plan(query: Query, database: Database, rng: random.Random) -> list[Json]:
    cities = [query.destination]
    if query.days > 3:
        known = cities_to_visit(query, database)
        able = [city for city in known if _complete(city, database)]
        able = able if len(able) >= query.cities else known
        cities = rng.sample(able, min(query.cities, len(able)))
    days: list[Json] = []
    for start, end in zip([query.origin, *cities], [*cities, query.origin], strict=True):
        last = end == query.origin
        stay = None if last else _one(database.accommodations(end), rng)
        room = named(stay.name, end) if stay else "-"
        way = _way(start, end, query.dates[len(days)], database, rng)
        days.append(_day(len(days) + 1, TripDay(cities=(start, end), way=way), room, database, rng))
        for _ in range(0 if last else _NIGHTS - 1):
            days.append(_day(len(days) + 1, TripDay(cities=(end,)), room, database, rng))
    return days


def _way(origin: str, destination: str, date: str, database: Database, rng: random.Random) -> Way:
    flights = database.flights(origin, destination, date)
    ways = [Way(origin, destination, flight=row) for row in flights]
    if database.road(origin, destination):
        ways += [Way(origin, destination, car="self-driving"), Way(origin, destination, car="taxi")]
    return rng.choice(ways or [Way(origin, destination, car="taxi")])


def _day(number: int, day: TripDay, room: str, database: Database, rng: random.Random) -> dict[str, Json]:
    here = day.cities[-1]
    filled = _city_day(here, database, rng) if database.restaurants(here) else dict.fromkeys(MEALS, "-")
    places = {field: "-" if name == "-" else named(str(name), here) for field, name in filled.items()}
    return {
        "days": number,
        "current_city": f"from {day.cities[0]} to {here}" if len(day.cities) > 1 else here,
        "transportation": way_text(day.way) if day.way else "-",
        **places,
        "attraction": f"{places.get('attraction', '-')};",
        "accommodation": room,
    }


_PLENTY = 1e9


def audit(task: Task, rng: random.Random, atlas: Atlas) -> Rejection | None:
    """Return the first fault of a task, or None."""
    spec = TravelSpec.model_validate(task.spec)
    query, budget = query_of(task), round(query_of(task).budget)
    said = wordings(spec, budget).items()
    if (missing := next((name for name, words in said if words not in spec.query), None)) is not None:
        return Rejection(RejectReason.UNSTATED, f"The query does not state the {missing.replace('_', ' ')}.")
    if not says(spec.query, spec, budget):
        return Rejection(RejectReason.INCONSISTENT, "The query is none of the wordings of such a request.")
    return _checks_agree(task, query, rng, atlas)


def _checks_agree(task: Task, query: Query, rng: random.Random, atlas: Atlas) -> Rejection | None:
    """Reject a task if checker and solver disagree about the oracle's plan or about broken plans."""
    data = atlas.database
    plan = cast(Plan, task.payload["plan"])
    try:
        tries = [("the oracle's plan", query, plan), *broken(query, plan, rng, atlas)]
    except UnreadableError as error:
        sentence = f"The oracle's plan cannot be read back: {error}."
        return Rejection(RejectReason.CHECKS_DISAGREE, sentence)
    for name, asked, tried in tries:
        checked = judge(asked, tried, data, strict=True).success
        modelled = _fits_model(asked, tried, atlas)
        if checked != modelled or checked != (tried is plan and asked is query):
            sentence = f"Of {name} the checker says {checked}, the solver's model says {modelled}."
            return Rejection(RejectReason.CHECKS_DISAGREE, sentence)
    return None


def _fits_model(query: Query, plan: Plan, atlas: Atlas) -> bool:
    try:
        trip = read_trip(query, plan, atlas.database)
    except UnreadableError:
        return False
    return fits(query, trip, atlas.database)


def broken(query: Query, plan: Plan, rng: random.Random, atlas: Atlas) -> Iterator[tuple[str, Query, Plan]]:
    """Yield the oracle's plan or its query with one fault: (name of the fault, query, plan)."""
    data = atlas.database
    trip = read_trip(query, plan, data)
    rich = replace(query, budget=_PLENTY)
    cost = total_cost(query, plan, data)
    yield "a plan over the budget", replace(query, budget=cost - 1), plan
    full = rng.choice([index for index, day in enumerate(trip.days) if len(day.cities) == 1])
    city = trip.days[full].cities[0]
    first, second = rng.sample(MEALS, 2)
    yield "a restaurant twice", rich, _with(plan, full, {first: plan[full][second]})
    eaten, town = name_and_city(str(plan[full][second]))
    yield "a restaurant twice, spelled differently", rich, _with(plan, full, {first: f"{eaten} ,  {town}"})
    away = data.restaurants(query.origin)
    if away:
        yield "a meal in another city", rich, _with(plan, full, {first: named(away[0].name, query.origin)})
    yield "no attraction", rich, _with(plan, full, {"attraction": "-"})
    yield "a blank attraction", rich, _with(plan, full, {"attraction": " "})
    yield "a missing meal", rich, _with(plan, full, {first: "-"})
    if (other := next((food for food in CUISINES if not _serves(trip, food)), None)) is not None:
        yield "a missing cuisine", replace(rich, cuisines=(*query.cuisines, other)), plan
    way = trip.ways[0][1]
    ruled_out = "no flight" if way.flight else "no self-driving" if way.car == "self-driving" else None
    if ruled_out is not None:
        yield "the wrong way to travel", replace(rich, transport=ruled_out), plan
    if way.car == "self-driving":
        yield (
            "the wrong way to travel, in small letters",
            replace(rich, transport="no self-driving"),
            _spelled(plan),
        )
    nights = sum(day.accommodation is not None and day.cities[-1] == city for day in trip.days)
    rooms = data.accommodations(city)
    fitting = [row for row in rooms if fits_wishes(row, query)]
    for name, row in (
        ("a stay too short", next((row for row in fitting if row.minimum_nights > nights), None)),
        ("a room that does not fit", next((row for row in rooms if row not in fitting), None)),
    ):
        if row is not None:
            yield name, rich, _with_room(plan, city, named(row.name, city))
    others = {
        data.state_of(city) if query.destination in data.states() else city for city in data.tables.states
    }
    if elsewhere := sorted(name for name in others if name and name not in (query.destination, query.origin)):
        yield "another destination", replace(rich, destination=rng.choice(elsewhere)), plan


def _spelled(plan: Plan) -> Plan:
    """Return the plan with `self-driving` in lower case."""
    ways = (str(day["transportation"]).replace("Self-driving", "self-driving") for day in plan)
    return [{**day, "transportation": way} for day, way in zip(plan, ways, strict=True)]


def _serves(trip: Trip, cuisine: str) -> bool:
    return any(cuisine in row.cuisines for row in trip.restaurants)


def _with(plan: Plan, index: int, fields: JsonObject) -> Plan:
    return [{**day, **fields} if i == index else day for i, day in enumerate(plan)]


def _with_room(plan: Plan, city: str, room: str) -> Sequence[JsonObject]:
    """Return the plan with another room on all nights in a city."""
    return [
        {**day, "accommodation": room} if str(day["accommodation"]).endswith(f", {city}") else day
        for day in plan
    ]
