"""Reads an agent's replies: a whole plan, or the missing day of one. Nothing it writes is run as code."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import cast

from genenv.environments.travel.query import FIELDS, Plan
from genenv.types import Json, JsonObject

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
