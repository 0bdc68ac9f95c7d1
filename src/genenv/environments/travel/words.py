"""The words of a query: blanks, what fills them, and whether a text states a spec and nothing else.

`<origin>` in a query stands for the spec's origin, and so on for every field. A small simulator cannot copy
values reliably, and what it writes around a blank keeps the variety. The blanks of numbers bring their unit
along ("4 people"), that of a state how many of its cities are to be visited ("2 cities in Ohio"), those of
limits their meaning ("no flights"), so that words around them cannot change it.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Iterator

from genenv.environments.everyday import WORDS, first_strange
from genenv.environments.travel.phrasings import HELD_OUT, TRAINING, words_of
from genenv.environments.travel.sandbox import CUISINES
from genenv.environments.travel.spec import LIMITS, TravelSpec

ALWAYS = ("origin", "destination", "days", "dates", "people", "budget")
"""The blanks that each query has; those of limits come on top."""
BEFORE_ORIGIN = ("from", "leaving", "departing", "starting in")
BEFORE_DESTINATION = ("to", "visiting", "around", "exploring")
"""Words that say which place is which; one of them stands right before it."""

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
_COUNTS = {2: "two", 3: "three"}
_WAYS = {"no flight": "no flights", "no self-driving": "no self-driving"}
_NUMBERS = (
    "two|three|four|five|six|seven|eight|nine|ten|twelve|dozen|hundred|thousand|couple|solo|alone|single"
)
_DENIALS = (
    "not|no|never|without|except|avoid|nor|neither|none|cannot|excluding|unless|less|isn|don|doesn|won|can't|"
    "hates?|dislikes?|loathes?|refuses?|skip|forget|ignore|instead|rather"
)
_TOPICS = (
    "smok(?:e|ing|ers?)|part(?:y|ies)|child(?:ren)?|kids?|visitors?|guests?|pets?|dogs?|cats?|"
    "entire|private(?:ly)?|shar(?:ed|ing)|fl(?:y|ying|ights?)|planes?|driv(?:e|ing)|self-driving|cars?|taxis?|"
    "days?|weeks?|weekend|nights?|people|persons?|budget of|dollars?|bucks?|cheap(?:er|est)?|"
    "january|february|april|june|july|august|september|october|november|december|"
    + "|".join(cuisine.lower() for cuisine in CUISINES)
)
_STRAY = (
    (re.compile(r"\d"), "a number that no field accounts for"),
    (re.compile(rf"\b(?:{_NUMBERS})\b", re.IGNORECASE), "a number that no field accounts for"),
    (re.compile(rf"\b(?:{_DENIALS})\b", re.IGNORECASE), "words that could deny a constraint"),
    (re.compile(rf"\b(?:{_TOPICS})\b", re.IGNORECASE), "a wish that no field accounts for"),
)

_PARTS = [part for each in (TRAINING, HELD_OUT) for part in each.parts]
_MISLEADING_WORDS = """
aunt brother child children class daughter family father friend friends group mother parents people
sister son uncle more over off may might maybe perhaps hear heard say says said tell told think thought
met seem seen try trying test old once new next later month year minute moment today tomorrow tonight
yesterday week weekend work job game ask asked asking asks again also since bring brings join joins
"""
_MISLEADING = frozenset(_MISLEADING_WORDS.split())
"""Everyday words that could add travelers, move a limit or a date, or make a wish hearsay."""
FREE_WORDS = ((WORDS - _MISLEADING) | {"places", *words_of(*_PARTS)}) - frozenset(_NUMBERS.split("|"))
"""What may stand around values: everyday words, those of all phrasings, and "places where" of a room rule."""

_SUMS = tuple(part for each in (TRAINING, HELD_OUT) for part in each.money)
_END = r"\s*(?:[.,;:!?]|$)"


def blanks(spec: TravelSpec) -> tuple[str, ...]:
    """The blanks that the query of a spec needs."""
    return (*ALWAYS, *spec.given)


def wordings(spec: TravelSpec, budget: int) -> dict[str, str]:
    """What is said in the place of each blank.

    Args:
        spec: what the blanks stand for.
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
    """A query with its blanks filled in; None when it has one that nothing fills."""
    if any(name not in said for name in _BLANK.findall(query)):
        return None
    return _BLANK.sub(lambda match: said[match[1]], query)


# --- does a text say what the spec says? ---


