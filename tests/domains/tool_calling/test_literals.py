"""Today is Friday, 2025-03-14, unless a test says otherwise."""

from datetime import date

import pytest
from hypothesis import given
from hypothesis import strategies as st

from genenv.domains.tool_calling.expressions import Manner
from genenv.domains.tool_calling.literals import only_denied, reading, spans, stated
from genenv.domains.tool_calling.mentions import mentions

TODAY = date(2025, 3, 14)


@pytest.mark.parametrize(
    ("words", "day"),
    [
        ("on 2025-03-20", "2025-03-20"),
        ("today", "2025-03-14"),
        ("tonight", "2025-03-14"),
        ("this evening", "2025-03-14"),
        ("tomorrow morning", "2025-03-15"),
        ("the day after tomorrow", "2025-03-16"),
        ("yesterday", "2025-03-13"),
        ("in 3 days", "2025-03-17"),
        ("in three days", "2025-03-17"),
        ("three days from now", "2025-03-17"),
        ("in a week", "2025-03-21"),
        ("a week from today", "2025-03-21"),
        ("in two weeks", "2025-03-28"),
        ("in a fortnight", "2025-03-28"),
        ("in a week's time", "2025-03-21"),
        ("on Monday", "2025-03-17"),
        ("next Friday", "2025-03-21"),
        ("this Friday", "2025-03-21"),
        ("Friday", "2025-03-21"),
        ("this coming Thursday", "2025-03-20"),
        ("last Monday", "2025-03-10"),
        ("last Friday", "2025-03-07"),
        ("a week from Monday", "2025-03-24"),
        ("two days after tomorrow", "2025-03-17"),
        ("5 days ago", "2025-03-09"),
        ("March 20", "2025-03-20"),
        ("March 20th, 2026", "2026-03-20"),
        ("20 March", "2025-03-20"),
        ("the 20th of March", "2025-03-20"),
        ("Thursday, March 20", "2025-03-20"),
        ("Thursday the 20th of March", "2025-03-20"),
        ("Mar 20", "2025-03-20"),
        ("January 5", "2026-01-05"),
        ("on the 20th", "2025-03-20"),
        ("on the 3rd", "2025-04-03"),
        ("20/03/2025", "2025-03-20"),
        ("20.03.2025", "2025-03-20"),
    ],
)
def test_a_date_is_read_in_the_ways_people_say_it(words: str, day: str) -> None:
    assert stated("date", day, f"Put it in my calendar {words}, please.", TODAY, "date")


@pytest.mark.parametrize(
    ("words", "day"),
    [
        ("on 2025-03-20", "2025-03-21"),
        ("the day after tomorrow", "2025-03-15"),
        ("a week from Monday", "2025-03-17"),
        ("Friday next week", "2025-03-21"),
        ("next week", "2025-03-21"),
        ("every Friday", "2025-03-21"),
        ("on 03/04/2025", "2025-04-03"),
        ("Thursday, March 20", "2025-03-27"),
        ("May I ask", "2025-05-01"),
        ("on February 30", "2025-03-02"),
        ("version 2025-03-200", "2025-03-20"),
    ],
)
def test_a_date_is_not_read_where_it_is_not_said_or_ambiguous(words: str, day: str) -> None:
    assert not stated("date", day, f"Put it in my calendar {words}, please.", TODAY, "date")


@pytest.mark.parametrize(
    ("words", "day", "adds"),
    [
        ("ten days after tomorrow", "2025-03-15", 10),
        ("10 days after next Monday", "2025-03-17", 10),
        ("two weeks from Friday", "2025-03-21", 14),
        ("ten days after tomorrow", "2025-03-25", None),
    ],
)
def test_a_call_that_adds_days_itself_takes_the_day_that_they_are_counted_from(
    words: str, day: str, adds: float | None
) -> None:
    assert reading("date", day, f"Which date is {words}?", TODAY, "date", adds) is Manner.RELATIVE


