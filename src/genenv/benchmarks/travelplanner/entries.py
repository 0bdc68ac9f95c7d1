"""Brings what a model wrote of a day into the form of a submission, as the authors' second model is told to.

Its instruction (`postprocess/openai_request.py` of OSU-NLP-Group/TravelPlanner): each attraction is
`Name, City`, `;` between them; a way from A to B makes the current city `from A to B`; flight numbers are
followed by a colon; what is not specific, such as eating at home or on the road, is `-`; no `$`. So here;
details behind a name and its city go. What cannot be told with certainty stays as it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from genenv.benchmarks.travelplanner.idle import is_nothing
from genenv.benchmarks.travelplanner.places import Kind, Named, Places
from genenv.benchmarks.travelplanner.ways import city_of, way_of
from genenv.environments.travel.query import FIELDS, MEALS, before_parenthesis, from_to

KEYS: Final = ("current_city", *FIELDS)
MAX_TEXT: Final = 4_000
"""Texts of a plan are cut to so many characters: the evaluator's rules take time that grows faster."""

_LEAD = re.compile(
    r"(?:(?:have|enjoy|grab|get|take|eat|eating|dine|dining|stay|staying|overnight|check(?:ing)?|a|an|early|late|"
    r"quick|light|breakfast|lunch|dinner|brunch|accommodation|attractions?|meal)[\s-]++)*+"
    r"(?:(?:at|in|into)\s++|(?:breakfast|lunch|dinner|brunch|accommodation|attractions?|hotel)\s*+:\s*+|"
    r"(?:visit|visiting|explore|exploring|see)\s++)",
    re.IGNORECASE,
)
"""`Have lunch at`: tried without it, where the text is no name. `The` or `Lunch` alone could be a name's."""
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
    """A day with all fields, in the form of a submission."""
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
    )  # halves of a pair cannot be printed
    return "-" if text.lower().rstrip(".") in _NOTHING else text


def _plain(text: str) -> str:
    """A text without bullets, marks and escapes."""
    return _unmarked(text).strip(" \t\n*_`|")


def _unmarked(text: str) -> str:
    """Without marks that come in pairs."""
    text = re.sub(r"(?:\\r)?\\n", "\n", text).replace("\\", "")
    text = _NUMBERED.sub("", text, count=1)
    return _MARKED.sub(lambda match: match[1] or match[3] or "", text)


def _forms(text: str) -> Iterator[str]:
    """A text as it is, plain, and without quotes or the words before a name."""
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
    """A meal, a room, an attraction as `Name, City`; `-` for what is not specific."""
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
    """Attractions as `Name, City`."""
    found: list[str] = []
    for piece in re.split(r";|\n|\\n", text):
        piece = piece.strip().rstrip(".")
        if piece and not (_ASIDE.match(piece) and found):
            found += _several(piece, here, places) or [_entry("attraction", piece, here, places)]
    return [one for one in found if one != "-"]


def _several(text: str, here: Sequence[str], places: Places) -> list[str]:
    """Known names one after the other, `Pier and Fort, Bay`; none if anything else is there."""
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
    """Names without a city are in that of the next with one, if they are there."""
    for index, named in enumerate(found):
        later = next((other.city for other in found[index:] if other.said), None)
        if not named.said and later and places.exists("attraction", f"{named.name}, {later}"):
            named = named._replace(city=later)
        yield named
