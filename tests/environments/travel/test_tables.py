"""TravelPlanner's tables: read as the benchmark reads them, and broken lines are named."""

from __future__ import annotations

import ast
import csv
import importlib
import os
import sys
from pathlib import Path

import pytest

from genenv.environments.travel.constraints import score
from genenv.environments.travel.database import Database, load_database
from genenv.environments.travel.environment import Travel
from genenv.environments.travel.query import benchmark_query
from genenv.environments.travel.sandbox import sandbox
from genenv.environments.travel.spec import TravelConfig
from genenv.errors import DataError, UsageError

FILES = {
    "flights/flights_from_ref_info.csv": (
        "Flight Number,Price,DepTime,ArrTime,ActualElapsedTime,FlightDate,OriginCityName,DestCityName,"
        "Distance\n"
        "F1,100,08:00,10:00,2 hours,2022-03-01,Home,Bay,500.0\n"
    ),
    "accommodations/clean_accommodations_2022.csv": (
        ",NAME,room type,price,minimum nights,review rate number,house_rules,maximum occupancy,city\n"
        '0,"Calm, Inn",Private room,80.0,1.0,4.0,No pets,2,Bay\n'
        "1,No Rules Inn,Private room,80.0,1.0,4.0,,2,Bay\n"
    ),
    "restaurants/clean_restaurant_2022.csv": (
        ",Name,City,Cuisines,Average Cost,Aggregate Rating\n"
        '0,Fig,Bay,"Tea, Pizza",10,4.8\n1,NA,Bay,Tea,10,4.8\n'
    ),
    "attractions/attractions.csv": (
        'Name,Latitude,Longitude,Address,Phone,Website,City\nPier,1.5,2.5,"1 Main St, Bay",(1) 2,w,Bay\n'
    ),
    "googleDistanceMatrix/distance.csv": (
        'origin,destination,cost,duration,distance\nHome,Bay,,10 hours 55 mins,"1,144 km"\nBay,Home,,,\n'
    ),
    "background/citySet_with_states.txt": "Bay\tCoast\nHome\tInland",
}


@pytest.fixture
def folder(tmp_path) -> Path:
    for name, text in FILES.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text, encoding="utf-8")
    return tmp_path


def test_rows_with_an_empty_cell_are_left_out_but_for_roads(folder):
    data = load_database(str(folder))
    assert [row.name for row in data.accommodations("Bay")] == ["Calm, Inn"]
    assert [row.name for row in data.restaurants("Bay")] == ["Fig"]
    assert data.road_cost("Home", "Bay", "self-driving") == 57  # 1,144 km at 5 cents, rounded down
    assert data.road("Bay", "Home") is None
    assert (data.state_of("Bay"), data.cities_of("Inland")) == ("Coast", ["Home"])


@pytest.mark.parametrize(
    ("name", "old", "new", "sentence"),
    [
        ("flights/flights_from_ref_info.csv", "F1,100", "F1,cheap", "line 2: Price is 'cheap', not a number"),
        ("flights/flights_from_ref_info.csv", "F1,100", "F1,inf", "line 2: Price is 'inf', not a number"),
        ("flights/flights_from_ref_info.csv", "F1,100,", "F1,", "line 2: 8 cells, not 9"),
        ("flights/flights_from_ref_info.csv", "FlightDate", "Day", "line 1: there is no column 'FlightDate'"),
        ("googleDistanceMatrix/distance.csv", "1,144 km", "far", "line 2: distance is 'far', not kilometers"),
        ("accommodations/clean_accommodations_2022.csv", "No pets,2", "No pets,0", "maximum occupancy is 0"),
        (
            "background/citySet_with_states.txt",
            "Bay\t",
            "Bay ",
            "line 1: it should be a city, a tab, and its state",
        ),
        ("restaurants/clean_restaurant_2022.csv", '"Tea, Pizza"', '"Tea" Pizza', "line 2: "),
        ("restaurants/clean_restaurant_2022.csv", '"Tea, Pizza",', '"Tea, Pizza,', "line 2: unexpected end"),
        ("restaurants/clean_restaurant_2022.csv", "Fig", "Fig" * 60_000, "line 2: field larger than"),
        ("restaurants/clean_restaurant_2022.csv", "10,4.8", "-10,4.8", "Average Cost is '-10', below zero"),
        ("restaurants/clean_restaurant_2022.csv", "Fig", "Fi\0g", "line 2: it has a NUL byte"),
        ("restaurants/clean_restaurant_2022.csv", "Fig", "", "has no complete line"),
        ("flights/flights_from_ref_info.csv", "F1,100", "F1,-1", "line 2: Price is '-1', below zero"),
        (
            "accommodations/clean_accommodations_2022.csv",
            "80.0,1.0",
            "80.0,-1",
            "line 2: minimum nights is '-1', below zero",
        ),
        ("googleDistanceMatrix/distance.csv", "1,144 km", "-4 km", "line 2: distance is '-4 km', not"),
        ("googleDistanceMatrix/distance.csv", "1,144 km", "inf km", "line 2: distance is 'inf km', not"),
        (
            "background/citySet_with_states.txt",
            "Bay\tCoast",
            "Home\tCoast",
            "line 2: Home is in Coast by an earlier line",
        ),
        ("background/citySet_with_states.txt", "Bay\tCoast\nHome\tInland", "\n", "names no city"),
    ],
)
def test_a_broken_line_ends_in_one_sentence_with_file_and_line(folder, name, old, new, sentence):
    (folder / name).write_text(FILES[name].replace(old, new), encoding="utf-8")
    with pytest.raises(UsageError) as error:
        Travel(TravelConfig(database=str(folder))).seeds()
    assert sentence in str(error.value)
    assert Path(name).name in str(error.value)
    assert "\n" not in str(error.value)


