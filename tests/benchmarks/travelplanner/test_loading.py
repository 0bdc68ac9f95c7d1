"""TravelPlanner's files: what is read, and that every damage is one sentence with file and line."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from genenv.benchmarks.travelplanner import TravelPlanner
from genenv.errors import DataError
from genenv.evaluation.data import DataFolder


def load(folder: Path, **kwargs):
    return TravelPlanner().load(DataFolder(folder, known={}, **kwargs), "validation")


def test_items_are_numbered_as_the_benchmark_numbers_them_and_know_their_groups(items):
    assert [item.id for item in items] == ["validation-001", "validation-002"]
    assert [dict(item.groups) for item in items] == [
        {"level": "easy", "days": "3"},
        {"level": "hard", "days": "3"},
    ]
    hard = items[1].data.query
    assert (hard.house_rule, hard.cuisines, hard.budget) == ("smoking", ("French", "Indian"), 1250)


def test_flights_are_those_of_the_reference_information_each_once(items):
    assert [row.number for row in items[0].data.database.tables.flights] == ["F1", "F2"]
    assert items[0].data.database is items[1].data.database


def test_every_file_is_hashed(folder):
    data = DataFolder(folder, known={})
    TravelPlanner().load(data, "validation")
    read = {name.removeprefix("travelplanner/") for name in data.hashes}
    files = {os.path.relpath(path, folder / "travelplanner") for path in folder.rglob("*") if path.is_file()}
    assert read == files


def test_a_changed_table_is_refused_unless_that_is_allowed(folder):
    known = {"travelplanner/database/attractions/attractions.csv": "0" * 64}
    with pytest.raises(DataError, match=r"attractions\.csv is not the file .* allow it with --changed-data"):
        TravelPlanner().load(DataFolder(folder, known=known), "validation")
    allowed = DataFolder(folder, known=known, allow_changed=True)
    assert len(TravelPlanner().load(allowed, "validation")) == 2


@pytest.mark.parametrize(
    ("name", "old", "new", "sentence"),
    [
        ("validation.csv", ",easy,", ",tough,", r"validation\.csv, line 2: .*unknown level"),
        (
            "validation.csv",
            ",hard,",
            ",",
            r"validation\.csv, line 3: 10 cells, not 11; the file may be cut off",
        ),
        ("validation.csv", ",level,", ",grade,", r"validation\.csv, line 2: .*KeyError: 'level'"),
        ("validation.csv", "'house rule': 'smoking'", "'house rule': 7", r"line 3: .*unknown house rule, 7"),
        ("validation.csv", "['French', 'Indian']", "[1]", r"line 3: .*cuisines that are not texts"),
        ("validation.csv", "{'house rule': None", "{'house rule': None(", r"line 2: not a query of Travel"),
        ("validation.csv", ",1250,", ",lots,", r"line 2: not a query of TravelPlanner"),
        ("validation.csv", ",3,1,", ",4,1,", r"line 2: .*unknown level or number of days"),
        ("validation.csv", '"[', '"["', r"line 2: .*; the file may be cut off"),
        ("validation_ref_info.jsonl", '"F1"', '"F1', r"ref_info\.jsonl, line 1: it is not a JSON object"),
        ("validation_ref_info.jsonl", '"Price": 100', '"Cost": 1', r"ref_info\.jsonl, line 1: .*'Price'"),
        ("validation_ref_info.jsonl", '"Price": 100', '"Price": "?"', r"line 1: .*could not convert string"),
        ("validation_ref_info.jsonl", '"none"', '"none\ud800"', r"it is not UTF-8"),
        ("database/restaurants/clean_restaurant_2022.csv", "20,4.8", "cheap,4.8", r"line 2: Average Cost is"),
        ("database/background/citySet_with_states.txt", "Bay\t", "Bay ", r"line 1: it should be a city"),
    ],
)
def test_a_damaged_file_is_a_sentence_with_its_line(folder, name, old, new, sentence):
    path = folder / "travelplanner" / name
    text = path.read_text(encoding="utf-8")
    assert old in text
    path.write_bytes(text.replace(old, new, 1).encode("utf-8", "surrogatepass"))
    with pytest.raises(DataError, match=sentence) as caught:
        load(folder)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    "name",
    ["validation.csv", "validation_ref_info.jsonl", "database/googleDistanceMatrix/distance.csv"],
)
def test_a_missing_file_is_a_sentence(folder, name):
    (folder / "travelplanner" / name).unlink()
    with pytest.raises(DataError, match=r"is missing; docs/guides/evaluation\.md says where"):
        load(folder)


def test_a_file_without_queries_is_a_sentence(folder):
    path = folder / "travelplanner" / "validation.csv"
    path.write_text(path.read_text(encoding="utf-8").splitlines()[0], encoding="utf-8")
    with pytest.raises(DataError, match=r"validation\.csv holds no query"):
        load(folder)
