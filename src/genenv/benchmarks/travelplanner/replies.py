"""Parses the plan in a reply, and writes plans as submissions. No model output is executed.

The authors use a second model (GPT-4) to turn the reply into the form of a submission. Here code does it. It
finds JSON, lines such as `Breakfast: ...` under `Day 1:`, or a table of days anywhere in the reply, and
normalizes the fields of each day (`entries.py`). A reply without such a plan counts as not delivered; the
authors' second model might still find a plan in free prose.

A submission has one line per query of the split, in order: `{"idx": 1, "query": "...", "plan": [...]}`, with
`null` for a plan that was not delivered. `evaluation/eval.py` of OSU-NLP-Group/TravelPlanner matches lines by
position.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, cast

from genenv.benchmarks.travelplanner.entries import KEYS, MAX_TEXT, Places, normalized
from genenv.benchmarks.travelplanner.loading import Question
from genenv.benchmarks.travelplanner.values import Unread, values
from genenv.environments.travel.query import Plan
from genenv.types import Json

LEAST_FIELDS: Final = 2
"""The fewest known fields that make a day."""
_NAMES: Mapping[str, str] = {
    "current_city": r"current(?:\s|\\?_)+city|city|location",
    "transportation": r"transportation|transport|travel",
    "breakfast": "breakfast",
    "attraction": r"attractions?|attractions?\s+visited|activit(?:y|ies)|sightseeing|places\s+to\s+visit",
    "lunch": "lunch",
    "dinner": "dinner",
    "accommodation": r"accommodations?|lodging|hotel|overnight\s+stay",
}
"""The pattern of a field's names in lines, by the key of the submission form."""
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
"""The start of the next field in a line."""
_ESCAPED = re.compile(r"(?:\\r)?\\n")
_BULLET = re.compile(r"\s*+(?:[-*•+]|\d{1,2}[.)])\s++(?=\S)")
_BAR = re.compile(r"(?<!\\)\|")
_RULE = re.compile(r"\|?[\s:|-]+\|[\s:|-]*")


class Piece(NamedTuple):
    """A day in a reply."""

    number: int | None
    day: dict[str, str]
    at: int
    """The start of the day in the reply."""
    why: str = ""
    """Why the day cannot be parsed; empty if it can."""


def in_lines(text: str) -> list[Piece]:
    """Return the days under headings; days with too few fields cannot be parsed."""
    days: list[tuple[int, dict[str, str], int]] = []
    field = ""
    for at, line in _lines(text):
        found = _LINE.match(line)
        heading = _HEADING.match(line) if found is None else None
        if heading is not None:
            days.append((_heading_number(heading[1]), _of_heading(heading["rest"]), at))
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
    r"""Yield lines and their starts; a literal `\n` also ends a line, if the start of a field follows."""
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
    """Yield the lines of a text with the position of their first character."""
    at = 0
    for line in text.splitlines(keepends=True):
        yield at, line.rstrip("\n\r\v\f\x1c\x1d\x1e\x85\u2028\u2029")
        at += len(line)


def _heading_number(text: str) -> int:
    return int(text) if text.isdigit() else _COUNTED.index(text.lower()) + 1


def _of_heading(rest: str) -> dict[str, str]:
    """Return the current city of `Day 1: from A to B`, which a separate line may replace."""
    match = re.match(r"\W{0,4}(from\s.{1,120}\sto\s.{1,80})", rest, re.IGNORECASE)
    return {"current_city": match[1].strip(" *_:#")} if match is not None else {}


def _goes_on(line: str, field: str, day: dict[str, str]) -> str:
    """Add a line to the field above it (an entry, or its value); return the field that may continue."""
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
    """Yield the days of each table with the fields as columns: `| Day | Breakfast | ...`."""
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
    """Return the submission's key for a field name, or else the name in the same style."""
    words = re.sub(r"[^a-z]+", " ", name.lower()).strip()
    for key, pattern in _PATTERNS.items():
        if pattern.fullmatch(words):
            return key
    key = words.replace(" ", "_")
    return _ALSO.get(key, key)


MAX_CHARS: Final = 50_000
"""The most characters of a reply that are parsed; a plan for a week has 4,000."""

