"""How the texts of a plan are read, to the letter as TravelPlanner's evaluator reads them."""

from __future__ import annotations

import re

from genenv.domains.travel.query import Day

_FROM_TO = re.compile(r"from\s+(.+?)\s+to\s+([^,]+)(?=[,\s]|$)")
_NAME_CITY = re.compile(r"(.*?),\s*([^,]+)(\(\w[\w\s]*\))?$")
_PARENTHESIS = re.compile(r"^(.*?)\([^)]*\)")


class UnreadableError(Exception):
    """The evaluator could not go on with this text: the constraint that needs it is not met."""


def said(day: Day, field: str) -> str | None:
    """What a day says in a field; None for nothing: an absent field, an empty one, `-`.

    Raises:
        UnreadableError: something that is not text.
    """
    value = day.get(field)
    if not value or value == "-":
        return None
    if not isinstance(value, str):
        raise UnreadableError(f"{field} is not text")
    return value


def needed(day: Day, field: str) -> str | None:
    """`said`, of a field that must be there.

    Raises:
        UnreadableError: there is no such field, or what it holds is not text.
    """
    if field not in day:
        raise UnreadableError(f"there is no {field}")
    return said(day, field)


def city_text(day: Day) -> str:
    """The field `current_city`, as it is.

    Raises:
        UnreadableError: there is none, or it is not text.
    """
    value = day.get("current_city")
    if not isinstance(value, str):
        raise UnreadableError("there is no current_city")
    return value


def from_to(text: str) -> tuple[str, str] | None:
    """The cities of `... from A to B, ...`; B ends at a comma or at the end."""
    match = _FROM_TO.search(text)
    return (match[1], match[2]) if match else None


def before_parenthesis(text: str) -> str:
    """`Dallas` of `Dallas(Texas)`; a text without parentheses as it is."""
    match = _PARENTHESIS.search(text)
    return match[1] if match else text


def name_and_city(text: str) -> tuple[str, str]:
    """The parts of `Name, City`, split at the last comma; (`-`, `-`) of what has none."""
    match = _NAME_CITY.search(text)
    if not match:
        return "-", "-"
    return match[1].strip(), before_parenthesis(match[2].strip()).strip()


def cities_of(day: Day) -> tuple[str, ...]:
    """The city of a day, or both on a day of travel.

    Raises:
        UnreadableError: the text has `from`, but not two cities.
    """
    text = city_text(day)
    if "from" not in text:
        return (before_parenthesis(text),)
    pair = from_to(text)
    if pair is None:
        raise UnreadableError(f"{text[:80]!r} does not name two cities")
    return before_parenthesis(pair[0]), before_parenthesis(pair[1])


def attractions_of(day: Day) -> list[str]:
    """The attractions of a day that are looked at: the piece after the last `;` is not."""
    value = said(day, "attraction")
    return value.split(";")[:-1] if value else []


def travels(day: Day) -> bool:
    """Whether the day's city has the form `from A to B`."""
    return "from" in city_text(day)
