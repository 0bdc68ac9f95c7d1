"""How one travels and where one is, in the form of a submission: the other half of `entries`."""

from __future__ import annotations

import re

from genenv.benchmarks.travelplanner.idle import is_on_foot
from genenv.benchmarks.travelplanner.places import Places
from genenv.environments.travel.query import before_parenthesis, from_to

_IN_CITY = re.compile(
    r"\A(?:(?:in|at|stay(?:ing)?|explor(?:e|ing)|visit(?:ing)?|city of|arriv\w+)\s+)+", re.IGNORECASE
)

_NUMBER = re.compile(
    r"\bflight\b\W{0,6}(?:(?:number|no|num|nr|#)\b\W{0,6})?\(?(?P<number>(?:F|[A-Z]{2})\d++|\d{5,})\b\)?",
    re.IGNORECASE,
)
_ALONE = re.compile(r"(?<!\w)F\d{2,}(?!\w)")
_GOOD_NUMBER = re.compile(r"Flight Number: \w+(?:,|\Z)")
_SELF = re.compile(r"\b(s)elf[\s_-]*+driv(?:e|ing|en)\b", re.IGNORECASE)
_KINDS = ("flight number", "self-driving", "taxi")


def way_of(text: str, city: str, places: Places) -> str:
    """`Flight Number: X, from A to B, ...`, `Self-driving, from A to B, ...`, `Taxi, from A to B, ...`."""
    if text == "-":
        return text
    text = text.replace("\\n", " ").replace("\\", "").replace("$", "").replace("*", "").replace("`", "")
    text = _SELF.sub(lambda match: f"{match[1]}elf-driving", " ".join(text.split()))
    text = _with_number(text)
    if not _travels(text, city, places):
        return "-" if is_on_foot(text) else text
    text = _with_pair(text, city, places)
    if "Flight Number: " not in text:  # the evaluator would stop at it
        text = re.sub(r"flight number\W*", "Flight Number: ", text, flags=re.IGNORECASE)
    return text


def _travels(text: str, city: str, places: Places) -> bool:
    return (
        any(kind in text.lower() for kind in _KINDS)
        or places.pair_in(text) is not None
        or from_to(city) is not None
    )


def _with_number(text: str) -> str:
    """A flight's number as the evaluator finds it, where there is one only."""
    if _GOOD_NUMBER.match(text):
        return text
    match = _NUMBER.search(text)
    if match is not None:
        return _joined(f"Flight Number: {match['number']}", text[: match.start()], text[match.end() :])
    numbers = set(_ALONE.findall(text))
    if len(numbers) == 1 and ("flight" in text.lower() or _ALONE.match(text)):
        number = numbers.pop()
        rest = re.sub(r"\bflight(?:\s+number)?\b[\s:]*", "", text.replace(number, ""), flags=re.IGNORECASE)
        return _joined(f"Flight Number: {number}", rest)
    return text


def _with_pair(text: str, city: str, places: Places) -> str:
    """The way's two cities as the evaluator finds them; one without any that needs them gets unknown ones."""
    pair = from_to(text)
    states = places.database.tables.states
    if pair is not None and all(before_parenthesis(end) in states for end in pair):
        return text
    match = places.pair_in(text)
    if match is not None:
        head, rest = text[: match.start()], text[match.end() :]
        return _joined(_joined(head, f"from {match['a']} to {match['b']}"), rest)
    of_day = from_to(city)
    if pair is None and of_day is not None and not places.cities_in(text):
        return _joined(text, f"from {of_day[0]} to {of_day[1]}")
    if pair is None and of_day is None and "flight number" in text.lower():
        return f"{text}, from - to -"  # the evaluator would stop at it
    return text


def _joined(*parts: str) -> str:
    """Parts of a way, a comma between them."""
    bare = [re.sub(r"\A[\s,;:.|)(–—-]+|[\s,;:|(–—-]+\Z", "", part) for part in parts]
    return ", ".join(part for part in bare if part)


def city_of(text: str, places: Places) -> str:
    """`A`, or `from A to B`."""
    text = " ".join(text.replace("*", "").split())
    pair = from_to(text)
    states = places.database.tables.states
    head = before_parenthesis(text)
    if pair is None and head in states:
        return text if "from" not in text else head  # the evaluator would stop at it
    if pair is not None and all(before_parenthesis(end) in states for end in pair):
        return f"from {pair[0]} to {pair[1]}"
    match = places.pair_in(text)
    if match is not None:
        return f"from {match['a']} to {match['b']}"
    if pair is not None:
        return text
    while "from" in text:  # the evaluator would stop at it
        text = text.replace("from", "")
    return places.city_at_head(_IN_CITY.sub("", text.strip(), count=1)) or text.strip() or "-"
