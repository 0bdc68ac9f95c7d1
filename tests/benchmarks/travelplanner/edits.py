"""Plans made wrong in one way each, from plans that meet everything.

Each edit is made so that, by the rules as they are written down, it breaks one constraint and no other: what
comes in costs no more than the budget leaves, keeps the cuisines that are wanted, comes only once, and is in
the right city, unless that is what is broken. The verdict is not looked at. What is built on of the checker
is its cost of the plan as it was.
"""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from genenv.environments.travel.constraints import total_cost
from genenv.environments.travel.database import Accommodation, Database, Restaurant, clear
from genenv.environments.travel.query import (
    MEALS,
    Query,
    before_parenthesis,
    cities_of,
    from_to,
    name_and_city,
    travels,
)
from genenv.environments.travel.trips import fits_wishes

Plan = list[dict[str, Any]]
ABSENT_FLIGHT = "F9999999"


@dataclass(frozen=True)
class Base:
    """A plan that meets everything, and what may be spent beside it."""

    query: Query
    plan: Plan
    data: Database

    @property
    def left(self) -> float:
        return self.query.budget - total_cost(self.query, self.plan, self.data)

    def changed(self, *changes: tuple[int, str, str]) -> Plan:
        """The plan with other texts: (index of the day, field, text)."""
        new = [dict(day) for day in self.plan]
        for index, field, text in changes:
            new[index][field] = text
        return new

    def meals(self) -> Iterator[tuple[int, str, Restaurant]]:
        """(index of the day, meal, restaurant) of what is eaten."""
        for index, day in enumerate(self.plan):
            for meal in MEALS:
                if day[meal] not in ("", "-"):
                    yield index, meal, self.data.restaurants_named(*name_and_city(day[meal]))[0]

    def stays(self) -> Iterator[tuple[list[int], Accommodation]]:
        """(indices of the days, accommodation) of each stay."""
        for text, group in itertools.groupby(enumerate(self.plan), key=lambda pair: pair[1]["accommodation"]):
            if text not in ("", "-"):
                rows = self.data.accommodations_named(*name_and_city(text))
                yield [index for index, _ in group], rows[0]

    def legs(self) -> Iterator[tuple[int, str, str, str]]:
        """(index of the day, how, from, to) of each day with transportation between cities."""
        for index, day in enumerate(self.plan):
            pair = from_to(day["transportation"])
            if pair is not None:
                how = next(how for how in ("Flight", "Self-driving", "Taxi") if how in day["transportation"])
                yield index, how, before_parenthesis(pair[0]), before_parenthesis(pair[1])

    def eaten(self) -> set[str]:
        return {day[meal] for day in self.plan for meal in MEALS}

    def wanted(self, row: Restaurant) -> set[str]:
        return {cuisine for cuisine in self.query.cuisines if cuisine in row.cuisines}

    def others(self, city: str) -> list[Restaurant]:
        """Restaurants of a city that are not in the plan."""
        rows = [
            row for row in clear(self.data.restaurants(city)) if f"{row.name}, {city}" not in self.eaten()
        ]
        return rows if city != self.query.origin else []

    def room_cost(self, row: Accommodation, nights: int) -> float:
        return row.price * math.ceil(self.query.people / row.maximum_occupancy) * nights


Edit = Callable[[Base, random.Random], Iterator[Plan]]


def within_sandbox(base: Base, rng: random.Random) -> Iterator[Plan]:
    """A meal, a room, a flight that there is not."""
    index, meal, row = rng.choice(list(base.meals()))
    yield base.changed((index, meal, f"Kitchen of Nowhere, {row.city}"))
    days, room = rng.choice(list(base.stays()))
    yield base.changed(*((day, "accommodation", f"Lodge of Nowhere, {room.city}") for day in days))
    for day, how, start, end in base.legs():
        if how == "Flight":
            yield base.changed(
                (day, "transportation", f"Flight Number: {ABSENT_FLIGHT}, from {start} to {end}")
            )
            break


def complete_information(base: Base, rng: random.Random) -> Iterator[Plan]:
    """A full day without a meal or an attraction, or the return without a way to travel."""
    full = [index for index, day in enumerate(base.plan) if not travels(day)]
    yield base.changed((rng.choice(full), rng.choice(MEALS), "-"))
    yield base.changed((rng.choice(full), "attraction", "-"))
    yield base.changed((len(base.plan) - 1, "transportation", "-"))


