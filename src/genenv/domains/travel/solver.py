"""The oracle: a constraint program (OR-Tools CP-SAT) whose solution is the cheapest plan that fits a query.

What is decided: which city comes at which position of the trip, how many nights each stay has, its room, how
and on which day one travels each leg, and which restaurants are eaten at. Full days need three meals and a
sight; on days of travel meals are free to be left out, as the benchmark allows. So "cheapest" is cheapest
under the benchmark's rules, with one room a stay (a second one is never cheaper) and without the loopholes of
its evaluator (`trips`).

Candidates that cannot be in a cheapest plan are left out before: of the rooms that fit a stay only the
cheapest counts, of the ways to travel a leg on a day only the own car and the cheaper of plane and taxi, and
of restaurants with the same wanted cuisines only as many of the cheapest as can be eaten at in a city. The
same model with the entries of a given trip as its only candidates, all of which must be used, tells whether
that trip fits (`fits`): a second opinion beside the checker's, which shares no code with it but the prices.
"""

from __future__ import annotations

import importlib
import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from genenv.domains.travel.database import Accommodation, Database, Flight, Restaurant, clear
from genenv.domains.travel.hard import PEOPLE_A_CAR, PEOPLE_A_TAXI, allows_house_rule, fits_room_type
from genenv.domains.travel.query import Query
from genenv.domains.travel.trips import Trip, TripDay, Way
from genenv.errors import UsageError

_CENTS = 100
_MEALS_A_DAY = 3
_TIME_LIMIT_S = 20.0
"""A model that takes longer counts as infeasible; those of the sandbox take milliseconds."""


class _Leg(NamedTuple):
    """A way that may be chosen."""

    position: int  # 0 leads to the first city, `query.cities` back to the origin
    way: Way
    day: int  # from 0
    cents: int


class _Room(NamedTuple):
    """A stay that may be chosen."""

    position: int
    city: str
    nights: int
    row: Accommodation
    cents: int


@dataclass(frozen=True, slots=True, kw_only=True)
class _Candidates:
    rooms: Sequence[_Room]
    legs: Sequence[_Leg]
    meals: Sequence[Restaurant]


class Solution(NamedTuple):
    """The cheapest trip."""

    trip: Trip
    cost: float  # USD


def solve(query: Query, database: Database) -> Solution | None:
    """The cheapest trip that fits a query, whatever its budget; None when none fits.

    Raises:
        UsageError: OR-Tools is not installed.
    """
    cities = _cities(query, database)
    if len(cities) < query.cities:
        return None
    candidates = _Candidates(
        rooms=list(_rooms(query, {city: clear(database.accommodations(city)) for city in cities}, best=True)),
        legs=list(_legs(query, cities, database)),
        meals=[row for city in cities for row in _menu(query, clear(database.restaurants(city)))],
    )
    return _Model(query, candidates, database).cheapest()


def fits(query: Query, trip: Trip, database: Database) -> bool:
    """Whether the model, with all choices fixed to those of a trip, can be satisfied within the budget."""
    used = [day.accommodation for day in trip.days if day.accommodation is not None]
    rooms = {row.city: [other for other in used if other.city == row.city] for row in used}
    ways = trip.ways
    if len(ways) != query.cities + 1 or any(len(set(rows)) > 1 for rows in rooms.values()):
        return False
    legs = [
        _Leg(position, way, day, _leg_cents(query, way, database) or 0)
        for position, (day, way) in enumerate(ways)
    ]
    meals = trip.restaurants
    if len(set(meals)) < len(meals) or not _sights_fit(trip):
        return False
    stays = [day.cities[-1] for day in trip.days[:-1]]
    if any(
        day.accommodation is None or day.accommodation.city != city
        for day, city in zip(trip.days, stays, strict=False)
    ):
        return False
    cities = set(_cities(query, database))
    candidates = _Candidates(
        rooms=[room for room in _rooms(query, rooms, best=False) if room.city in cities],
        legs=legs,
        meals=meals,
    )
    return _Model(query, candidates, database).holds(legs, meals)


# --- what can be chosen ---


