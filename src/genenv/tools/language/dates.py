"""Dates and times in words: "tomorrow", "in 3 days", "a week from Friday", "half past nine in the morning".

Only what nobody can take for another day or hour: "next Friday" is said only across the end of a week, and
"on Friday" never a week ahead; the hours of the morning and the evening are always told apart.
"""

from __future__ import annotations

from datetime import date as Day
from datetime import timedelta

_NUMBERS = [
    "zero",
    "one",
    "two",
    "three",
    "four",
    "five",
    "six",
    "seven",
    "eight",
    "nine",
    "ten",
    "eleven",
    "twelve",
    "thirteen",
]
_SUNDAY = 6


def day_names(today: Day, days: int) -> tuple[str, ...]:
    """Ways to call the day so many days after today that can follow "for" or "until"; none for most days."""
    weekday = f"{today + timedelta(days=days):%A}"
    near = {0: ("today",), 1: ("tomorrow",), 2: ("the day after tomorrow",)}.get(days, ())
    if 2 <= days <= 6:
        return (*near, f"this coming {weekday}", *_next_weekday(today, days))
    if 9 <= days <= 13:
        return (f"a week from {weekday}",)
    later = {7: ("a week from today",), 8: ("a week from tomorrow",), 14: ("two weeks from today",)}
    return near or later.get(days, ())


def day_phrases(today: Day, days: int) -> tuple[str, ...]:
    """Ways to say when something is that happens so many days after today."""
    if days == 0:
        return ("today",)
    weekday = f"{today + timedelta(days=days):%A}"
    phrases = day_names(today, days)
    if 2 <= days <= 6:
        phrases += (f"on {weekday}",)
    if 3 <= days <= 13 and days != 7:
        phrases += (f"in {days} days", f"in {_NUMBERS[days]} days")
    return phrases + {7: ("in a week",), 14: ("in two weeks",), 21: ("in three weeks",)}.get(days, ())


def _next_weekday(today: Day, days: int) -> tuple[str, ...]:
    """The weekday with "next" before it, where this week's is over, so that only one day can be meant."""
    day = today + timedelta(days=days)
    if today.weekday() != _SUNDAY and day.weekday() < today.weekday():
        return (f"next {day:%A}",)
    return ()


def time_phrases(time: str) -> tuple[str, ...]:
    """A time HH:MM in words, which follow "at" or "for"; none where it is no quarter of an hour."""
    hour, minute = map(int, time.split(":"))
    if not 5 <= hour <= 21 or minute % 15:
        return ()
    if time == "12:00":
        return ("noon",)
    part = "in the morning" if hour < 12 else "in the afternoon" if hour < 17 else "in the evening"
    this, following = _NUMBERS[(hour - 1) % 12 + 1], _NUMBERS[hour % 12 + 1]
    words = {0: this, 15: f"quarter past {this}", 30: f"half past {this}", 45: f"quarter to {following}"}
    return (f"{words[minute]} {part}",)