@pytest.mark.parametrize("adds", [None, 9])
def test_a_call_that_adds_no_or_other_days_does_not_take_the_day_that_is_counted_from(
    adds: float | None,
) -> None:
    assert not stated("date", "2025-03-15", "It is ten days after tomorrow.", TODAY, "date", adds)


@pytest.mark.parametrize("today", [date(2025, 3, day) for day in range(10, 17)])
def test_a_weekday_is_the_next_one_strictly_after_today(today: date) -> None:
    (mention,) = mentions("date", "on Friday", today)
    day = date.fromisoformat(str(mention.values[0]))
    assert day.weekday() == 4
    assert 1 <= (day - today).days <= 7


@pytest.mark.parametrize(
    ("words", "time"),
    [
        ("at 09:30", "09:30"),
        ("at 9:30", "09:30"),
        ("at 21:05", "21:05"),
        ("at 9:30 am", "09:30"),
        ("at 9:30pm", "21:30"),
        ("at 3:30 in the afternoon", "15:30"),
        ("at 9 am", "09:00"),
        ("at 9am", "09:00"),
        ("at 7 p.m.", "19:00"),
        ("at 12 pm", "12:00"),
        ("at 12 am", "00:00"),
        ("at half past nine", "09:30"),
        ("at half past nine in the evening", "21:30"),
        ("at quarter past 8", "08:15"),
        ("at a quarter to ten", "09:45"),
        ("at ten to nine", "08:50"),
        ("at twenty past seven in the morning", "07:20"),
        ("at nine thirty", "09:30"),
        ("at noon", "12:00"),
        ("at midnight", "00:00"),
        ("at nine in the morning", "09:00"),
        ("at 8 tonight", "20:00"),
        ("tomorrow evening at 8", "20:00"),
        ("tomorrow afternoon at 3:30", "15:30"),
        ("at eight o'clock", "08:00"),
        ("at 9", "09:00"),
    ],
)
def test_a_time_is_read_in_the_ways_people_say_it(words: str, time: str) -> None:
    assert stated("time", time, f"Start {words}.", TODAY, "start")


@pytest.mark.parametrize(
    ("words", "time"),
    [
        ("at 09:30", "09:00"),
        ("at 4", "04:00"),
        ("at 4", "16:00"),
        ("at 9:30 am", "21:30"),
        ("at 9 pm", "09:00"),
        ("with 9 people", "09:00"),
        ("at 25:10", "25:10"),
        ("at 9 percent", "09:00"),
        ("at half past nine", "09:00"),
    ],
)
def test_a_time_is_not_read_where_it_is_not_said_or_ambiguous(words: str, time: str) -> None:
    assert not stated("time", time, f"Start {words}.", TODAY, "start")


@pytest.mark.parametrize(
    ("words", "number", "parameter"),
    [
        ("12", 12, "quantity"),
        ("12.0", 12, "amount"),
        ("$12.50", 12.5, "amount"),
        ("12.5 dollars", 12.5, "amount"),
        ("1,250.75 euros", 1250.75, "amount"),
        ("twelve", 12, "quantity"),
        ("twenty-five", 25, "quantity"),
        ("twenty five", 25, "quantity"),
        ("ninety-nine", 99, "quantity"),
        ("a hundred", 100, "quantity"),
        ("two hundred and fifty", 250, "amount"),
        ("three thousand", 3000, "amount"),
        ("a dozen", 12, "quantity"),
        ("two dozen", 24, "quantity"),
        ("half a dozen", 6, "quantity"),
        ("a couple of", 2, "quantity"),
        ("two and a half", 2.5, "value"),
        ("half a", 0.5, "value"),
        ("-5", -5, "celsius"),
        ("minus five", -5, "celsius"),
        ("21.5", 21.5, "celsius"),
        ("5kg", 5, "value"),
        ("half an hour", 30, "minutes"),
        ("half-hour", 30, "minutes"),
        ("an hour", 60, "minutes"),
        ("an hour and a half", 90, "minutes"),
        ("one and a half hours", 90, "minutes"),
        ("two hours", 120, "minutes"),
        ("2 hours and 15 minutes", 135, "minutes"),
        ("1h30m", 90, "minutes"),
        ("a quarter of an hour", 15, "minutes"),
        ("three quarters of an hour", 45, "minutes"),
        ("45 min", 45, "minutes"),
        ("90-minute", 90, "minutes"),
        ("a week", 7, "nights"),
        ("a week", 7, "days"),
        ("two weeks", 14, "days"),
        ("a", 1, "quantity"),
    ],
)
def test_a_number_is_read_in_the_ways_people_say_it(words: str, number: float, parameter: str) -> None:
    assert stated("number", number, f"Take {words} of them.", TODAY, parameter)


