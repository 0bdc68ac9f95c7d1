"""What people give tools of their own, and how values are said in words: `values.toml` of a bundle.

    [values]
    person = ["Nora Lind", "Omar Haddad"]
    mail = [["Lunch plans", "Shall we try the new place?"], ["Keys", "They are with the neighbor"]]
    date = { days = [2, 4, 6] }    # so many days after today

    [words.minutes]
    30 = "half an hour"

Each list is a kind of values that a recipe can name, `said.person`; of rows each column is one,
`said.mail[0]`, and the columns that one call takes are of the same row. Words are those of the values of a
kind; dates and times have theirs anyway.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from datetime import date as Day
from datetime import timedelta
from typing import Any, Self, cast

from pydantic import BaseModel, JsonValue, model_validator

from genenv.tools.language.dates import day_names, day_phrases, time_phrases
from genenv.types import Json

SAID = "said."
"""Begins the kinds that are no part of a state."""
FORMS = ("words", "day")
"""Ways in which a value is said in words."""
COLUMN = re.compile(r"(.+)\[(\d+)\]")
_DATE, _TIME = re.compile(r"\d{4}-\d{2}-\d{2}"), re.compile(r"\d{2}:\d{2}")


class Dates(BaseModel, frozen=True, extra="forbid"):
    """Dates that come after today."""

    days: tuple[int | tuple[int, ...], ...]


class Sayings(BaseModel, frozen=True, extra="forbid"):
    """Lists of values, and words for them."""

    values: Mapping[str, Dates | tuple[JsonValue, ...]] = {}
    words: Mapping[str, Mapping[str, str]] = {}

    @model_validator(mode="after")
    def _rows_of_one_length(self) -> Self:
        for name, rows in self.values.items():
            lengths = (
                {len(row) if isinstance(row, list) else 0 for row in rows} if isinstance(rows, tuple) else {0}
            )
            if len(lengths) > 1:
                raise ValueError(f"the rows of {name} are not of one length")
        return self

    def kinds(self, today: Day | None) -> dict[str, list[Json]]:
        """The values by kind.

        Args:
            today: that dates come after; without it there are none.
        """
        found: dict[str, list[Json]] = {}
        for name, listed in self.values.items():
            rows = listed if isinstance(listed, tuple) else _dates(listed, today)
            if rows and isinstance(rows[0], Sequence) and not isinstance(rows[0], str):
                columns = zip(*cast("Sequence[Sequence[Json]]", rows), strict=True)
                found |= {f"{SAID}{name}[{number}]": list(one) for number, one in enumerate(columns)}
            else:
                found[f"{SAID}{name}"] = cast("list[Json]", list(rows))
        return found

    def in_words(self, kind: str, value: Json, form: str, today: Day | None) -> tuple[str, ...]:
        """Ways to say a value in words.

        Args:
            kind: of value.
            value: it.
            form: `words`, or of a date also `day`: so that it can follow "for" or "until".
            today: that dates are relative to.
        """
        if isinstance(value, str) and _DATE.fullmatch(value):
            say = {"day": day_names, "words": day_phrases}.get(form)
            return say(today, (Day.fromisoformat(value) - today).days) if say and today else ()
        if form != "words":
            return ()
        if isinstance(value, str) and _TIME.fullmatch(value):
            return time_phrases(value)
        match = COLUMN.fullmatch(kind)
        table = self.words.get((match[1] if match else kind).removeprefix(SAID), {})
        text = f"{value:g}" if isinstance(value, float) else str(value)
        return (table[text],) if text in table else ()


def with_words_of(one: Sayings, other: Sayings) -> Sayings:
    """The values of one, with the words for those of another as well."""
    kinds = {**one.words, **other.words}
    words = {kind: {**one.words.get(kind, {}), **other.words.get(kind, {})} for kind in kinds}
    return Sayings(values=one.values, words=words)


def _dates(dates: Dates, today: Day | None) -> Sequence[Any]:
    if today is None:
        return ()

    def after(days: int) -> str:
        return (today + timedelta(days=days)).isoformat()

    return [after(one) if isinstance(one, int) else tuple(map(after, one)) for one in dates.days]
