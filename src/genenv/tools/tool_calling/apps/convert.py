"""Convert: pure arithmetic on units, money and dates; no state."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date as Day
from typing import Literal

from genenv.tools.tool_calling.apps.common import require
from genenv.tools.tool_calling.apps.kinds import Date, Found, State

Unit = Literal[
    "m", "km", "cm", "mi", "ft", "in", "kg", "g", "lb", "oz", "l", "ml", "cup", "gal", "celsius", "fahrenheit"
]
Currency = Literal["USD", "EUR", "GBP", "JPY", "CHF", "CAD", "INR"]

_SIZES: Mapping[str, tuple[str, float]] = {
    "m": ("length", 1.0),
    "km": ("length", 1000.0),
    "cm": ("length", 0.01),
    "mi": ("length", 1609.344),
    "ft": ("length", 0.3048),
    "in": ("length", 0.0254),
    "kg": ("mass", 1.0),
    "g": ("mass", 0.001),
    "lb": ("mass", 0.45359237),
    "oz": ("mass", 0.028349523125),
    "l": ("volume", 1.0),
    "ml": ("volume", 0.001),
    "cup": ("volume", 0.2365882365),
    "gal": ("volume", 3.785411784),
    "celsius": ("temperature", 1.0),
    "fahrenheit": ("temperature", 5 / 9),
}
"""Unit -> what it measures, and how many base units (m, kg, l, celsius) it is worth."""
_FREEZING: Mapping[str, float] = {"celsius": 0.0, "fahrenheit": 32.0}
_ABSOLUTE_ZERO_CELSIUS = -273.15
_PER_DOLLAR: Mapping[str, float] = {
    "USD": 1.0,
    "EUR": 0.92,
    "GBP": 0.79,
    "JPY": 150.0,
    "CHF": 0.88,
    "CAD": 1.36,
    "INR": 83.0,
}
_FIRST_DAY, _LAST_DAY = Day(1900, 1, 1).toordinal(), Day(2100, 12, 31).toordinal()


class Convert:
    """Convert: pure arithmetic on units, money and dates; no state."""

    convert: State

    def convert_units(self, value: float, from_unit: Unit, to_unit: Unit) -> Found:
        """Convert a measurement to another unit.

        Args:
            value: the number to convert.
            from_unit: unit of the number.
            to_unit: unit of the answer, of the same kind.
        """
        (kind, size), (wanted_kind, wanted_size) = _SIZES[from_unit], _SIZES[to_unit]
        require(kind == wanted_kind, f"{from_unit} measures {kind} but {to_unit} measures {wanted_kind}.")
        base = (value - _FREEZING.get(from_unit, 0.0)) * size
        lowest = _ABSOLUTE_ZERO_CELSIUS - 1e-6 if kind == "temperature" else 0.0
        require(base >= lowest, f"There is no {kind} of {value:g} {from_unit}.")
        return {"value": round(base / wanted_size + _FREEZING.get(to_unit, 0.0), 4)}

    def convert_currency(self, amount: float, source: Currency, target: Currency) -> Found:
        """Convert money to another currency.

        Args:
            amount: how much.
            source: currency of the amount.
            target: currency of the answer.
        """
        require(amount > 0, "The amount must be more than 0.")
        require(source != target, "Source and target are the same currency.")
        return {"amount": round(amount / _PER_DOLLAR[source] * _PER_DOLLAR[target], 2)}

    def days_between(self, start: Date, end: Date) -> Found:
        """Count the days from one date to another.

        Args:
            start: first date.
            end: second date; the count is negative if it is earlier.
        """
        return {"days": Day.fromisoformat(end).toordinal() - Day.fromisoformat(start).toordinal()}

    def add_days(self, date: Date, days: int) -> Found:
        """Add days to a date.

        Args:
            date: the date to start from.
            days: how many days later; negative for earlier.
        """
        ordinal = Day.fromisoformat(date).toordinal() + days
        require(_FIRST_DAY <= ordinal <= _LAST_DAY, "The date must be between the years 1900 and 2100.")
        return {"date": Day.fromordinal(ordinal).isoformat()}

    def split_bill(self, total: float, people: int) -> Found:
        """Split a bill evenly.

        Args:
            total: the bill.
            people: how many share it.
        """
        require(total > 0, "The total must be more than 0.")
        require(people >= 1, "At least one person must pay.")
        return {"share": round(total / people, 2)}

    def percent_of(self, percent: float, value: float) -> Found:
        """Compute a percentage of a value, to two decimals.

        Args:
            percent: the percentage, e.g. 15.
            value: what it is taken of.
        """
        return {"result": round(percent * value / 100, 2)}
