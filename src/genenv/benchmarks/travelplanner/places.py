"""What there is in TravelPlanner's tables, to recognize names and cities in what a model wrote.

A name counts as recognized only when it stands there to the letter and whole; what follows it must be its
city, or words that cannot be part of a name (a price, a note in parentheses). So a text is never turned into
something else than it says.
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
"""What may follow a name that is said without its city."""
_END = re.compile(r"\s*+(?:\Z|[(\[,;:.|$~\n]|[-–—]\s|for\s+\$?\d)")
"""What may follow a name with its city."""
_CHOICE = re.compile(r"[\s,;:.|-]*+(?:or|and|then|alternatively|otherwise|plus|instead)\b|[^\w]*+[/&+]", re.I)


class Named(NamedTuple):
    """A name at the head of a text."""

    name: str
    city: str
    said: bool
    """Whether the text says the city; else it is that of the day."""
    end: int
    """Where the name, with its city, ends."""

    def __str__(self) -> str:
        return f"{self.name}, {self.city}"


@dataclass(frozen=True, eq=False)
class Places:
    """Names and cities of a database."""

    database: Database

    @cached_property
    def _cities(self) -> re.Pattern[str]:
        names = sorted(self.database.tables.states, key=len, reverse=True)
        return re.compile(rf"(?<!\w)(?:{'|'.join(map(re.escape, names)) or '(?!)'})(?!\w)")

    @cached_property
    def _names(self) -> Mapping[Kind, Mapping[str, Sequence[str]]]:
        """Kind -> city -> names, the longest first."""
        tables = self.database.tables
        return {
            "restaurant": _by_city((row.city, row.name) for row in tables.restaurants),
            "attraction": _by_city((row.city, row.name) for row in tables.attractions),
            "accommodation": _by_city((row.city, row.name) for row in tables.accommodations),
        }

    def cities_in(self, text: str) -> list[str]:
        """The cities that a text names, each once, in their order."""
        return list(dict.fromkeys(self._cities.findall(text)))

    def city_at_head(self, text: str) -> str | None:
        """The city that a text begins with, if only details are behind it."""
        match = self._cities.match(text)
        return match[0] if match is not None and _END.match(text, match.end()) else None

    def pair_in(self, text: str) -> re.Match[str] | None:
        """`A to B`, `from A to B`, `A -> B`: two different cities in the groups `a` and `b`."""
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
        """Whether the evaluator finds a text, `Name, City`, as it is."""
        name, city = name_and_city(text)
        rows = {
            "restaurant": self.database.restaurants_named,
            "attraction": self.database.attractions_named,
            "accommodation": self.database.accommodations_named,
        }[kind](name, city)
        return bool(rows)

    def one(self, kind: Kind, text: str, here: Sequence[str]) -> Named | None:
        """The one that a text names at its head, with at most details behind; None if that is not certain."""
        cities = dict.fromkeys([*self.cities_in(text), *here])
        found = [named for named in self._at(kind, text, 0, cities) if self._alone(text, named, here)]
        return _certain([named for named in found if named.said or named.city in here])

    def at(self, kind: Kind, text: str, start: int, cities: Iterable[str]) -> Named | None:
        """The one that a text names from a place on, in one of some cities, whatever is behind."""
        return _certain(list(self._at(kind, text, start, cities)))

    def _at(self, kind: Kind, text: str, start: int, cities: Iterable[str]) -> Iterator[Named]:
        """All readings of a text from a place on."""
        for city in cities:
            for name in self._names[kind].get(city, ()):
                if (
                    text.startswith(name, start)
                    and not text[start + len(name) : start + len(name) + 1].isalnum()
                ):
                    end = self._city_end(text, start + len(name), city)
                    yield Named(name, city, end is not None, end or start + len(name))

    def _city_end(self, text: str, start: int, city: str) -> int | None:
        """Where a city ends that follows a name, with its state; None if none does."""
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
        """`Name, City` of a text that goes on with details; None where it does not, or is not clear."""
        spots = [spot for spot in self._in_city.finditer(text) if _END.match(text, spot.end())]
        if len(spots) != 1 or _CHOICE.match(text, spots[0].end()):
            return None
        name = re.sub(rf"\s*+(?:{_NOTE})\s*+\Z", "", text[: spots[0].start()])
        return f"{name}, {spots[0]['city']}" if name.strip() else None

    @cached_property
    def _in_city(self) -> re.Pattern[str]:
        return re.compile(rf"\s*+,\s*+(?P<city>{self._cities.pattern})")


def _certain(found: Sequence[Named]) -> Named | None:
    """The reading with the longest name, a said city before one of the day; None where two are as good."""
    best = max(((len(named.name), named.said) for named in found), default=None)
    left = {named for named in found if (len(named.name), named.said) == best}
    return left.pop() if len(left) == 1 else None


def _by_city(rows: Iterable[tuple[str, str]]) -> dict[str, list[str]]:
    found: dict[str, dict[str, None]] = {}
    for city, name in rows:
        if name.strip():
            found.setdefault(city, {})[name.strip()] = None
    return {city: sorted(names, key=len, reverse=True) for city, names in found.items()}
