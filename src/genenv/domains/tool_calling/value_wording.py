"""How a value is said where an instruction leaves a blank for it: as it is, or in words that need reading."""

from __future__ import annotations

import random
from datetime import date as Day

from genenv.domains.tool_calling.expressions import SMALL_NUMBERS, TENS
from genenv.domains.tool_calling.phrasings.moments import day_names, day_phrases, time_phrase
from genenv.domains.tool_calling.toolbox import Parameter
from genenv.domains.tool_calling.values import SPOKEN
from genenv.types import Json


def plainly(parameter: Parameter, value: Json) -> str:
    """A value as it goes into the call, but units and currencies by name."""
    if isinstance(value, int | float):
        return str(int(value)) if float(value).is_integer() else str(value)
    text = str(value)
    return (
        SPOKEN.get(text, text.replace("_", " ")).removeprefix("degrees ")
        if parameter.kind == "choice"
        else text
    )


def relatively(parameter: Parameter, value: Json, today: Day, rng: random.Random, *, on: bool) -> str | None:
    """A date, time or number in other words; None where there are none that are sure to be understood.

    Args:
        parameter: what the value is for; ids are never said in words.
        value: what to say.
        today: what dates are relative to.
        rng: chooses between words.
        on: whether the words stand where "on" and a date could ("in 3 days"), or where only a date could.
    """
    if parameter.kind == "date":
        return _date(str(value), today, rng, on=on)
    if parameter.kind == "time":
        try:
            return time_phrase(str(value))
        except ValueError:
            return None
    if parameter.kind == "number" and isinstance(value, int | float) and not parameter.name.endswith("_id"):
        return number_in_words(value)
    return None


def number_in_words(number: float) -> str | None:
    """A whole number in words; None for others, and for those that are long in words."""
    n = int(number) if float(number).is_integer() else -1
    if 0 <= n < 100:
        return _below_100(n)
    for unit, word, most in ((100, "hundred", 10), (1000, "thousand", 100)):
        count, rest = divmod(n, unit)
        if 0 < count < most and rest < 100:
            first = "a" if count == 1 else _below_100(count)
            return f"{first} {word}" + (f" and {_below_100(rest)}" if rest else "")
    return None


def _below_100(n: int) -> str:
    if n < 20:
        return SMALL_NUMBERS[n]
    return TENS[n // 10 - 2] + (f"-{SMALL_NUMBERS[n % 10]}" if n % 10 else "")


def _date(value: str, today: Day, rng: random.Random, *, on: bool) -> str | None:
    try:
        days = (Day.fromisoformat(value) - today).days
    except ValueError:
        return None
    if days < 0:
        return "yesterday" if days == -1 else f"{-days} days ago"
    known = day_phrases(today, days) if on else day_names(today, days)
    return rng.choice(known) if known else f"in {days} days" if on else f"{days} days from today"
