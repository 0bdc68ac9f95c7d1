"""The 13 constraints of TravelPlanner (arXiv:2402.01622), 8 of common sense and 5 hard, and the score."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from genenv.environments.travel.database import Accommodation, Database, Restaurant
from genenv.environments.travel.query import (
    FIELDS,
    MEALS,
    Day,
    HouseRule,
    Plan,
    Query,
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
"""Returns a sentence about the violation, or None if the constraint is met."""

_LEFT_OUT = "You don't need to fill in the information for this or later days."
_EMPTY = ("", "-")
_LEAST_SHARE = 0.5
"""The minimum share of filled fields, of six per day."""


def within_sandbox(query: Query, plan: Plan, database: Database) -> str | None:
    """Require that every flight, road, room, restaurant and attraction is in the database."""
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
    """Return the text between `Flight Number: ` and the next comma.

    Raises:
        UnreadableError: there is no such text.
    """
    parts = text.split("Flight Number: ")
    if len(parts) < 2:
        raise UnreadableError(f"{text[:60]!r} has no `Flight Number: `")
    return parts[1].split(",")[0]


def complete_information(query: Query, plan: Plan, database: Database) -> str | None:
    """Require all days with their fields; a travel day may lack meals and attractions."""
    days = [day for _, day in _days(query, plan)]
    if sum(day != {} and city_text(day) != _LEFT_OUT for day in days) != query.days:
        return f"The plan should have {query.days} days."
    if (problem := _number_of_cities(query, days)) is not None:
        return problem
    given = 0
    for number, day in enumerate(days, 1):
        if (problem := _absent(day, last=number == query.days)) is not None:
            return f"Day {number} {problem}."
        given += sum(bool(value) and value != "-" for value in day.values())
    if given / (len(FIELDS) * query.days) < _LEAST_SHARE:
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
    """Require that the entries of a day are in a city of that day.

    On days without travel the evaluator compares characters of the city instead of the city, so the check
    nearly always passes.
    """
    for number, day in _days(query, plan):
        cities = cities_of(day) if travels(day) else tuple(before_parenthesis(city_text(day)))
        way, place = said(day, "transportation"), said(day, "accommodation")
        if way is not None and not all(city in way for city in cities):
            return f"Day {number}: the transportation does not name the day's cities."
        entries = [(meal, said(day, meal)) for meal in MEALS]
        entries += [("attraction", attraction) for attraction in attractions_of(day)]
        for field, value in entries:
            if value is not None and not any(city in value for city in cities):
                return f"Day {number}: the {field} {value[:60]!r} is in another city."
        if place is not None and (not cities or cities[-1] not in place):
            return f"Day {number}: the accommodation {place[:60]!r} is in another city."
    return None


def reasonable_route(query: Query, plan: Plan, database: Database) -> str | None:
    """Require a trip from the origin back to its start; the cities between are in the destination."""
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
    """Return whether no city is entered twice and every middle city has at least two consecutive entries."""
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
    """Require that no restaurant comes twice."""
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
    """Require that no attraction comes twice."""
    seen: set[str] = set()
    for number, day in _days(query, plan):
        for attraction in attractions_of(day):
            if attraction in seen:
                return f"Day {number}: the attraction {attraction[:60]!r} comes again."
            seen.add(attraction)
    return None


def non_conflicting_transportation(query: Query, plan: Plan, database: Database) -> str | None:
    """Require transport on the first day, and no flight or taxi together with the private car."""
    if needed(plan[0], "transportation") is None:
        return "The first day has no transportation."
    ways = [said(day, "transportation") for _, day in _days(query, plan)]
    kinds = {_kind(way) for way in ways if way is not None}
    if "self-driving" in kinds and kinds & {"flight", "taxi"}:
        return "The transportation is conflicting: self-driving does not go with flights or taxis."
    return None


def _kind(way: str) -> str | None:
    """Return the first of these words that a transport contains."""
    return next((kind for kind in ("taxi", "self-driving", "flight") if kind in way.lower()), None)


def minimum_nights(query: Query, plan: Plan, database: Database) -> str | None:
    """Require the minimum nights of each accommodation; a name that fits several rows is not checked."""
    stays = [needed(day, "accommodation") or "" for _, day in _days(query, plan)]
    for stay, group in itertools.groupby(stays):
        nights = len(list(group))
        rows = database.accommodations_named(*name_and_city(stay)) if stay else []
        if len(rows) == 1 and nights < rows[0].minimum_nights:
            return f"{stay[:60]!r} is for {rows[0].minimum_nights:g} nights or more, not {nights}."
    return None


def _days(query: Query, plan: Plan) -> Iterator[tuple[int, Day]]:
    """Enumerate from 1 the days within the query's length."""
    return enumerate(plan[: query.days], 1)