def unstated(text: str, spec: TravelSpec, budget: int) -> str | None:
    """The first field that a query does not state, as a person would name it; None when it states all."""
    for name, pattern in _patterns(spec, budget):
        if not pattern.search(text):
            return name.replace("_", " ")
    return None


def stray(text: str, spec: TravelSpec, budget: int, names: Iterable[str]) -> str | None:
    """What a query says beyond its spec, as a sentence; None when there is nothing.

    Args:
        text: the query.
        spec: what it should say.
        budget: USD.
        names: cities and states, which it must not name beside its own.
    """
    rest = text
    for _, pattern in _patterns(spec, budget):
        rest = pattern.sub(" ; ", rest)
    if (problem := _misplaced(text, spec, budget)) is not None:
        return problem
    for pattern, problem in _STRAY:
        if match := pattern.search(rest):
            return f"the query has {problem}: {match[0]!r}"
    if place := _any_of(tuple(names)).search(rest):
        return f"the query names {place[0]} where it is neither the start nor the goal"
    if word := first_strange(rest, FREE_WORDS):
        return f"the query has {word[:40]!r}, which is no everyday word"
    return None


def _misplaced(text: str, spec: TravelSpec, budget: int) -> str | None:
    """Words beside people or the budget that no phrasing has there, such as "2 people and my mother"."""
    marked = text
    for name, pattern in _patterns(spec, budget):
        if name in ("people", "budget"):
            marked = pattern.sub(f"<{name}>", marked)
    for blank in ("people", "budget"):
        for match in re.finditer(f"<{blank}>", marked):
            if not _after(blank).match(marked, match.end()):
                return f"the query has words after the {blank} that change it"
    for match in re.finditer("<budget>", marked):
        if not _before_budget().search(marked[: match.start()]):
            return "the query has words before the budget that change it"
    return None


@functools.cache
def _after(blank: str) -> re.Pattern[str]:
    """What may follow a blank: a sign of punctuation or the end, or what follows it in a phrasing."""
    tails = {re.split(r"(?<=>)", part.split(f"<{blank}>")[1])[0] for part in _SUMS}
    told = [re.escape(tail) + ("" if tail.endswith(">") else _END) for tail in tails if tail[:1].isspace()]
    return re.compile("|".join([_END, *sorted(told)]), re.IGNORECASE)


@functools.cache
def _before_budget() -> re.Pattern[str]:
    """What stands before the budget in a phrasing, back to the sign of punctuation or the blank before it."""
    heads = {re.split(r"[;:,>]", part.split("<budget>")[0])[-1].strip() for part in _SUMS}
    return re.compile(rf"(?:[.,;:!?>]|^)\s*(?:{'|'.join(map(re.escape, sorted(heads)))})\s*$", re.IGNORECASE)


@functools.lru_cache(maxsize=4)
def _any_of(names: tuple[str, ...]) -> re.Pattern[str]:
    """Any of these names, as a whole word."""
    return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, names))})(?!\w)", re.IGNORECASE)


def _patterns(spec: TravelSpec, budget: int) -> Iterator[tuple[str, re.Pattern[str]]]:
    """How each field may be said: as `wordings` says it, and in the benchmark's ways."""
    said = wordings(spec, budget)
    first, last = spec.start, spec.start + spec.days - 1
    dates = rf"March {first}(?:st|nd|rd|th)? to March {last}(?:st|nd|rd|th)?, 2022"
    people = rf"{spec.people} (?:people|persons?|travell?ers?)"
    money = rf"\${budget:,}|\${budget}"
    count = "" if spec.days == 3 else rf"(?:{spec.cities}|{_COUNTS[spec.cities]}) cities (?:in|of) "
    ways = {
        "days": rf"\b{spec.days}[- ]days?\b",
        "dates": rf"\b(?:{dates}|2022-03-{first:02d} to 2022-03-{last:02d})(?!\d)",
        "people": rf"\b{people}\b",
        "budget": rf"(?:{money})(?![\d,]*\d)",
        "origin": rf"\b(?:{'|'.join(BEFORE_ORIGIN)}) {re.escape(spec.origin)}\b",
        "destination": rf"\b(?:{'|'.join(BEFORE_DESTINATION)}) {count}{re.escape(spec.destination)}\b",
    }
    for name, words in said.items():
        words = re.escape(words.removeprefix("places where ")) if name in LIMITS else ways[name]
        yield name, re.compile(words, re.IGNORECASE)
