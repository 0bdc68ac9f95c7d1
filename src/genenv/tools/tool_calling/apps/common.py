"""Helpers that several apps share: clock arithmetic, money in cents, ids, matching of names."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Container, Iterable, Sequence
from datetime import date
from typing import Annotated, Any

from pydantic import AfterValidator, Field, StringConstraints

MINUTES_PER_DAY = 24 * 60


def require(condition: bool, sentence: str) -> None:
    """Refuse a call unless a condition holds.

    Raises:
        ValueError: the condition does not hold; the message is the sentence.
    """
    if not condition:
        raise ValueError(sentence)


def minutes_of(time: str) -> int:
    """Return the minutes since midnight of a time HH:MM."""
    hours, minutes = time.split(":")
    return int(hours) * 60 + int(minutes)


def time_of(minutes: int) -> str:
    """Return the time HH:MM a number of minutes after midnight, modulo 24 hours."""
    hours, rest = divmod(minutes % MINUTES_PER_DAY, 60)
    return f"{hours:02d}:{rest:02d}"


def keep(kept: list[Any], item: object) -> None:
    """Add an item to a list sorted by content, so that independent calls commute."""
    kept.append(item)
    kept.sort(key=json.dumps)


def cents(amount: float) -> int:
    """Return a positive amount of money in cents; states store integers, so that sums are exact.

    Raises:
        ValueError: the amount is not positive, or has more than two decimals.
    """
    require(amount > 0, "The amount must be more than 0.")
    whole = round(amount * 100)
    require(abs(amount * 100 - whole) < 1e-4, "The amount must have at most two decimals.")
    return whole


def money(amount_cents: int) -> float:
    """Return cents as an amount with two decimals."""
    return amount_cents / 100


def digest(*parts: object) -> int:
    """Return a number in [0, 2^32) that depends only on the parts, in every process and on every machine."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def fresh_id(taken: Container[str], *parts: object, prefix: str = "") -> str:
    """Return a four-digit id made from the content it identifies, or the next free one.

    A hash of the content, not a counter, lets independent calls lead to the same state in either order.
    """
    number = digest(*parts) % 9000
    while f"{prefix}{1000 + number}" in taken:
        number = (number + 1) % 9000
    return f"{prefix}{1000 + number}"


def named(names: Iterable[str], name: str) -> str | None:
    """Return a name in the app's spelling, ignoring case; None if there is no such name."""
    wanted = name.casefold()
    return next((known for known in sorted(names) if known.casefold() == wanted), None)


def existing(names: Iterable[str], name: str, what: str) -> str:
    """Return a name in the app's spelling, ignoring case.

    Raises:
        ValueError: there is no such name; `what` says of what, e.g. "contact".
    """
    known = named(names, name)
    if known is None:
        raise ValueError(f"There is no {what} called {name!r}.")
    return known


def matches(query: str, *texts: str) -> bool:
    """Whether each word of the query occurs in one of the texts, ignoring case."""
    content = "\n".join(texts).casefold()
    return all(word in content for word in query.casefold().split())


def first_and_others(hits: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Return a search result: the fields of the best hit, and up to three more hits in `others`."""
    return {**hits[0], "others": list(hits[1:4])}


def phone_digits(text: str) -> str | None:
    """Return the digits of a phone number, or None if the text is not one."""
    if not re.fullmatch(r"\+?[0-9 ()./-]+", text):
        return None
    digits = re.sub(r"[^0-9]", "", text)
    return digits if len(digits) >= 3 else None


State = dict[str, Any]
"""The state of an app as plain data."""
Found = dict[str, Any]
"""The result of a tool as plain data."""

_YEARS = range(1900, 2101)


def _day(text: str) -> str:
    if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text) or date.fromisoformat(text).year not in _YEARS:
        raise ValueError("it must be a real date in the form YYYY-MM-DD, between 1900 and 2100")
    return text


Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Date = Annotated[str, AfterValidator(_day), Field(json_schema_extra={"format": "date"})]
Time = Annotated[str, Field(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$", json_schema_extra={"format": "time"})]
