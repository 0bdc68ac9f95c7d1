"""The oracle: a constraint program (OR-Tools CP-SAT) that finds the cheapest plan for a query.

The variables are the city at each position of the trip, the nights and the room of each stay, the way and the
day of each leg, and the restaurants. Full days need three meals and a sight; on travel days meals may be left
out, as the benchmark allows. So "cheapest" means cheapest under the benchmark's rules, with one room per stay
(a second is never cheaper) and without the loopholes of its evaluator (`trips`).

`fits` restricts the same model to the entries of a given trip and requires all of them. This tests the trip
independently of the checker: the two share no code except the database.
"""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from genenv.environments.travel.database import Database, Restaurant, clear
from genenv.environments.travel.query import MEALS, Query
from genenv.environments.travel.trips import (
    CENTS,
    Candidates,
    Leg,
    Room,
    Trip,
    TripDay,
    candidates,
    cities_to_visit,
    leg_cents,
    longest_stay,
    stays,
)
from genenv.errors import UsageError

_MEALS_A_DAY = len(MEALS)
_MOST_WORK = 20.0
"""Limit in the solver's deterministic seconds, the same on every machine. A model that exceeds it counts as
infeasible; models of the generated database take milliseconds."""


class Solution(NamedTuple):
    """The cheapest trip and its cost."""

    trip: Trip
    cost: float  # USD


def solve(query: Query, database: Database) -> Solution | None:
    """Return the cheapest trip for a query, ignoring its budget, or None if no trip is possible.

    Raises:
        UsageError: OR-Tools is not installed.
    """
    chosen_from = candidates(query, database)
    return _Model(query, chosen_from, database).cheapest() if chosen_from.rooms else None


def fits(query: Query, trip: Trip, database: Database) -> bool:
    """Return whether the model can be satisfied within the budget if all choices are those of a trip."""
    ways, meals = trip.ways, trip.restaurants
    nights = [(day.accommodation, day.cities[-1]) for day in trip.days[:-1]]
    if any(row is None or row.city != city for row, city in nights) or not _sights_fit(trip):
        return False
    rooms = {city: [row for row, place in nights if row is not None and place == city] for _, city in nights}
    legs = [
        Leg(position, way, day, cents)
        for position, (day, way) in enumerate(ways)
        if (cents := leg_cents(query, way, database)) is not None
    ]
    one_room = all(len(set(rows)) == 1 for rows in rooms.values())
    if (
        len(legs) != query.cities + 1
        or len(ways) != len(legs)
        or not one_room
        or len(set(meals)) < len(meals)
    ):
        return False
    cities = cities_to_visit(query, database)
    open_to = {city: rows for city, rows in rooms.items() if city in cities}
    chosen_from = Candidates(rooms=list(stays(query, open_to, best=False)), legs=legs, meals=meals)
    return _Model(query, chosen_from, database).holds()


def _sights_fit(trip: Trip) -> bool:
    """Return whether full days have at least one sight and no sight comes twice."""
    seen = [row for day in trip.days for row in day.attractions]
    return len(set(seen)) == len(seen) and all(day.attractions for day in trip.days if len(day.cities) == 1)


# --- the model ---


