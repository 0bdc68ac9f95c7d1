"""The eight commonsense constraints of TravelPlanner: what any sensible plan keeps, whoever travels.

Each takes (query, plan, database) and returns a sentence that says what is wrong, or None. The rules, their
order and their oddities are those of the official evaluator (`evaluation/commonsense_constraint.py`,
arXiv:2402.01622); where that one would crash, the constraint is not met. Only the first `query.days` days
count.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Sequence

from genenv.environments.travel.database import Database
from genenv.environments.travel.query import FIELDS, MEALS, Day, Plan, Query
from genenv.environments.travel.reading import (
    UnreadableError,
    attractions_of,
    before_parenthesis,
    cities_of,
    city_text,
    from_to,
    name_and_city,
    needed,
    said,
    travels,
)

Constraint = Callable[[Query, Plan, Database], str | None]
"""A sentence that says what is wrong, None when the constraint is met."""

_LEFT_OUT = "You don't need to fill in the information for this or later days."
_EMPTY = ("", "-")
_LEAST_SHARE = 0.5
"""Of six pieces of information a day."""


def within_sandbox(query: Query, plan: Plan, database: Database) -> str | None:
    """Every flight, road, room, restaurant and attraction is in the database."""
    for number, day in _days(query, plan):
        if (problem := _transport_exists(day, database)) is not None:
            return f"Day {number}: {problem}."
        named = dict.fromkeys(MEALS, database.restaurants_named)
        for field, find in {**named, "accommodation": database.accommodations_named}.items():
            if (value := said(day, field)) is not None and not find(*name_and_city(value)):
                return f"Day {number}: the {field} {value[:60]!r} is not in the database."
        for attraction in attractions_of(day):
            if not database.attractions_named(*name_and_city(attraction)):
                return f"Day {number}: the attraction {attraction[:60]!r} is not in the database."
    return None


def _transport_exists(day: Day, database: Database) -> str | None:
    value = needed(day, "transportation")
    if value is None:
        return None
    pair, kind = from_to(value) or from_to(city_text(day)), value.lower()
    origin, destination = (before_parenthesis(city) for city in pair or ("-", "-"))
    if "flight number" in kind:
        if pair is None:
            return f"{value[:60]!r} does not say from where to where"
        rows = database.flights_numbered(flight_number(value))
        if not any((row.origin, row.destination) == (origin, destination) for row in rows):
            return f"no flight {flight_number(value)!r} goes from {origin} to {destination}"
    elif "self-driving" in kind or "taxi" in kind:
        mode = "self-driving" if "self-driving" in kind else "taxi"
        if database.road_cost(origin, destination, mode) is None:
            return f"there is no road from {origin} to {destination}"
    return None


def flight_number(text: str) -> str:
    """What stands between `Flight Number: ` and the next comma.

    Raises:
        UnreadableError: there is no such text.
    """
    parts = text.split("Flight Number: ")
    if len(parts) < 2:
        raise UnreadableError(f"{text[:60]!r} has no `Flight Number: `")
    return parts[1].split(",")[0]


def complete_information(query: Query, plan: Plan, database: Database) -> str | None:
    """Every day is there, with what a day needs; on a day of travel meals and attractions may be absent."""
    days = [day for _, day in _days(query, plan)]
    if sum(day != {} and city_text(day) != _LEFT_OUT for day in days) != query.days:
        return f"The plan should have {query.days} days."
    if (problem := _number_of_cities(query, days)) is not None:
        return problem
    told = 0
    for number, day in enumerate(days, 1):
        if (problem := _absent(day, last=number == query.days)) is not None:
            return f"Day {number} {problem}."
        told += sum(bool(value) and value != "-" for value in day.values())
    if told / (len(FIELDS) * query.days) < _LEAST_SHARE:
        return "More than half of the information is absent."
    return None


def _number_of_cities(query: Query, days: Sequence[Day]) -> str | None:
    if days and travels(days[0]) and cities_of(days[0])[0] != query.origin:
        return f"The trip should start in {query.origin}."
    visited = {city for day in days for city in cities_of(day)} - {query.origin}
    if len(visited) != query.cities:
        return f"The trip should visit {query.cities} cities, not {len(visited)}."
    return None


def _absent(day: Day, *, last: bool) -> str | None:
    for field in FIELDS:
        if field not in day:
            return f"has no {field}"
    text = city_text(day)
    if ("from " in text or "to " in text) and day["transportation"] in _EMPTY:
        return "has no transportation"
    if "from " not in text and " to " not in text and day["attraction"] in _EMPTY:
        return "has no attraction"
    if not last and day["accommodation"] in _EMPTY:
        return "has no accommodation"
    if "from " not in text and any(day[meal] in _EMPTY for meal in MEALS):
        return "lacks a meal"
    return None


def within_current_city(query: Query, plan: Plan, database: Database) -> str | None:
    """What a day names is in a city of that day.

    On days without travel the evaluator compares characters of the city instead of the city, so that there
    the check nearly always passes.
    """
    for number, day in _days(query, plan):
        cities = cities_of(day) if travels(day) else tuple(before_parenthesis(city_text(day)))
        way, place = said(day, "transportation"), said(day, "accommodation")
        if way is not None and not all(city in way for city in cities):
            return f"Day {number}: the transportation does not name the day's cities."
        told = [(meal, said(day, meal)) for meal in MEALS]
        told += [("attraction", attraction) for attraction in attractions_of(day)]
        for field, value in told:
            if value is not None and not any(city in value for city in cities):
                return f"Day {number}: the {field} {value[:60]!r} is in another city."
        if place is not None and (not cities or cities[-1] not in place):
            return f"Day {number}: the accommodation {place[:60]!r} is in another city."
    return None


def reasonable_route(query: Query, plan: Plan, database: Database) -> str | None:
    """The trip starts in the origin and ends where it started; what lies between is in the destination."""
    route: list[str] = []
    for number, day in _days(query, plan):
        cities = cities_of(day)
        if number == 1 and travels(day) and cities[0] != query.origin:
            return f"The first day should start in {query.origin}, not in {cities[0]}."
        route += cities
    if route[0] != route[-1]:
        return f"The trip starts in {route[0]} and ends in {route[-1]}."
    if not _is_orderly(route):
        return f"The order of cities is not reasonable: {', '.join(route)[:200]}."
    for place, city in enumerate(route):
        state = database.state_of(city)
        if state is None:
            return f"{city!r} is not a city of the database."
        if 0 < place < len(route) - 1 and query.days > 3 and state != query.destination:
            return f"{city} is not in {query.destination}."
    return None


def _is_orderly(route: Sequence[str]) -> bool:
    """No city comes again once it was left, and none between first and last is there for one entry only."""
    if len(route) < 3:
        return False
    visited: set[str] = set()
    end = 0
    for city, group in itertools.groupby(route):
        start, count = end, len(list(group))
        end = start + count
        if city in visited and start not in (0, len(route) - 1):
            return False
        if count == 1 and 0 < start < len(route) - 1:
            return False
        visited.add(city)
    return True


def diverse_restaurants(query: Query, plan: Plan, database: Database) -> str | None:
    """No restaurant comes twice."""
    eaten: set[str] = set()
    for number, day in _days(query, plan):
        for meal in MEALS:
            if (value := said(day, meal)) is None:
                continue
            if value in eaten:
                return f"Day {number}: the restaurant {value[:60]!r} comes again."
            eaten.add(value)
    return None


def diverse_attractions(query: Query, plan: Plan, database: Database) -> str | None:
    """No attraction comes twice."""
    seen: set[str] = set()
    for number, day in _days(query, plan):
        for attraction in attractions_of(day):
            if attraction in seen:
                return f"Day {number}: the attraction {attraction[:60]!r} comes again."
            seen.add(attraction)
    return None


def non_conflicting_transportation(query: Query, plan: Plan, database: Database) -> str | None:
    """Who drives the own car neither flies nor takes a taxi, and the first day has a way to travel."""
    if needed(plan[0], "transportation") is None:
        return "The first day has no transportation."
    ways = [said(day, "transportation") for _, day in _days(query, plan)]
    kinds = {_kind(way) for way in ways if way is not None}
    if "self-driving" in kinds and kinds & {"flight", "taxi"}:
        return "The transportation is conflicting: self-driving does not go with flights or taxis."
    return None


def _kind(way: str) -> str | None:
    """The first of these words that a transportation has."""
    return next((kind for kind in ("taxi", "self-driving", "flight") if kind in way.lower()), None)


def minimum_nights(query: Query, plan: Plan, database: Database) -> str | None:
    """No stay is shorter than the accommodation allows; a name that fits several rows is not looked at."""
    stays = [needed_stay(day) for _, day in _days(query, plan)]
    for stay, group in itertools.groupby(stays):
        nights = len(list(group))
        rows = database.accommodations_named(*name_and_city(stay)) if stay else []
        if len(rows) == 1 and nights < rows[0].minimum_nights:
            return f"{stay[:60]!r} is for {rows[0].minimum_nights:g} nights or more, not {nights}."
    return None


def needed_stay(day: Day) -> str:
    """A day's accommodation, empty for none.

    Raises:
        UnreadableError: the field is absent.
    """
    return needed(day, "accommodation") or ""


def _days(query: Query, plan: Plan) -> Iterator[tuple[int, Day]]:
    """The days that count, from 1."""
    return enumerate(plan[: query.days], 1)
