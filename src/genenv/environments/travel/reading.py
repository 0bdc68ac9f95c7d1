"""How the texts of a plan are read, to the letter as TravelPlanner's evaluator reads them.

Its regular expressions stand beside each function; they are not run, for on made-up texts they take time that
grows with the cube of the length.
"""

from __future__ import annotations

import bisect
import re

from genenv.environments.travel.query import Day

_FROM = re.compile(r"from(\s+)")
_TO = re.compile(r"(?<=\s)to(?=\s)")


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
    r"""The cities of `... from A to B, ...`; B ends at a comma or at the end.

    `from\s+(.+?)\s+to\s+([^,]+)(?=[,\s]|$)`
    """
    goals = [(match.start(), _goal(text, match.end())) for match in _TO.finditer(text)]
    goals = [(place, goal) for place, goal in goals if goal]
    for match in _FROM.finditer(text):
        start = match.end()
        place = bisect.bisect_right(goals, start, key=lambda goal: goal[0])
        origin = text[start : goals[place][0]].rstrip() if place < len(goals) else "\n"
        if "\n" not in origin:
            return origin, goals[place][1]
        blanks = match[1][1:-1].replace("\n", "")  # one of them may be the origin
        if blanks and place > 0 and goals[place - 1][0] == start:
            return blanks[-1], goals[place - 1][1]
    return None


def _goal(text: str, start: int) -> str:
    """What stands in a text from a place on, up to the next comma."""
    end = text.find(",", start)
    goal = text[start : end if end >= 0 else len(text)]
    return goal.lstrip() or goal[1:][-1:]


def before_parenthesis(text: str) -> str:
    r"""`Dallas` of `Dallas(Texas)`; a text without parentheses as it is: `^(.*?)\([^)]*\)`."""
    head, opened, rest = text.partition("(")
    return head if opened and ")" in rest and "\n" not in head else text


def name_and_city(text: str) -> tuple[str, str]:
    r"""The parts of `Name, City`, split at the last comma; (`-`, `-`) of what has none.

    `(.*?),\s*([^,]+)(\(\w[\w\s]*\))?$`: the name is on one line.
    """
    head, comma, city = text.rpartition(",")
    if not comma or not city:
        return "-", "-"
    return head.rpartition("\n")[2].strip(), before_parenthesis(city.strip()).strip()


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
