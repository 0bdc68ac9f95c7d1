"""Reads the plan out of a reply. Nothing that a model wrote is run as code.

At the authors' a second model (GPT-4) turns the reply, in words, into the form in which plans are submitted.
Here code does it: it finds JSON, lines such as `Breakfast: ...` under `Day 1:`, or a table of days, wherever
they stand in the reply, and brings what each day says into form (`entries`). A reply without such a plan is
one that was not delivered; the authors' second model may still find one in free prose.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, cast

from genenv.benchmarks.travelplanner.entries import KEYS, MAX_TEXT, normalized
from genenv.benchmarks.travelplanner.lines import LEAST_FIELDS, Piece, in_lines, in_tables, key_of
from genenv.benchmarks.travelplanner.places import Places
from genenv.benchmarks.travelplanner.values import Unread, values
from genenv.types import Json

MAX_CHARS: Final = 50_000
"""What stands behind is not looked at; a plan for a week has 4,000."""

_WRAPPED = 4
"""So deep may the days be in lists and objects."""
_MOST_DAYS, _MAX_NAME = 31, 40
_MOST_UNREAD = 31

_Day = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What a reply says."""

    plan: list[dict[str, Json]]
    """Its plan; empty for none."""
    unread: tuple[str, ...] = ()
    """The days of it that cannot be read: which, from which character on, why."""


def read_reply(reply: str, places: Places) -> Reading:
    """The plan of a reply, and its days that cannot be read.

    Of several plans it is the one with the most days, of those the last. A day that cannot be read is a day
    of hyphens where days behind it can be read, so that those keep their places.
    """
    text = reply[:MAX_CHARS]
    plans, unread = _plans(text)
    if not plans and (unescaped := _unescaped(text)) != text:
        plans, unread = _plans(unescaped)
    plan = max(reversed(plans), key=len, default=list[Piece]())
    days = _with_gaps(plan, unread)
    numbers = {piece.number or place for place, piece in enumerate(days, 1) if not piece.why}
    lost = {
        piece.number or -piece.at: f"{_named(piece)} cannot be read: {piece.why}"
        for piece in unread
        if piece.number not in numbers and (piece.number or not plan or piece in days)
    }
    behind = [f"what stands behind character {MAX_CHARS} is not read"] * bool(_LATER.search(reply, MAX_CHARS))
    return Reading(
        plan=[
            {"days": number, **normalized(piece.day, places)}
            for number, piece in enumerate(days[:_MOST_DAYS], 1)
        ],
        unread=(*list(lost.values())[:_MOST_UNREAD], *behind),
    )


def read_plan(reply: str, places: Places) -> list[dict[str, Json]]:
    """The plan of a reply alone; empty for none."""
    return read_reply(reply, places).plan


_LATER = re.compile(r"\bdays?\W{1,6}\d|current.{0,2}city", re.IGNORECASE)


def _named(piece: Piece) -> str:
    which = f"day {piece.number}" if piece.number else "a day"
    return f"{which}, at character {piece.at}"


def _unescaped(text: str) -> str:
    """What a JSON text says, or what a text with escaped quotes stands for."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text.replace('\\"', '"').replace("\\n", "\n")
    return value if isinstance(value, str) else ""


def _plans(text: str) -> tuple[list[list[Piece]], list[Piece]]:
    """The plans of a text, and the days that cannot be read."""
    written = [in_lines(text), *in_tables(text), *_json_days(text)]
    plans = [plan for pieces in written for plan in _split([piece for piece in pieces if not piece.why])]
    unread = sorted(
        (piece for pieces in written for piece in pieces if piece.why), key=lambda piece: piece.at
    )
    return plans, unread


def _split(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Days as plans: where the numbers do not go on, another plan begins."""
    plans: list[list[Piece]] = []
    last = 0
    for piece in pieces:
        if not plans or (piece.number is not None and piece.number <= last):
            plans.append([])
        last = piece.number or last + 1
        plans[-1].append(piece)
    return plans


def _with_gaps(plan: Sequence[Piece], unread: Sequence[Piece]) -> list[Piece]:
    """A plan with the days that cannot be read where they stand, before the last that can."""
    days: list[Piece] = []
    before, at = 0, -1
    for piece in plan:
        missing = range(before + 1, piece.number or before + 1)  # a reply may call a day the 10^9th
        between = {
            lost.number: lost
            for lost in unread
            if at < lost.at < piece.at and lost.number is not None and lost.number in missing
        }
        if at >= 0 or len(between) == missing.stop - missing.start:
            days += [between[number] for number in sorted(between)]
        days.append(piece)
        before, at = piece.number or before + 1, piece.at
    return days


# --- days as JSON ---

