"""Travel requests by their parameters: days, limits, slack of the budget, people.

The seed gives where trips may start and end and what limits there may be. The trip itself and the words are
drawn as those of the base data are (`seeds`).
"""

from __future__ import annotations

import random
from typing import Literal, cast, get_args

from pydantic import BaseModel, Field

from genenv.environments.parameters import Options, asked_for
from genenv.environments.travel.choices import Choices
from genenv.environments.travel.seeds import able, requested
from genenv.environments.travel.spec import Slack, TravelSpec
from genenv.types import Message, Profile, Rejection, RejectReason, Seed

_LENGTHS = (3, 5, 7)
_MOST_PEOPLE = 8
_DRAWS = 20


class TravelParameters(BaseModel, frozen=True, extra="forbid"):
    """What a travel request is to be like. The fields are those of `TravelSpec`."""

    days: Literal[3, 5, 7]
    limits: Literal[0, 1, 2, 3, 4]
    slack: Slack
    people: int = Field(ge=1, le=_MOST_PEOPLE)


def options(seed: Seed, choices: Choices, longest: int) -> Options:
    """All parameters that go with a seed."""
    short = TravelSpec.model_validate(seed.spec).days == _LENGTHS[0]
    days = [n for n in _LENGTHS if (n == _LENGTHS[0]) is short and n <= longest]
    limits = range(len(able(choices)) + 1)
    people = range(1, _MOST_PEOPLE + 1)
    return [{"days": days, "limits": list(limits), "slack": list(get_args(Slack)), "people": list(people)}]


def drawn(parameters: TravelParameters, choices: Choices, rng: random.Random) -> TravelSpec | Rejection:
    """A request that has these parameters."""
    for _ in range(_DRAWS):  # what limits go together is known when they are drawn
        spec = requested(choices, rng, **parameters.model_dump())
        if spec.limits == parameters.limits:
            return spec
    sentence = f"No {parameters.limits} limits go together there."
    return Rejection(RejectReason.INCONSISTENT, sentence)


def messages(seed: Seed, profile: Profile, target: float) -> tuple[Message, ...]:
    """The job, and how the planner does. Arguments as of `Environment.simulator_messages`."""
    days = cast(int, seed.spec["days"])
    system = (
        "Set up a travel request, as JSON: days, limits (how many wishes it names), slack of the budget "
        f"(tight, fair, loose), people. A planner should solve {target:.0%}. "
        f"{'A trip to one city' if days == _LENGTHS[0] else 'A trip through a state'}."
    )
    return asked_for(system, profile, seed.skills, thing="request")
