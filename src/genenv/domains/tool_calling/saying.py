"""How a value is said where an instruction leaves a blank for it: as it is, or in words that need reading."""

from __future__ import annotations

import random
from datetime import date as Day

from genenv.domains.tool_calling.phrasings.moments import day_names, day_phrases, time_phrase
from genenv.domains.tool_calling.toolbox import Parameter
from genenv.types import Json

_BELOW_20 = (
    "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve",
    "thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen",
)  # fmt: skip
_TENS = ("twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety")


def plainly(parameter: Parameter, value: Json) -> str:
    """A value as it goes into the call."""
    if isinstance(value, int | float):
        return str(int(value)) if float(value).is_integer() else str(value)
    return str(value).replace("_", " ") if parameter.kind == "choice" else str(value)


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
    """Whole numbers up to a hundred, round hundreds and thousands; None for others."""
    n = int(number) if float(number).is_integer() else -1
    if 0 <= n < 20:
        return _BELOW_20[n]
    if 20 <= n < 100:
        return _TENS[n // 10 - 2] + (f"-{_BELOW_20[n % 10]}" if n % 10 else "")
    for unit, word in ((100, "hundred"), (1000, "thousand")):
        if n % unit == 0 and 0 < n // unit < 10:
            return f"{'a' if n == unit else _BELOW_20[n // unit]} {word}"
    return None


def _date(value: str, today: Day, rng: random.Random, *, on: bool) -> str | None:
    try:
        days = (Day.fromisoformat(value) - today).days
    except ValueError:
        return None
    if days < 0:
        return None
    known = day_phrases(today, days) if on else day_names(today, days)
    return rng.choice(known) if known else f"in {days} days" if on else f"{days} days from today"
