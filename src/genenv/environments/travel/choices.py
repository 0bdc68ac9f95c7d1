"""What a seed's variations may choose from, so that whatever is chosen can be travelled.

Every place a seed offers is connected with every other, each offered room rule goes with each offered room
type, each cuisine can be had. What is left to go wrong is for the oracle.

**Held out.** A fixed quarter of the states is kept for held-out tasks: no other task starts in, goes to, or
shows rows of one of these states or a city of it, so that no pair of origin and destination, no room,
restaurant or sight of a held-out task occurs in a seed, can be written under the grammar, or comes out of
`variation`. `build` rejects other specs that go there or start there.
"""

from __future__ import annotations

import functools
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import TypeVar, get_args

from genenv.environments.travel.candidates import fits_wishes
from genenv.environments.travel.database import Accommodation, Database
from genenv.environments.travel.query import Query, Transport
from genenv.environments.travel.sandbox import CUISINES, DATES
from genenv.environments.travel.spec import HOUSE_RULES, ROOM_TYPES, Room, Rule, TravelSpec

_PLACES, _CUISINES = 3, 4
_EVERY = 4
"""Each fourth state is held out."""
_STAY = 2
"""Nights of a stay in trips whose stays are all alike."""
_RULES: tuple[Rule | None, ...] = (None, *get_args(Rule))
_ROOMS: tuple[Room | None, ...] = (None, *get_args(Room))

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The choices of one seed."""

    origins: tuple[str, ...]
    destinations: tuple[str, ...]
    rooms: Mapping[Rule | None, tuple[Room | None, ...]]
    """Room rule -> the room types it goes with; None for no rule, no type."""
    cuisines: tuple[str, ...]
    transports: tuple[Transport, ...]


class Atlas:
    """What can be chosen in a database."""

    def __init__(self, database: Database) -> None:
        self.database = database
        states = [state for state in database.states() if len(self._usable(state)) >= _PLACES]
        held = states[2::_EVERY]
        self.reserved = frozenset([*held, *(city for state in held for city in database.cities_of(state))])
        """The destinations of held-out tasks; no other task names them."""
        self._states = states
        self.connected: Callable[[str, str], bool] = functools.cache(self._connected)
        self.by_road: Callable[[str, str], bool] = functools.cache(self._by_road)
        self.origins: Callable[[str], Sequence[str]] = functools.cache(self._origins)
        """The cities outside a destination's state from which it can be reached on every day; trips that are
        not held out never start in a held-out city."""

    def is_place(self, name: str) -> bool:
        """Whether a city or a state is in the database."""
        return self.database.state_of(name) is not None or bool(self.database.cities_of(name))

    def names(self) -> list[str]:
        """All cities and states."""
        return [*self.database.tables.states, *self.database.states()]

    def destinations(self, days: int, *, held_out: bool) -> list[str]:
        """Where trips of a length go, in one of the splits."""
        cities = [city for state in self._states for city in self._usable(state)]
        places = cities if days == 3 else self._states
        return [place for place in places if (place in self.reserved) == held_out]

    def _origins(self, destination: str) -> list[str]:
        state = self.database.state_of(destination) or destination
        cities = [city for other in self._states for city in self._usable(other) if other != state]
        if destination not in self.reserved:
            cities = [city for city in cities if city not in self.reserved]
        return [city for city in cities if self.connected(city, destination)]

    def _usable(self, state: str) -> list[str]:
        """The cities of a state that have what a trip needs."""
        data = self.database
        return [
            city
            for city in data.cities_of(state)
            if data.accommodations(city)
            and len(data.restaurants(city)) > 9
            and len(data.attractions(city)) > 2
        ]

    def _all_of(self, place: str) -> list[str]:
        """The cities that a destination stands for."""
        return self._usable(place) if self.database.cities_of(place) else [place]

    def _connected(self, origin: str, destination: str) -> bool:
        """By road, or by a plane on each day, there and back, with every city of the destination."""
        data = self.database
        pairs = [pair for city in self._all_of(destination) for pair in ((origin, city), (city, origin))]
        return all(data.road(*pair) or all(data.flights(*pair, date) for date in DATES) for pair in pairs)

    def _by_road(self, origin: str, destination: str) -> bool:
        cities = self._all_of(destination)
        pairs = [pair for city in cities for pair in ((origin, city), (city, origin))]
        pairs += [(one, other) for one in cities for other in cities if one != other]
        return all(self.database.road(*pair) for pair in pairs)

    # --- the choices of one seed ---

    def choices(self, seed_id: str, spec: TravelSpec) -> Choices:
        """What the variations of a seed may choose from: always the same, its own values among it."""
        rng = random.Random(f"{seed_id}/offer")
        joined = self.by_road if self.by_road(spec.origin, spec.destination) else self.connected
        held_out = spec.destination in self.reserved
        destinations = [spec.destination]
        for place in _shuffled(self.destinations(spec.days, held_out=held_out), rng):
            apart = self.database.state_of(spec.origin) != (self.database.state_of(place) or place)
            if place not in destinations and apart and joined(spec.origin, place):
                destinations.append(place)
        destinations = destinations[:_PLACES]
        origins = [spec.origin]
        states = {self.database.state_of(place) or place for place in destinations}
        for city in _shuffled(self.origins(spec.destination), rng):
            apart = city not in origins and self.database.state_of(city) not in states
            if apart and all(joined(city, place) for place in destinations):
                origins.append(city)
        origins = origins[:_PLACES]
        return Choices(
            origins=tuple(origins),
            destinations=tuple(destinations),
            rooms=self._rooms(destinations),
            cuisines=self._cuisines(destinations, spec, rng),
            transports=self._transports(origins, destinations),
        )

    def _transports(self, origins: Sequence[str], destinations: Sequence[str]) -> tuple[Transport, ...]:
        roads = all(self.by_road(origin, place) for origin in origins for place in destinations)
        return ("no flight", "no self-driving") if roads else ("no self-driving",)

    def _rooms(self, places: Sequence[str]) -> dict[Rule | None, tuple[Room | None, ...]]:
        offered: dict[Rule | None, tuple[Room | None, ...]] = {}
        for rule in _RULES:
            fitting: tuple[Room | None, ...] = tuple(
                room for room in _ROOMS if all(self._has_room(place, rule, room) for place in places)
            )
            if rule is None or None in fitting:
                offered[rule] = fitting or (None,)
        return offered

    def _has_room(self, place: str, rule: Rule | None, room: Room | None) -> bool:
        """Whether enough cities of a destination have a room of a kind for a short stay."""
        cities = self._all_of(place)
        n = sum(any(_fits(row, rule, room) for row in self.database.accommodations(city)) for city in cities)
        return n >= min(_PLACES, len(cities))

    def _cuisines(self, places: Sequence[str], spec: TravelSpec, rng: random.Random) -> tuple[str, ...]:
        cities = [city for place in places for city in self._all_of(place)]
        menus = ["|".join(row.cuisines for row in self.database.restaurants(city)) for city in cities]
        had = [cuisine for cuisine in CUISINES if all(cuisine in menu for menu in menus)]
        more = [cuisine for cuisine in rng.sample(had, len(had)) if cuisine not in spec.cuisines]
        return tuple(sorted([*spec.cuisines, *more[: _CUISINES - len(spec.cuisines)]]))


def _shuffled(items: Sequence[_Item], rng: random.Random) -> list[_Item]:
    return rng.sample(items, len(items))


def _fits(row: Accommodation, rule: Rule | None, room: Room | None) -> bool:
    return row.minimum_nights <= _STAY and fits_wishes(row, _wish(rule, room))


@functools.cache
def _wish(rule: Rule | None, room: Room | None) -> Query:
    """A query that asks for nothing but a room."""
    return Query(
        origin="",
        destination="",
        days=3,
        cities=1,
        dates=(),
        people=1,
        budget=0,
        house_rule=HOUSE_RULES[rule] if rule else None,
        room_type=ROOM_TYPES[room] if room else None,
    )