_PEOPLE_A_CAR, _PEOPLE_A_TAXI = 5, 4

_FORBIDDEN: Mapping[HouseRule, str] = {
    "smoking": "No smoking",
    "parties": "No parties",
    "children under 10": "No children under 10",
    "visitors": "No visitors",
    "pets": "No pets",
}
"""House rule -> the text that the accommodation's rules must not contain."""

_ROOM_TYPES = {"shared room": "Shared room", "private room": "Private room", "entire room": "Entire home/apt"}


def budget(query: Query, plan: Plan, database: Database) -> str | None:
    """Require that the total cost is within the budget."""
    cost = total_cost(query, plan, database)
    return (
        f"The plan costs ${cost:,.0f}, the budget is ${query.budget:,.0f}." if cost > query.budget else None
    )


def total_cost(query: Query, plan: Plan, database: Database) -> float:
    """Return the cost of a plan for all people in USD.

    Flights and meals count per person, cars per 5 people, taxis per 4, rooms per `maximum_occupancy` and
    night. Entries that are not found cost nothing.

    Raises:
        UnreadableError: there is no road for a car.
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
    """Require that each accommodation allows the activity of the query."""
    forbidden = _FORBIDDEN[query.house_rule] if query.house_rule is not None else None
    for place in _accommodations(query, plan, database):
        if forbidden is not None and forbidden in place.house_rules:
            return f"{place.name!r} says {forbidden!r}."
    return None


def room_type(query: Query, plan: Plan, database: Database) -> str | None:
    """Require that each accommodation has the type of the query."""
    for place in _accommodations(query, plan, database):
        if not _is_of_type(place, query):
            return f"{place.name!r} is a {place.room_type.lower()}, the query wants {query.room_type!r}."
    return None


def _is_of_type(place: Accommodation, query: Query) -> bool:
    """Return whether an accommodation has the type that a query wants, if any."""
    if query.room_type == "not shared room":
        return place.room_type != "Shared room"
    return query.room_type is None or place.room_type == _ROOM_TYPES[query.room_type]


def cuisine(query: Query, plan: Plan, database: Database) -> str | None:
    """Require each cuisine in at least one meal outside the origin.

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
    """Require that the plan avoids the transport that the query rules out."""
    ruled_out = {"no flight": "Flight", "no self-driving": "Self-driving"}.get(query.transport or "")
    for day in plan[: query.days]:
        way = needed(day, "transportation")
        if way is not None and ruled_out is not None and ruled_out in way:
            return f"The query wants {query.transport}, the plan has {way[:60]!r}."
    return None


def _restaurant(day: Day, meal: str, database: Database) -> Restaurant | None:
    """Return the first restaurant whose name contains the name in a meal."""
    value = needed(day, meal)
    rows = database.restaurants_named(*name_and_city(value)) if value is not None else []
    return rows[0] if rows else None


def _accommodation(day: Day, database: Database) -> Accommodation | None:
    """Return the first accommodation whose name contains the name in a day."""
    value = needed(day, "accommodation")
    rows = database.accommodations_named(*name_and_city(value)) if value is not None else []
    return rows[0] if rows else None


