"""Recognizes names and cities of TravelPlanner's tables in a model's text.

A name is recognized only verbatim and whole. It must be followed by its city, or by words that cannot be part
of a name (a price, a note in parentheses). So recognition never changes the meaning of a text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Literal, NamedTuple

from genenv.environments.travel.database import Database
from genenv.environments.travel.query import name_and_city

Kind = Literal["restaurant", "attraction", "accommodation"]

_NOTE = r"\([^()]*+(?:\([^()]*+\)[^()]*+)*+\)|\[[^\[\]]*+\]"
_IN = r"(?:\s*+,\s*+|\s++(?:in|at|[-–—])\s++|\s*+,?\s*+located\s++in\s++|\s*+(?=[(\[]))"
_AMOUNT = r"\d[\d.,]*+\s*+(?:\Z|[,;/)]|usd\b|dollars?\b|per\b|stars?\b|nights?\b|min|hours?\b)"
_WORD = r"average|avg|approx\w*|about|around|est\w*|costs?|prices?|priced|rated|rating|cuisines?|per|fee|free"
_DETAILS = re.compile(
    rf"\s*+(?:(?:{_NOTE})[\s.,;:]*+)*+"
    rf"(?:(?:[-–—,;:|.]\s*+(?:(?:{_WORD})\b|{_AMOUNT})|[-–—,;:|.]?\s*+[$€£~≈]|for\s+\d).*|[.,;])?\Z",
    re.IGNORECASE | re.DOTALL,
)
"""Text that may follow a name without its city."""
_END = re.compile(r"\s*+(?:\Z|[(\[,;:.|$~\n]|[-–—]\s|for\s+\$?\d)")
"""Text that may follow a name with its city."""
_CHOICE = re.compile(r"[\s,;:.|-]*+(?:or|and|then|alternatively|otherwise|plus|instead)\b|[^\w]*+[/&+]", re.I)


class Named(NamedTuple):
    """A name recognized in a text, with its city."""

    name: str
    city: str
    said: bool
    """Whether the text contains the city; else the city is that of the day."""
    end: int
    """The end of the name, including its city."""

    def __str__(self) -> str:
        return f"{self.name}, {self.city}"


@dataclass(frozen=True, eq=False)
class Places:
    """The names and cities of a database, with methods that find them in text."""

    database: Database

    @cached_property
    def _cities(self) -> re.Pattern[str]:
        names = sorted(self.database.tables.states, key=len, reverse=True)
        return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, names)) or '(?!)'})(?!\w)")

    @cached_property
    def _names(self) -> Mapping[Kind, Mapping[str, Sequence[str]]]:
        """The names by kind and city, longest first."""
        tables = self.database.tables
        return {
            "restaurant": _by_city((row.city, row.name) for row in tables.restaurants),
            "attraction": _by_city((row.city, row.name) for row in tables.attractions),
            "accommodation": _by_city((row.city, row.name) for row in tables.accommodations),
        }

    def cities_in(self, text: str) -> list[str]:
        """Return the cities in a text, without duplicates, in order."""
        return list(dict.fromkeys(self._cities.findall(text)))

    def city_at_head(self, text: str) -> str | None:
        """Return the city at the start of a text, if only details follow; else None."""
        match = self._cities.match(text)
        return match[0] if match is not None and _END.match(text, match.end()) else None

    def pair_in(self, text: str) -> re.Match[str] | None:
        """Find `A to B`, `from A to B` or `A -> B` with two different cities, in the groups `a` and `b`."""
        for match in self._pair.finditer(text):
            if match["a"] != match["b"]:
                return match
        return None

    @cached_property
    def _pair(self) -> re.Pattern[str]:
        city, states = self._cities.pattern, "|".join(map(re.escape, self.database.states()))
        state = rf"(?:\s*+\([^()]*+\)|,\s*+(?:{states or '(?!)'})\b)?"
        way = r"\s*+,?\s*+(?:to\b|->|=>|→|⟶|➔|[-–—])\s*+"
        return re.compile(rf"(?:\b[Ff]rom\s++)?(?P<a>{city}){state}{way}(?P<b>{city}){state}")

    def exists(self, kind: Kind, text: str) -> bool:
        """Return whether the evaluator finds `Name, City` verbatim."""
        name, city = name_and_city(text)
        rows = {
            "restaurant": self.database.restaurants_named,
            "attraction": self.database.attractions_named,
            "accommodation": self.database.accommodations_named,
        }[kind](name, city)
        return bool(rows)

    def one(self, kind: Kind, text: str, here: Sequence[str]) -> Named | None:
        """Return the place at the start of a text, if at most details follow; None if ambiguous."""
        cities = dict.fromkeys([*self.cities_in(text), *here])
        found = [named for named in self._at(kind, text, 0, cities) if self._alone(text, named, here)]
        return _certain([named for named in found if named.said or named.city in here])

    def at(self, kind: Kind, text: str, start: int, cities: Iterable[str]) -> Named | None:
        """Return the place at a position of a text, in one of some cities; any text may follow."""
        return _certain(list(self._at(kind, text, start, cities)))

    def _at(self, kind: Kind, text: str, start: int, cities: Iterable[str]) -> Iterator[Named]:
        """Yield all interpretations of a text from a position on."""
        for city in cities:
            for name in self._names[kind].get(city, ()):
                if (
                    text.startswith(name, start)
                    and not text[start + len(name) : start + len(name) + 1].isalnum()
                ):
                    end = self._city_end(text, start + len(name), city)
                    yield Named(name, city, end is not None, end or start + len(name))

    def _city_end(self, text: str, start: int, city: str) -> int | None:
        """Return the end of the city, with its state, after a name; None if no city follows."""
        state = re.escape(self.database.state_of(city) or "")
        also = rf"(?:\s*+[,(]\s*+(?:{state}|USA|U\.S\.A?\.?|United States)\b\)?)*+" if state else ""
        match = re.compile(rf"(?:\s*+(?:{_NOTE}))?{_IN}[(\[]?{re.escape(city)}(?!\w){also}[)\]]?").match(
            text, start
        )
        return match.end() if match is not None else None

    def _alone(self, text: str, named: Named, here: Sequence[str]) -> bool:
        rest = text[named.end :]
        bare = re.sub(_NOTE, " ", rest)
        if _CHOICE.match(rest) or re.search(rf",\s*+(?:{self._cities.pattern})", bare):
            return False
        if named.said:
            return _END.match(rest) is not None
        return _DETAILS.match(rest) is not None and set(self.cities_in(rest)) <= set(here)

    def with_city(self, text: str) -> str | None:
        """Return `Name, City` from a text with details after it; None if no city follows, or if ambiguous."""
        spots = [spot for spot in self._in_city.finditer(text) if _END.match(text, spot.end())]
        if len(spots) != 1 or _CHOICE.match(text, spots[0].end()):
            return None
        name = re.sub(rf"\s*+(?:{_NOTE})\s*+\Z", "", text[: spots[0].start()])
        return f"{name}, {spots[0]['city']}" if name.strip() else None

    @cached_property
    def _in_city(self) -> re.Pattern[str]:
        return re.compile(rf"\s*+,\s*+(?P<city>{self._cities.pattern})")


def _certain(found: Sequence[Named]) -> Named | None:
    """Return the interpretation with the longest name, explicit cities first; None for a tie."""
    best = max(((len(named.name), named.said) for named in found), default=None)
    left = {named for named in found if (len(named.name), named.said) == best}
    return left.pop() if len(left) == 1 else None


def _by_city(rows: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, dict[str, None]] = {}
    for city, name in rows:
        if name.strip():
            found.setdefault(city, {})[name.strip()] = None
    return {city: sorted(names, key=len, reverse=True) for city, names in found.items()}
