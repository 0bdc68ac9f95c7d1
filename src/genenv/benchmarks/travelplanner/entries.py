"""Recognizes names in a model's text, and normalizes the fields of a day to the form of a submission.

The authors' prompt for their second model (`postprocess/openai_request.py` of OSU-NLP-Group/TravelPlanner)
says: each attraction is `Name, City`, separated by `;`; travel from A to B makes the current city `from A to
B`; flight numbers are followed by a colon; unspecific entries, such as eating at home or on the road, are
`-`; no `$`. This code does the same, and removes details after a name and its city. Ambiguous text stays
unchanged.

A name of TravelPlanner's tables is recognized only verbatim and whole. It must be followed by its city, or by
words that cannot be part of a name (a price, a note in parentheses). So recognition never changes the meaning
of a text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Final, Literal, NamedTuple

from genenv.environments.travel.database import Database
from genenv.environments.travel.query import FIELDS, MEALS, before_parenthesis, from_to, name_and_city

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


_MOST_WORDS = 12


def _bag(text: str) -> frozenset[str]:
    return frozenset(text.split())


_IDLE = _bag(
    "home road flight plane airplane airport train way transit route return returning returned travel "
    "traveling travelling departure departing arrival arriving own self packed homemade free leisure "
    "rest none no not na skip skipped hotel accommodation"
)
_BESIDE = _bag(
    "eat eating have having grab get dine dining meal meals food snack snacks breakfast lunch dinner "
    "brunch quick light a an in during before after from to your our my their its time day already back "
    "cooked catered needed required necessary applicable planned included provided for or and while "
    "leave leaving depart arrive early late overnight stay as is of n flying driving attraction "
    "attractions city night evening morning afternoon today this on the at"
)
_ON_FOOT = _bag(
    "walk walking foot local public transport transportation transit bus metro subway explore exploring "
    "around within rides rideshare uber no none not needed"
)
_FOOT_BESIDE = _bag("by use using ride sightseeing")


def is_nothing(text: str) -> bool:
    """Return whether a text means that nothing is eaten, visited or booked, such as `Eat at home`."""
    return _of(text, _IDLE, _BESIDE)


def is_on_foot(text: str) -> bool:
    """Return whether a text means that nobody leaves the city: `Walk`, `Local transport`, `Not needed`."""
    return _of(text, _ON_FOOT | _IDLE, _FOOT_BESIDE | _BESIDE)


def _of(text: str, core: frozenset[str], beside: frozenset[str]) -> bool:
    """Return whether a text has only these words, including a core word; parentheses are ignored."""
    bare = re.sub(r"\([^()]*+\)", " ", text[:200]).lower().replace("n/a", "none")
    words = re.findall(r"[^\W\d_]+", bare)
    known = 0 < len(words) <= _MOST_WORDS and all(word in core or word in beside for word in words)
    return known and any(word in core for word in words) and not re.search(r"\d", bare)


_IN_CITY = re.compile(
    r"\A(?:(?:in|at|stay(?:ing)?|explor(?:e|ing)|visit(?:ing)?|city of|arriv\w+)\s+)+", re.IGNORECASE
)

_NUMBER = re.compile(
    r"\bflight\b\W{0,6}(?:(?:number|no|num|nr|#)\b\W{0,6})?\(?(?P<number>(?:F|[A-Z]{2})\d++|\d{5,})\b\)?",
    re.IGNORECASE,
)
_ALONE = re.compile(r"(?<!\w)F\d{2,}(?!\w)")
_GOOD_NUMBER = re.compile(r"Flight Number: \w+(?:,|\Z)")
_SELF = re.compile(r"\b(s)elf[\s_-]*+driv(?:e|ing|en)\b", re.IGNORECASE)
_KINDS = ("flight number", "self-driving", "taxi")


def way_of(text: str, city: str, places: Places) -> str:
    """Return `Flight Number: X, from A to B, ...`, or the same with `Self-driving` or `Taxi` first."""
    if text == "-":
        return text
    text = text.replace("\\n", " ").replace("\\", "").replace("$", "").replace("*", "").replace("`", "")
    text = _SELF.sub(lambda match: f"{match[1]}elf-driving", " ".join(text.split()))
    text = _with_number(text)
    if not _travels(text, city, places):
        return "-" if is_on_foot(text) else text
    text = _with_pair(text, city, places)
    if "Flight Number: " not in text:  # the evaluator would stop at it
        text = re.sub(r"flight number\W*", "Flight Number: ", text, flags=re.IGNORECASE)
    return text


def _travels(text: str, city: str, places: Places) -> bool:
    return (
        any(kind in text.lower() for kind in _KINDS)
        or places.pair_in(text) is not None
        or from_to(city) is not None
    )


def _with_number(text: str) -> str:
    """Write a flight number in the evaluator's form, if there is exactly one."""
    if _GOOD_NUMBER.match(text):
        return text
    match = _NUMBER.search(text)
    if match is not None:
        return _joined(f"Flight Number: {match['number']}", text[: match.start()], text[match.end() :])
    numbers = set(_ALONE.findall(text))
    if len(numbers) == 1 and ("flight" in text.lower() or _ALONE.match(text)):
        number = numbers.pop()
        rest = re.sub(r"\bflight(?:\s+number)?\b[\s:]*", "", text.replace(number, ""), flags=re.IGNORECASE)
        return _joined(f"Flight Number: {number}", rest)
    return text