def within_current_city(base: Base, rng: random.Random) -> Iterator[Plan]:
    """On a day of travel, a meal in a third city."""
    meals = [found for found in base.meals() if travels(base.plan[found[0]])]
    for index, meal, row in rng.sample(meals, len(meals))[:2]:
        here = cities_of(base.plan[index])
        for city in rng.sample(list(base.data.tables.states), len(base.data.tables.states)):
            fitting = [
                other
                for other in base.others(city)
                if other.average_cost <= row.average_cost and base.wanted(row) <= base.wanted(other)
                if not any(name in f"{other.name}, {city}" for name in here)
            ]
            if fitting:
                yield base.changed((index, meal, f"{rng.choice(fitting).name}, {city}"))
                break


def reasonable_route(base: Base, rng: random.Random) -> Iterator[Plan]:
    """A full day is said to be in another city of the trip, so that one is left and come back to."""
    ends = {city for day in base.plan if travels(day) for city in cities_of(day)}
    for index, day in enumerate(base.plan):
        texts = {said for said in day.values() if isinstance(said, str) and said != "-"} - {
            day["current_city"]
        }
        pieces = [piece for text in texts for piece in text.split(";") if piece]
        cities = [city for city in sorted(ends - set(cities_of(day))) if _is_said(city, pieces)]
        if not travels(day) and cities:
            yield base.changed((index, "current_city", rng.choice(cities)))


def _is_said(city: str, pieces: Sequence[str]) -> bool:
    """Whether the evaluator's check of a full day's city, which is of its letters, lets it pass."""
    return all(city[-1] in piece for piece in pieces)


def diverse_restaurants(base: Base, rng: random.Random) -> Iterator[Plan]:
    """A meal where one has eaten already, in the same city."""
    meals = list(base.meals())
    pairs = [
        (one, other)
        for one, other in itertools.permutations(meals, 2)
        if one[2].city == other[2].city and other[2].average_cost <= one[2].average_cost
        if base.wanted(one[2]) <= base.wanted(other[2])
    ]
    for one, other in rng.sample(pairs, min(2, len(pairs))):
        yield base.changed((one[0], one[1], base.plan[other[0]][other[1]]))


def diverse_attractions(base: Base, rng: random.Random) -> Iterator[Plan]:
    """An attraction twice on a day."""
    days = [index for index, day in enumerate(base.plan) if day["attraction"].endswith(";")]
    for index in rng.sample(days, min(2, len(days))):
        text = base.plan[index]["attraction"]
        yield base.changed((index, "attraction", f"{text}{text.split(';')[0]};"))


def non_conflicting_transportation(base: Base, rng: random.Random) -> Iterator[Plan]:
    """The own car on one leg, flights or taxis on another."""
    legs = list(base.legs())
    for index, how, start, end in legs:
        rest = {other[1] for other in legs if other[0] != index}
        if how == "Self-driving" and rest == {"Self-driving"}:
            fare = base.data.road_cost(start, end, "taxi")
            if fare is not None and fare * math.ceil(base.query.people / 4) <= base.left:
                yield base.changed((index, "transportation", f"Taxi, from {start} to {end}"))
            for flight in base.data.flights(start, end, base.query.dates[index])[:3]:
                if base.query.transport != "no flight" and flight.price * base.query.people <= base.left:
                    way = f"Flight Number: {flight.number}, from {start} to {end}"
                    yield base.changed((index, "transportation", way))
        elif how != "Self-driving" and "Self-driving" not in rest and rest and _may_drive(base, start, end):
            yield base.changed((index, "transportation", f"Self-driving, from {start} to {end}"))


def _may_drive(base: Base, start: str, end: str) -> bool:
    cost = base.data.road_cost(start, end, "self-driving")
    allowed = base.query.transport != "no self-driving" and cost is not None
    return allowed and cost * math.ceil(base.query.people / 5) <= base.left


def minimum_nights(base: Base, rng: random.Random) -> Iterator[Plan]:
    """A room for more nights than one stays."""
    yield from _rooms(
        base, rng, lambda row, nights: row.minimum_nights > nights and fits_wishes(row, base.query)
    )


def room_rule(base: Base, rng: random.Random) -> Iterator[Plan]:
    """A room that forbids what is wanted."""
    rule = f"No {base.query.house_rule}"
    of_type = Query(**{**_fields(base.query), "house_rule": None})
    if base.query.house_rule is not None:
        yield from _rooms(
            base,
            rng,
            lambda row, nights: (
                rule in row.house_rules.split(" & ")
                and row.minimum_nights <= nights
                and fits_wishes(row, of_type)
            ),
        )


def room_type(base: Base, rng: random.Random) -> Iterator[Plan]:
    """A room of another type."""
    any_type = Query(**{**_fields(base.query), "room_type": None})
    if base.query.room_type is not None:
        yield from _rooms(
            base,
            rng,
            lambda row, nights: (
                not fits_wishes(row, base.query)
                and row.minimum_nights <= nights
                and fits_wishes(row, any_type)
            ),
        )


