"""The web pages of `genenv view`, and here their addresses: how they are made, and how they are read."""

from __future__ import annotations

from collections.abc import Mapping
from urllib.parse import quote, urlencode

from genenv.errors import UsageError
from genenv.texts import clean


class BadAddress(UsageError):
    """Raised if the query of an address is wrong."""


def address(run: str, page: str = "", **query: object) -> str:
    """Return the path of a page of a run. An entry of the query that is None or empty is left out."""
    return asking(f"/runs/{quote(clean(run))}/-/{page}", **query)


def asking(path: str, **query: object) -> str:
    """Return a path with a query. An entry that is None or empty is left out."""
    given = {name: clean(str(value)) for name, value in query.items() if value not in (None, "")}
    return f"{path}?{urlencode(given)}" if given else path


def number(query: Mapping[str, str], name: str) -> float | None:
    """Return a number of the query; None if it is left out.

    Raises:
        BadAddress: it is no number.
    """
    given = query.get(name, "").strip()
    try:
        return float(given) if given else None
    except ValueError:
        raise BadAddress(f"{name} is {given[:40]!r}: give a number") from None


def whole(query: Mapping[str, str], name: str) -> int | None:
    """Return a whole number of the query; None if it is left out.

    Raises:
        BadAddress: it is none.
    """
    found = number(query, name)
    if found is None:
        return None
    if not (abs(found) < 2**53 and found == int(found)):
        raise BadAddress(f"{name} is {found}: give a whole number")
    return int(found)
