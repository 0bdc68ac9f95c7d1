"""The travel spec that the simulator writes, and the wordings of requests."""

from __future__ import annotations

import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from pydantic import BaseModel, Field

from genenv.environments.travel.query import HouseRule, RoomType, Transport
from genenv.settings import PLACE, Settings, only_with

_SOLE, _TOOLS = only_with(mode=("sole",)), only_with(mode=("tools",))


class TravelConfig(Settings, frozen=True):
    """Settings of the travel environment."""

    mode: Literal["sole", "tools"] = "sole"
    """sole: the prompt contains the information (the benchmark's sole planning), one reply. tools: the agent
    looks it up, one call per turn, and ends with its plan."""
    form: Literal["plan", "day"] = "plan"
    """plan: the agent writes the whole plan. day: the agent fills in one day of a plan that is otherwise the
    oracle's, in one short object; the completed plan must meet the same constraints."""
    reward: Literal["soft", "exact"] = "soft"
    """soft: the share of the constraints that are met, times the share of meals, rooms and attractions that
    are rows of the database, 0 if days lack information; with form day 0 unless all five fields name
    something of the database, else 0.2 + 0.8 * max(0, hard constraints met - commonsense ones broken) / hard
    constraints asked. exact: 1 if all are met, else 0."""
    strict: bool = True
    """Also require what the benchmark's evaluator does not check: every entry exact and in a city of its day,
    flights on their day, no day in another city without travel, an attraction on each day without travel, the
    destination and the number of cities that are asked for. Rows count, not how they are spelled: none comes
    twice, and budget and kinds of travel are those of the rows. Counts as one more constraint."""
    reference_tokens: int = Field(default=2000, ge=250, le=8000, json_schema_extra=_SOLE)
    """Length of the information in the prompt, at 4 characters a token. It contains the oracle's entries; the
    rest is other rows, some of other cities."""
    result_tokens: int = Field(default=300, ge=50, le=2000, json_schema_extra=_TOOLS)
    """Maximum length of a tool result, at 4 characters a token."""
    max_turns: int = Field(default=20, ge=14, le=64, json_schema_extra=_TOOLS)
    """Maximum number of replies in mode tools; the longest trip needs 14."""
    longest: Literal[3, 5, 7] = 7
    """Days of the longest trips, including held-out tasks. 3 days go to a city, 5 and 7 through a state."""
    database: str = Field(default="", json_schema_extra=PLACE)
    """Folder of TravelPlanner's tables (its `database`). Empty: the database that genenv generates."""


Slack = Literal["tight", "fair", "loose"]
Rule = Literal["smoking", "parties", "children", "visitors", "pets"]
Room = Literal["entire", "private", "shared", "not shared"]

HOUSE_RULES: dict[Rule, HouseRule] = {
    "smoking": "smoking",
    "parties": "parties",
    "children": "children under 10",
    "visitors": "visitors",
    "pets": "pets",
}
ROOM_TYPES: dict[Room, RoomType] = {
    "entire": "entire room",
    "private": "private room",
    "shared": "shared room",
    "not shared": "not shared room",
}
LIMITS = ("room_rule", "room_type", "cuisines", "transport")
"""The fields that are optional."""


class TravelSpec(BaseModel, frozen=True, extra="forbid"):
    """A travel task before it is solved."""

    days: Literal[3, 5, 7]
    """3 days in one city, 5 in two cities of a state, 7 in three."""
    limits: Literal[0, 1, 2, 3, 4]
    """The number of fields given among room_rule, room_type, cuisines and transport."""
    slack: Slack
    """The margin of the budget over the cheapest plan."""
    people: int = Field(ge=1, le=8)
    origin: str
    """A city."""
    destination: str
    """A city for 3 days, else a state."""
    start: int = Field(ge=1, le=29)
    """The day of March 2022 on which the trip starts."""
    room_rule: Rule | None = None
    """The activity that accommodations must allow."""
    room_type: Room | None = None
    cuisines: tuple[str, ...] = Field(default=(), max_length=4)
    """Each must occur in at least one meal."""
    transport: Transport | None = None
    """The transport that the travelers exclude."""
    budget: int | None = Field(default=None, ge=1, le=1_000_000)
    """USD, total for all people. None: derived from `slack`."""
    query: str = Field(min_length=8, max_length=1000)
    """The traveler's text, with blanks such as `<origin>` for values, or with the values."""

    @property
    def given(self) -> tuple[str, ...]:
        """The names of the limits that are given."""
        return tuple(name for name in LIMITS if getattr(self, name))

    @property
    def cities(self) -> int:
        """The number of cities to visit."""
        return (self.days - 1) // 2