def _fields(query: Query) -> dict[str, Any]:
    return {name: getattr(query, name) for name in Query.__dataclass_fields__}


def _rooms(base: Base, rng: random.Random, wrong: Callable[[Accommodation, int], bool]) -> Iterator[Plan]:
    """Some plans with another room for one of the stays."""
    found: list[Plan] = []
    for days, room in base.stays():
        spare = base.left + base.room_cost(room, len(days))
        for row in clear(base.data.accommodations(room.city)):
            only = len(base.data.accommodations_named(row.name.strip(), row.city)) == 1
            if only and wrong(row, len(days)) and base.room_cost(row, len(days)) <= spare:
                text = f"{row.name.strip()}, {row.city}"
                found.append(base.changed(*((day, "accommodation", text) for day in days)))
    yield from rng.sample(found, min(6, len(found)))


def budget(base: Base, rng: random.Random) -> Iterator[Plan]:
    """The dearest rooms that fit, then the dearest meals, until the budget does not do."""
    changes: list[tuple[int, str, str]] = []
    left = base.left
    for days, room in base.stays():
        fitting = [
            row
            for row in clear(base.data.accommodations(room.city))
            if row.minimum_nights <= len(days) and fits_wishes(row, base.query)
        ]
        row = max(fitting, key=lambda row: base.room_cost(row, 1), default=room)
        if left >= 0 and base.room_cost(row, 1) > base.room_cost(room, 1):
            left -= base.room_cost(row, len(days)) - base.room_cost(room, len(days))
            text = f"{row.name.strip()}, {row.city}"
            changes += [(day, "accommodation", text) for day in days]
    taken: set[Restaurant] = set()
    for index, meal, row in base.meals():
        dear = [
            other
            for other in base.others(row.city)
            if other not in taken and base.wanted(row) <= base.wanted(other)
        ]
        best = max(dear, key=lambda row: row.average_cost, default=row)
        if left >= 0 and best.average_cost > row.average_cost:
            left -= (best.average_cost - row.average_cost) * base.query.people
            taken.add(best)
            changes.append((index, meal, f"{best.name.strip()}, {best.city}"))
    if left < 0:
        yield base.changed(*changes)


def cuisine(base: Base, rng: random.Random) -> Iterator[Plan]:
    """One of the wanted cuisines is nowhere had."""
    for absent in base.query.cuisines:
        changes: list[tuple[int, str, str]] = []
        left, taken = base.left, set[Restaurant]()
        for index, meal, row in base.meals():
            if absent not in base.wanted(row):
                continue
            keep = base.wanted(row) - {absent}
            fitting = [
                other
                for other in base.others(row.city)
                if other not in taken and absent not in other.cuisines and keep <= base.wanted(other)
            ]
            if not fitting:
                break
            best = min(fitting, key=lambda row: row.average_cost)
            left -= (best.average_cost - row.average_cost) * base.query.people
            taken.add(best)
            changes.append((index, meal, f"{best.name.strip()}, {best.city}"))
        else:
            if left >= 0:
                yield base.changed(*changes)


def transportation(base: Base, rng: random.Random) -> Iterator[Plan]:
    """The way to travel that is ruled out, on one leg where that goes together, else on all."""
    legs, date = list(base.legs()), dict(enumerate(base.query.dates))
    left = base.left
    changes: list[tuple[int, str, str]] = []
    for index, how, start, end in legs:
        if base.query.transport == "no self-driving":
            if not (_may_drive(Base(_free(base.query), base.plan, base.data), start, end)):
                return
            changes.append((index, "transportation", f"Self-driving, from {start} to {end}"))
        elif base.query.transport == "no flight":
            flights = base.data.flights(start, end, date[index])
            taxi = base.data.road_cost(start, end, "taxi")
            if flights:
                way, cost = f"Flight Number: {flights[0].number}", flights[0].price * base.query.people
            elif taxi is not None:
                way, cost = "Taxi", taxi * math.ceil(base.query.people / 4)
            else:
                return
            if how == "Taxi" and flights and cost <= base.left:
                yield base.changed((index, "transportation", f"{way}, from {start} to {end}"))
            left -= cost
            changes.append((index, "transportation", f"{way}, from {start} to {end}"))
    if changes and left >= 0 and any("Taxi" not in text for _, _, text in changes):
        yield base.changed(*changes)


def _free(query: Query) -> Query:
    return Query(**{**_fields(query), "transport": None})


EDITS: dict[str, Edit] = {
    edit.__name__: edit
    for edit in (
        *(within_sandbox, complete_information, within_current_city, reasonable_route, diverse_restaurants),
        *(diverse_attractions, non_conflicting_transportation, minimum_nights),
        *(budget, room_rule, cuisine, room_type, transportation),
    )
}
