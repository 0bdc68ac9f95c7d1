"""Specs made wrong in one way each; build, audit and gate must reject every one of them."""

from __future__ import annotations

import random
import re
from collections.abc import Iterator

from genenv.environments.travel.environment import query_of
from genenv.environments.travel.sandbox import CUISINES, sandbox
from genenv.environments.travel.seeds import Atlas, bare
from genenv.environments.travel.solver import Solution, solve
from genenv.environments.travel.spec import ALWAYS, HOUSE_RULES, LIMITS, ROOM_TYPES, TravelSpec, blanks
from genenv.types import JsonObject

ATLAS = Atlas(sandbox())
WISHES = {
    "room_rule": "Our two dogs travel along",
    "room_type": "Private rooms are a must",
    "cuisines": "We crave Ethiopian and Italian dishes",
    "transport": "Nobody wants to fly",
}
NEUTRAL = {"origin": "home", "destination": "somewhere nice", "days": "a while", "dates": "soon"}


def mutants(spec: JsonObject | TravelSpec, rng: random.Random) -> Iterator[tuple[str, JsonObject]]:
    """(kind, spec) for a right spec with blanks in its query, in a random order of kinds."""
    right = spec if isinstance(spec, TravelSpec) else TravelSpec.model_validate(spec)
    solution = solve(query_of(right), ATLAS.database)
    assert solution is not None
    made = [*_of_budgets(right, solution, rng), *_of_places(right, rng), *_of_words(right, solution, rng)]
    made += [*_of_limits(right, rng), *_of_form(right, rng)]
    yield from rng.sample(made, len(made))


def _changed(spec: TravelSpec, **fields: object) -> JsonObject:
    return bare(TravelSpec.model_validate({**spec.model_dump(), **fields}))