def _with_pair(text: str, city: str, places: Places) -> str:
    """Write the two cities in the evaluator's form; a flight without cities gets `-`."""
    pair = from_to(text)
    states = places.database.tables.states
    if pair is not None and all(before_parenthesis(end) in states for end in pair):
        return text
    match = places.pair_in(text)
    if match is not None:
        head, rest = text[: match.start()], text[match.end() :]
        return _joined(_joined(head, f"from {match['a']} to {match['b']}"), rest)
    of_day = from_to(city)
    if pair is None and of_day is not None and not places.cities_in(text):
        return _joined(text, f"from {of_day[0]} to {of_day[1]}")
    if pair is None and of_day is None and "flight number" in text.lower():
        return f"{text}, from - to -"  # the evaluator would stop at it
    return text


def _joined(*parts: str) -> str:
    """Join parts of a transportation entry by commas."""
    bare = [re.sub(r"\A[\s,;:.|)(–—-]+|[\s,;:|(–—-]+\Z", "", part) for part in parts]
    return ", ".join(part for part in bare if part)


def city_of(text: str, places: Places) -> str:
    """Return the current city as `A`, or as `from A to B`."""
    text = " ".join(text.replace("*", "").split())
    pair = from_to(text)
    states = places.database.tables.states
    head = before_parenthesis(text)
    if pair is None and head in states:
        return text if "from" not in text else head  # the evaluator would stop at it
    if pair is not None and all(before_parenthesis(end) in states for end in pair):
        return f"from {pair[0]} to {pair[1]}"
    match = places.pair_in(text)
    if match is not None:
        return f"from {match['a']} to {match['b']}"
    if pair is not None:
        return text
    while "from" in text:  # the evaluator would stop at it
        text = text.replace("from", "")
    return places.city_at_head(_IN_CITY.sub("", text.strip(), count=1)) or text.strip() or "-"


KEYS: Final = ("current_city", *FIELDS)
MAX_TEXT: Final = 4_000
"""The most characters of a field, as the evaluator's rules take superlinear time."""

_LEAD = re.compile(
    r"(?:(?:have|enjoy|grab|get|take|eat|eating|dine|dining|stay|staying|overnight|check(?:ing)?|a|an|early|late|"
    r"quick|light|breakfast|lunch|dinner|brunch|accommodation|attractions?|meal)[\s-]++)*+"
    r"(?:(?:at|in|into)\s++|(?:breakfast|lunch|dinner|brunch|accommodation|attractions?|hotel)\s*+:\s*+|"
    r"(?:visit|visiting|explore|exploring|see)\s++)",
    re.IGNORECASE,
)
"""Words such as `Have lunch at`, which are removed if the text is not a name. `The` or `Lunch` may be part of
a name.
"""
_ARTICLE = re.compile(r"\Athe\s++", re.IGNORECASE)
_NUMBERED = re.compile(r"\A\s*+(?:\d{1,2}[.)]|[a-z][.)]|[-*•+])\s++")
_MARKED = re.compile(r"\[([^\[\]]*+)\]\([^()\s]*+\)|(\*\*|__|`)(.+?)\2")
_AND = re.compile(
    r"(?:\s*+\([^()]*+\))?[\s.]*+(?:[,;&+/]\s*+(?:and\b|&)?|and\b|then\b|followed by\b|\n|\Z)\s*+",
    re.IGNORECASE,
)
_ASIDE = re.compile(
    r"\s*+(?:average |entry |est\w*\.? )?(?:costs?|price|fee|entry|address|phone|website|rating|rated|hours?|"
    r"time|duration|note|distance|cuisines?)\b[^:;]{0,20}:.*+\Z",
    re.IGNORECASE | re.DOTALL,
)
_NOTHING = frozenset(["", "-", "--", "–", "—", "none", "n/a", "na", "null", "nothing", "not applicable"])
_MOST_A_DAY = 20


