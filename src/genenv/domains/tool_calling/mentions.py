"""Reads literals out of an instruction: whether a value that a call needs can be known from the words alone.

`mentions` lists every date, time or number that the words express, each with where it stands and how.
`reading` says how one value of one parameter can be read, `stated` whether it can. The readers prefer to miss
an odd expression (a good task is rejected) over reading one that is ambiguous (a wrong task is accepted):
"next week", "at 4" and "03/04" are expressions, but of no particular value.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date as Day
from datetime import timedelta

from genenv.domains.tool_calling.expressions import (
    BELOW_100,
    NUMBER,
    Manner,
    Mention,
    Reader,
    Rule,
    number_of,
    rule,
    scan,
)
from genenv.domains.tool_calling.toolbox import Kind

# --- dates ---

_WEEKDAYS = ("monday", "tuesday", "wednesday", "thursday", "friday", "saturday", "sunday")
_MONTHS = (
    "january", "february", "march", "april", "may", "june",
    "july", "august", "september", "october", "november", "december",
)  # fmt: skip
_WEEKDAY = rf"(?:{'|'.join(_WEEKDAYS)}|mon|tues?|wed|thu(?:rs?)?|fri)"
_MONTH = rf"(?:{'|'.join(_MONTHS)}|jan|feb|mar|apr|jun|jul|aug|sept?|oct|nov|dec)"
_NTH = r"(?P<day>\d{1,2})(?:st|nd|rd|th)?"
_LEAD = rf"\b(?:(?:on\s+)?{_WEEKDAY},?\s+(?:the\s+)?)?"
_YEAR = r"(?:,?\s+(?P<year>\d{4})\b)?"


def _weekday_after(day: Day, word: str) -> Day:
    """The first such weekday strictly after a day."""
    number = next(i for i, name in enumerate(_WEEKDAYS) if name.startswith(word.lower()[:3]))
    return day + timedelta(days=(number - day.weekday() - 1) % 7 + 1)


def _offset(days: Callable[[re.Match[str]], int]) -> Reader:
    def read(match: re.Match[str], today: Day) -> tuple[Manner, tuple[str | float, ...]]:
        count = days(match)
        return Manner.RELATIVE, ((today + timedelta(days=count)).isoformat(),) if abs(count) < 10_000 else ()

    return read


def _calendar(year: int, month: int, day: int) -> tuple[str, ...]:
    try:
        return (Day(year, month, day).isoformat(),)
    except ValueError:
        return ()


def _month_day(match: re.Match[str], today: Day) -> tuple[Manner, tuple[str | float, ...]]:
    """A day of a named month; without a year, this year's and the next one to come."""
    month = next(i for i, name in enumerate(_MONTHS, 1) if name.startswith(match["month"].lower()[:3]))
    day = int(match["day"])
    if match["year"]:
        return Manner.WRITTEN, _calendar(int(match["year"]), month, day)
    this = _calendar(today.year, month, day)
    if this and this[0] < today.isoformat():
        return Manner.WRITTEN, this + _calendar(today.year + 1, month, day)
    return Manner.WRITTEN, this


