"""A database and a plan small enough to work out by hand."""

from __future__ import annotations

import copy
from collections.abc import Callable

import pytest

from genenv.environments.travel.database import (
    Accommodation,
    Attraction,
    Database,
    Flight,
    Restaurant,
    Road,
    Tables,
)
from genenv.environments.travel.query import Query

Days = list[dict[str, object]]


@pytest.fixture(scope="session")
def small() -> Database:
    """Home, and Bay in the state of Coast: 2 rooms, 4 restaurants, 2 attractions, a flight each way."""
    return Database(
        Tables(
            flights=[
                Flight("F1", 100.0, "08:00", "10:00", "2 hours", "2022-03-01", "Home", "Bay", 500.0),
                Flight("F2", 120.0, "08:00", "10:00", "2 hours", "2022-03-03", "Bay", "Home", 500.0),
            ],
            accommodations=[
                Accommodation(
                    "Calm Inn", "Entire home/apt", 80.0, 1.0, 4.0, "No pets & No parties", 2, "Bay"
                ),
                Accommodation(
                    "Long Inn", "Private room", 50.0, 3.0, 4.0, "No parties & No smoking", 1, "Bay"
                ),
            ],
            restaurants=[
                Restaurant("Fig", "Bay", "Italian, Tea", 10.0, 4.0),
                Restaurant("Fig Tree", "Bay", "French", 20.0, 4.0),
                Restaurant("Elm", "Bay", "Mexican, Cafe", 30.0, 4.0),
                Restaurant("Oak", "Bay", "American", 40.0, 4.0),
                Restaurant("Ash", "Home", "Indian", 15.0, 4.0),
            ],
            attractions=[
                Attraction("Pier", 1.0, 1.0, "1 Main St", "1", "w", "Bay"),
                Attraction("Fort", 1.0, 1.0, "2 Main St", "2", "w", "Bay"),
            ],
            roads=[
                Road("Home", "Bay", "8 hours 10 mins", "801 km"),
                Road("Bay", "Home", "8 hours", "799 km"),
                Road("Home", "Far", "1 day 2 hours", "2,400 km"),
                Road("Bay", "Far", "", ""),
            ],
            states={"Home": "Inland", "Bay": "Coast", "Far": "Coast"},
        )
    )


@pytest.fixture(scope="session")
def query() -> Query:
    """Three people to Bay for three days."""
    return Query(
        origin="Home",
        destination="Bay",
        days=3,
        cities=1,
        dates=("2022-03-01", "2022-03-02", "2022-03-03"),
        people=3,
        budget=1160,
    )


def _day(
    number: int, city: str, way: str, meals: tuple[str, str, str], attraction: str, room: str
) -> dict[str, object]:
    breakfast, lunch, dinner = meals
    return {
        "days": number,
        "current_city": city,
        "transportation": way,
        "breakfast": breakfast,
        "attraction": attraction,
        "lunch": lunch,
        "dinner": dinner,
        "accommodation": room,
    }


GOOD: Days = [
    _day(1, "from Home to Bay", "Flight Number: F1, from Home to Bay", ("-", "-", "-"), "-", "Calm Inn, Bay"),
    _day(2, "Bay", "-", ("Fig Tree, Bay", "Elm, Bay", "Oak, Bay"), "Pier, Bay;", "Calm Inn, Bay"),
    _day(3, "from Bay to Home", "Flight Number: F2, from Bay to Home", ("-", "-", "-"), "-", "-"),
]
"""Flights 3 * 220, meals 3 * (20 + 30 + 40), rooms 2 nights * 2 rooms * 80: 660 + 270 + 320 = 1250."""


@pytest.fixture
def plan() -> Callable[..., Days]:
    """The good plan with some fields changed: `plan(day2={"lunch": "-"})`."""

    def changed(**days: dict[str, object]) -> Days:
        new = copy.deepcopy(GOOD)
        for name, fields in days.items():
            new[int(name.removeprefix("day")) - 1].update(fields)
        return new

    return changed