def _of_budgets(spec: TravelSpec, solution: Solution, rng: random.Random) -> Iterator[tuple[str, JsonObject]]:
    cheapest = int(solution.cost)
    if cheapest > 1:
        locked = rng.randint(max(cheapest // 2, 1), cheapest - 1)
        yield "locked budget", _changed(spec, budget=locked)
    yield "slack that is none", _changed(spec, slack="tight", budget=cheapest * 2 + 40)
    yield "slack that is too much", _changed(spec, slack="loose", budget=cheapest + 1)


def _of_places(spec: TravelSpec, rng: random.Random) -> Iterator[tuple[str, JsonObject]]:
    data = ATLAS.database
    island = rng.choice(data.cities_of("Hawaii")) if spec.days == 3 else "Hawaii"
    ways = [city for city in data.tables.states if not _could_go(city, island)]
    yield "no way to travel", _changed(spec, origin=rng.choice(ways), destination=island)
    reserved = ATLAS.destinations(spec.days, held_out=True)
    yield "held-out destination", _changed(spec, destination=rng.choice(sorted(reserved)))
    near = [city for city in data.tables.states if data.state_of(city) == _state(spec)]
    yield "origin at the destination", _changed(spec, origin=rng.choice(near))
    yield "unknown origin", _changed(spec, origin="Atlantis")
    yield "unknown destination", _changed(spec, destination="Atlantis")
    wrong = "Ohio" if spec.days == 3 else "Dayton"
    yield "city for state", _changed(spec, destination=wrong, origin="Denver")
    yield (
        "past the end of March",
        _changed(spec, start=rng.randint(31 - spec.days + 2, 29))
        if spec.days > 3
        else (_changed(spec, days=7, start=29)),
    )


def _state(spec: TravelSpec) -> str:
    return ATLAS.database.state_of(spec.destination) or spec.destination


def _could_go(city: str, island: str) -> bool:
    """Whether any plane goes there or back; Hawaii has no roads."""
    cities = ATLAS.database.cities_of("Hawaii")
    pairs = {(row.origin, row.destination) for row in ATLAS.database.tables.flights}
    return city in cities or any((city, other) in pairs or (other, city) in pairs for other in cities)


def _of_words(spec: TravelSpec, solution: Solution, rng: random.Random) -> Iterator[tuple[str, JsonObject]]:
    query = spec.query
    eaten = rng.choice(solution.trip.restaurants)
    room = next(day.accommodation for day in solution.trip.days if day.accommodation)
    yield "leaked restaurant", _changed(spec, query=f"{query} Lunch at {eaten.name} would be nice.")
    yield "leaked room", _changed(spec, query=f"{query} We stay at {room.name}.")
    yield "leaked flight", _changed(spec, query=f"{query} Take F3500123.")
    yield "leaked code", _changed(spec, query=f'{query} {{"lunch":"-"}}')
    for name in rng.sample(blanks(spec), 2):
        words = NEUTRAL.get(name, "what suits")
        yield f"unstated {name}", _changed(spec, query=query.replace(f"<{name}>", words))
    swapped = re.sub("<(origin|destination)>", lambda m: f"<{_other(m[1])}>", query)
    yield "origin and destination swapped", _changed(spec, query=swapped)
    stated = {
        "people": f"{spec.people % 8 + 1} people",
        "budget": "$77",
        "days": f"{spec.days + 1} days",
        "dates": f"March {spec.start % 28 + 1} to March 31, 2022",
    }
    name = rng.choice([*stated])
    if stated[name] != f"March {spec.start} to March {spec.start + spec.days - 1}, 2022":
        yield f"another {name} stated", _changed(spec, query=query.replace(f"<{name}>", stated[name]))
        yield f"two {name} stated", _changed(spec, query=f"{query} Or rather {stated[name]}.")
    yield "unknown blank", _changed(spec, query=f"{query} See <hotel>.")
    other = rng.choice(sorted(set(ATLAS.database.tables.states) - {spec.origin, spec.destination}))
    yield "another city named", _changed(spec, query=f"{query} Stop in {other}.")
    yield "denied", _changed(spec, query=f"{query} We do not mean the last part.")


def _other(name: str) -> str:
    return "destination" if name == "origin" else "origin"


def _of_limits(spec: TravelSpec, rng: random.Random) -> Iterator[tuple[str, JsonObject]]:
    absent = [name for name in LIMITS if name not in spec.given]
    for name in absent:
        yield f"{name} only in the words", _changed(spec, query=f"{spec.query} {WISHES[name]}.")
    if "cuisines" in absent:
        yield "blank without a limit", _changed(spec, query=f"{spec.query} Serve <cuisines>.")
    wrong = rng.choice([n for n in range(5) if n != spec.limits])
    yield "limits miscounted", _changed(spec, limits=wrong)
    food = {**spec.model_dump(), "limits": len({*spec.given, "cuisines"})}
    query = spec.query if spec.cuisines else f"{spec.query} Serve <cuisines>."
    for kind, cuisines in (("unknown cuisine", ("Klingon",)), ("cuisine twice", ("Indian", "Indian"))):
        yield kind, bare(TravelSpec.model_validate({**food, "query": query, "cuisines": cuisines}))
    if (pair := _no_such_room(spec)) is not None:
        given = {"room_rule": pair[0], "room_type": pair[1]}
        query = spec.query
        for name in given:
            query += "" if f"<{name}>" in query else f" Book <{name}>."
        fields = {"limits": len({*spec.given, *given}), "query": query, **given}
        yield "no such room", _changed(spec, **fields)


def _no_such_room(spec: TravelSpec) -> tuple[str, str] | None:
    """A room rule and a room type that nothing in the destination has together."""
    data = ATLAS.database
    cities = [spec.destination] if spec.days == 3 else data.cities_of(spec.destination)
    for rule in HOUSE_RULES:
        for room in ROOM_TYPES:
            tried = spec.model_copy(update={"room_rule": rule, "room_type": room, "limits": 2})
            rows = [row for city in cities for row in data.accommodations(city)]
            if rows and solve(query_of(tried), data) is None:
                return rule, room
    return None


def _of_form(spec: TravelSpec, rng: random.Random) -> Iterator[tuple[str, JsonObject]]:
    for name in rng.sample(("people", "slack", "origin", "query"), 2):
        yield f"{name} left out", {key: value for key, value in bare(spec).items() if key != name}
    yield "too many people", {**bare(spec), "people": rng.randint(9, 40)}
    yield "four days", {**bare(spec), "days": 4}
    yield "unknown field", {**bare(spec), "hotel": "any"}
    yield "empty query", {**bare(spec), "query": ""}
    lone = " and ".join(f"<{name}>" for name in rng.sample(ALWAYS, len(ALWAYS)))
    yield "blanks alone", {**bare(spec), "query": lone}
    extra = sorted(set(CUISINES) - set(spec.cuisines))
    yield "another cuisine named", {**bare(spec), "query": f"{spec.query} And {rng.choice(extra)} too."}