def _accommodations(query: Query, plan: Plan, database: Database) -> Iterator[Accommodation]:
    for day in plan[: query.days]:
        if (place := _accommodation(day, database)) is not None:
            yield place


COMMONSENSE: Mapping[str, Constraint] = {
    "within_sandbox": within_sandbox,
    "complete_information": complete_information,
    "within_current_city": within_current_city,
    "reasonable_route": reasonable_route,
    "diverse_restaurants": diverse_restaurants,
    "diverse_attractions": diverse_attractions,
    "non_conflicting_transportation": non_conflicting_transportation,
    "minimum_nights": minimum_nights,
}
HARD: Mapping[str, Constraint] = {
    "budget": budget,
    "room_rule": room_rule,
    "cuisine": cuisine,
    "room_type": room_type,
    "transportation": transportation,
}
_FIRST = ("within_sandbox", "complete_information")
"""The hard constraints are checked only if these two are met."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """The results of the 13 constraints for one plan."""

    problems: Mapping[str, str]
    """Constraint -> a sentence about its violation; constraints that are met are absent."""
    asked: tuple[str, ...]
    """The constraints that apply to the query: all commonsense ones, the budget, and those of its wishes."""
    delivered: bool
    """False if there is no plan; then no constraint is met."""
    judged_hard: bool
    """False if the hard constraints were not checked; then none of them is met."""

    @property
    def commonsense(self) -> tuple[int, int]:
        """(met, asked) of the commonsense constraints."""
        return self._met(self.delivered, COMMONSENSE)

    @property
    def hard(self) -> tuple[int, int]:
        """(met, asked) of the hard constraints."""
        return self._met(self.judged_hard, HARD)

    def _met(self, looked_at: bool, constraints: Mapping[str, Constraint]) -> tuple[int, int]:
        asked = [name for name in self.asked if name in constraints]
        return (sum(name not in self.problems for name in asked) if looked_at else 0), len(asked)

    @property
    def passed(self) -> bool:
        """Whether all constraints are met: the benchmark's final pass."""
        return self.delivered and self.judged_hard and not self.problems

    @property
    def sentence(self) -> str:
        """The first violation and the number of constraints that are met."""
        if not self.delivered:
            return "There is no plan."
        if not self.problems:
            return "The plan meets every constraint."
        name, problem = next(iter(self.problems.items()))
        met = self.commonsense[0] + self.hard[0]
        return f"{name}: {problem} It meets {met} of {len(self.asked)} constraints."


def score(query: Query, plan: Plan, database: Database) -> Score:
    """Check a plan against all constraints that a query implies.

    Args:
        query: the structured query.
        plan: days in the benchmark's form; empty if there is no plan.
        database: the database that the entries must be in.
    """
    asked = (*COMMONSENSE, *(name for name in HARD if _applies(name, query)))
    if not plan:
        return Score(problems={}, asked=asked, delivered=False, judged_hard=False)
    problems = _problems(COMMONSENSE, query, plan, database)
    judged = not any(name in problems for name in _FIRST)
    if judged:
        problems |= _problems({name: HARD[name] for name in asked if name in HARD}, query, plan, database)
    return Score(problems=problems, asked=asked, delivered=True, judged_hard=judged)


def _problems(
    constraints: Mapping[str, Constraint], query: Query, plan: Plan, database: Database
) -> dict[str, str]:
    found = {name: _problem(check, query, plan, database) for name, check in constraints.items()}
    return {name: problem for name, problem in found.items() if problem is not None}


def _problem(check: Constraint, query: Query, plan: Plan, database: Database) -> str | None:
    try:
        return check(query, plan, database)
    except UnreadableError as error:
        return f"It cannot be read: {error}."


def _applies(name: str, query: Query) -> bool:
    """Return whether a hard constraint applies to a query."""
    return {
        "budget": True,
        "room_rule": query.house_rule is not None,
        "cuisine": bool(query.cuisines),
        "room_type": query.room_type is not None,
        "transportation": query.transport is not None,
    }[name]
