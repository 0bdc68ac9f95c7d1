"""Travel queries and plans in the benchmark's form, and how entries and replies are parsed."""

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
"""A day of a plan, in the benchmark's form: `days current_city transportation breakfast attraction lunch
dinner accommodation`, `-` for none."""

Plan: TypeAlias = Sequence[Day]

FIELDS = ("transportation", "breakfast", "attraction", "lunch", "dinner", "accommodation")
"""What a day says beside its number and its city."""

MEALS = ("breakfast", "lunch", "dinner")

HouseRule = Literal["smoking", "parties", "children under 10", "visitors", "pets"]
"""What the travelers want to be allowed. `parties` is enforced as the authors' evaluator enforces it since
2024-04-26 (their commit ed379c4); before, it looked for `parities`, which no query says."""

_MISSPELLED = "parities"
"""How stores of runs from before may spell `parties`."""

RoomType = Literal["shared room", "not shared room", "private room", "entire room"]
Transport = Literal["no flight", "no self-driving"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Query:
    """The structured form of a query: the benchmark's fields."""

    origin: str
    destination: str
    """A city for 3 days, else a state."""
    days: int
    cities: int
    """How many cities are visited."""
    dates: tuple[str, ...]
    """One a day, YYYY-MM-DD."""
    people: int
    budget: float
    """For everybody and everything, USD."""
    house_rule: HouseRule | None = None
    cuisines: tuple[str, ...] = ()
    """Each must be had at least once."""
    room_type: RoomType | None = None
    transport: Transport | None = None

    def to_json(self) -> JsonObject:
        """As plain values, lists instead of tuples."""
        return {**asdict(self), "dates": list(self.dates), "cuisines": list(self.cuisines)}

    @staticmethod
    def from_json(value: JsonObject) -> Query:
        """What `to_json` wrote."""
        data: dict[str, Any] = dict(cast(Mapping[str, Any], value))
        data["dates"], data["cuisines"] = tuple(data["dates"]), tuple(data["cuisines"])
        if data.get("house_rule") == _MISSPELLED:
            data["house_rule"] = "parties"
        return Query(**data)


def benchmark_query(row: Mapping[str, str]) -> Query:
    """A row of TravelPlanner's `train.csv` or `validation.csv`.

    Raises:
        DataError: it is not such a row.
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


MISSING = ("breakfast", "attraction", "lunch", "dinner", "accommodation")
"""What the agent says of a missing day."""
MAX_CHARS = 20_000
"""Longer replies are not looked at; the longest plan needs a fifth of it."""

_MAX_DAYS = 31
_MAX_TEXT = 600
_FENCE = re.compile(r"^```(?:json)?\s*|\s*```$")


class NotAPlanError(Exception):
    """A reply that is no plan; its message says why."""


def is_final(reply: str) -> bool:
    """Whether a reply of an agent with tools is meant as its plan."""
    return reply[:MAX_CHARS].lstrip().startswith(("[", "{", "plan(", "```"))


def read_plan(reply: str, payload: JsonObject) -> Plan:
    """The plan of a reply; a missing day is put where it belongs.

    Raises:
        NotAPlanError: the reply is no plan.
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
    """A day with the known fields alone; each that is there must be a text."""
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
    """The oracle's plan with the agent's day, and with the agent's room on all nights in its city."""
    if not isinstance(value, Mapping):
        raise NotAPlanError("The reply is not a JSON object.")
    city = str(plan[missing]["current_city"])
    said = {field: _entry(_text(field, value.get(field, "-")), city) for field in MISSING}
    if said["attraction"] != "-":
        said["attraction"] += ";"  # without it the evaluator would not look at the attraction
    days = without_missing_day(plan, missing, city)
    for day, known in zip(days, plan, strict=True):
        if day is days[missing]:
            day.update(said)
        elif known["accommodation"] != "-" and _stays_in(known, city):
            day["accommodation"] = said["accommodation"]
    return days


def _entry(text: str, city: str) -> str:
    """`Name, City`, whether or not the agent says the city."""
    text = text.strip().rstrip(";").strip()
    return text if text in ("", "-") or text.endswith(f", {city}") else f"{text}, {city}"


def without_missing_day(plan: Sequence[JsonObject], missing: int, city: str) -> list[dict[str, Json]]:
    """A plan with nothing on its missing day, and no room on the nights in its city.

    Args:
        plan: whole.
        missing: index of the day.
        city: where that day is spent.
    """
    days = [dict(day) for day in plan]
    days[missing].update(dict.fromkeys(MISSING, "-"))
    for day in days:
        if day["accommodation"] != "-" and _stays_in(day, city):
            day["accommodation"] = "-"
    return days


def _stays_in(day: JsonObject, city: str) -> bool:
    return str(day["accommodation"]).endswith(f", {city}")
