"""The values that tasks are made of: names, texts and numbers, apart for training and for measuring.

The two splits share no value: the lists have no entry in common, training uses days with an even ordinal and
even hours, the held-out tasks the others. Only closed choices (rooms, accounts, units) are common property.
The tests check this on the finished tasks.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date as Day
from datetime import timedelta

from genenv.domains.tool_calling.phrasings.moments import day_names, day_phrases, time_phrase
from genenv.domains.tool_calling.phrasings.template import Scalar
from genenv.domains.tool_calling.phrasings.words import (
    CLOSED,
    HELD_OUT_LISTS,
    HELD_OUT_NUMBERS,
    TRAINING_LISTS,
    TRAINING_NUMBERS,
)

Entry = str | tuple[str, ...]

SPOKEN: Mapping[str, str] = {
    "m": "meters", "km": "kilometers", "cm": "centimeters", "mi": "miles", "ft": "feet", "in": "inches",
    "kg": "kilograms", "g": "grams", "lb": "pounds", "oz": "ounces", "l": "liters", "ml": "milliliters",
    "cup": "cups", "gal": "gallons", "celsius": "degrees Celsius", "fahrenheit": "degrees Fahrenheit",
    "USD": "US dollars", "EUR": "euros", "GBP": "British pounds", "JPY": "Japanese yen",
    "CHF": "Swiss francs", "CAD": "Canadian dollars", "INR": "Indian rupees",
}  # fmt: skip
"""Units and currencies as people say them."""

_MEASURES: tuple[tuple[str, str], ...] = (
    ("mi", "km"), ("km", "mi"), ("ft", "m"), ("m", "ft"), ("in", "cm"), ("cm", "in"), ("kg", "lb"),
    ("lb", "kg"), ("oz", "g"), ("g", "oz"), ("l", "gal"), ("gal", "l"), ("cup", "ml"),
    ("fahrenheit", "celsius"), ("celsius", "fahrenheit"),
)  # fmt: skip
_CURRENCIES = ("USD", "EUR", "GBP", "JPY", "CHF", "CAD", "INR")
_LATEST_DAYS = 75


@dataclass(frozen=True, slots=True)
class Said:
    """A value and the words that tell it."""

    value: Scalar
    words: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Values:
    """The values of one split."""

    lists: Mapping[str, Sequence[Entry]]
    """Pool -> names and texts; tuples are drawn together."""
    numbers: Mapping[str, Mapping[float, str]]
    """Pool -> number -> how it is said relatively, "" if it is always given in digits."""
    parity: int
    """Of the ordinals of dates and of the hours of times."""

    def draw(self, pool: str, forms: Sequence[str], rng: random.Random, today: Day) -> tuple[Said, ...]:
        """One value for each argument that the pool fills, each in the form that a template asks for.

        Args:
            pool: which values.
            forms: "", "rel", "day" or "code" for each argument.
            rng: the only source of chance.
            today: what dates are relative to.

        Raises:
            KeyError: no such pool.
        """
        match pool:
            case "date":
                return (self._date(forms[0], rng, today),)
            case "span":
                return self._span(forms[0], rng, today)
            case "time" | "alarm_time":
                return (self._time(pool, forms[0], rng),)
            case "measure":
                number = self._number("measure", forms[0], rng)
                units = rng.choice([pair for pair in _MEASURES if pair[0] != "cup" or number.value != 1])
                return (number, *(_unit(unit, form) for unit, form in zip(units, forms[1:], strict=True)))
            case "route":
                return tuple(Said(city, city) for city in rng.sample([str(c) for c in self.lists["city"]], 2))
            case "foreign":
                return (_unit(rng.choice(_CURRENCIES[1:]), forms[0]),)
            case "currencies":
                return tuple(_unit(c, f) for c, f in zip(rng.sample(_CURRENCIES, 2), forms, strict=True))
            case _ if pool in self.numbers:
                return (self._number(pool, forms[0], rng),)
            case _:
                entry = rng.choice(CLOSED[pool] if pool in CLOSED else self.lists[pool])
                return tuple(Said(text, text) for text in ((entry,) if isinstance(entry, str) else entry))

    def _number(self, pool: str, form: str, rng: random.Random) -> Said:
        numbers = self.numbers[pool]
        value = rng.choice([number for number, words in numbers.items() if words or not form])
        digits = str(value) if isinstance(value, int) else f"{value:.2f}" if pool in _MONEY else f"{value:g}"
        return Said(value, numbers[value] if form else digits)

    def _days(self, today: Day, first: int) -> list[int]:
        """How far off the days of this split are."""
        return [k for k in range(first, _LATEST_DAYS) if (today.toordinal() + k) % 2 == self.parity]

    def _date(self, form: str, rng: random.Random, today: Day, *, soon: bool = False) -> Said:
        first = 0 if soon else 1
        if not form:
            iso = (today + timedelta(days=rng.choice(self._days(today, first)))).isoformat()
            return Said(iso, iso)
        say = day_names if form == "day" else day_phrases
        days_off = self._days(today, first)[: 3 if soon else None]
        phrases = {k: said for k in days_off if (said := say(today, k))}
        days = rng.choice(list(phrases))
        return Said((today + timedelta(days=days)).isoformat(), rng.choice(phrases[days]))

    def _span(self, form: str, rng: random.Random, today: Day) -> tuple[Said, Said]:
        """An earlier and a later day; only the earlier can be given relatively."""
        start = self._date(form, rng, today, soon=bool(form))
        later = (Day.fromisoformat(str(start.value)) + timedelta(days=2 * rng.randrange(2, 40))).isoformat()
        return start, Said(later, later)

    def _time(self, pool: str, form: str, rng: random.Random) -> Said:
        hours = range(5, 10) if pool == "alarm_time" else range(8, 21)
        hour = rng.choice([hour for hour in hours if hour % 2 == self.parity])
        time = f"{hour:02d}:{rng.choice((0, 15, 30, 45)):02d}"
        return Said(time, time_phrase(time) if form else time)


_MONEY = ("amount", "price")
"""Pools whose numbers are written with cents where they are not whole."""


def _unit(unit: str, form: str) -> Said:
    return Said(unit, unit if form == "code" else SPOKEN[unit])


TRAINING = Values(lists=TRAINING_LISTS, numbers=TRAINING_NUMBERS, parity=0)
HELD_OUT = Values(lists=HELD_OUT_LISTS, numbers=HELD_OUT_NUMBERS, parity=1)
