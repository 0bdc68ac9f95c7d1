"""Base data of the travel environment: 360 training specs, their variations, and 120 held-out specs.

The mix, in both splits: 60% of 3 days, 20% of 5 and 20% of 7 (as far as `longest` allows); a third tight,
fair and loose each; 30% without limits, 35% with one, the rest with two to four. The splits share no
destination (`choices`) and no phrasing (`phrasings`).
"""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any, Final, Literal, cast

from genenv.environments.travel.choices import Atlas, Choices
from genenv.environments.travel.phrasings import HELD_OUT, TRAINING, Phrasings, query_with_blanks
from genenv.environments.travel.spec import LIMITS, Rule, Slack, TravelSpec
from genenv.types import JsonObject, Seed

N_TRAINING: Final = 360
N_HELD_OUT: Final = 120

_LENGTHS = (3, 3, 3, 5, 7)
_SLACKS: tuple[Slack, ...] = ("tight", "fair", "loose")
_N_LIMITS = (0, 0, 0, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 2, 2, 2, 3, 3, 3, 4)
_PEOPLE = (1, 1, 1, 2, 2, 2, 3, 4, 5, 6, 7, 8)
_LAST_DAY = 31


def training_specs(atlas: Atlas, longest: int) -> list[tuple[str, TravelSpec]]:
    """The seeds, by id: always the same for a database and a longest trip."""
    return list(_split(atlas, longest, "seed", N_TRAINING, TRAINING))


def held_out_specs(atlas: Atlas, longest: int) -> list[tuple[str, TravelSpec]]:
    """The specs for measuring, by id: always the same for a database and a longest trip."""
    return list(_split(atlas, longest, "held", N_HELD_OUT, HELD_OUT))


def variation(seed: Seed, choices: Choices, longest: int, rng: random.Random) -> JsonObject:
    """A new spec like a seed's, with blanks in its query.

    Other places and dates of the seed's choices; every other time another number of limits, slack or people.
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
    """A request with blanks, its trip drawn from the choices, with as many of the limits as go together."""
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
    """The limits that there may be, in the order of `LIMITS`."""
    names = [name for name in LIMITS if name != "transport" or choices.transports]
    names = [name for name in names if name != "cuisines" or choices.cuisines]
    return [name for name in names if name != "room_rule" or len(choices.rooms) > 1]


def bare(spec: TravelSpec) -> JsonObject:
    """A spec as the grammar has it: fields that are not given are left out."""
    given = {*spec.given, *(["budget"] if spec.budget is not None else [])}
    data: dict[str, Any] = spec.model_dump(mode="json")
    return {name: value for name, value in data.items() if name in given or name not in {*LIMITS, "budget"}}


def _split(
    atlas: Atlas, longest: int, prefix: str, n: int, phrasings: Phrasings
) -> Iterator[tuple[str, TravelSpec]]:
    """Specs that go to each destination about equally often."""
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
    """About so many limits, in the order of `LIMITS`, that the choices can keep together."""
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