class _Model:
    """The constraint program over a set of candidates."""

    def __init__(self, query: Query, chosen_from: Candidates, database: Database) -> None:
        self._query, self._database = query, database
        self._cp = cp_model()
        self._model: Any = self._cp.CpModel()
        new = self._model.new_bool_var
        self._rooms = [(room, new(f"room{i}")) for i, room in enumerate(chosen_from.rooms)]
        self._legs = [(leg, new(f"leg{i}")) for i, leg in enumerate(chosen_from.legs)]
        self._meals = [(row, new(f"meal{i}")) for i, row in enumerate(chosen_from.meals)]
        self._cities = sorted(
            {room.city for room in chosen_from.rooms} | {row.city for row in chosen_from.meals}
        )
        self._stays()
        self._travel()
        self._one_kind_of_travel()
        self._eating()
        for cuisine in query.cuisines:
            self._model.add_bool_or([eaten for row, eaten in self._meals if cuisine in row.cuisines])
        chosen = [(leg.cents, var) for leg, var in self._legs] + [
            (room.cents, var) for room, var in self._rooms
        ]
        chosen += [(round(row.average_cost * CENTS) * query.people, var) for row, var in self._meals]
        self._cents = sum(cents * var for cents, var in chosen)

    def cheapest(self) -> Solution | None:
        """Return the trip of least cost, or None if there is none."""
        self._model.minimize(self._cents)
        solver = self._solved()
        if solver is None:
            return None
        return Solution(self._trip(solver), round(solver.objective_value) / CENTS)

    def holds(self) -> bool:
        """Return whether all legs and meals can be chosen at once within the budget."""
        for _, var in (*self._legs, *self._meals):
            self._model.add(var == 1)
        self._model.add(self._cents <= math.floor(self._query.budget * CENTS))
        return self._solved() is not None

    def _solved(self) -> Any:  # noqa: ANN401
        solver: Any = self._cp.CpSolver()
        solver.parameters.num_workers = 1  # one worker always finds the same solution
        solver.parameters.cp_model_presolve = (
            False  # takes longer than it saves: 21 ms without, 43 with (5 days)
        )
        solver.parameters.max_deterministic_time = _MOST_WORK
        status: Any = solver.solve(self._model)
        return solver if status == self._cp.OPTIMAL else None  # also the status if nothing is minimized

    def _stays(self) -> None:
        """Require one room at each position, no city twice, and stays that add up to the trip's nights."""
        for position in range(self._query.cities):
            self._model.add_exactly_one([var for room, var in self._rooms if room.position == position])
        for city in self._cities:
            self._model.add_at_most_one([var for room, var in self._rooms if room.city == city])
        nights = sum(room.nights * var for room, var in self._rooms)
        self._model.add(nights == self._query.days - 1)

    def _travel(self) -> None:
        """Require one leg to each position and one back, between the right cities, when the stay ends."""
        for position in range(self._query.cities + 1):
            legs = [(leg, var) for leg, var in self._legs if leg.position == position]
            self._model.add_exactly_one([var for _, var in legs])
            for city in self._cities:
                if position < self._query.cities:
                    to = sum(var for leg, var in legs if leg.way.destination == city)
                    self._model.add(to == self._at(position, city))
                if position > 0:
                    start = sum(var for leg, var in legs if leg.way.origin == city)
                    self._model.add(start == self._at(position - 1, city))
            # the day of a leg: all nights before it
            day = sum(leg.day * var for leg, var in legs)
            self._model.add(
                day == sum(room.nights * var for room, var in self._rooms if room.position < position)
            )

    def _at(self, position: int, city: str) -> Any:  # noqa: ANN401
        return sum(var for room, var in self._rooms if (room.position, room.city) == (position, city))

    def _one_kind_of_travel(self) -> None:
        """Require the private car on all legs or on none, and exclude the way that the query rules out."""
        own = self._model.new_bool_var("own_car")
        for leg, var in self._legs:
            driven = leg.way.car == "self-driving"
            self._model.add_implication(var, own if driven else ~own)
            ruled_out = driven if self._query.transport == "no self-driving" else leg.way.flight is not None
            if self._query.transport is not None and ruled_out:
                self._model.add(var == 0)

    def _eating(self) -> None:
        """Require three meals on full days and allow three on travel days, in either city of the day."""
        last = self._query.cities
        before = [self._model.new_int_var(0, _MEALS_A_DAY, f"before{leg}") for leg in range(last + 1)]
        after = [self._model.new_int_var(0, _MEALS_A_DAY, f"after{leg}") for leg in range(last + 1)]
        for leg in range(last + 1):
            self._model.add(before[leg] + after[leg] <= _MEALS_A_DAY)
        self._model.add(before[0] == 0)
        self._model.add(after[last] == 0)
        self._extras = [(before[leg], after[leg]) for leg in range(last + 1)]
        for city in self._cities:
            eaten = sum(var for row, var in self._meals if row.city == city)
            full = sum(
                _MEALS_A_DAY * (room.nights - 1) * var for room, var in self._rooms if room.city == city
            )
            self._model.add(eaten >= full)
            most = _MEALS_A_DAY * (longest_stay(self._query) + 1)
            for position in range(last):
                at = self._at(position, city)
                extra = after[position] + before[position + 1]
                self._model.add(eaten <= full + extra + most * (1 - at))
                self._model.add(eaten >= full + extra - 2 * most * (1 - at))
            self._model.add(eaten <= most * sum(self._at(position, city) for position in range(last)))

    # --- the solution as a trip ---

    def _trip(self, solver: Any) -> Trip:  # noqa: ANN401
        def chosen(pairs: Sequence[tuple[Any, Any]]) -> list[Any]:
            return [item for item, var in pairs if solver.boolean_value(var)]

        rooms: list[Room] = sorted(chosen(self._rooms), key=lambda room: room.position)
        legs: list[Leg] = sorted(chosen(self._legs), key=lambda leg: leg.position)
        menus: dict[str, list[Restaurant]] = {room.city: [] for room in rooms}
        for row in sorted(chosen(self._meals), key=lambda row: (row.average_cost, row.name)):
            menus[row.city].append(row)
        sights = {room.city: iter(clear(self._database.attractions(room.city))) for room in rooms}
        extras = [(solver.value(before), solver.value(after)) for before, after in self._extras]
        days: list[TripDay] = []
        for leg, room in itertools.zip_longest(legs, rooms):
            before, after = extras[leg.position]
            days.append(_travel_day(leg, room, before, after, menus))
            for _ in range(room.nights - 1 if room else 0):
                meals = tuple(menus[room.city].pop(0) for _ in range(_MEALS_A_DAY))
                sight = tuple(itertools.islice(sights[room.city], 1))
                days.append(
                    TripDay(cities=(room.city,), meals=meals, attractions=sight, accommodation=room.row)
                )
        return Trip(days=tuple(days))


def _travel_day(
    leg: Leg, room: Room | None, before: int, after: int, menus: Mapping[str, list[Restaurant]]
) -> TripDay:
    """Return a travel day; its meals in the first city come first, those in the second last."""
    eaten = [menus[leg.way.origin].pop(0) for _ in range(before)]
    there = [menus[leg.way.destination].pop(0) for _ in range(after)]
    none = [None] * (_MEALS_A_DAY - before - after)
    return TripDay(
        cities=(leg.way.origin, leg.way.destination),
        way=leg.way,
        meals=(*eaten, *none, *there),
        accommodation=room.row if room else None,
    )


def cp_model() -> Any:  # noqa: ANN401
    """Import the solver's module.

    Raises:
        UsageError: OR-Tools is not installed.
    """
    try:
        return importlib.import_module("ortools.sat.python.cp_model")
    except ModuleNotFoundError:
        raise UsageError(
            "environment travel plans with OR-Tools, which is not installed; pip install 'genenv[travel]'"
        ) from None
