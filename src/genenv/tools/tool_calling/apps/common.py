"""Small helpers that several apps share: clock arithmetic, money in cents, ids, matching of names."""

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
    """Refuse a call unless the condition holds.

    Raises:
        ValueError: it does not hold; the message is the sentence.
    """
    if not condition:
        raise ValueError(sentence)


def minutes_of(time: str) -> int:
    """Minutes since midnight of a time HH:MM."""
    hours, minutes = time.split(":")
    return int(hours) * 60 + int(minutes)


def time_of(minutes: int) -> str:
    """The time HH:MM that many minutes after midnight, of whichever day."""
    hours, rest = divmod(minutes % MINUTES_PER_DAY, 60)
    return f"{hours:02d}:{rest:02d}"


def keep(kept: list[Any], item: object) -> None:
    """Put something into a list that goes by what it holds: independent calls leave it alike in any order."""
    kept.append(item)
    kept.sort(key=json.dumps)


def cents(amount: float) -> int:
    """A positive amount of money in cents; states hold money as whole numbers so that sums are exact.

    Raises:
        ValueError: not positive, or more than two decimals.
    """
    require(amount > 0, "The amount must be more than 0.")
    whole = round(amount * 100)
    require(abs(amount * 100 - whole) < 1e-4, "The amount must have at most two decimals.")
    return whole


def money(amount_cents: int) -> float:
    """Cents as an amount with two decimals."""
    return amount_cents / 100


def digest(*parts: object) -> int:
    """A number in [0, 2^32) that depends on the parts alone: equal in every process and on every machine."""
    text = "\x1f".join(str(part) for part in parts)
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:4], "big")


def fresh_id(taken: Container[str], *parts: object, prefix: str = "") -> str:
    """A four-digit id made from the content it stands for, the next free one if it is taken.

    From the content and not from a counter, so that independent calls leave the same world in either order.
    """
    number = digest(*parts) % 9000
    while f"{prefix}{1000 + number}" in taken:
        number = (number + 1) % 9000
    return f"{prefix}{1000 + number}"


def named(names: Iterable[str], name: str) -> str | None:
    """The name as the app spells it, whatever the case it was asked for in; None if there is no such name."""
    wanted = name.casefold()
    return next((known for known in sorted(names) if known.casefold() == wanted), None)


def existing(names: Iterable[str], name: str, what: str) -> str:
    """The name as the app spells it.

    Raises:
        ValueError: there is no such name; `what` says of what, e.g. "contact".
    """
    known = named(names, name)
    if known is None:
        raise ValueError(f"There is no {what} called {name!r}.")
    return known


def matches(query: str, *texts: str) -> bool:
    """Whether each word of the query occurs in one of the texts, whatever the case."""
    content = "\n".join(texts).casefold()
    return all(word in content for word in query.casefold().split())


def first_and_others(hits: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """A search result: the fields of the best hit, which `$1.price` then means, and up to three more hits."""
    return {**hits[0], "others": list(hits[1:4])}


def phone_digits(text: str) -> str | None:
    """The digits of a phone number, None if the text is not one."""
    if not re.fullmatch(r"\+?[0-9 ()./-]+", text):
        return None
    digits = re.sub(r"[^0-9]", "", text)
    return digits if len(digits) >= 3 else None


State = dict[str, Any]
"""What an app holds: plain data."""
Found = dict[str, Any]
"""What a tool returns: plain data."""

_YEARS = range(1900, 2101)


def _day(text: str) -> str:
    if not re.fullmatch(r"[0-9]{4}-[0-9]{2}-[0-9]{2}", text) or date.fromisoformat(text).year not in _YEARS:
        raise ValueError("it must be a real date in the form YYYY-MM-DD, between 1900 and 2100")
    return text


Text = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1)]
Date = Annotated[str, AfterValidator(_day), Field(json_schema_extra={"format": "date"})]
Time = Annotated[str, Field(pattern=r"^([01][0-9]|2[0-3]):[0-5][0-9]$", json_schema_extra={"format": "time"})]