def _day_of_month(match: re.Match[str], today: Day) -> tuple[Manner, tuple[str | float, ...]]:
    """For "the 14th": the next day with that number, today included."""
    day = int(match["day"])
    for month in range(today.month, today.month + 2):
        found = _calendar(today.year + (month - 1) // 12, (month - 1) % 12 + 1, day)
        if found and found[0] >= today.isoformat():
            return Manner.RELATIVE, found
    return Manner.RELATIVE, ()


def _slashes(match: re.Match[str], _today: Day) -> tuple[Manner, tuple[str | float, ...]]:
    """14/03/2025 and 03/14/2025; where day and month could be swapped it has no value."""
    first, second, year = int(match[1]), int(match[2]), int(match[3])
    values = set(_calendar(year, first, second) + _calendar(year, second, first))
    return Manner.WRITTEN, tuple(values) if len(values) == 1 else ()


def _anchor(match: re.Match[str], today: Day) -> Day:
    anchor = match["anchor"].lower()
    start = {"today": today, "now": today, "tomorrow": today + timedelta(days=1)}.get(anchor)
    return start or _weekday_after(today, anchor)


def _from_anchor(match: re.Match[str], today: Day) -> tuple[Manner, tuple[str | float, ...]]:
    """For "a week from Friday", "two days after tomorrow"."""
    day = _anchor(match, today) + timedelta(days=_days(match))
    return Manner.RELATIVE, (day.isoformat(),)


def _days(match: re.Match[str]) -> int:
    count = match["count"].lower()
    number = 1 if count in ("a", "an") else 2 if count == "a couple of" else min(int(number_of(count)), 9_999)
    return number * {"day": 1, "week": 7, "fortnight": 14}[match["unit"].lower()]


def _iso(match: re.Match[str], _today: Day) -> tuple[Manner, tuple[str | float, ...]]:
    return Manner.LITERAL, _calendar(*map(int, match.groups()))


def _no_value(_match: re.Match[str], _today: Day) -> tuple[Manner, tuple[str | float, ...]]:
    return Manner.RELATIVE, ()


_SPAN = rf"\b(?P<count>a couple of|an?|{NUMBER})\s+(?P<unit>day|week|fortnight)s?"
_FROM_ANCHOR = (
    rf"{_SPAN}\s+(?:from|after)\s+(?P<said>(?:this\s+|next\s+)?(?P<anchor>today|now|tomorrow|{_WEEKDAY}))\b"
)
_DATE_RULES: tuple[Rule, ...] = (
    rule(r"(?<![\w-])(\d{4})-(\d{2})-(\d{2})(?![\w-])", _iso),
    rule(rf"{_LEAD}{_NTH}\s+(?:of\s+)?(?P<month>{_MONTH})\b\.?{_YEAR}", _month_day),
    rule(rf"{_LEAD}(?P<month>{_MONTH})\.?\s+(?:the\s+)?{_NTH}\b(?!:){_YEAR}", _month_day),
    rule(r"(?<![\w./])(\d{1,2})[/.](\d{1,2})[/.](\d{4})(?![\w/])", _slashes),
    rule(r"(?<![\w./:-])\d{1,2}/\d{1,2}(?![\w/])", _no_value),
    rule(_FROM_ANCHOR, _from_anchor),
    rule(rf"\bin\s+{_SPAN}(?:'s?\s+time)?\b(?!\s+(?:of|a|per)\b)", _offset(_days)),
    rule(rf"{_SPAN}\s+(?:ago|earlier)\b", _offset(lambda match: -_days(match))),
    rule(r"\bthe\s+day\s+after\s+tomorrow\b", _offset(lambda _: 2)),
    rule(r"\bthe\s+day\s+before\s+yesterday\b", _offset(lambda _: -2)),
    rule(r"\btomorrow\b", _offset(lambda _: 1)),
    rule(r"\byesterday\b", _offset(lambda _: -1)),
    rule(r"\b(?:today|tonight|this\s+(?:morning|afternoon|evening))\b", _offset(lambda _: 0)),
    rule(rf"\b(?:{_WEEKDAY}\s+(?:of\s+)?next\s+week|next\s+week(?:\s+on)?\s+{_WEEKDAY})\b", _no_value),
    rule(
        rf"\blast\s+({_WEEKDAY})\b",
        lambda match, today: (
            Manner.RELATIVE,
            (_weekday_after(today - timedelta(days=8), match[1]).isoformat(),),
        ),
    ),
    rule(
        rf"{_LEAD}(?<=the ){_NTH}(?<=[a-z])\b(?!\s+[a-z]*\s*(?:floor|street|avenue|time|item|row))",
        _day_of_month,
    ),
    rule(
        rf"(?<!every )(?<!each )\b(?:(?:next|this(?:\s+coming)?|coming|on)\s+)?({_WEEKDAY})\b",
        lambda match, today: (Manner.RELATIVE, (_weekday_after(today, match[1]).isoformat(),)),
    ),
    rule(r"\b(?:next|this)\s+(?:week|weekend|month)\b", _no_value),
)


# --- times ---

_HOUR_WORDS = "twelve|eleven|ten|nine|eight|seven|six|five|four|three|two|one"
_HOUR = rf"(?P<hour>\d{{1,2}}|{_HOUR_WORDS})"
_HALF_DAY = r"(?:\s*(?P<half>[ap]\.?\s?m\b\.?|in\s+the\s+(?:morning|afternoon|evening)|at\s+night|tonight))"
_MINUTES = rf"(?P<minute>half|(?:a\s+)?quarter|{BELOW_100}|\d{{1,2}})(?:\s+minutes)?"
_PAST = rf"{_MINUTES}\s+(?P<side>past|after|to|before)"


def _time(hour: int, minute: int) -> tuple[str, ...]:
    return (f"{hour:02d}:{minute:02d}",) if hour < 24 and minute < 60 else ()


def _in_half(hour: int, match: re.Match[str]) -> int:
    """The hour of 24, from what follows the time or, failing that, from "in the evening" before it."""
    half = (match["half"] or "").lower()
    before = match.string[max(0, match.start() - 30) : match.start()].lower()
    late = half.startswith("p") or "noon" in half or "evening" in half or "night" in half
    if not half and hour < 12:
        late = re.search(r"\b(afternoon|evening|tonight|night)\b[^.;]*$", before) is not None
    if late and hour < 12:
        return hour + 12
    return 0 if half.startswith("a") and hour == 12 and "t" not in half else hour


def _clock(match: re.Match[str], _today: Day) -> tuple[Manner, tuple[str | float, ...]]:
    hour, minute = int(match["hour"]), int(match["minute"])
    if hour > 23:
        return Manner.WRITTEN, ()
    adjusted = _in_half(hour, match) if match["half"] or len(match["hour"]) == 1 else hour
    manner = Manner.LITERAL if adjusted == hour and not match["half"] else Manner.WRITTEN
    return manner, _time(adjusted, minute)


def _full_hour(match: re.Match[str], _today: Day) -> tuple[Manner, tuple[str | float, ...]]:
    return Manner.WRITTEN, _time(_in_half(int(number_of(match["hour"])), match), 0)


def _spoken(match: re.Match[str], _today: Day) -> tuple[Manner, tuple[str | float, ...]]:
    """For "nine thirty", "half past nine", "quarter to ten in the evening"."""
    word = match["minute"].lower()
    minute = 30 if word == "half" else 15 if word.endswith("quarter") else int(number_of(word))
    hour = _in_half(int(number_of(match["hour"])), match)
    groups = match.groupdict()
    if groups.get("side") in ("to", "before"):
        hour, minute = (hour - 1) % 24, 60 - minute
    return Manner.WRITTEN, _time(hour, minute) if 0 <= minute < 60 else ()


def _bare_hour(match: re.Match[str], _today: Day) -> tuple[Manner, tuple[str | float, ...]]:
    """For "at 9": a time, but before 7 and at 12 nobody can tell which half of the day is meant."""
    hour = int(number_of(match["hour"]))
    adjusted = _in_half(hour, match)
    return Manner.WRITTEN, _time(adjusted, 0) if adjusted != hour or 7 <= hour < 12 or hour > 12 else ()


_TIME_RULES: tuple[Rule, ...] = (
    rule(rf"(?<![\w:.-])(?P<hour>\d{{1,2}})[:.h](?P<minute>[0-5]\d){_HALF_DAY}", _clock),
    rule(r"(?<![\w:.-])(?P<hour>\d{1,2}):(?P<minute>[0-5]\d)(?P<half>)(?![\w:])", _clock),
    rule(rf"\b{_PAST}\s+{_HOUR}\b{_HALF_DAY}?", _spoken),
    rule(rf"\b{_HOUR}(?:\s+o'?clock)?{_HALF_DAY}", _full_hour),
    rule(rf"\b{_HOUR}\s+o'?clock\b(?P<half>)", _bare_hour),
    rule(
        rf"\bat\s+(?P<hour>{_HOUR_WORDS})[\s-](?P<minute>(?:twenty|thirty|forty|fifty)(?:-five)?|fifteen|ten)\b{_HALF_DAY}?",
        _spoken,
    ),
    rule(r"\b(?:noon|midday)\b", lambda _match, _today: (Manner.WRITTEN, ("12:00",))),
    rule(r"\bmidnight\b", lambda _match, _today: (Manner.WRITTEN, ("00:00",))),
    rule(
        rf"\b(?:at|from|until|till|by|around|about)\s+{_HOUR}\b(?P<half>)(?![\w:%]|[.,]\d|\s*(?:percent|degrees|°|€|\$))"
        r"(?=\s*(?:$|[.,;!?)]|(?:on|for|tomorrow|today|with|until|till|to|and|next|this|in|called|named)\b))",
        _bare_hour,
    ),
)


# --- numbers and amounts of time ---

_SECONDS = {
    "second": 1,
    "minute": 60,
    "hour": 3600,
    "day": 86400,
    "night": 86400,
    "week": 604800,
    "fortnight": 1209600,
}
_UNIT = r"(?P<unit>second|sec|minute|min|hour|hr|h|day|night|week|fortnight)s?"
_ALIASES = {"sec": "second", "min": "minute", "hr": "hour", "h": "hour"}


def unit_of(parameter: str) -> str | None:
    """The unit of time that a parameter counts in, from its name."""
    name = parameter.lower()
    if "duration" in name or "length" in name:
        return "minute"
    return next((unit for unit in _SECONDS if unit in name), None)


def _amount(scale: float | None, plain: bool = False) -> Reader:
    """Reads `count` (and `more`) units. Without a scale it is a mention of no value."""

    def read(match: re.Match[str], _today: Day) -> tuple[Manner, tuple[str | float, ...]]:
        if scale is None:
            return Manner.RELATIVE, ()
        groups = match.groupdict()
        unit = (groups.get("unit") or "hour").lower()
        seconds = _SECONDS[_ALIASES.get(unit, unit)]
        count = _fraction(groups.get("count") or "1")
        more = _fraction(groups.get("more") or "0") * (60 if groups.get("minutes") else seconds)
        value = (count * seconds + more) / scale
        return Manner.WRITTEN if plain and seconds == scale else Manner.RELATIVE, (round(value, 6),)

    return read


def _fraction(text: str) -> float:
    text = re.sub(r"\s+", " ", text.lower().strip())
    named = {
        "a": 1.0,
        "an": 1.0,
        "half": 0.5,
        "half a": 0.5,
        "half an": 0.5,
        "a half": 0.5,
        "a couple of": 2.0,
    }
    named |= {"a quarter": 0.25, "a quarter of a": 0.25, "a quarter of an": 0.25, "quarter of an": 0.25}
    named |= {"three quarters of an": 0.75, "three-quarters of an": 0.75, "a few": 0.0}
    return named[text] if text in named else number_of(text)


_PART = r"half\s+an?|half|(?:a\s+)?quarter\s+of\s+an?|three[\s-]quarters\s+of\s+an?"
_COUNT = rf"(?P<count>{_PART}|a\s+couple\s+of|an?|{NUMBER})"


def _duration_rules(unit: str | None) -> tuple[Rule, ...]:
    scale = float(_SECONDS[unit]) if unit else None
    return (
        rule(rf"\b{_COUNT}[\s-]*{_UNIT}\s+and\s+(?P<more>a\s+half|a\s+quarter)\b", _amount(scale)),
        rule(rf"\b(?P<count>{NUMBER})\s+and\s+(?P<more>a\s+half)\s+{_UNIT}\b", _amount(scale)),
        rule(rf"\b{_COUNT}[\s-]*(?P<unit>hour|hr|h)s?\s*(?:and\s+)?(?P<more>{NUMBER})\s*(?P<minutes>m(?:in(?:ute)?s?)?)\b",
              _amount(scale)),
        rule(rf"\b{_COUNT}[\s-]*{_UNIT}\b", _amount(scale, plain=True)),
    )  # fmt: skip


def _plain(match: re.Match[str], _today: Day) -> tuple[Manner, tuple[str | float, ...]]:
    text = match["number"]
    sign = -1.0 if match["sign"] else 1.0
    return Manner.LITERAL if text[0].isdigit() else Manner.WRITTEN, (sign * number_of(text),)


def _times(factor: float) -> Reader:
    def read(match: re.Match[str], _today: Day) -> tuple[Manner, tuple[str | float, ...]]:
        return Manner.RELATIVE, (factor * _fraction(match.groupdict().get("count") or "1"),)

    return read


_NUMBER_RULES: tuple[Rule, ...] = (
    rule(rf"\b(?P<count>half\s+a|an?|{NUMBER})\s+dozen\b", _times(12)),
    rule(r"\bdozen\b", _times(12)),
    rule(r"\ba\s+(?:couple|pair)\b", _times(2)),
    rule(
        rf"\b(?P<count>{NUMBER})\s+and\s+a\s+half\b",
        lambda match, _: (Manner.RELATIVE, (number_of(match["count"]) + 0.5,)),
    ),
    rule(r"\bhalf\s+an?\b|\bhalf\s+(?=of\b)", _times(0.5)),
    rule(
        rf"(?<![\w.,:/#-])(?P<sign>minus\s+|-|−)?[$€£]?\s?(?P<number>{NUMBER})"
        r"(?![\d]|[:/-]\d|[.,]\d|(?:st|nd|rd|th)\b|[a-z]*\d)",
        _plain,
    ),
)


# --- the whole ---


def mentions(kind: Kind, instruction: str, today: Day, parameter: str = "") -> list[Mention]:
    """Every expression of a kind in an instruction: dates as ISO strings, times as HH:MM, numbers as floats.

    Args:
        kind: `date`, `time` or `number`; other kinds have no expressions of their own and give none.
        instruction: what the user says.
        today: what relative dates are relative to.
        parameter: the parameter's name; one that names a unit of time makes "two hours" a number of that
        unit.
    """
    if kind == "date":
        return list(scan(_DATE_RULES, instruction, today))
    if kind == "time":
        return list(scan(_TIME_RULES, instruction, today))
    if kind == "number":
        unit = unit_of(parameter)
        durations = [m for m in scan(_duration_rules(unit), instruction, today) if m.values] if unit else []
        return durations + list(scan(_NUMBER_RULES, instruction, today))
    return []


def anchors(instruction: str, today: Day, days: float) -> list[Mention]:
    """The days from which an instruction counts: tomorrow in "ten days after tomorrow".

    For calls that add the days themselves; to others "ten days after tomorrow" is one date.

    Args:
        instruction: what the user says.
        today: what relative dates are relative to.
        days: how many days the call adds; where the instruction counts others, it means something else.
    """
    return [
        Mention(
            values=(_anchor(match, today).isoformat(),),
            manner=Manner.RELATIVE,
            start=match.start("said"),
            end=match.end("said"),
        )
        for match in re.finditer(_FROM_ANCHOR, instruction, re.IGNORECASE)
        if _days(match) == days
    ]
