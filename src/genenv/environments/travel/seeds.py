"""Base data of the travel environment, variations of seeds, and the simulator's grammar.

The mix in both splits: 60% of 3 days, 20% of 5 and 20% of 7 (as far as `longest` allows); a third each tight,
fair and loose; 30% without limits, 35% with one, the rest with two to four. The splits share no destination
and no phrasing.

The grammar has one alternative for each set of limits, and for each rule if both a room rule and a room type
are given. So `limits` is always right, every pair of places is connected, some room fits, and the query has
exactly the blanks that it needs. Its words come from the phrasings of the base data, because a small model
that writes freely between the blanks rambles and forgets one.
"""

from __future__ import annotations

import functools
import itertools
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast, get_args

from genenv.environments.common import closed_object
from genenv.environments.travel.database import Accommodation, Database
from genenv.environments.travel.query import Query, Transport
from genenv.environments.travel.sandbox import CUISINES, DATES
from genenv.environments.travel.spec import (
    HELD_OUT,
    HOUSE_RULES,
    LIMITS,
    ROOM_TYPES,
    TRAINING,
    Phrasings,
    Room,
    Rule,
    Slack,
    TravelSpec,
    query_pattern,
    query_with_blanks,
)
from genenv.environments.travel.trips import fits_wishes
from genenv.types import Json, JsonObject, Seed

_PLACES, _CUISINES = 3, 4
_EVERY = 4
"""One state in this many is held out."""
_STAY = 2
"""Nights per city if all stays of a trip are equal."""
_RULES: tuple[Rule | None, ...] = (None, *get_args(Rule))
_ROOMS: tuple[Room | None, ...] = (None, *get_args(Room))


@dataclass(frozen=True, slots=True, kw_only=True)
class Choices:
    """The values that variations of one seed may have."""

    origins: tuple[str, ...]
    destinations: tuple[str, ...]
    rooms: Mapping[Rule | None, tuple[Room | None, ...]]
    """Room rule -> the compatible room types; None means no rule or no type."""
    cuisines: tuple[str, ...]
    transports: tuple[Transport, ...]


class Atlas:
    """A database with the places that trips can connect and the held-out split."""

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
        """Returns the cities outside a destination's state that are connected to it on every day. Trips that
        are not held out never start in a held-out city."""

    def destinations(self, days: int, *, held_out: bool) -> list[str]:
        """Return the destinations of trips of a length in one of the splits."""
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
        """Return the cities of a state that have everything that a trip needs."""
        data = self.database
        return [
            city
            for city in data.cities_of(state)
            if data.accommodations(city)
            and len(data.restaurants(city)) > 9
            and len(data.attractions(city)) > 2
        ]

    def _all_of(self, place: str) -> list[str]:
        """Return the cities of a destination."""
        return self._usable(place) if self.database.cities_of(place) else [place]

    def _connected(self, origin: str, destination: str) -> bool:
        """Return whether roads, or flights on every day, lead to all cities of the destination and back."""
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
        """Return the values that variations of a seed may have: always the same, with the seed's included."""
        rng = random.Random(f"{seed_id}/offer")
        joined = self.by_road if self.by_road(spec.origin, spec.destination) else self.connected
        held_out = spec.destination in self.reserved
        destinations = [spec.destination]
        places = self.destinations(spec.days, held_out=held_out)
        for place in rng.sample(places, len(places)):
            apart = self.database.state_of(spec.origin) != (self.database.state_of(place) or place)
            if place not in destinations and apart and joined(spec.origin, place):
                destinations.append(place)
        destinations = destinations[:_PLACES]
        origins = [spec.origin]
        states = {self.database.state_of(place) or place for place in destinations}
        cities = self.origins(spec.destination)
        for city in rng.sample(cities, len(cities)):
            apart = city not in origins and self.database.state_of(city) not in states
            if apart and all(joined(city, place) for place in destinations):
                origins.append(city)
        origins = origins[:_PLACES]
        roads = all(self.by_road(origin, place) for origin in origins for place in destinations)
        return Choices(
            origins=tuple(origins),
            destinations=tuple(destinations),
            rooms=self._rooms(destinations),
            cuisines=self._cuisines(destinations, spec, rng),
            transports=("no flight", "no self-driving") if roads else ("no self-driving",),
        )

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
        """Return whether enough cities of a destination have a suitable room for a short stay."""
        cities = self._all_of(place)
        n = sum(any(_fits(row, rule, room) for row in self.database.accommodations(city)) for city in cities)
        return n >= min(_PLACES, len(cities))

    def _cuisines(self, places: Sequence[str], spec: TravelSpec, rng: random.Random) -> tuple[str, ...]:
        cities = [city for place in places for city in self._all_of(place)]
        menus = ["|".join(row.cuisines for row in self.database.restaurants(city)) for city in cities]
        had = [cuisine for cuisine in CUISINES if all(cuisine in menu for menu in menus)]
        more = [cuisine for cuisine in rng.sample(had, len(had)) if cuisine not in spec.cuisines]
        return tuple(sorted([*spec.cuisines, *more[: _CUISINES - len(spec.cuisines)]]))