@dataclass(frozen=True, slots=True, kw_only=True)
class Phrasings:
    """The parts of sentences for the queries of one split."""

    trip: tuple[str, ...]
    money: tuple[str, ...]
    limits: dict[str, tuple[str, ...]]
    greetings: tuple[str, ...] = ()
    farewells: tuple[str, ...] = ()


TRAINING = Phrasings(
    trip=(
        "Please plan a trip from <origin> to <destination> for <days>, <dates>",
        "Help me plan a journey in spring, from <origin> to <destination>, for <days>, <dates>",
        "I am leaving <origin> and hope to spend my time visiting <destination> for <days>, <dates>",
        "Could you arrange a tour to <destination> from <origin>, <days> long, <dates>",
        "Departing <origin>, I dream of exploring <destination> on <dates>, <days> in all",
        "Sketch an itinerary from <origin> to <destination>: <dates>, <days>",
        "The idea is visiting <destination>; we set out from <origin> for <days>, <dates>",
        "Draft a schedule, starting in <origin>, going to <destination>, with <days> during <dates>",
        "What would a holiday to <destination> look like, leaving <origin>, <days>, <dates>",
        "Set up our journey around <destination> from <origin>, during <dates>, for <days>",
    ),
    money=(
        "We are <people> with <budget> to spend",
        "It is for <people> and should cost at most <budget>",
        "The budget is <budget> for <people>",
        "There will be <people>, and our limit is <budget>",
        "All in all <budget> must do for <people>",
        "Count on <people> and at most <budget>",
        "For <people>, please stay within <budget>",
        "Money is short: <budget> covers <people>",
    ),
    limits={
        "room_rule": ("we need <room_rule>", "choose <room_rule>", "only <room_rule> will do"),
        "room_type": ("we want <room_type>", "book <room_type>", "only <room_type> will do"),
        "cuisines": (
            "we would love <cuisines>",
            "let us taste <cuisines>",
            "meals should include <cuisines>",
        ),
        "transport": ("and <transport>, please", "there should be <transport>", "we ask for <transport>"),
    },
    greetings=(
        "Hello!",
        "Hi there!",
        "Good morning!",
        "Good evening!",
        "Dear helper,",
        "Dear planner,",
        "Hey!",
    ),
    farewells=(
        "Thank you!",
        "Thanks a lot!",
        "We are looking forward to it.",
        "That would be lovely.",
        "See you soon!",
        "We hope you can help.",
    ),
)

HELD_OUT = Phrasings(
    trip=(
        "Can you put together an excursion from <origin> to <destination> lasting <days>, <dates>",
        "A getaway is due: to <destination>, from <origin>, <days>, namely <dates>",
        "Kindly prepare an outing departing <origin> and exploring <destination> over <days>, <dates>",
        "Work out for us what awaits when starting in <origin> and heading to <destination>, <days>, <dates>",
        "Travel plans wanted, leaving <origin>, visiting <destination>, <dates>, that makes <days>",
    ),
    money=(
        "There are <people> and a purse of <budget>",
        "Funds of <budget> have to last for <people>",
        "Expect <people>; the ceiling is <budget>",
        "Altogether <people> share <budget>",
    ),
    limits={
        "room_rule": ("it takes <room_rule>", "look for <room_rule>"),
        "room_type": ("find us <room_type>", "sleep must be in <room_type>"),
        "cuisines": ("dinner plans call for <cuisines>", "a craving for <cuisines> is to be met"),
        "transport": ("take <transport>", "as for the way, <transport>"),
    },
)


