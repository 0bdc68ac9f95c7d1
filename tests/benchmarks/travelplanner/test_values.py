"""Plans as models write them: escapes, apostrophes, quotes, comments; no day is lost in silence."""

from __future__ import annotations

import json
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from genenv.benchmarks.travelplanner import TravelPlanner
from genenv.benchmarks.travelplanner.replies import read_reply
from genenv.benchmarks.travelplanner.values import Found, Unread, values

DAYS = [
    {"days": 1, "current_city": "Bay", "dinner": "Dunkin' Donuts, Bay", "attraction": "Pier, Bay;"},
    {"days": 2, "current_city": "Bay", "dinner": "Elm, Bay", "attraction": "The Sailors' Fort, Bay;"},
    {"days": 3, "current_city": "Bay", "dinner": "Oak, Bay", "attraction": "Pier, Bay;Fort, Bay;"},
]
TEXT = json.dumps(DAYS)
LINES = json.dumps(DAYS, indent=2)


def by_hand(quote: str, days: object = DAYS) -> str:
    """Python's list, every text between the same quotes and none of them escaped."""
    return (
        "["
        + ", ".join(
            "{"
            + ", ".join(
                f"{quote}{k}{quote}: {v if k == 'days' else quote + str(v) + quote}" for k, v in day.items()
            )
            + "}"
            for day in days  # pyright: ignore[reportGeneralTypeIssues]
        )
        + "]"
    )


def typographic(text: str) -> str:
    parts = text.split('"')
    return "".join(f"{part}{'“' if at % 2 == 0 else '”'}" for at, part in enumerate(parts))[:-1]


@pytest.fixture
def read(items):
    """Reads replies with the tables of the two queries."""
    return lambda reply: read_reply(reply, items[0].data.split.places)


WRITTEN = {
    "escaped underscores": TEXT.replace("current_city", "current\\_city"),
    "escaped underscores and brackets": TEXT.replace("_", "\\_").replace("[", "\\[").replace("{", "\\{"),
    "raw apostrophes in Python's quotes": by_hand("'"),
    "raw apostrophes over several lines": by_hand("'").replace(", '", ",\n '"),
    "doubled quotes": TEXT.replace('"', '""'),
    "doubled quotes around values": TEXT.replace(': "', ': ""').replace('",', '"",').replace('"}', '""}'),
    "two single quotes": by_hand("''"),
    "quotes of typography": typographic(TEXT).replace("'", "’"),
    "keys without quotes": by_hand('"')
    .replace('"days"', "days")
    .replace('"dinner"', "dinner")
    .replace('"current_city"', "current_city")
    .replace('"attraction"', "attraction"),
    "values without quotes": LINES.replace('"Bay"', "Bay"),
    "commas at the end": LINES.replace('"\n', '",\n').replace("}\n]", "},\n]"),
    "no commas at the end of lines": LINES.replace('",\n', '"\n'),
    "comments": LINES.replace('"Bay",', '"Bay", // where we are').replace(
        "[\n", "[ # the plan\n /* days */\n", 1
    ),
    "spaces that do not break": LINES.replace("  ", "\u00a0\u00a0"),
    "a byte order mark and no width": "\ufeff" + TEXT.replace('"dinner"', '\u200b"dinner"\u200b'),
    "in a fence among words": f"It's the plan:\n```python\nplan = {by_hand(chr(39))}\n```\nDon't forget it!",
    "a Python list that is printed in a JSON text": json.dumps({"plan": DAYS})[:-1]
    + ", 'note': 'it's done'}",
}


@pytest.mark.parametrize("form", WRITTEN)
def test_a_plan_reads_the_same_however_its_quotes_are_set(form, read):
    reading = read(WRITTEN[form])
    assert reading == read(TEXT)
    assert [day["dinner"] for day in reading.plan] == ["Dunkin' Donuts, Bay", "Elm, Bay", "Oak, Bay"]
    assert reading.unread == ()


@pytest.mark.parametrize(
    ("spoil", "why"),
    [
        (lambda text: text.replace("'Elm, Bay'", "'Elm, Bay"), "a text has no certain end"),
        (lambda text: text.replace("'Elm, Bay'", "Elm, Bay'"), "no certain end"),
        (lambda text: text.replace("'Elm, Bay',", "'Elm, Bay'"), "no certain end"),
        (lambda text: text.replace("'dinner': 'Elm", "'dinner' 'Elm"), "a key has no certain end"),
    ],
)
def test_a_day_with_two_readings_is_said_and_keeps_its_place(spoil, why, read):
    reading = read(spoil(by_hand("'")))
    assert [day["dinner"] for day in reading.plan] == ["Dunkin' Donuts, Bay", "-", "Oak, Bay"]
    (lost,) = reading.unread
    assert lost.startswith("day 2, at character ")
    assert why in lost


