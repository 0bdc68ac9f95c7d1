"""Hand-written parts of queries, for seeds and for held-out tasks apart, and how they are put together.

A query is a sentence about the trip, one about people and money, and one for each limit in the order of
`LIMITS`; a greeting and a farewell may stand around them. The grammar can write all of the training split.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Phrasings:
    """The parts of one split."""

    trip: tuple[str, ...]
    money: tuple[str, ...]
    limits: dict[str, tuple[str, ...]]
    greetings: tuple[str, ...] = ()
    farewells: tuple[str, ...] = ()

    @property
    def parts(self) -> tuple[str, ...]:
        """All parts."""
        clauses = (clause for clauses in self.limits.values() for clause in clauses)
        return (*self.greetings, *self.trip, *self.money, *clauses, *self.farewells)


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
    """A query with the blanks that a spec needs.

    Args:
        phrasings: the parts to choose from.
        given: the limits that the spec has.
        rng: chooses.
    """
    trip, money = rng.choice(phrasings.trip), rng.choice(phrasings.money)
    clauses = [rng.choice(phrasings.limits[name]) for name in given]
    told = "".join(f". {as_sentence(clause)}" for clause in clauses)
    around = [rng.choice(("", *words)) for words in (phrasings.greetings, phrasings.farewells)]
    return f"{around[0]} {trip}. {money}{told}. {around[1]}".strip()


def as_sentence(clause: str) -> str:
    """A clause with a capital, where it does not begin with a blank."""
    return f"{clause[0].upper()}{clause[1:]}"


def words_of(*texts: str) -> list[str]:
    """The words of texts without their blanks, each once, lower-cased and in alphabetical order."""
    plain = (re.sub(r"<[a-z_]+>", " ", text.lower()) for text in texts)
    return sorted({word for text in plain for word in re.findall(r"[a-z]+", text)})