def query_with_blanks(phrasings: Phrasings, given: tuple[str, ...], rng: random.Random) -> str:
    """Return a random query with the blanks that a spec needs.

    Args:
        phrasings: the parts to draw from.
        given: the limits of the spec.
        rng: draws the parts.
    """
    trip, money = rng.choice(phrasings.trip), rng.choice(phrasings.money)
    clauses = [rng.choice(phrasings.limits[name]) for name in given]
    limits = "".join(f". {as_sentence(clause)}" for clause in clauses)
    around = [rng.choice(("", *words)) for words in (phrasings.greetings, phrasings.farewells)]
    return f"{around[0]} {trip}. {money}{limits}. {around[1]}".strip()


def as_sentence(clause: str) -> str:
    """Capitalize a clause; a clause that begins with a blank is unchanged."""
    return f"{clause[0].upper()}{clause[1:]}"


ALWAYS = ("origin", "destination", "days", "dates", "people", "budget")
"""The blanks of every query, in addition to those of its limits."""

_BLANK = re.compile(r"<([a-z_]+)>")
_ALLOWED = {
    "smoking": "smoking is allowed",
    "parties": "parties are allowed",
    "children": "children under 10 are allowed",
    "visitors": "visitors are allowed",
    "pets": "pets are allowed",
}
_ROOMS = {
    "entire": "entire rooms",
    "private": "private rooms",
    "shared": "shared rooms",
    "not shared": "rooms that are not shared",
}
_WAYS = {"no flight": "no flights", "no self-driving": "no self-driving"}


def blanks(spec: TravelSpec) -> tuple[str, ...]:
    """Return the blanks that the query of a spec needs."""
    return (*ALWAYS, *spec.given)


def wordings(spec: TravelSpec, budget: int) -> dict[str, str]:
    """Return the text for each blank.

    Args:
        spec: gives the values.
        budget: USD.
    """
    last = spec.start + spec.days - 1
    said = {
        "origin": spec.origin,
        "destination": spec.destination if spec.days == 3 else f"{spec.cities} cities in {spec.destination}",
        "days": f"{spec.days} days",
        "dates": f"March {spec.start} to March {last}, 2022",
        "people": f"{spec.people} {'person' if spec.people == 1 else 'people'}",
        "budget": f"${budget:,}",
        "room_rule": f"places where {_ALLOWED[spec.room_rule]}" if spec.room_rule else "",
        "room_type": _ROOMS[spec.room_type] if spec.room_type else "",
        "cuisines": f"{_listed(spec.cuisines)} food",
        "transport": _WAYS[spec.transport] if spec.transport else "",
    }
    return {name: said[name] for name in blanks(spec)}


def _listed(items: Iterable[str]) -> str:
    *first, last = tuple(items) or ("",)
    return f"{', '.join(first)} and {last}" if first else last


def filled(query: str, said: dict[str, str]) -> str | None:
    """Return a query with its blanks filled in, or None if a blank has no text."""
    if any(name not in said for name in _BLANK.findall(query)):
        return None
    return _BLANK.sub(lambda match: said[match[1]], query)


# --- does a text say what the spec says? ---


def query_pattern(phrasings: Phrasings, given: Sequence[str]) -> str:
    """Return a pattern of the queries of one split: greeting, trip, money, a sentence per limit, farewell.

    Args:
        phrasings: the parts of sentences, with blanks.
        given: the limits.
    """
    parts = [_choice(phrasings.trip), _choice(phrasings.money)]
    parts += [_choice(map(as_sentence, phrasings.limits[name])) for name in given]
    greeting, farewell = f"({_choice(phrasings.greetings)} )?", f"( {_choice(phrasings.farewells)})?"
    return f"{greeting}{'[.] '.join(parts)}[.]{farewell}"


def _choice(texts: Iterable[str]) -> str:
    """Return a pattern for any of these texts; only the period needs escaping in them."""
    return f"({'|'.join(text.replace('.', '[.]') for text in texts)})"


def says(text: str, spec: TravelSpec, budget: int) -> bool:
    """Return whether a query is one of the phrasings, with the values of a spec in its blanks."""
    said = {name: re.escape(words) for name, words in wordings(spec, budget).items()}
    patterns = (filled(query_pattern(phrasings, spec.given), said) for phrasings in (TRAINING, HELD_OUT))
    return any(pattern is not None and re.fullmatch(pattern, text) for pattern in patterns)
