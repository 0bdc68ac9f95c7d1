"""The grammar that the simulator writes under: the schema of `TravelSpec` with the choices of a seed.

One alternative for each set of limits, and where both a room rule and a room type are given, for each rule:
so `limits` counts right, every pair of places is connected, some room fits, and the query has exactly the
blanks that it needs. Its words are put together from the phrasings of the base data: a small model that could
write any words between the blanks would ramble on and forget one.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence

from genenv.environments.travel.choices import Choices
from genenv.environments.travel.phrasings import TRAINING, as_sentence
from genenv.environments.travel.spec import LIMITS, Rule, TravelSpec
from genenv.types import Json, JsonObject, Seed

_LAST_START = 31
_MOST_CUISINES = 2


def spec_schema(seed: Seed, choices: Choices, longest: int) -> JsonObject:
    """The schema for the variations of a seed; trips to a city stay trips to a city."""
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
            **{f"start{days}": _start(days) for days in lengths},
            **{"query" + "_".join(["", *given]): _query(given) for given in _subsets()},
        },
    }


def _start(days: int) -> JsonObject:
    return {"type": "integer", "minimum": 1, "maximum": _LAST_START - days + 1}


def _subsets() -> Iterator[tuple[str, ...]]:
    for n in range(len(LIMITS) + 1):
        yield from itertools.combinations(LIMITS, n)


def _limits(choices: Choices) -> Iterator[dict[str, Json]]:
    """The limits that can be written together, with their values."""
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
    return {
        "type": "object",
        "properties": {name: held[name] for name in TravelSpec.model_fields if name in held},
        "required": [name for name in TravelSpec.model_fields if name in held],
        "additionalProperties": False,
    }


def _cuisines(offered: Sequence[str]) -> JsonObject:
    """One or two of the offered cuisines, in alphabetical order."""
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
    """A greeting or none, the trip, people and money, a sentence for each limit, and a farewell or none."""
    parts = [_choice(TRAINING.trip), _choice(TRAINING.money)]
    parts += [_choice(map(as_sentence, TRAINING.limits[name])) for name in given]
    greeting, farewell = f"({_choice(TRAINING.greetings)} )?", f"( {_choice(TRAINING.farewells)})?"
    return {"type": "string", "pattern": f"^{greeting}{'[.] '.join(parts)}[.]{farewell}$"}


def _choice(texts: Iterable[str]) -> str:
    """Any of these texts; of their characters only the full stop means something else in a pattern."""
    return f"({'|'.join(text.replace('.', '[.]') for text in texts)})"