_WRAPPED = 4
"""The deepest nesting of days in lists and objects."""
_MOST_DAYS, _MAX_NAME = 31, 40
_MOST_UNREAD = 31

_Day = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The plan parsed from a reply."""

    plan: list[dict[str, Json]]
    """The days; empty if there is no plan."""
    unread: tuple[str, ...] = ()
    """The days that cannot be parsed: number, position and reason."""


def read_reply(reply: str, places: Places) -> Reading:
    """Return the plan of a reply, and its days that cannot be parsed.

    Of several plans, the last of those with the most days counts. A day that cannot be parsed becomes a day
    of hyphens if later days can be, so that those keep their numbers.
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


_LATER = re.compile(r"\bdays?\W{1,6}\d|current.{0,2}city", re.IGNORECASE)


def _named(piece: Piece) -> str:
    which = f"day {piece.number}" if piece.number else "a day"
    return f"{which}, at character {piece.at}"


def _unescaped(text: str) -> str:
    """Return the value of a JSON string, or a text with its quotes unescaped."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        value = text.replace('\\"', '"').replace("\\n", "\n")
    return value if isinstance(value, str) else ""


def _plans(text: str) -> tuple[list[list[Piece]], list[Piece]]:
    """Return the plans of a text, and the days that cannot be parsed."""
    written = [in_lines(text), *in_tables(text), *_json_days(text)]
    plans = [plan for pieces in written for plan in _split([piece for piece in pieces if not piece.why])]
    unread = sorted(
        (piece for pieces in written for piece in pieces if piece.why), key=lambda piece: piece.at
    )
    return plans, unread


def _split(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """Split days into plans: a number that does not increase starts another plan."""
    plans: list[list[Piece]] = []
    last = 0
    for piece in pieces:
        if not plans or (piece.number is not None and piece.number <= last):
            plans.append([])
        last = piece.number or last + 1
        plans[-1].append(piece)
    return plans


def _with_gaps(plan: Sequence[Piece], unread: Sequence[Piece]) -> list[Piece]:
    """Return a plan with unparsed days in their positions, up to the last parsed day."""
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
"""The most characters of a malformed object in which to look for signs of a day."""


def _json_days(text: str) -> Iterator[list[Piece]]:
    """Yield the days of each list; separate objects, as in a truncated list, are one plan."""
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
    """Yield the day of a malformed object, if the object looks like a day."""
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
    """Yield the days in a value: `[...]`, `{"plan": [...]}`, `{"Day 1": {...}}`, or a single day."""
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
    """Return the fields of a day, including those of nested objects such as `meals`."""
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
    """Return the number of `1` or `Day 1`; None for dates."""
    if isinstance(value, int):
        return value
    digits = _DAY.match(value) if isinstance(value, str) else None
    return int(digits[1]) if digits else None


def _text(value: Json) -> str:
    """Return a text as it is, a list joined by `;`, or an object with a name as `Name, City`."""
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


# --- plans in the form of a submission ---


def as_submitted(value: Json) -> list[dict[str, Json]]:
    """Return a plan in the form of a submission, or the `plan` of a line of a submission.

    Days stay unchanged, except that long texts are cut. Entries that are not objects become empty days.
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


def plan_of(question: Question, answer: Json) -> Plan:
    """Return the plan in an answer (a reply, or a plan in the form of a submission); empty if none."""
    return reading_of(question, answer).plan


def reading_of(question: Question, answer: Json) -> Reading:
    """Return the plan in an answer, and the days that cannot be parsed."""
    if isinstance(answer, Mapping) and "reply" in answer:  # two-stage mode
        answer = str(answer["reply"])
    if isinstance(answer, str):
        return read_reply(answer, question.split.places)
    return Reading(plan=as_submitted(answer))


def submission(answers: Sequence[tuple[Question, Json]]) -> str:
    """Return the submission for a split; queries without a rollout have no plan.

    Args:
        answers: questions of one split, each with its answer or None.

    Returns:
        One line for each query of the split; "" if there are no questions.
    """
    if not answers:
        return ""
    plans = {question.number: plan_of(question, answer) for question, answer in answers}
    return "".join(
        json.dumps({"idx": number, "query": text, "plan": list(plans.get(number, ())) or None}) + "\n"
        for number, text in enumerate(answers[0][0].split.texts, 1)
    )