def _fits(row: Accommodation, rule: Rule | None, room: Room | None) -> bool:
    return row.minimum_nights <= _STAY and fits_wishes(row, _wish(rule, room))


@functools.cache
def _wish(rule: Rule | None, room: Room | None) -> Query:
    """Return a query whose only content is a room rule and a room type."""
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


N_TRAINING: Final = 360
N_HELD_OUT: Final = 120

_LENGTHS = (3, 3, 3, 5, 7)
_SLACKS: tuple[Slack, ...] = ("tight", "fair", "loose")
_N_LIMITS = (0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4)
_PEOPLE = (1, 1, 1, 2, 2, 2, 3, 4, 5, 6, 7, 8)
_LAST_DAY = 31


def training_specs(atlas: Atlas, longest: int) -> list[tuple[str, TravelSpec]]:
    """Return the ids and specs of the seeds; always the same for a database and a longest trip."""
    return list(_split(atlas, longest, "seed", N_TRAINING, TRAINING))


def held_out_specs(atlas: Atlas, longest: int) -> list[tuple[str, TravelSpec]]:
    """Return the ids and specs for evaluation; always the same for a database and a longest trip."""
    return list(_split(atlas, longest, "held", N_HELD_OUT, HELD_OUT))


def variation(seed: Seed, choices: Choices, longest: int, rng: random.Random) -> JsonObject:
    """Return a new spec similar to a seed's, with blanks in its query.

    It has other places and dates of the seed's choices. Slack and people change, or else limits and days,
    each in half of the cases.
    """
    spec = TravelSpec.model_validate(seed.spec)
    lengths = [days for days in _LENGTHS if days <= longest and (days == 3) == (spec.days == 3)] or [
        spec.days
    ]
    slack, people, limits, days = spec.slack, spec.people, spec.limits, spec.days
    if rng.random() < 0.5:
        slack, people = rng.choice(_SLACKS), rng.choice(_PEOPLE)
    else:
        limits, days = rng.choice(_N_LIMITS), rng.choice(lengths)
    return bare(requested(choices, rng, days=days, limits=limits, slack=slack, people=people))


def requested(
    choices: Choices, rng: random.Random, *, days: int, limits: int, slack: Slack, people: int
) -> TravelSpec:
    """Return a spec with blanks, with a random trip and at most `limits` limits that are compatible."""
    fields = _drawn_limits(limits, choices, rng)
    return TravelSpec(
        days=cast(Literal[3, 5, 7], days),
        limits=cast(Any, len(fields)),
        slack=slack,
        people=people,
        origin=rng.choice(choices.origins),
        destination=rng.choice(choices.destinations),
        start=rng.randint(1, _LAST_DAY - days + 1),
        query=query_with_blanks(TRAINING, tuple(fields), rng),
        **cast(Any, fields),
    )


def able(choices: Choices) -> list[str]:
    """Return the limits that are possible, in the order of `LIMITS`."""
    names = [name for name in LIMITS if name != "transport" or choices.transports]
    names = [name for name in names if name != "cuisines" or choices.cuisines]
    return [name for name in names if name != "room_rule" or len(choices.rooms) > 1]


def bare(spec: TravelSpec) -> JsonObject:
    """Return a spec in the form of the grammar, without fields that are not given."""
    given = {*spec.given, *(["budget"] if spec.budget is not None else [])}
    data: dict[str, Any] = spec.model_dump(mode="json")
    return {name: value for name, value in data.items() if name in given or name not in {*LIMITS, "budget"}}


def _split(
    atlas: Atlas, longest: int, prefix: str, n: int, phrasings: Phrasings
) -> Iterator[tuple[str, TravelSpec]]:
    """Yield specs of one split, spread evenly over its destinations."""
    lengths = [days for days in _LENGTHS if days <= longest]
    held_out = prefix == "held"
    places = {days: atlas.destinations(days, held_out=held_out) for days in lengths}
    for number in range(n):
        days = lengths[number % len(lengths)]
        rng = random.Random(f"genenv/travel/{prefix}-{number:03d}")
        place = next((place for place in _turned(places[days], number) if atlas.origins(place)), None)
        if place is not None:
            spec_id = f"{prefix}-{number:03d}"
            yield spec_id, _spec(spec_id, days, place, atlas, phrasings, rng)


def _turned(places: Sequence[str], number: int) -> list[str]:
    start = number % max(len(places), 1)
    return [*places[start:], *places[:start]]


def _spec(
    spec_id: str, days: int, destination: str, atlas: Atlas, phrasings: Phrasings, rng: random.Random
) -> TravelSpec:
    base: dict[str, Any] = {
        "days": days,
        "slack": rng.choice(_SLACKS),
        "people": rng.choice(_PEOPLE),
        "origin": rng.choice(atlas.origins(destination)),
        "destination": destination,
        "start": rng.randint(1, _LAST_DAY - days + 1),
    }
    plain = TravelSpec(limits=0, query="Plan a trip.", **base)
    fields = _drawn_limits(rng.choice(_N_LIMITS), atlas.choices(spec_id, plain), rng)
    query = query_with_blanks(phrasings, tuple(fields), rng)
    return TravelSpec(limits=cast(Any, len(fields)), query=query, **base, **fields)