def _cities(query: Query, database: Database) -> list[str]:
    """The cities that may be visited."""
    if query.days == 3:
        return [query.destination] if query.destination != query.origin else []
    return [city for city in database.cities_of(query.destination) if city != query.origin]


def _longest_stay(query: Query) -> int:
    return query.days - query.cities


def _rooms(query: Query, places: Mapping[str, Sequence[Accommodation]], *, best: bool) -> Iterable[_Room]:
    """Stays of every length at every position.

    Args:
        query: rules and the number of people.
        places: the rooms to choose from, by city.
        best: only the cheapest that fits.
    """
    for city, rows in places.items():
        fitting = [
            row for row in dict.fromkeys(rows) if allows_house_rule(row, query) and fits_room_type(row, query)
        ]
        for nights in range(1, _longest_stay(query) + 1):
            open_to = [row for row in fitting if row.minimum_nights <= nights]
            priced = sorted((_night_cents(query, row) * nights, row.name, row) for row in open_to)
            for cents, _, row in priced[:1] if best else priced:
                yield from (_Room(position, city, nights, row, cents) for position in range(query.cities))


def _night_cents(query: Query, row: Accommodation) -> int:
    return round(row.price * _CENTS) * math.ceil(query.people / row.maximum_occupancy)


def _legs(query: Query, cities: Sequence[str], database: Database) -> Iterable[_Leg]:
    last = query.cities
    for position in range(last + 1):
        starts = cities if position else [query.origin]
        ends = cities if position < last else [query.origin]
        for origin, destination in itertools.product(starts, ends):
            if origin == destination:
                continue
            for day in _travel_days(query, position):
                for way in _ways(query, origin, destination, day, database):
                    cents = _leg_cents(query, way, database)
                    if cents is not None:
                        yield _Leg(position, way, day, cents)


def _travel_days(query: Query, position: int) -> Sequence[int]:
    """The days, from 0, on which a leg can be travelled: each city is stayed in for a night at least."""
    if position in (0, query.cities):
        return (0 if position == 0 else query.days - 1,)
    return range(position, query.days - 1 - (query.cities - position) + 1)


def _ways(query: Query, origin: str, destination: str, day: int, database: Database) -> Iterable[Way]:
    """The own car, and the cheaper of plane and taxi."""
    if query.transport != "no self-driving":
        yield Way(origin, destination, car="self-driving")
    others: list[Way] = [Way(origin, destination, car="taxi")]
    flights = database.flights(origin, destination, query.dates[day])
    if flights and query.transport != "no flight":
        cheapest: Flight = min(flights, key=lambda row: (row.price, row.number))
        others.append(Way(origin, destination, flight=cheapest))
    priced = [(cents, way) for way in others if (cents := _leg_cents(query, way, database)) is not None]
    if priced:
        yield min(priced, key=lambda pair: pair[0])[1]


def _leg_cents(query: Query, way: Way, database: Database) -> int | None:
    """What a way costs for everybody; None where there is no road."""
    if way.flight is not None:
        return round(way.flight.price * _CENTS) * query.people
    mode = way.car or "taxi"
    cost = database.road_cost(way.origin, way.destination, mode)
    seats = PEOPLE_A_CAR if mode == "self-driving" else PEOPLE_A_TAXI
    return None if cost is None else cost * _CENTS * math.ceil(query.people / seats)


def _menu(query: Query, rows: Sequence[Restaurant]) -> Iterable[Restaurant]:
    """For each set of wanted cuisines as many of the cheapest restaurants as a city can have meals."""
    most = _MEALS_A_DAY * (_longest_stay(query) - 1 + (2 if query.cuisines else 0))
    taken: dict[tuple[bool, ...], int] = {}
    for row in sorted(rows, key=lambda row: (row.average_cost, row.name)):
        kind = tuple(cuisine in row.cuisines for cuisine in query.cuisines)
        taken[kind] = taken.get(kind, 0) + 1
        if taken[kind] <= most:
            yield row


def _sights_fit(trip: Trip) -> bool:
    """Sights are free and there are enough: full days have one or more, and none comes twice."""
    seen = [row for day in trip.days for row in day.attractions]
    return len(set(seen)) == len(seen) and all(day.attractions for day in trip.days if len(day.cities) == 1)