def test_days_that_were_cut_off_are_said(read):
    reading = read(TEXT[: TEXT.index("Oak")])
    assert len(reading.plan) == 2
    (lost,) = reading.unread
    assert lost.startswith(f"day 3, at character {TEXT.rindex('{')} cannot be read: ")


def test_a_day_in_prose_between_two_with_lines_keeps_its_place(read):
    day = "Current City: Bay\nDinner: {}, Bay\n"
    reading = read(f"Day 1:\n{day.format('Elm')}\nDay 2:\nWe rest at the inn.\n\nDay 3:\n{day.format('Oak')}")
    assert [entry["dinner"] for entry in reading.plan] == ["Elm, Bay", "-", "Oak, Bay"]
    assert [lost.split(",")[0] for lost in reading.unread] == ["day 2"]


def test_a_row_with_a_bar_too_many_ends_no_table(read):
    rows = ["| Day | City | Lunch | Dinner |", "|---|---|---|---|", "| 1 | Bay | - | Elm, Bay |"]
    reading = read("\n".join([*rows, "| 2 | Bay | - | Elm | Oak |", "| 3 | Bay | - | Oak, Bay |"]))
    assert [entry["dinner"] for entry in reading.plan] == ["Elm, Bay", "-", "Oak, Bay"]
    assert reading.unread == (
        "day 2, at character 77 cannot be read: its row has 5 cells, the table 4 columns",
    )


def test_a_draft_that_cannot_be_read_is_no_loss_where_the_plan_has_its_days(read):
    assert read('{"days": 1, "current_city": ..., "dinner": ...}\n' + TEXT).unread == ()


def test_days_of_a_list_in_yaml_are_read(read):
    text = "\n".join(
        f"- days: {day['days']}\n  current_city: {day['current_city']}\n  dinner: {day['dinner']}"
        for day in DAYS
    )
    assert [day["dinner"] for day in read(text).plan] == ["Dunkin' Donuts, Bay", "Elm, Bay", "Oak, Bay"]


def test_what_is_not_read_behind_the_limit_is_said(read):
    reading = read(TEXT + " " * 50_000 + "Day 4:\nLunch: -\nDinner: -")
    assert (len(reading.plan), reading.unread) == (3, ("what stands behind character 50000 is not read",))


TEXTS = st.text(max_size=12) | st.text(alphabet="\"'\\\\,:{}[]/# \n", max_size=12)
LEAF = (
    st.none()
    | st.booleans()
    | st.integers(-99, 10**9)
    | st.floats(allow_nan=False, allow_infinity=False)
    | TEXTS
)
ENTRIES = st.lists(LEAF, max_size=4) | st.dictionaries(TEXTS, LEAF, max_size=4)


@settings(max_examples=60)
@given(
    st.lists(LEAF | ENTRIES, max_size=4) | st.dictionaries(TEXTS, LEAF | ENTRIES, max_size=4),
    st.sampled_from([None, 2]),
)
@example({"''": "''", '"a"': '"b"'}, None)
def test_json_is_read_as_json(value, indent):
    assert list(values(f"So: {json.dumps(value, indent=indent)}.")) == [Found(value, 4)]


@given(st.text(alphabet="[]{}'\",:\\ \nabd1“”", max_size=80))
def test_reading_ends_and_says_where(text):
    for found in values(text):
        assert text[found.start] in "[{"
        assert isinstance(found, Found) or found.start <= found.at <= len(text)


def test_the_grade_and_the_submission_say_the_same_of_a_day_that_cannot_be_read(items, good):
    text = str(list(good)).replace("'dinner': '", "'dinner': ", 1)
    grade = TravelPlanner().grade(items[0], text)
    assert len(grade.unread) == 1
    assert grade.unread[0].startswith("day 1, at character 1 cannot be read")
    assert TravelPlanner().grade(items[0], str(list(good))).unread == ()
    assert isinstance(next(iter(values("{'a': 'b"))), Unread)


@pytest.mark.parametrize("text", ["[\n#" * 16_000, "[/*" * 16_600])
def test_comments_that_never_end_take_no_time(text: str) -> None:
    start = time.process_time()
    assert isinstance(list(values(text))[-1], Unread)
    assert time.process_time() - start < 1


def test_a_day_of_any_number_takes_no_time(read):
    for number in (10**9, 10**30, -(10**9)):
        reply = json.dumps([{**DAYS[0], "days": 1}, {**DAYS[1], "days": number}, {**DAYS[2], "days": 3}])
        start = time.process_time()
        assert read(reply).plan
        assert time.process_time() - start < 1
