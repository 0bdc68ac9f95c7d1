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
from typing import Final, cast

from genenv.evaluation.travelplanner.entries import KEYS, MAX_TEXT, normalized
from genenv.evaluation.travelplanner.lines import LEAST_FIELDS, Piece, in_lines, in_tables, key_of
from genenv.evaluation.travelplanner.places import Places
from genenv.types import Json

MAX_CHARS: Final = 50_000
"""What stands behind is not looked at; a plan for a week has 4,000."""

_MAX_DEPTH = 40
_WRAPPED = 4
"""So deep may the days be in lists and objects."""
_MOST_DAYS, _MAX_NAME = 31, 40

_Day = dict[str, str]


def read_plan(reply: str, places: Places) -> list[dict[str, Json]]:
    """The plan of a reply: of several the one with the most days, of those the last; empty for none."""
    text = reply[:MAX_CHARS]
    plans = _plans(text)
    if not plans and (unescaped := _unescaped(text)) != text:
        plans = _plans(unescaped)
    plan = max(reversed(plans), key=len, default=list[_Day]())
    return [{"days": number, **normalized(day, places)} for number, day in enumerate(plan[:_MOST_DAYS], 1)]


def _unescaped(text: str) -> str:
    """What a JSON text says, or what a text with escaped quotes stands for."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text.replace('\\"', '"').replace("\\n", "\n")
    return value if isinstance(value, str) else ""


def _plans(text: str) -> list[list[_Day]]:
    found = [in_lines(text), *in_tables(text), *_json_days(text)]
    return [plan for pieces in found for plan in _split(pieces)]


def _split(pieces: Sequence[Piece]) -> list[list[_Day]]:
    """Days as plans: where the numbers do not go on, another plan begins."""
    plans: list[list[_Day]] = []
    last = 0
    for piece in pieces:
        if not plans or (piece.number is not None and piece.number <= last):
            plans.append([])
        last = piece.number or last + 1
        plans[-1].append(piece.day)
    return plans


# --- days as JSON ---

_DOUBLE = r'"[^"\\\n]*+(?:\\[\s\S][^"\\\n]*+)*+(?:"|\n|\\?\Z)'
_SINGLE = r"'[^'\\\n]*+(?:\\[\s\S][^'\\\n]*+)*+(?:'|\n|\\?\Z)"
_TOKEN = re.compile(rf"{_DOUBLE}|{_SINGLE}|[\[\]{{}}]")
_PYTHON = re.compile(rf"{_DOUBLE}|{_SINGLE}|,(?=\s*+[\]}}])|\b(?:None|True|False)\b")
_DAY = re.compile(r"\D{0,8}(\d{1,2})(?!\d)")
_OPENING = {"]": "[", "}": "{"}
_WORDS = {"None": "null", "True": "true", "False": "false", ",": ""}


def _json_days(text: str) -> Iterator[list[Piece]]:
    """The days of each list; objects that stand alone, as in a list that was cut off, are taken together."""
    alone: list[Piece] = []
    for value in _values(text):
        days = list(_days(value))
        if isinstance(value, list) and len(days) > 1:
            yield days
        else:
            alone += days
    yield alone


def _values(text: str) -> Iterator[Json]:
    """The JSON values of a text that are not part of another."""
    seen = 0
    for start, end in sorted(_spans(text)):
        if start >= seen and (value := _parsed(text[start:end])) is not None:
            yield value
            seen = end


def _spans(text: str) -> Iterator[tuple[int, int]]:
    """Where brackets open and close, in one pass; quotes count within brackets only, up to the line's end."""
    opened: list[int] = []
    at = 0
    while (token := (_TOKEN if opened else _BRACKET).search(text, at)) is not None:
        kind, at = token[0], token.end()
        if kind in "[{":
            opened = [*opened[-_MAX_DEPTH:], token.start()]
        elif kind in _OPENING:
            fitting = [place for place, start in enumerate(opened) if text[start] == _OPENING[kind]]
            if fitting:
                yield opened[fitting[-1]], at
                opened = opened[: fitting[-1]]


_BRACKET = re.compile(r"[\[\]{}]")


def _parsed(text: str) -> Json:
    """A list or an object, as JSON or as Python writes it; None for anything else."""
    for tried in (text, _PYTHON.sub(_as_json, text)):
        try:
            return json.loads(tried, strict=False)
        except (ValueError, RecursionError):
            continue
    return None


def _as_json(token: re.Match[str]) -> str:
    text = token[0]
    if text.startswith("'"):
        return json.dumps(text[1:-1].replace("\\'", "'"))
    return _WORDS.get(text, text)


def _days(value: Json, depth: int = 0) -> Iterator[Piece]:
    """The days in a value: `[...]`, `{"plan": [...]}`, `{"Day 1": {...}}`, or a day itself."""
    if depth > _WRAPPED or isinstance(value, str):
        return
    if isinstance(value, Mapping):
        day = {key_of(name[:_MAX_NAME]): entry for name, entry in value.items()}
        if sum(key in day for key in KEYS) >= LEAST_FIELDS:
            yield Piece(_number(day.get("days")), _fields(day))
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