@pytest.mark.parametrize(
    ("words", "number", "parameter"),
    [
        ("12", 1, "amount"),
        ("12.50", 12, "amount"),
        ("12.50", 50, "amount"),
        ("1,250", 250, "amount"),
        ("twenty-five", 5, "amount"),
        ("twenty-five", 20, "amount"),
        ("half an hour", 30, "amount"),
        ("two hours", 120, "amount"),
        ("often", 10, "amount"),
        ("a", 1, "amount"),
        ("the 3rd", 3, "amount"),
        ("A12", 12, "amount"),
    ],
)
def test_a_number_is_not_read_out_of_parts_of_another(words: str, number: float, parameter: str) -> None:
    assert not stated("number", number, f"Take {words} of them.", TODAY, parameter)


@given(st.integers(0, 99))
def test_every_number_below_a_hundred_is_read_in_words(number: int) -> None:
    small = "zero one two three four five six seven eight nine ten eleven twelve thirteen fourteen fifteen"
    ones = [*small.split(), "sixteen", "seventeen", "eighteen", "nineteen"]
    tens = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
    ten, one = divmod(number, 10)
    words = ones[number] if number < 20 else tens[ten - 2] + (f"-{ones[one]}" if one else "")
    (mention,) = mentions("number", f"I want {words} of them", TODAY)
    assert mention.values == (float(number),)


@pytest.mark.parametrize(
    ("kind", "value", "text", "expected"),
    [
        ("name", "Anna Berg", "Call anna  berg's office", True),
        ("name", "Anna", "Call Annabelle", False),
        ("name", "O'Neil", "Call O’Neil", True),
        ("name", "Ann", "Call Ann-Marie", False),
        ("name", "Ann", "Call Ann.", True),
        ("name", "Ann", "Is this Ann's note?", True),
        ("name", "Neil", "Call O'Neil", False),
        ("name", "ann@post.net", "Email mary.ann@post.net", False),
        ("name", "plan.txt", "Delete old/plan.txt", False),
        ("name", "docs/plan.txt", "Delete docs/plan.txt.bak", False),
        ("name", "docs/plan.txt", "Delete /docs/plan.txt.", True),
        ("name", "555", "Text 555-0142", False),
        ("name", "Oak School", "Please pay New Oak School", False),
        ("name", "Oak School", "Pay Oak School Friday", True),
        ("name", "Tom", "Please call Tom Becker", False),
        ("name", "Dentist", 'Cancel "Dentist for Leo"', False),
        ("name", "Dentist", 'Cancel "Dentist"', True),
        ("text", "Dentist", 'Say "Dentist!"', True),
        ("text", "on my way", 'Say "I am on my way"', False),
        ("name", "/docs/a.txt", "Delete /docs/a.txt.", True),
        ("name", "a@b.org", "Email a@b.org, please", True),
        ("text", "See you soon!", 'Write "See you, soon" to Bob', True),
        ("text", "See you soon", "See you later, and soon", False),
        ("text", "!!!", "Hello!!!", False),
        ("choice", "living room", "the Living Room lamp", True),
        ("choice", "kitchen", "the living room", False),
        ("choice", "in", "Convert 5 cm in my notes", False),
        ("choice", "in", "Convert 5 cm to inches", True),
        ("choice", "in", "Convert 5 in to cm", True),
        ("choice", "m", "How long is 30m in feet?", True),
        ("choice", "USD", "It costs $40", True),
        ("choice", "EUR", "in euros", True),
        ("choice", "GBP", "in dollars", False),
    ],
)
def test_words_are_found_as_whole_words(kind: str, value: str, text: str, expected: bool) -> None:
    assert stated(kind, value, text, TODAY, "x") is expected