_DAY = re.compile(r"\D{0,8}(\d{1,2})(?!\d)")
_KEY = re.compile(r"(?:[{,\n]|\A)\W{0,12}([A-Za-z][\w\\ ]{0,30}?)[^\w:]{0,8}:")
_NUMBERED = re.compile(r"\W{0,8}days?\W{1,8}(\d{1,2})(?!\d)", re.IGNORECASE)
_UNDER = re.compile(r"day\W{0,3}(\d{1,2})\W{1,12}\Z", re.IGNORECASE)
_HEAD = 1_500
"""Characters in which an object that cannot be read has to look like a day."""


def _json_days(text: str) -> Iterator[list[Piece]]:
    """The days of each list; objects that stand alone, as in a list that was cut off, are taken together."""
    alone: list[Piece] = []
    for found in values(text):
        if isinstance(found, Unread):
            alone += _unread_day(text, found)
            continue
        days = [piece._replace(at=found.start) for piece in _days(found.value)]
        if isinstance(found.value, list) and len(days) > 1:
            yield days
        else:
            alone += days
    yield alone


def _unread_day(text: str, unread: Unread) -> Iterator[Piece]:
    """The day that an object is that cannot be read, if it looks like one."""
    if text[unread.start] != "{":
        return
    inner = text.find("{", unread.start + 1)
    head = text[unread.start : unread.start + _HEAD if inner < 0 else min(inner, unread.start + _HEAD)]
    named = {key_of(match[1]) for match in _KEY.finditer(head)}
    number = _NUMBERED.match(head) or _UNDER.search(text[max(0, unread.start - _MAX_NAME) : unread.start])
    if len(named.intersection(KEYS)) >= LEAST_FIELDS or _NUMBERED.match(head):
        day = None if number is None else int(number[1])
        yield Piece(day, {}, unread.start, f"{unread.why} (character {unread.at})")


def _days(value: Json, depth: int = 0) -> Iterator[Piece]:
    """The days in a value: `[...]`, `{"plan": [...]}`, `{"Day 1": {...}}`, or a day itself."""
    if depth > _WRAPPED or isinstance(value, str):
        return
    if isinstance(value, Mapping):
        day = {key_of(name[:_MAX_NAME]): entry for name, entry in value.items()}
        if sum(key in day for key in KEYS) >= LEAST_FIELDS:
            yield Piece(_number(day.get("days")), _fields(day), at=0)
            return
        value = list(value.values())
    if isinstance(value, Sequence):
        for entry in value:
            yield from _days(entry, depth + 1)


def _fields(day: Mapping[str, Json]) -> _Day:
    """The texts of a day; those in an object below it, as `meals`, too."""
    below = [value for key, value in day.items() if key not in KEYS and isinstance(value, Mapping)]
    inner = {key_of(name[:_MAX_NAME]): entry for value in below for name, entry in value.items()}
    told = {key: day.get(key, inner.get(key)) for key in KEYS}
    way = told["transportation"]
    if isinstance(way, Mapping):
        told["transportation"] = ", ".join(
            f"{name.replace('_', ' ')} {entry}" for name, entry in way.items() if isinstance(entry, str)
        )
    return {key: _text(value) for key, value in told.items()}


def _number(value: Json) -> int | None:
    """`1`, or that of `Day 1`; dates have none."""
    if isinstance(value, int):
        return value
    digits = _DAY.match(value) if isinstance(value, str) else None
    return int(digits[1]) if digits else None


def _text(value: Json) -> str:
    """A text; several in a list as after `;`; an object with a name, and maybe a city, as `Name, City`."""
    if isinstance(value, str):
        return value
    if isinstance(value, Mapping):
        said = {name.lower(): entry for name, entry in value.items() if isinstance(entry, str)}
        named = [next((said[name] for name in names if name in said), "") for names in (_NAMED, _LOCATED)]
        return ", ".join(filter(None, named)) if named[0] else ""
    if isinstance(value, Sequence):
        return ";".join(filter(None, (_text(entry) for entry in value if not isinstance(entry, list))))
    return ""


_NAMED = ("name", "restaurant", "attraction", "accommodation", "title")
_LOCATED = ("city", "location")


# --- plans that are given as such ---


def as_submitted(value: Json) -> list[dict[str, Json]]:
    """A plan in the form in which plans are submitted, or a line of a submission that has one under `plan`.

    Nothing is read into it: days stay as they are, but for the length of their texts. Entries that are no
    objects are absent days.
    """
    if isinstance(value, Mapping):
        value = value.get("plan")
    if isinstance(value, str) or not isinstance(value, Sequence):
        return []
    if not any(isinstance(day, Mapping) for day in value):
        return []
    return [_bounded(cast(Mapping[str, Json], day)) if isinstance(day, Mapping) else {} for day in value]


def _bounded(day: Mapping[str, Json]) -> dict[str, Json]:
    return {key: entry[:MAX_TEXT] if isinstance(entry, str) else entry for key, entry in day.items()}
