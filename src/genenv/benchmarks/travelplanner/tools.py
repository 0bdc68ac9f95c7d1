"""The tools of TravelPlanner's two-stage mode: searches in the authors' tables, and a notebook.

Arguments and findings are those of the authors' tools (`tools/*/apis.py` of OSU-NLP-Group/TravelPlanner). A
table is written as pandas writes it, a city must be one of the database's, a date has the form YYYY-MM-DD.
What is refused is said in words of our own.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final

from genenv.environments.travel.database import Database, Road
from genenv.environments.travel.query import before_parenthesis

_DATE = re.compile(r"\d{4}-\d{2}-\d{2}")
_ROOMS = ("NAME", "price", "room type", "house_rules", "minimum nights", "maximum occupancy")
_ROOMS_END = ("review rate number", "city")
_MEALS = ("Name", "Average Cost", "Cuisines", "Aggregate Rating", "City")
_SIGHTS = ("Name", "Latitude", "Longitude", "Address", "Phone", "Website", "City")
_FLIGHTS = ("Flight Number", "Price", "DepTime", "ArrTime", "ActualElapsedTime", "FlightDate")
_FLIGHTS_END = ("OriginCityName", "DestCityName", "Distance")
SEARCHES: Final = (
    *("FlightSearch", "GoogleDistanceMatrix", "AccommodationSearch", "RestaurantSearch", "AttractionSearch"),
    "CitySearch",
)


class Refused(Exception):
    """A search with arguments that are none; the text is what the model is answered."""


class Searches:
    """The searches, over one database."""

    def __init__(self, database: Database, cities: Sequence[str]) -> None:
        """Prepare the searches.

        Args:
            database: the tables, with all flights that there are.
            cities: those that may be asked for, in the order in which a refusal lists them.
        """
        self._database, self._cities = database, list(cities)
        self._known = frozenset(cities)
        self._roads: dict[tuple[str, str], Road] = {}
        for road in database.tables.roads:
            self._roads.setdefault((road.origin, road.destination), road)

    def answer(self, name: str, argument: str) -> str:
        """What a search finds.

        Args:
            name: one of `SEARCHES`.
            argument: what stands between the brackets.

        Raises:
            Refused: the argument is none.
        """
        parts = argument.split(", ")
        if name == "FlightSearch":
            return self._flights(parts)
        if name == "GoogleDistanceMatrix":
            return self._distance(parts)
        if name == "CitySearch":
            cities = self._database.cities_of(argument)
            return str(list(cities)) if cities else "Invalid State"
        self._check_city(argument)
        if name == "AccommodationSearch":
            return self._rooms(argument)
        return self._meals(argument) if name == "RestaurantSearch" else self._sights(argument)

    def _check_city(self, city: str) -> None:
        if city not in self._known:
            raise Refused(f"There is no city {city!r}; the cities are {', '.join(self._cities)}.")

    def _flights(self, parts: Sequence[str]) -> str:
        if len(parts) < 3:
            raise Refused("FlightSearch takes a city, a city and a date: FlightSearch[A, B, 2022-03-01].")
        origin, destination, date = parts[:3]
        if _DATE.fullmatch(date) is None:
            raise Refused(f"{date!r} is no date of the form YYYY-MM-DD.")
        self._check_city(origin)
        self._check_city(destination)
        found = self._database.flights(origin, destination, date)
        if not found:
            return f"There is no flight from {origin} to {destination} on {date}."
        rows = [
            (
                f.number,
                _amount(f.price),
                f.departure,
                f.arrival,
                f.elapsed,
                f.date,
                f.origin,
                f.destination,
                f.distance,
            )
            for f in found
        ]
        return table((*_FLIGHTS, *_FLIGHTS_END), rows)

    def _distance(self, parts: Sequence[str]) -> str:
        if len(parts) < 3:
            raise Refused("GoogleDistanceMatrix takes two cities and a mode.")
        origin, destination, mode = before_parenthesis(parts[0]), before_parenthesis(parts[1]), parts[2]
        road = self._roads.get((origin, destination))
        if road is None:
            return f"{mode}, from {origin} to {destination}, no valid information."
        if not road.duration or not road.distance or "day" in road.duration:
            return "No valid information."
        cost = int(road.distance_km * 0.05) if "driving" in mode else None
        cost = int(road.distance_km) if mode == "taxi" else cost
        way = f"{mode}, from {origin} to {destination}"
        return f"{way}, duration: {road.duration}, distance: {road.distance}, cost: {cost}"

    def _rooms(self, city: str) -> str:
        rows = [
            (
                r.name,
                r.price,
                r.room_type,
                r.house_rules,
                r.minimum_nights,
                r.maximum_occupancy,
                r.review_rate,
                r.city,
            )
            for r in self._database.tables.accommodations
            if r.city == city
        ]
        return table((*_ROOMS, *_ROOMS_END), rows) if rows else "There is no attraction in this city."

    def _meals(self, city: str) -> str:
        rows = [
            (r.name, _amount(r.average_cost), r.cuisines, r.rating, r.city)
            for r in self._database.tables.restaurants
            if r.city == city
        ]
        return table(_MEALS, rows) if rows else "There is no restaurant in this city."

    def _sights(self, city: str) -> str:
        rows = [tuple(r) for r in self._database.tables.attractions if r.city == city]
        return table(_SIGHTS, rows) if rows else "There is no attraction in this city."


def _amount(value: float) -> float:
    """A number of a column of integers."""
    return int(value) if value == int(value) else value


def table(names: Sequence[str], rows: Sequence[Sequence[str | float]]) -> str:
    """Rows as pandas' `DataFrame.to_string(index=False)` writes them: columns flush right."""
    columns = [_column(name, [row[at] for row in rows]) for at, name in enumerate(names)]
    return "\n".join(" ".join(cells) for cells in zip(*columns, strict=True))


def _column(name: str, values: Sequence[str | float]) -> list[str]:
    if any(isinstance(value, str) for value in values):
        cells = [name, *(_escaped(str(value)) for value in values)]
    elif all(isinstance(value, int) for value in values):
        cells = [f" {name}", *map(str, values)]
    else:
        written = [f"{float(value):.6f}" for value in values]
        while all(text.endswith("0") and text[-2] != "." for text in written):
            written = [text[:-1] for text in written]
        cells = [f" {name}", *written]
    width = max(map(len, cells))
    return [cell.rjust(width) for cell in cells]


def _escaped(text: str) -> str:
    return text.replace("\n", "\\n").replace("\r", "\\r").replace("\t", "\\t")