@pytest.mark.parametrize(
    ("text", "parameter", "value", "expected"),
    [
        ("Turn on the light", "on", True, True),
        ("Turn the kitchen light on", "on", True, True),
        ("Switch off the lamp", "on", False, True),
        ("Switch off the lamp on Friday", "on", True, False),
        ("Lights out in the office", "on", False, True),
        ("Turn on the light, it is dark", "on", False, False),
        ('Take "Lunch" off my calendar, and see to the light', "on", False, False),
        ('Take "Lunch" off my calendar. It is too dark in here to see', "on", True, True),
        ("Turn on the light and call off the meeting", "on", False, False),
        ("The lamp should be turned off", "on", False, True),
        ("Lights off in the office", "on", False, True),
        ("Lock the front door", "locked", True, True),
        ("Unlock the front door", "locked", True, False),
        ("Unlock the front door", "locked", False, True),
        ("Do something about the door", "locked", True, False),
    ],
)
def test_a_switch_is_read_from_what_is_done_to_it(
    text: str, parameter: str, value: bool, expected: bool
) -> None:
    assert stated("flag", value, text, TODAY, parameter) is expected


@pytest.mark.parametrize(
    ("kind", "value", "text", "parameter", "manner"),
    [
        ("date", "2025-03-15", "tomorrow", "date", Manner.RELATIVE),
        ("date", "2025-03-15", "tomorrow, 2025-03-15", "date", Manner.LITERAL),
        ("date", "2025-03-20", "March 20", "date", Manner.WRITTEN),
        ("time", "09:30", "9:30", "start", Manner.LITERAL),
        ("time", "09:30", "half past nine", "start", Manner.WRITTEN),
        ("number", 12, "a dozen", "quantity", Manner.RELATIVE),
        ("number", 12, "twelve", "quantity", Manner.WRITTEN),
        ("number", 30, "30 minutes", "minutes", Manner.LITERAL),
        ("number", 30, "half an hour", "minutes", Manner.RELATIVE),
        ("number", 30, "nothing", "minutes", None),
    ],
)
def test_the_plainest_manner_counts(
    kind: str, value: str | int, text: str, parameter: str, manner: Manner | None
) -> None:
    assert reading(kind, value, text, TODAY, parameter) is manner


def test_a_span_covers_exactly_the_words() -> None:
    text = 'Say "See you, soon!" to Bob'
    ((start, end),) = spans("text", "see you soon", text)
    assert text[start:end] == "See you, soon"


@given(st.text(max_size=200), st.sampled_from(["date", "time", "number"]))
def test_any_text_can_be_read_and_mentions_lie_in_it(text: str, kind: str) -> None:
    for mention in mentions(kind, text, TODAY, "minutes"):
        assert 0 <= mention.start < mention.end <= len(text)


@pytest.mark.parametrize(
    ("kind", "value", "text", "expected"),
    [
        ("choice", "checking", "The balance of savings, not of checking", True),
        ("choice", "checking", "The balance of checking, not of savings", False),
        ("name", "Gym", 'Cancel "Swim" instead of "Gym"', True),
        ("name", "Gym", 'Cancel "Gym", not "Swim". "Gym" is over', False),
        ("name", "Gym", "Cancel it", False),
    ],
)
def test_a_value_that_is_only_said_not_to_be_meant_is_known(
    kind: str, value: str, text: str, expected: bool
) -> None:
    assert only_denied(kind, value, text) is expected