def test_bytes_that_are_no_text_end_in_one_sentence(folder):
    (folder / "attractions/attractions.csv").write_bytes(b"Name,La\xff\xfe\x00")
    with pytest.raises(UsageError, match=r"attractions.csv, line 1: it is not text in UTF-8"):
        load_database(str(folder))
    cities = folder / "background/citySet_with_states.txt"
    cities.write_bytes(b"Bay\tCoast\nH\xffme\tInland")
    (folder / "attractions/attractions.csv").write_text(FILES["attractions/attractions.csv"])
    with pytest.raises(UsageError, match=r"citySet_with_states.txt, line 2: it is not text in UTF-8"):
        load_database(str(folder))


def test_a_byte_order_mark_is_no_part_of_the_first_cell(folder):
    for name in FILES:
        (folder / name).write_text(FILES[name], encoding="utf-8-sig")
    data = load_database(str(folder))
    assert data.state_of("Bay") == "Coast"
    assert [row.name for row in data.attractions("Bay")] == ["Pier"]


def test_a_table_that_cannot_be_opened_ends_in_one_sentence(folder, monkeypatch):
    def refuse(*_args, **_options):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(Path, "open", refuse)
    with pytest.raises(UsageError, match=r"\.csv cannot be read: Permission denied"):
        load_database(str(folder))


def test_an_absent_table_is_named(folder):
    (folder / "attractions/attractions.csv").unlink()
    with pytest.raises(UsageError, match=r"has no attractions/attractions.csv; download"):
        load_database(str(folder))


def test_an_absent_folder_is_named():
    with pytest.raises(UsageError, match=r"there is no folder 'nowhere'"):
        load_database("nowhere")


def test_what_is_no_query_of_the_benchmark_is_refused():
    with pytest.raises(DataError, match="not a query of TravelPlanner"):
        benchmark_query({"org": "Home"})


@pytest.mark.long
def test_our_own_tables_are_read_back_and_plans_made_on_them_meet_every_constraint(tmp_path):
    pytest.importorskip("ortools", reason="OR-Tools is not installed: pip install 'genenv[travel]'.")
    made, own = importlib.import_module("benchmarks.travelplanner.made"), sandbox()
    made.write(tmp_path)
    data = load_database(str(tmp_path / "travelplanner" / "database"))
    for table in ("accommodations", "restaurants", "attractions", "roads", "states"):
        assert getattr(data.tables, table) == getattr(own.tables, table), table
    assert data.tables.flights == own.tables.flights[:10]
    flown = Database(data.tables._replace(flights=own.tables.flights))
    scores = [score(known.query, known.plan, flown) for known in made.made("train")]
    assert [sum(n) for n in zip(*(found.commonsense for found in scores), strict=True)] == [72, 72]
    assert [sum(n) for n in zip(*(found.hard for found in scores), strict=True)] == [21, 21]


@pytest.mark.long
def test_people_and_the_oracle_meet_every_constraint_in_the_real_tables():
    root = Path(os.environ.get("GENENV_DATA", "")) / "travelplanner"
    if not os.environ.get("GENENV_DATA") or not root.is_dir():
        pytest.skip("TravelPlanner's data is not here: set GENENV_DATA to the folder that has it.")
    data = load_database(str(root / "database"))
    before = csv.field_size_limit(sys.maxsize)
    with (root / "train.csv").open(encoding="utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    csv.field_size_limit(before)  # other tests of this process count on it
    scores = [score(benchmark_query(row), ast.literal_eval(row["annotated_plan"])[1], data) for row in rows]
    assert (len(scores), sum(found.passed for found in scores)) == (45, 45)
    assert [sum(n) for n in zip(*(found.commonsense for found in scores), strict=True)] == [360, 360]
    assert [sum(n) for n in zip(*(found.hard for found in scores), strict=True)] == [105, 105]
    env = Travel(TravelConfig(database=str(root / "database"), longest=3))
    tasks = env.held_out()
    assert len(tasks) > 100
    assert all(env.check(task, task.oracle).success for task in tasks)
