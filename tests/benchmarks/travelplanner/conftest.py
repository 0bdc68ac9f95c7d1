"""A TravelPlanner of two queries, laid out like the benchmark's and small enough to work out by hand."""

from __future__ import annotations

import csv
import importlib
import io
import json
from collections.abc import Mapping
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from genenv.benchmarks.travelplanner import TravelPlanner
from genenv.evaluation.base import Item
from genenv.evaluation.data import DataFolder

FLIGHT = {
    "Flight Number": "F1",
    "Price": 100,
    "DepTime": "08:00",
    "ArrTime": "10:00",
    "ActualElapsedTime": "2 hours",
    "FlightDate": "2022-03-01",
    "OriginCityName": "Home",
    "DestCityName": "Bay",
    "Distance": 500.0,
}
BACK = {
    **FLIGHT,
    "Flight Number": "F2",
    "Price": 120,
    "FlightDate": "2022-03-03",
    "OriginCityName": "Bay",
    "DestCityName": "Home",
}
DATES = ["2022-03-01", "2022-03-02", "2022-03-03"]
WISHES = {"house rule": None, "cuisine": None, "room type": None, "transportation": None}
QUERY = {
    "org": "Home",
    "dest": "Bay",
    "days": "3",
    "visiting_city_number": "1",
    "date": str(DATES),
    "people_number": "3",
    "local_constraint": str(WISHES),
    "budget": "1250",
    "query": "Three of us want to go from Home to Bay.",
    "level": "easy",
    "reference_information": "[{'Description': 'Attractions in Bay', 'Content': 'Pier'}]",
}
HARD = {
    **QUERY,
    "local_constraint": str({**WISHES, "house rule": "smoking", "cuisine": ["French", "Indian"]}),
    "level": "hard",
}
TABLES = {
    "accommodations/clean_accommodations_2022.csv": (
        ",NAME,room type,price,minimum nights,review rate number,house_rules,maximum occupancy,city\n"
        "0,Calm Inn,Entire home/apt,80.0,1.0,4.0,No pets & No parties,2,Bay\n"
        "1,Long Inn,Private room,50.0,3.0,4.0,No parties & No smoking,1,Bay\n"
    ),
    "restaurants/clean_restaurant_2022.csv": (
        ",Name,City,Cuisines,Average Cost,Aggregate Rating\n"
        '0,Fig Tree,Bay,"French, Tea",20,4.8\n'
        "1,Elm,Bay,Mexican,30,4.8\n"
        "2,Oak,Bay,American,40,4.8\n"
    ),
    "attractions/attractions.csv": (
        "Name,Latitude,Longitude,Address,Phone,Website,City\nPier,1.5,2.5,1 Main St,(1) 2,w,Bay\n"
    ),
    "googleDistanceMatrix/distance.csv": (
        "origin,destination,cost,duration,distance\n"
        'Home,Bay,,10 hours,"1,144 km"\nBay,Home,,10 hours,"1,144 km"\n'
    ),
    "background/citySet_with_states.txt": "Bay\tCoast\nHome\tInland",
}


def rows(*queries: Mapping[str, str]) -> str:
    """Queries as the benchmark's file has them."""
    out = io.StringIO()
    writer = csv.DictWriter(out, [*QUERY])
    writer.writeheader()
    writer.writerows(queries)
    return out.getvalue()


def day(
    number: int, city: str, way: str, meals: tuple[str, str, str], sight: str, room: str
) -> dict[str, Any]:
    breakfast, lunch, dinner = meals
    return {
        "days": number,
        "current_city": city,
        "transportation": way,
        "breakfast": breakfast,
        "attraction": sight,
        "lunch": lunch,
        "dinner": dinner,
        "accommodation": room,
    }


NONE = ("-", "-", "-")
GOOD = [
    day(1, "from Home to Bay", "Flight Number: F1, from Home to Bay", NONE, "-", "Calm Inn, Bay"),
    day(2, "Bay", "-", ("Fig Tree, Bay", "Elm, Bay", "Oak, Bay"), "Pier, Bay;", "Calm Inn, Bay"),
    day(3, "from Bay to Home", "Flight Number: F2, from Bay to Home", NONE, "-", "-"),
]
"""Flights 3 * 220, meals 3 * (20 + 30 + 40), rooms 2 nights * 2 rooms * 80: 660 + 270 + 320 = 1250."""


def _module(name: str) -> ModuleType:
    """A file beside this one."""
    return importlib.import_module(f"benchmarks.travelplanner.{name}")


@pytest.fixture(scope="session")
def edits() -> ModuleType:
    """Plans made wrong in one way each."""
    return _module("edits")


@pytest.fixture(scope="session")
def styles() -> ModuleType:
    """Plans written out freely."""
    return _module("styles")


@pytest.fixture(scope="session")
def made() -> ModuleType:
    """A benchmark made by us."""
    pytest.importorskip("ortools", reason="OR-Tools is not installed: pip install 'genenv[travel]'.")
    return _module("made")


@pytest.fixture(scope="session")
def made_folder(made, shared) -> Path:
    """Its files."""

    def write(folder: Path) -> None:
        folder.mkdir()
        made.write(folder)

    return shared("travelplanner", write)


@pytest.fixture(scope="session")
def made_data(made_folder) -> DataFolder:
    """Its files, to be read."""
    return DataFolder(made_folder, known={})


@pytest.fixture(scope="session")
def made_pairs(made, made_data) -> dict[str, list[tuple[Item, Any]]]:
    """Split -> each item with a plan that meets everything."""
    bench = TravelPlanner()
    return {
        split: [
            (item, known.plan)
            for item, known in zip(bench.load(made_data, split), made.made(split), strict=True)
        ]
        for split in ("train", "validation")
    }


@pytest.fixture
def good() -> list[dict[str, Any]]:
    """A plan that meets everything of the easy query, for its budget to the dollar."""
    return [dict(entry) for entry in GOOD]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The files."""
    information = {"Flight from Home to Bay": [FLIGHT], "Flight from Bay to Home": [BACK], "Taxi": "none"}
    texts = {f"database/{name}": text for name, text in TABLES.items()}
    texts["validation.csv"] = rows(QUERY, HARD)
    texts["validation_ref_info.jsonl"] = f"{json.dumps(information)}\n" * 2
    for name, text in texts.items():
        path = tmp_path / "travelplanner" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")
    return tmp_path


@pytest.fixture
def items(folder: Path):
    """The easy and the hard query."""
    return TravelPlanner().load(DataFolder(folder, known={}), "validation")