def normalized(day: Mapping[str, str], places: Places) -> dict[str, str]:
    """Return a day with all fields in the form of a submission."""
    said = {key: _said(day.get(key, "")) for key in KEYS}
    said["current_city"] = city_of(said["current_city"], places)
    said["transportation"] = way_of(said["transportation"], said["current_city"], places)
    pair = from_to(said["transportation"])
    city = before_parenthesis(said["current_city"])
    if pair is not None and (city == "-" or city in map(before_parenthesis, pair)):
        said["current_city"] = f"from {pair[0]} to {pair[1]}"
    pair = from_to(said["current_city"])
    here = [before_parenthesis(end).strip() for end in pair or (said["current_city"],)]
    for meal in MEALS:
        said[meal] = _entry("restaurant", said[meal], here, places)
    said["accommodation"] = _entry("accommodation", said["accommodation"], here[-1:], places)
    said["attraction"] = "".join(f"{one};" for one in _attractions(said["attraction"], here, places)) or "-"
    return said


def _said(text: str) -> str:
    text = (
        text[:MAX_TEXT].encode("utf-8", "replace").decode("utf-8").strip()
    )  # lone surrogates cannot be printed
    return "-" if text.lower().rstrip(".") in _NOTHING else text


def _plain(text: str) -> str:
    """Return text without bullets, markup and escapes."""
    return _unmarked(text).strip(" \t\n*_`|")


def _unmarked(text: str) -> str:
    """Return text without paired markup."""
    text = re.sub(r"(?:\\r)?\\n", "\n", text).replace("\\", "")
    text = _NUMBERED.sub("", text, count=1)
    return _MARKED.sub(lambda match: match[1] or match[3] or "", text)


def _forms(text: str) -> Iterator[str]:
    """Yield variants of a text: verbatim, plain, without quotes, without the words before a name."""
    yield text
    yield _unmarked(text)
    plain = _plain(text)
    yield plain
    if plain[:1] in ("'", '"', "“", "‘") and plain[1:]:
        yield plain[1:].replace({"“": "”", "‘": "’"}.get(plain[0], plain[0]), "", 1)
    lead = _LEAD.match(plain)
    if lead is not None:
        yield plain[lead.end() :]
        yield _ARTICLE.sub("", plain[lead.end() :], count=1)


def _entry(kind: Kind, text: str, here: Sequence[str], places: Places) -> str:
    """Return a meal, a room or an attraction as `Name, City`; `-` if it is unspecific."""
    if text == "-":
        return text
    for form in dict.fromkeys(_forms(text)):
        if (named := places.one(kind, form, here)) is not None:
            return str(named)
    plain = _plain(text)
    for form in (text, plain):
        if places.exists(kind, form):
            return form
    if is_nothing(text):
        return "-"
    return places.with_city(plain) or plain


def _attractions(text: str, here: Sequence[str], places: Places) -> list[str]:
    """Return the attractions as `Name, City`."""
    found: list[str] = []
    for piece in re.split(r";|\n|\\n", text):
        piece = piece.strip().rstrip(".")
        if piece and not (_ASIDE.match(piece) and found):
            found += _several(piece, here, places) or [_entry("attraction", piece, here, places)]
    return [one for one in found if one != "-"]


def _several(text: str, here: Sequence[str], places: Places) -> list[str]:
    """Split a sequence of known names, `Pier and Fort, Bay`; empty if there is any other text."""
    text = _plain(text)
    cities = list(dict.fromkeys([*here, *places.cities_in(text)]))
    found: list[Named] = []
    at = 0
    while at < len(text):
        named = places.at("attraction", text, at, cities)
        end = _AND.match(text, named.end) if named is not None else None
        if named is None or end is None or len(found) == _MOST_A_DAY:
            return []
        found.append(named)
        at = end.end()
    return [str(named) for named in _placed(found, places)]


def _placed(found: Sequence[Named], places: Places) -> Iterator[Named]:
    """Give a name without a city the city of the next name that has one, if the place exists there."""
    for index, named in enumerate(found):
        later = next((other.city for other in found[index:] if other.said), None)
        if not named.said and later and places.exists("attraction", f"{named.name}, {later}"):
            named = named._replace(city=later)
        yield named
