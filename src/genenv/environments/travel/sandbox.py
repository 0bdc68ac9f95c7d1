"""A generated database in the benchmark's form with 60 cities, for users without the benchmark's tables.

Cities and states have real names; all positions, businesses, flights and prices are invented. A fixed seed
makes the database always the same, in a fraction of a second. It has the benchmark's columns and
difficulties: rooms with rules and minimum nights, roads of more than a day, cities without flights. No road
leads to Hawaii. Within a city no name is part of another.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
from collections.abc import Iterator, Mapping
from datetime import date, timedelta
from typing import NamedTuple

from genenv.environments.travel.database import (
    Accommodation,
    Attraction,
    Database,
    Flight,
    Restaurant,
    Road,
    Tables,
)

CUISINES = ("American", "Chinese", "French", "Indian", "Italian", "Mediterranean", "Mexican")
"""The cuisines that queries can ask for, as in the benchmark."""
DATES = tuple((date(2022, 3, 1) + timedelta(days=day)).isoformat() for day in range(31))
"""The days with flights, as in the benchmark: March 2022."""

_OTHER_CUISINES = ("Bakery", "BBQ", "Cafe", "Desserts", "Pizza", "Seafood", "Tea")
_ISLANDS = "Hawaii"
_STATES: Mapping[str, tuple[float, float, str]] = {
    "Arizona": (-111.7, 34.0, "Tucson, Flagstaff, Yuma, Prescott, Kingman"),
    "Colorado": (-105.5, 39.0, "Denver, Durango, Pueblo, Boulder, Alamosa"),
    "Florida": (-81.8, 28.0, "Tampa, Miami, Orlando, Pensacola, Naples"),
    "Georgia": (-83.4, 32.8, "Atlanta, Savannah, Macon, Valdosta, Albany"),
    "Hawaii": (-157.0, 20.5, "Honolulu, Hilo, Kahului, Lihue, Kona"),
    "Michigan": (-84.8, 43.5, "Detroit, Lansing, Flint, Escanaba, Marquette"),
    "Minnesota": (-94.2, 46.0, "Duluth, Minneapolis, Bemidji, Hibbing, Mankato"),
    "Missouri": (-92.5, 38.5, "St. Louis, Joplin, Branson, Sedalia, Hannibal"),
    "New York": (-75.5, 42.8, "Buffalo, Syracuse, Ithaca, Elmira, Utica"),
    "Ohio": (-82.8, 40.2, "Dayton, Toledo, Akron, Cleveland, Lima"),
    "Oregon": (-120.9, 43.9, "Eugene, Medford, Bend, Astoria, Pendleton"),
    "Texas": (-98.0, 31.3, "Dallas, Austin, Amarillo, Laredo, Waco"),
}
"""State -> degrees east and north of its center, and its cities; most flights go to the first city."""

_ROOM_WORDS = (
    "Quiet Sunny Tiny Grand Cozy Modern Rustic Bright Garden Harbor Corner Maple Velvet Silver",
    "Loft Studio Cabin Suite Nest Cottage Flat Bungalow Hideout Chalet",
)
_RESTAURANT_WORDS = (
    "Blue Golden Red Old Little Happy Lucky Green Royal Salty Smoky Sweet Wild Copper Iron Olive",
    "Fork Spoon Kettle Table Pan Oven Garlic Plate Grill Pepper Lantern Barrel",
)
_SIGHT_WORDS = (
    "North South Stone Cedar Eagle River Crystal Pioneer Sunset Liberty Heron Mineral",
    "Museum Park Gallery Bridge Zoo Gardens Trail Theater Aquarium Tower",
)
_N_ROOMS, _N_RESTAURANTS, _N_SIGHTS = 14, 18, 12
_RULES = ("No smoking", "No parties", "No children under 10", "No visitors", "No pets")
_NIGHTS = (1, 1, 1, 2, 2, 2, 3, 3, 4, 5, 7)
_CONNECTED = 0.28
"""The share of city pairs with flights, if neither city is the first of its state."""
_NO_ROAD = 0.03
_KM_A_DEGREE = 111.0
_DETOUR = 1.25
_KM_PER_HOUR = 92.0
_KM_A_MILE = 1.609


class _Place(NamedTuple):
    city: str
    state: str
    first: bool
    east_km: float
    north_km: float

    def km_to(self, other: _Place) -> float:
        return math.hypot(self.east_km - other.east_km, self.north_km - other.north_km)


@functools.cache
def sandbox() -> Database:
    """Generate the database once per process."""
    rng = random.Random("genenv/travel/sandbox")
    places = list(_places(rng))
    return Database(
        Tables(
            flights=list(_flights(places, rng)),
            accommodations=[row for place in places for row in _accommodations(place.city, rng)],
            restaurants=[row for place in places for row in _restaurants(place.city, rng)],
            attractions=[row for place in places for row in _attractions(place, rng)],
            roads=list(_roads(places, rng)),
            states={place.city: place.state for place in places},
        )
    )


def _places(rng: random.Random) -> Iterator[_Place]:
    for state, (east, north, cities) in _STATES.items():
        for number, city in enumerate(cities.split(", ")):
            longitude, latitude = east + rng.uniform(-1.8, 1.8), north + rng.uniform(-1.5, 1.5)
            east_km = longitude * _KM_A_DEGREE * math.cos(math.radians(38))
            yield _Place(city, state, number == 0, east_km, latitude * _KM_A_DEGREE)


# --- ways ---


def _roads(places: list[_Place], rng: random.Random) -> Iterator[Road]:
    for one, other in itertools.combinations(places, 2):
        km = one.km_to(other) * _DETOUR * rng.uniform(0.95, 1.1)
        none = _ISLANDS in (one.state, other.state) or (one.state != other.state and rng.random() < _NO_ROAD)
        for start, end in ((one, other), (other, one)):
            if none:
                yield Road(start.city, end.city, "", "")
            else:
                yield Road(start.city, end.city, _duration(km / _KM_PER_HOUR), f"{km:,.0f} km")


def _duration(hours: float) -> str:
    days, rest = divmod(round(hours * 60), 24 * 60)
    if days:
        return f"{days} day{'s' * (days > 1)} {rest // 60} hours"
    return f"{rest // 60} hours {rest % 60} mins"


def _flights(places: list[_Place], rng: random.Random) -> Iterator[Flight]:
    numbers = itertools.count(3_500_000)
    for start, end in itertools.permutations(places, 2):
        most = _most_flights(start, end, rng)
        km = start.km_to(end)
        for day in DATES if most else ():
            for _ in range(rng.randint(1 if start.first or end.first else 0, most)):
                yield _flight(start, end, day, km, next(numbers), rng)


def _most_flights(start: _Place, end: _Place, rng: random.Random) -> int:
    """Return the maximum number of flights per day, or 0. Only some western cities have flights to Hawaii."""
    draw = rng.random()
    if _ISLANDS in (start.state, end.state):
        mainland = min(start, end, key=lambda place: place.state == _ISLANDS)
        if start.state == end.state:
            return 3
        return 2 if mainland.first and mainland.state in ("Arizona", "Colorado", "Oregon", "Texas") else 0
    if start.state == end.state:
        return 1 if draw < _CONNECTED / 2 else 0
    if start.first and end.first:
        return 3
    if start.first or end.first:
        return 2 if draw < 2 * _CONNECTED else 0
    return 1 if draw < _CONNECTED / 2 else 0


def _flight(start: _Place, end: _Place, day: str, km: float, number: int, rng: random.Random) -> Flight:
    leaves, minutes = rng.randrange(5 * 60, 22 * 60), round(40 + km / 13)
    arrives = (leaves + minutes) % (24 * 60)
    return Flight(
        number=f"F{number}",
        price=float(round((35 + km * 0.09) * rng.uniform(0.6, 1.7))),
        departure=f"{leaves // 60:02d}:{leaves % 60:02d}",
        arrival=f"{arrives // 60:02d}:{arrives % 60:02d}",
        elapsed=f"{minutes // 60} hours {minutes % 60} minutes",
        date=day,
        origin=start.city,
        destination=end.city,
        distance=float(round(km / _KM_A_MILE)),
    )


# --- what a city has ---


def _names(words: tuple[str, str], n: int, rng: random.Random) -> list[str]:
    pairs = list(itertools.product(words[0].split(), words[1].split()))
    return [f"{first} {second}" for first, second in rng.sample(pairs, n)]


def _accommodations(city: str, rng: random.Random) -> Iterator[Accommodation]:
    for name in _names(_ROOM_WORDS, _N_ROOMS, rng):
        rules = rng.sample(_RULES, rng.choice((1, 1, 2, 2, 3)))
        yield Accommodation(
            name=name,
            room_type=rng.choice(("Entire home/apt",) * 4 + ("Private room",) * 4 + ("Shared room",) * 2),
            price=float(round(math.exp(rng.uniform(math.log(60), math.log(900))))),
            minimum_nights=float(rng.choice(_NIGHTS)),
            review_rate=float(rng.randint(1, 5)),
            house_rules=" & ".join(rules),
            maximum_occupancy=rng.choice((1, 2, 2, 2, 3, 4, 5)),
            city=city,
        )


def _restaurants(city: str, rng: random.Random) -> Iterator[Restaurant]:
    for name in _names(_RESTAURANT_WORDS, _N_RESTAURANTS, rng):
        cuisines = [*rng.sample(CUISINES, rng.randint(1, 2)), *rng.sample(_OTHER_CUISINES, rng.randint(0, 2))]
        yield Restaurant(
            name=name,
            city=city,
            cuisines=", ".join(cuisines),
            average_cost=float(rng.randint(10, 100)),
            rating=rng.randint(0, 50) / 10,
        )


def _attractions(place: _Place, rng: random.Random) -> Iterator[Attraction]:
    for number, name in enumerate(_names(_SIGHT_WORDS, _N_SIGHTS, rng), 1):
        yield Attraction(
            name=name,
            latitude=round(place.north_km / _KM_A_DEGREE + rng.uniform(-0.1, 0.1), 5),
            longitude=round(place.east_km / _KM_A_DEGREE + rng.uniform(-0.1, 0.1), 5),
            address=f"{number * 7} Main St, {place.city}",
            phone="Unknown",
            website="Unknown",
            city=place.city,
        )