# --- the model ---


class _Model:
    """The constraint program over some candidates."""

    def __init__(self, query: Query, candidates: _Candidates, database: Database) -> None:
        self._query, self._candidates, self._database = query, candidates, database
        self._cp = cp_model()
        self._model: Any = self._cp.CpModel()
        new = self._model.new_bool_var
        self._rooms = [(room, new(f"room{i}")) for i, room in enumerate(candidates.rooms)]
        self._legs = [(leg, new(f"leg{i}")) for i, leg in enumerate(candidates.legs)]
        self._meals = [(row, new(f"meal{i}")) for i, row in enumerate(candidates.meals)]
        self._cities = sorted(
            {room.city for room in candidates.rooms} | {row.city for row in candidates.meals}
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
        chosen += [(round(row.average_cost * _CENTS) * query.people, var) for row, var in self._meals]
        self._cents = sum(cents * var for cents, var in chosen)

    def cheapest(self) -> Solution | None:
        """The trip of least cost."""
        self._model.minimize(self._cents)
        solver = self._solved()
        if solver is None:
            return None
        return Solution(self._trip(solver), round(solver.objective_value) / _CENTS)

    def holds(self, legs: Iterable[_Leg], meals: Sequence[Restaurant]) -> bool:
        """Whether all these can be chosen at once, within the budget."""
        if sum(1 for _ in legs) != len(self._legs) or len(meals) != len(self._meals):
            return False
        for _, var in (*self._legs, *self._meals):
            self._model.add(var == 1)
        self._model.add(self._cents <= math.floor(self._query.budget * _CENTS))
        return self._solved() is not None

    def _solved(self) -> Any:  # noqa: ANN401
        solver: Any = self._cp.CpSolver()
        solver.parameters.num_workers = 1  # one worker always finds the same solution
        solver.parameters.cp_model_presolve = (
            False  # takes longer than it saves: 21 ms without, 43 with (5 days)
        )
        solver.parameters.max_time_in_seconds = _TIME_LIMIT_S
        status: Any = solver.solve(self._model)
        return solver if status in (self._cp.OPTIMAL, self._cp.FEASIBLE) else None

    def _stays(self) -> None:
        """One room at each position, no city twice, all nights of the trip."""
        for position in range(self._query.cities):
            self._model.add_exactly_one([var for room, var in self._rooms if room.position == position])
        for city in self._cities:
            self._model.add_at_most_one([var for room, var in self._rooms if room.city == city])
        nights = sum(room.nights * var for room, var in self._rooms)
        self._model.add(nights == self._query.days - 1)

    def _travel(self) -> None:
        """A leg to each position and one back, between the cities there and on the day the stay ends."""
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
        """The own car on every leg, or on none; not what the query rules out."""
        own = self._model.new_bool_var("own_car")
        for leg, var in self._legs:
            driven = leg.way.car == "self-driving"
            self._model.add_implication(var, own if driven else ~own)
            ruled_out = driven if self._query.transport == "no self-driving" else leg.way.flight is not None
            if self._query.transport is not None and ruled_out:
                self._model.add(var == 0)

    def _eating(self) -> None:
        """Three meals on full days, up to three on days of travel, shared between the cities of the day."""
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
            most = _MEALS_A_DAY * (_longest_stay(self._query) + 1)
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

        rooms: list[_Room] = sorted(chosen(self._rooms), key=lambda room: room.position)
        legs: list[_Leg] = sorted(chosen(self._legs), key=lambda leg: leg.position)
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
    leg: _Leg, room: _Room | None, before: int, after: int, menus: Mapping[str, list[Restaurant]]
) -> TripDay:
    """A day of travel: meals in the first city come first, meals in the second last."""
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
    """The solver's module.

    Raises:
        UsageError: it is not installed.
    """
    try:
        return importlib.import_module("ortools.sat.python.cp_model")
    except ModuleNotFoundError:
        raise UsageError(
            "domain travel plans with OR-Tools, which is not installed; pip install 'genenv[travel]'"
        ) from None