def _drawn_limits(n: int, choices: Choices, rng: random.Random) -> dict[str, Any]:
    """Draw up to `n` limits that are compatible, in the order of `LIMITS`."""
    possible = able(choices)
    names = rng.sample(possible, min(n, len(possible)))
    drawn: dict[str, Any] = {}
    rules: list[Rule] = [rule for rule in choices.rooms if rule]
    rule: Rule | None = rng.choice(rules) if "room_rule" in names else None
    if rule is not None:
        drawn["room_rule"] = rule
    types = [room for room in choices.rooms[rule] if room]
    if "room_type" in names and types:
        drawn["room_type"] = rng.choice(types)
    if "cuisines" in names:
        drawn["cuisines"] = tuple(
            sorted(rng.sample(choices.cuisines, min(rng.randint(1, 2), len(choices.cuisines))))
        )
    if "transport" in names:
        drawn["transport"] = rng.choice(choices.transports)
    return drawn


_MOST_CUISINES = 2


def spec_schema(seed: Seed, choices: Choices, longest: int) -> JsonObject:
    """Return the schema for variations of a seed; trips to a city remain trips to a city."""
    spec = TravelSpec.model_validate(seed.spec)
    longest = max(longest, spec.days)
    lengths = [3] if spec.days == 3 else [days for days in (5, 7) if days <= longest]
    alternatives = [_alternative(days, fields, choices) for days in lengths for fields in _limits(choices)]
    return {
        "anyOf": alternatives,
        "$defs": {
            "slack": {"enum": ["tight", "fair", "loose"]},
            "people": {"type": "integer", "minimum": 1, "maximum": 8},
            "origin": {"enum": list(choices.origins)},
            "destination": {"enum": list(choices.destinations)},
            "cuisines": _cuisines(choices.cuisines),
            **{
                f"start{days}": {"type": "integer", "minimum": 1, "maximum": _LAST_DAY - days + 1}
                for days in lengths
            },
            **{"query" + "_".join(["", *given]): _query(given) for given in _subsets()},
        },
    }


def _subsets() -> Iterator[tuple[str, ...]]:
    for n in range(len(LIMITS) + 1):
        yield from itertools.combinations(LIMITS, n)


def _limits(choices: Choices) -> Iterator[dict[str, Json]]:
    """Yield the sets of limits that can be combined, with the schemas of their values."""
    lacking = {*([] if choices.cuisines else ["cuisines"]), *([] if choices.transports else ["transport"])}
    for given in _subsets():
        if not lacking.isdisjoint(given):
            continue
        fixed: dict[str, Json] = {}
        if "cuisines" in given:
            fixed["cuisines"] = {"$ref": "#/$defs/cuisines"}
        if "transport" in given:
            fixed["transport"] = {"enum": list(choices.transports)}
        for rooms in _room_limits(choices, given):
            yield {name: {**rooms, **fixed}[name] for name in given}


def _room_limits(choices: Choices, given: Sequence[str]) -> Iterator[dict[str, Json]]:
    rules: list[Rule] = [rule for rule in choices.rooms if rule is not None]
    if "room_rule" in given and "room_type" in given:
        for rule in rules:
            types = [room for room in choices.rooms[rule] if room is not None]
            if types:
                yield {"room_rule": {"const": rule}, "room_type": {"enum": types}}
    elif "room_rule" in given:
        if rules:
            yield {"room_rule": {"enum": rules}}
    elif "room_type" in given:
        if types := [room for room in choices.rooms[None] if room is not None]:
            yield {"room_type": {"enum": types}}
    else:
        yield {}


def _alternative(days: int, limits: Mapping[str, Json], choices: Choices) -> JsonObject:
    held: dict[str, Json] = {
        "days": {"const": days},
        "limits": {"const": len(limits)},
        **{name: {"$ref": f"#/$defs/{name}"} for name in ("slack", "people", "origin", "destination")},
        "start": {"$ref": f"#/$defs/start{days}"},
        **limits,
        "query": {"$ref": "#/$defs/query" + "_".join(["", *limits])},
    }
    return closed_object({name: held[name] for name in TravelSpec.model_fields if name in held})


def _cuisines(offered: Sequence[str]) -> JsonObject:
    """Return a schema for one or two of the offered cuisines in alphabetical order."""
    chosen = [group for n in range(1, _MOST_CUISINES + 1) for group in itertools.combinations(offered, n)]
    return {
        "anyOf": [
            {
                "type": "array",
                "prefixItems": [{"const": cuisine} for cuisine in group],
                "items": False,
                "minItems": len(group),
            }
            for group in chosen
        ]
    }


def _query(given: Sequence[str]) -> JsonObject:
    """Return a schema of queries, with blanks."""
    return {"type": "string", "pattern": f"^{query_pattern(TRAINING, given)}$"}
