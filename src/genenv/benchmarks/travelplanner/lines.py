"""Finds days in a text with a heading for each day and a line for each field, or in a table of days."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

LEAST_FIELDS: Final = 2
"""What has so many of the known fields is a day."""
_NAMES: Mapping[str, str] = {
    "current_city": r"current(?:\s|\\?_)+city|city|location",
    "transportation": r"transportation|transport|travel",
    "breakfast": "breakfast",
    "attraction": r"attractions?|attractions?\s+visited|activit(?:y|ies)|sightseeing|places\s+to\s+visit",
    "lunch": "lunch",
    "dinner": "dinner",
    "accommodation": r"accommodations?|lodging|hotel|overnight\s+stay",
}
"""Key of the submission form -> what lines call it."""
_ANY = "|".join(_NAMES.values())
_COUNTED = ("one", "two", "three", "four", "five", "six", "seven")

_MARKS = r"(?:[\s#*_>•|+-]|\d{1,2}[.)]\s|[^\w\s\x00-\x7f])*+"
_HEADING = re.compile(
    rf"{_MARKS}(?:[\w ,.]{{1,30}}\(\s*+)?"
    rf"(?:day\W{{0,3}}|days\s*+:\s*+)(\d{{1,3}}|{'|'.join(_COUNTED)})\b(?P<rest>.*)",
    re.IGNORECASE,
)
_LINE = re.compile(
    rf"{_MARKS}(?P<name>{_ANY})\s*+(?:\([^()]{{0,30}}\)\s*+)?"
    r"(?:[*_]{0,3}\s*+[:：=|][*_]{0,3}|[*_]{0,3}\s*+[-–—](?=\s)|(?=\bat\s))\s*+(?P<value>.*)",
    re.IGNORECASE,
)
_WITHIN = re.compile(rf"(?<=[;|.,])\s++(?=(?:\*\*)?(?:{_ANY})(?:\*\*)?\s*+:)", re.IGNORECASE)
"""Where in a line the next field begins."""
_ESCAPED = re.compile(r"(?:\\r)?\\n")
_BULLET = re.compile(r"\s*+(?:[-*•+]|\d{1,2}[.)])\s++(?=\S)")
_BAR = re.compile(r"(?<!\\)\|")
_RULE = re.compile(r"\|?[\s:|-]+\|[\s:|-]*")


class Piece(NamedTuple):
    """A day as it stands in a reply."""

    number: int | None
    day: dict[str, str]
    at: int
    """Where it begins in the reply."""
    why: str = ""
    """Why it cannot be read; empty: it can."""


def in_lines(text: str) -> list[Piece]:
    """The days that have a heading each; those below which too few fields stand cannot be read."""
    days: list[tuple[int, dict[str, str], int]] = []
    field = ""
    for at, line in _lines(text):
        found = _LINE.match(line)
        heading = _HEADING.match(line) if found is None else None
        if heading is not None:
            days.append((_number(heading[1]), _of_heading(heading["rest"]), at))
            field = ""
        elif not days:
            continue
        elif found is not None:
            field = key_of(found["name"])
            days[-1][1][field] = found["value"].strip(" \t|")
        else:
            field = _goes_on(line, field, days[-1][1])
    return [
        Piece(
            number, day, at, "" if len(day) >= LEAST_FIELDS else f"fewer than {LEAST_FIELDS} fields below it"
        )
        for number, day, at in days
    ]


def _lines(text: str) -> Iterator[tuple[int, str]]:
    r"""Lines and where they begin; a `\n` of two characters ends one too, before what begins a line."""
    for at, line in _numbered(text):
        parts = _ESCAPED.split(line)
        whole = parts[0]
        for part in parts[1:]:
            if not part.strip() or _LINE.match(part) or _HEADING.match(part) or _BULLET.match(part):
                yield from ((at, piece) for piece in _WITHIN.split(whole))
                whole = part
            else:
                whole = f"{whole}\\n{part}"
        yield from ((at, piece) for piece in _WITHIN.split(whole))


def _numbered(text: str) -> Iterator[tuple[int, str]]:
    """The lines of a text, each with the place of its first character."""
    at = 0
    for line in text.splitlines(keepends=True):
        yield at, line.rstrip("\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")
        at += len(line)


def _number(text: str) -> int:
    return int(text) if text.isdigit() else _COUNTED.index(text.lower()) + 1


def _of_heading(rest: str) -> dict[str, str]:
    """`Day 1: from A to B`: the current city, unless a line of its own says it."""
    match = re.match(r"\W{0,4}(from\s.{1,120}\sto\s.{1,80})", rest, re.IGNORECASE)
    return {"current_city": match[1].strip(" *_:#")} if match is not None else {}


def _goes_on(line: str, field: str, day: dict[str, str]) -> str:
    """Entries below their field, or its value on the next line; returns the field that may still go on."""
    bullet = _BULLET.match(line)
    if not field or not line.strip():
        return field if field and not day[field] else ""
    if bullet is not None:
        day[field] = ";".join(filter(None, [day[field], line[bullet.end() :].strip()]))
        return field
    if day[field]:
        return ""
    day[field] = line.strip()
    return field


def in_tables(text: str) -> Iterator[list[Piece]]:
    """The days of each table whose head names the fields: `| Day | Breakfast | ...`."""
    columns: list[str] = []
    rows: list[Piece] = []
    for at, line in [*_numbered(text), (len(text), "")]:
        cells = _cells(line) if "|" in line else []
        keys = [key_of(cell.strip("*_ ")) for cell in cells]
        if sum(key in _NAMES for key in keys) > LEAST_FIELDS:
            columns, rows = keys, []
        elif columns and cells:
            if not _RULE.fullmatch(line.strip()):
                rows.append(_of_row(columns, cells, at))
        elif columns:
            yield rows
            columns = []


def _cells(line: str) -> list[str]:
    inner = line.strip().removeprefix("|").removesuffix("|")
    return [cell.replace("\\|", "|").strip() for cell in _BAR.split(inner)]


def _of_row(columns: Sequence[str], cells: Sequence[str], at: int) -> Piece:
    first = re.search(r"\d{1,2}", cells[0])
    number = int(first[0]) if first is not None and columns[0] not in _NAMES else None
    if len(cells) != len(columns):
        return Piece(number, {}, at, f"its row has {len(cells)} cells, the table {len(columns)} columns")
    day = {
        key: re.sub(r"<br\s*/?>", ";", cell)
        for key, cell in zip(columns, cells, strict=True)
        if key in _NAMES
    }
    return Piece(number, day, at)


_ALSO = {"day": "days"}
_PATTERNS = {key: re.compile(pattern, re.IGNORECASE) for key, pattern in _NAMES.items()}


def key_of(name: str) -> str:
    """The key of the submission form that a name stands for, else the name in its form."""
    words = re.sub(r"[^a-z]+", " ", name.lower()).strip()
    for key, pattern in _PATTERNS.items():
        if pattern.fullmatch(words):
            return key
    key = words.replace(" ", "_")
    return _ALSO.get(key, key)
