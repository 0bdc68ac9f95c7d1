"""The five hard constraints of TravelPlanner: what this query asks for.

Each takes (query, plan, database) and returns a sentence that says what is wrong, or None. The rules and
their oddities are those of the official evaluator (`evaluation/hard_constraint.py`, arXiv:2402.01622); where
that one would crash, the constraint is not met. They are only asked of plans that are complete and within
the sandbox (`constraints`).
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

from genenv.environments.travel.commonsense import flight_number
from genenv.environments.travel.database import Accommodation, Database, Restaurant
from genenv.environments.travel.query import MEALS, Day, HouseRule, Plan, Query
from genenv.environments.travel.reading import (
    UnreadableError,
    before_parenthesis,
    city_text,
    from_to,
    name_and_city,
    needed,
)

_PEOPLE_A_CAR, _PEOPLE_A_TAXI = 5, 4

_FORBIDDEN: Mapping[HouseRule, str] = {
    "smoking": "No smoking",
    "parties": "No parties",
    "children under 10": "No children under 10",
    "visitors": "No visitors",
    "pets": "No pets",
}
"""House rule -> what the accommodation must not say."""

_ROOM_TYPES = {"shared room": "Shared room", "private room": "Private room", "entire room": "Entire home/apt"}


def budget(query: Query, plan: Plan, database: Database) -> str | None:
    """Everything together costs no more than the budget."""
    cost = total_cost(query, plan, database)
    return (
        f"The plan costs ${cost:,.0f}, the budget is ${query.budget:,.0f}." if cost > query.budget else None
    )


def total_cost(query: Query, plan: Plan, database: Database) -> float:
    """What a plan costs, in USD, for all people.

    Flights and meals count once a person, cars per 5 people, taxis per 4, rooms per `maximum_occupancy`
    and night. What cannot be found costs nothing.

    Raises:
        UnreadableError: a car has no road to go.
    """
    total = 0.0
    for day in plan[: query.days]:
        total += _transport_cost(query, day, database)
        for meal in MEALS:
            if (restaurant := _restaurant(day, meal, database)) is not None:
                total += restaurant.average_cost * query.people
        if (place := _accommodation(day, database)) is not None:
            total += place.price * math.ceil(query.people / place.maximum_occupancy)
    return total


def _transport_cost(query: Query, day: Day, database: Database) -> float:
    way = needed(day, "transportation")
    pair = (from_to(way) or from_to(city_text(day))) if way is not None else None
    if way is None or pair is None:
        return 0
    kind = way.lower()
    if "flight number" in kind:
        rows = database.flights_numbered(flight_number(way))
        return rows[0].price * query.people if rows else 0
    if "self-driving" not in kind and "taxi" not in kind:
        return 0
    own = "self-driving" in kind
    origin, destination = (before_parenthesis(city) for city in pair)
    cost = database.road_cost(origin, destination, "self-driving" if own else "taxi")
    if cost is None:
        raise UnreadableError(f"there is no road from {origin} to {destination}")
    return cost * math.ceil(query.people / (_PEOPLE_A_CAR if own else _PEOPLE_A_TAXI))


def room_rule(query: Query, plan: Plan, database: Database) -> str | None:
    """Each accommodation allows what the query wants to be allowed."""
    forbidden = _FORBIDDEN[query.house_rule] if query.house_rule is not None else None
    for place in _accommodations(query, plan, database):
        if forbidden is not None and forbidden in place.house_rules:
            return f"{place.name!r} says {forbidden!r}."
    return None


def room_type(query: Query, plan: Plan, database: Database) -> str | None:
    """Each accommodation is of the type that the query wants."""
    for place in _accommodations(query, plan, database):
        if not _is_of_type(place, query):
            return f"{place.name!r} is a {place.room_type.lower()}, the query wants {query.room_type!r}."
    return None


def _is_of_type(place: Accommodation, query: Query) -> bool:
    """Whether an accommodation is of the type that a query wants, if any."""
    if query.room_type == "not shared room":
        return place.room_type != "Shared room"
    return query.room_type is None or place.room_type == _ROOM_TYPES[query.room_type]


def cuisine(query: Query, plan: Plan, database: Database) -> str | None:
    """Each cuisine is had at least once, outside the origin.

    On a day with a meal in the origin, later meals do not count.
    """
    had: set[str] = set()
    for day in plan[: query.days]:
        for meal in MEALS:
            value = needed(day, meal)
            if value is None:
                continue
            if name_and_city(value)[1] == query.origin:
                break
            if (restaurant := _restaurant(day, meal, database)) is not None:
                had |= {wanted for wanted in query.cuisines if wanted in restaurant.cuisines}
    absent = [wanted for wanted in query.cuisines if wanted not in had]
    return f"No meal is {absent[0]}." if absent else None


def transportation(query: Query, plan: Plan, database: Database) -> str | None:
    """The plan does without the way to travel that the query rules out."""
    ruled_out = {"no flight": "Flight", "no self-driving": "Self-driving"}.get(query.transport or "")
    for day in plan[: query.days]:
        way = needed(day, "transportation")
        if way is not None and ruled_out is not None and ruled_out in way:
            return f"The query wants {query.transport}, the plan has {way[:60]!r}."
    return None


def _restaurant(day: Day, meal: str, database: Database) -> Restaurant | None:
    """The first restaurant whose name contains the one of a meal."""
    value = needed(day, meal)
    rows = database.restaurants_named(*name_and_city(value)) if value is not None else []
    return rows[0] if rows else None


def _accommodation(day: Day, database: Database) -> Accommodation | None:
    """The first accommodation whose name contains the one of a day."""
    value = needed(day, "accommodation")
    rows = database.accommodations_named(*name_and_city(value)) if value is not None else []
    return rows[0] if rows else None


def _accommodations(query: Query, plan: Plan, database: Database) -> Iterator[Accommodation]:
    for day in plan[: query.days]:
        if (place := _accommodation(day, database)) is not None:
            yield place
