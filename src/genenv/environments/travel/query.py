"""Travel queries and plans in the benchmark's form, and the parsers of plan entries and replies."""

from __future__ import annotations

import ast
import bisect
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any, Literal, TypeAlias, cast

from genenv.errors import DataError
from genenv.types import Json, JsonObject

Day: TypeAlias = Mapping[str, Json]
"""A day of a plan in the benchmark's form: `days current_city transportation breakfast attraction lunch
dinner accommodation`, `-` for none."""

Plan: TypeAlias = Sequence[Day]

FIELDS = ("transportation", "breakfast", "attraction", "lunch", "dinner", "accommodation")
"""The fields of a day except its number and its city."""

MEALS = ("breakfast", "lunch", "dinner")

HouseRule = Literal["smoking", "parties", "children under 10", "visitors", "pets"]
"""The activity that the travelers want to be allowed. `parties` is enforced as in the authors' evaluator
since 2024-04-26 (their commit ed379c4); before, it looked for `parities`, which no query contains."""

RoomType = Literal["shared room", "not shared room", "private room", "entire room"]
Transport = Literal["no flight", "no self-driving"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """The structured form of a query, with the benchmark's fields."""

    origin: str
    destination: str
    """A city for 3 days, else a state."""
    days: int
    cities: int
    """The number of cities to visit."""
    dates: tuple[str, ...]
    """One per day, YYYY-MM-DD."""
    people: int
    budget: float
    """Total for all people, USD."""
    house_rule: HouseRule | None = None
    cuisines: tuple[str, ...] = ()
    """Each must occur in at least one meal."""
    room_type: RoomType | None = None
    transport: Transport | None = None

    def to_json(self) -> JsonObject:
        """Return the query as plain values, with lists instead of tuples."""
        return {**asdict(self), "dates": list(self.dates), "cuisines": list(self.cuisines)}

    @staticmethod
    def from_json(value: JsonObject) -> Query:
        """Restore a query from the output of `to_json`."""
        data: dict[str, Any] = dict(cast(Mapping[str, Any], value))
        data["dates"], data["cuisines"] = tuple(data["dates"]), tuple(data["cuisines"])
        return Query(**data)


def benchmark_query(row: Mapping[str, str]) -> Query:
    """Return the query of a row in TravelPlanner's `train.csv` or `validation.csv`.

    Raises:
        DataError: the row has another form.
    """
    try:
        local = ast.literal_eval(row["local_constraint"])
        return Query(
            origin=row["org"],
            destination=row["dest"],
            days=int(row["days"]),
            cities=int(row["visiting_city_number"]),
            dates=tuple(ast.literal_eval(row["date"])),
            people=int(row["people_number"]),
            budget=float(row["budget"]),
            house_rule=local["house rule"],
            cuisines=tuple(local["cuisine"] or ()),
            room_type=local["room type"],
            transport=local["transportation"],
        )
    except (KeyError, ValueError, TypeError, SyntaxError) as error:
        raise DataError(f"not a query of TravelPlanner ({error!r}); download its files again") from None


_FROM = re.compile(r"from(\s+)")
_TO = re.compile(r"(?<=\s)to(?=\s)")


class UnreadableError(Exception):
    """Raised if the benchmark's evaluator would fail on a text; the constraint then counts as not met."""


def said(day: Day, field: str) -> str | None:
    """Return the value of a field of a day; None if it is absent, empty or `-`.

    Raises:
        UnreadableError: the value is not a string.
    """
    value = day.get(field)
    if not value or value == "-":
        return None
    if not isinstance(value, str):
        raise UnreadableError(f"{field} is not text")
    return value


def needed(day: Day, field: str) -> str | None:
    """Return the value of a required field of a day; None if it is empty or `-`.

    Raises:
        UnreadableError: the field is absent, or the value is not a string.
    """
    if field not in day:
        raise UnreadableError(f"there is no {field}")
    return said(day, field)


def city_text(day: Day) -> str:
    """Return the unparsed field `current_city`.

    Raises:
        UnreadableError: the field is absent or not a string.
    """
    value = day.get("current_city")
    if not isinstance(value, str):
        raise UnreadableError("there is no current_city")
    return value


def from_to(text: str) -> tuple[str, str] | None:
    r"""Return the cities of `... from A to B, ...` or None; B ends at a comma or at the end of the text.

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
    """Return the text from a position up to the next comma."""
    end = text.find(",", start)
    goal = text[start : end if end >= 0 else len(text)]
    return goal.lstrip() or goal[1:][-1:]


def before_parenthesis(text: str) -> str:
    r"""Return `Dallas` for `Dallas(Texas)`; text without parentheses is unchanged: `^(.*?)\([^)]*\)`."""
    head, opened, rest = text.partition("(")
    return head if opened and ")" in rest and "\n" not in head else text


def name_and_city(text: str) -> tuple[str, str]:
    r"""Return the parts of `Name, City`, split at the last comma, or (`-`, `-`) if there is no comma.

    `(.*?),\s*([^,]+)(\(\w[\w\s]*\))?$`: the name is on one line.
    """
    head, comma, city = text.rpartition(",")
    if not comma or not city:
        return "-", "-"
    return head.rpartition("\n")[2].strip(), before_parenthesis(city.strip()).strip()


def cities_of(day: Day) -> tuple[str, ...]:
    """Return the city of a day, or both cities of a travel day.

    Raises:
        UnreadableError: the text contains `from`, but not two cities.
    """
    text = city_text(day)
    if "from" not in text:
        return (before_parenthesis(text),)
    pair = from_to(text)
    if pair is None:
        raise UnreadableError(f"{text[:80]!r} does not name two cities")
    return before_parenthesis(pair[0]), before_parenthesis(pair[1])


def attractions_of(day: Day) -> list[str]:
    """Return the attractions of a day that the evaluator reads; it ignores the text after the last `;`."""
    value = said(day, "attraction")
    return value.split(";")[:-1] if value else []


def travels(day: Day) -> bool:
    """Return whether the day's city has the form `from A to B`."""
    return "from" in city_text(day)


MISSING = ("breakfast", "attraction", "lunch", "dinner", "accommodation")
"""The fields of a missing day that the agent fills in."""
MAX_CHARS = 20_000
"""Longer replies are not read; the longest plan needs a fifth of this."""

_MAX_DAYS = 31
_MAX_TEXT = 600
_FENCE = re.compile(r"^```(?:json)?\s*|\s*```$")


class NotAPlanError(Exception):
    """Raised if a reply is not a plan; the message says why."""


def is_final(reply: str) -> bool:
    """Return whether a reply in mode tools is meant as a plan and not as a call."""
    return reply[:MAX_CHARS].lstrip().startswith(("[", "{", "plan(", "```"))


def read_plan(reply: str, payload: JsonObject) -> Plan:
    """Parse the plan of a reply; a reply for a missing day is inserted into the oracle's plan.

    Raises:
        NotAPlanError: the reply is not a plan.
    """
    value = _json(reply)
    missing = payload["missing"]
    if isinstance(missing, int):
        return _completed(value, missing, cast(Sequence[JsonObject], payload["plan"]))
    if not isinstance(value, Sequence) or isinstance(value, str):
        raise NotAPlanError("The reply is not a JSON list of days.")
    if len(value) > _MAX_DAYS:
        raise NotAPlanError(f"The plan has {len(value)} days.")
    return [_day(number, day) for number, day in enumerate(value, 1)]


def _json(reply: str) -> Json:
    if len(reply) > MAX_CHARS:
        raise NotAPlanError(f"The reply has more than {MAX_CHARS:,} characters.")
    text = _FENCE.sub("", reply.strip())
    if text.startswith("plan(") and text.endswith(")"):
        text = text[len("plan(") : -1]
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise NotAPlanError(f"The reply is not JSON: {str(error)[:100]}.") from None


def _day(number: int, value: Json) -> JsonObject:
    """Return a day with its known fields only, each of which must be a string."""
    if not isinstance(value, Mapping):
        raise NotAPlanError(f"Day {number} is not a JSON object.")
    day: dict[str, Json] = {"days": number}
    for field in ("current_city", *FIELDS):
        if field in value:
            day[field] = _text(f"{field} of day {number}", value[field])
    return day


def _text(what: str, value: Json) -> str:
    if not isinstance(value, str):
        raise NotAPlanError(f"{what} is not a text.")
    if len(value) > _MAX_TEXT:
        raise NotAPlanError(f"{what} has {len(value)} characters.")
    return value


def _completed(value: Json, missing: int, plan: Sequence[JsonObject]) -> Plan:
    """Return the oracle's plan with the agent's day, and the agent's room on all nights in that city."""
    if not isinstance(value, Mapping):
        raise NotAPlanError("The reply is not a JSON object.")
    city = str(plan[missing]["current_city"])
    said = {field: _entry(_text(field, value.get(field, "-")), city) for field in MISSING}
    if said["attraction"] != "-":
        said["attraction"] += ";"  # without it the evaluator would ignore the attraction
    days = without_missing_day(plan, missing, city)
    for day, known in zip(days, plan, strict=True):
        if day is days[missing]:
            day.update(said)
        elif known["accommodation"] != "-" and _stays_in(known, city):
            day["accommodation"] = said["accommodation"]
    return days


def _entry(text: str, city: str) -> str:
    """Return `Name, City`; the city is added if the agent left it out."""
    text = text.strip().rstrip(";").strip()
    return text if text in ("", "-") or text.endswith(f", {city}") else f"{text}, {city}"


def without_missing_day(plan: Sequence[JsonObject], missing: int, city: str) -> list[dict[str, Json]]:
    """Return a plan with its missing day emptied, and without a room on all nights in that city.

    Args:
        plan: the whole plan.
        missing: index of the day.
        city: the city of that day.
    """
    days = [dict(day) for day in plan]
    days[missing].update(dict.fromkeys(MISSING, "-"))
    for day in days:
        if day["accommodation"] != "-" and _stays_in(day, city):
            day["accommodation"] = "-"
    return days


def _stays_in(day: JsonObject, city: str) -> bool:
    return str(day["accommodation"]).endswith(f", {city}")
