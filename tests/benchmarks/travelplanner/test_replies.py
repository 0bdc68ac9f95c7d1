"""The plan in a reply, wherever it stands and however it is written; nothing is run or takes long."""

from __future__ import annotations

import json

import pytest

from genenv.benchmarks.travelplanner import replies
from genenv.benchmarks.travelplanner.replies import MAX_CHARS, as_submitted
from quickly import within

KEYS = ("current_city", "transportation", "breakfast", "attraction", "lunch", "dinner", "accommodation")
LINES = """Here is the plan.

**Day 1: March 1**
- **Current City:** from Home to Bay
- **Transportation:** Flight Number: F1, from Home to Bay
Breakfast: -
Attractions:
- Pier, Bay
- Fort, Bay.
Lunch: None
Dinner: Elm, Bay
Accommodation: Calm Inn, Bay

### Day 2
Current City: Bay
Dinner: Oak, Bay
Enjoy!
"""


def told(plan, key):
    return [entry[key] for entry in plan]


def as_read(plan):
    return [{"days": number, **{key: entry[key] for key in KEYS}} for number, entry in enumerate(plan, 1)]


@pytest.fixture
def read_plan(items):
    """Reads replies with the tables of the two queries."""
    return lambda reply: replies.read_reply(reply, items[0].data.split.places).plan


@pytest.mark.parametrize(
    "form",
    [
        json.dumps,
        str,
        lambda plan: json.dumps(plan, indent=2),
        lambda plan: f"Sure! [Note: it's a draft]\n```json\n{json.dumps(plan)}\n```\nDon't forget a hat.",
        lambda plan: json.dumps({"query": "?", "plan": plan}),
        lambda plan: json.dumps({f"Day {number}": entry for number, entry in enumerate(plan, 1)}),
        lambda plan: "\n".join(json.dumps(entry) for entry in plan),
        lambda plan: json.dumps(plan)[:-1] + ",]",
        lambda plan: json.dumps(plan).replace('"days"', '"day"').replace("current_city", "Current City"),
        lambda plan: json.dumps([{**entry, "attraction": entry["attraction"].rstrip(";")} for entry in plan]),
        lambda plan: json.dumps(plan) + json.dumps(plan)[:300],
        lambda plan: f'The "5" plan: {json.dumps(plan)}',
    ],
)
def test_a_plan_is_read_in_many_forms(good, form, read_plan):
    assert read_plan(form(good)) == as_read(good)


def test_of_a_list_that_was_cut_off_the_whole_days_are_read(good, read_plan):
    text = json.dumps(good)
    assert read_plan(text[: text.index("Oak")]) == as_read(good[:1])
    assert read_plan(text[:-30]) == as_read(good[:2])


def test_of_a_draft_and_a_plan_of_as_many_days_the_last_counts(good, read_plan):
    final = [{**entry, "dinner": "Oak, Bay"} for entry in good]
    assert (
        told(read_plan(f"Draft: {json.dumps(good)} Final: {json.dumps(final)}"), "dinner") == ["Oak, Bay"] * 3
    )
    assert len(read_plan(f"{json.dumps(good)} In short: {json.dumps(good[:2])}")) == 3


def test_what_a_day_does_not_say_is_a_hyphen(read_plan):
    (day,) = read_plan(
        '[{"current_city": "Bay", "lunch": null, "dinner": " Elm, Bay ", "breakfast": {"a": 1}}]'
    )
    assert day == {"days": 1, **dict.fromkeys(KEYS, "-"), "current_city": "Bay", "dinner": "Elm, Bay"}


def test_lines_are_read_with_headings_marks_and_bullets(read_plan):
    first, second = read_plan(LINES)
    assert first == {
        "days": 1,
        "current_city": "from Home to Bay",
        "transportation": "Flight Number: F1, from Home to Bay",
        "breakfast": "-",
        "attraction": "Pier, Bay;Fort, Bay;",
        "lunch": "-",
        "dinner": "Elm, Bay",
        "accommodation": "Calm Inn, Bay",
    }
    assert (second["current_city"], second["dinner"], second["lunch"]) == ("Bay", "Oak, Bay", "-")


@pytest.mark.parametrize(
    ("city", "way", "expected"),
    [
        ("Bay", "Taxi, from Home to Bay, cost: 3", "from Home to Bay"),
        ("Bay(Coast)", "Taxi, from Home to Bay(Coast)", "from Home to Bay(Coast)"),
        ("Bay", "Taxi, from the airport to the inn", "Bay"),
        ("from Home to Bay", "Taxi, from Bay to Home", "from Home to Bay"),
        ("Bay", "-", "Bay"),
    ],
)
def test_the_current_city_says_where_one_travels_if_the_transportation_does(city, way, expected, read_plan):
    (day,) = read_plan(json.dumps([{"current_city": city, "transportation": way}]))
    assert day["current_city"] == expected


@pytest.mark.parametrize(
    "reply", ["", "I cannot plan this.", "[]", "{}", "[1, 2]", "null", '"Day 1"', "Day 1: rest"]
)
def test_a_reply_without_days_has_no_plan(reply, read_plan):
    assert read_plan(reply) == []


HOSTILE = [
    "[" * 100_000,
    '{"a":' * 100_000,
    "[{" * 50_000 + "}]" * 50_000,
    '{"' * 50_000,
    '{"\\"' * 30_000,
    "{'\\'" * 30_000 + "\\",
    '[{"current_city":' * 5_000,
    "[" + '"\\' * 50_000,
    "{}" * 50_000,
    '{"day":"1","dinner":"' + "9" * 100_000,
    "[" + "9" * 40_000 + "]",
    "Day 1\n" * 100_000,
    "Day 1:\nDinner:" + " " * 100_000,
    " \t" * 100_000 + "Day",
    "Day 1:\nDinner: a\n" * 30_000,
    '{"current_city":"from ' + "from " * 20_000 + '","dinner":"x"}',
    '[{"transportation":"' + "from a to " * 100 + '","current_city":"a"}]',
    "__import__('os').system('false')",
    "[open('/etc/passwd').read() for _ in range(9**9)]",
    "9**9**9",
    "[{'current_city': 9**9**9, 'dinner': [x for x in range(10**12)]}]",
    '\x00\ud800[{"current_city": "\\ud800\x00", "dinner": "\udfff"}]',
    "a" * 1_000_000,
]


@pytest.mark.parametrize("reply", HOSTILE, ids=range(len(HOSTILE)))
def test_no_reply_takes_long_or_is_run(reply, read_plan):
    with within(1.0):
        read_plan(reply)


def test_what_stands_behind_the_limit_is_not_looked_at(good, read_plan):
    assert read_plan(" " * MAX_CHARS + json.dumps(good)) == []


def test_a_submission_is_taken_as_it_is(good):
    assert as_submitted(good) == good
    assert as_submitted({"idx": 1, "query": "?", "plan": good}) == good
    assert as_submitted([good[0], "rest", None]) == [good[0], {}, {}]
    assert as_submitted([{}]) == [{}]
    for nothing in (None, 3, "text", [], ["a"], {}, {"plan": None}, {"plan": "x"}):
        assert as_submitted(nothing) == []
