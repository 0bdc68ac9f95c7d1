"""Blanks: what they stand for, and that taking values out and filling them in again changes no task."""

from __future__ import annotations

import random
import re
from datetime import date as Day
from datetime import timedelta

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from genenv.domains.common import Refused
from genenv.domains.tool_calling.blanks import as_example, filled, with_blanks
from genenv.domains.tool_calling.domain import ToolCalling
from genenv.domains.tool_calling.expressions import Manner
from genenv.domains.tool_calling.literals import reading
from genenv.domains.tool_calling.seeds import training_specs, variation
from genenv.domains.tool_calling.spec import ToolSpec
from genenv.domains.tool_calling.toolbox import TOOLS
from genenv.domains.tool_calling.value_wording import number_in_words, relatively
from genenv.domains.tool_calling.worlds import today_of
from genenv.types import Json, JsonObject, Lineage, Origin, Rejection, RejectReason, Task

TODAY = Day(2025, 3, 17)
SEEDS = training_specs()


def spec_of(instruction: str, *calls: tuple[str, JsonObject], **fields: Json) -> ToolSpec:
    return ToolSpec.model_validate(
        {
            "n_calls": len(calls),
            "dependent": False,
            "n_tools": 4,
            "phrasing": "explicit",
            "gap": "none",
            "calls": [{"tool": tool, "args": args} for tool, args in calls],
            "instruction": instruction,
            **fields,
        }
    )


LUNCH: JsonObject = {"title": "Lunch", "date": "2025-03-18", "start": "12:00"}
TWO_PAYMENTS = (
    ("transfer", {"source": "checking", "target": "savings", "amount": 20}),
    ("pay_bill", {"payee": "Oak School", "amount": 64.5}),
)


def fill(spec: ToolSpec, number: int = 0) -> ToolSpec:
    return filled(spec, TODAY, random.Random(number))


def build(spec: ToolSpec, seed_id: str) -> Task | Rejection:
    lineage = Lineage(origin=Origin.SEED, seed_id=seed_id)
    return ToolCalling().build(spec, task_id="x", lineage=lineage, rng=random.Random(0))


def test_a_blank_stands_for_the_first_calls_value_and_a_numbered_one_for_its_own_calls() -> None:
    spec = spec_of("Move <amount> dollars from <source>, pay <payee> <2.amount>.", *TWO_PAYMENTS)
    assert fill(spec).instruction == "Move 20 dollars from checking, pay Oak School 64.5."


def test_values_are_taken_out_where_they_stand_as_they_are() -> None:
    spec = spec_of(
        'Put "Lunch" in my calendar on 2025-03-18 at twelve, switch on the living room light.',
        ("create_event", LUNCH),
        ("switch_light", {"room": "living_room", "on": True}),
    )
    blanks = with_blanks(spec, TODAY)
    assert (
        blanks.instruction == "Put '<title>' in my calendar on <date> at twelve, switch on the <room> light."
    )
    assert fill(blanks) == spec


def test_units_currency_signs_and_final_marks_stay_in_place() -> None:
    spec = spec_of(
        'Pay Oak School $20 and text Ann: "Coming?" Find me 45 minutes on 2025-03-18.',
        ("pay_bill", {"payee": "Oak School", "amount": 20}),
        ("send_message", {"to": "Ann", "text": "Coming?"}),
        ("find_free_slot", {"date": "2025-03-18", "minutes": 45}),
    )
    blanks = with_blanks(spec, TODAY).instruction
    assert blanks == "Pay <payee> $<amount> and text <to>: '<text>' Find me <minutes> minutes on <date>."


@pytest.mark.parametrize(
    ("instruction", "words"),
    [
        ("Book <title> on <date> at <start>.", "Book Lunch tomorrow at noon."),
        ("Book <title> for <date>.", "Book Lunch for tomorrow."),
        ("On <date> there is <title>.", "Tomorrow there is Lunch."),
    ],
)
def test_a_relative_phrasing_says_dates_and_times_in_words(instruction: str, words: str) -> None:
    assert fill(spec_of(instruction, ("create_event", LUNCH), phrasing="relative")).instruction == words


@pytest.mark.parametrize(
    ("call", "instruction", "words"),
    [
        (
            ("pay_bill", {"payee": "Oak School", "amount": 40}),
            "Pay <payee> <amount>.",
            "Pay Oak School forty.",
        ),
        (
            ("pay_bill", {"payee": "Oak School", "amount": 40}),
            "Pay <payee> $<amount>.",
            "Pay Oak School $40.",
        ),
        (("percent_of", {"percent": 22, "value": 74.5}), "<percent>% of <value>?", "22% of 74.5?"),
        (("cancel_order", {"order_id": 40}), "Call off <order_id>.", "Call off 40."),
        (("list_events", {"date": "2025-04-20"}), "List my events on <date>.", "List my events in 34 days."),
        (
            ("list_events", {"date": "2025-03-01"}),
            "List my events on <date>.",
            "List my events 16 days ago.",
        ),
        (("list_events", {"date": "2025-33-01"}), "My events on <date>.", "My events on 2025-33-01."),
    ],
)
def test_what_has_no_sure_words_is_said_as_it_is(
    call: tuple[str, JsonObject], instruction: str, words: str
) -> None:
    assert fill(spec_of(instruction, call, phrasing="relative")).instruction == words


def test_units_are_said_by_their_names() -> None:
    call = ("convert_units", {"value": 2, "from_unit": "mi", "to_unit": "km"})
    spec = spec_of("Convert <value> <from_unit> to <to_unit>.", call)
    assert fill(spec).instruction == "Convert 2 miles to kilometers."


@given(st.integers(0, 200_000))
def test_a_number_in_words_reads_as_that_number(number: int) -> None:
    words = number_in_words(number)
    if number < 200:
        assert words is not None
    if words is not None:
        assert reading("number", number, f"It is {words}.", TODAY, "amount") is not None


@given(st.integers(-400, 400), st.integers(0, 100), st.booleans())
def test_a_date_in_words_reads_as_that_date(days: int, number: int, on: bool) -> None:
    date = (TODAY + timedelta(days=days)).isoformat()
    (parameter,) = [p for p in TOOLS["list_events"].parameters if p.name == "date"]
    words = relatively(parameter, date, TODAY, random.Random(number), on=on)
    assert words is not None
    assert reading("date", date, f"Show me {words}.", TODAY, "date") is Manner.RELATIVE


def test_the_example_has_blanks_in_its_calls_too() -> None:
    spec = spec_of(
        "Find me half an hour tomorrow and book it for lunch then. Also convert two miles to kilometers.",
        ("find_free_slot", {"date": "2025-03-18", "minutes": 30}),
        ("create_event", {**LUNCH, "start": "$1.start"}),
        ("convert_units", {"value": 2, "from_unit": "mi", "to_unit": "km"}),
        dependent=True,
        phrasing="relative",
    )
    found = as_example(spec, TODAY)
    assert found["calls"] == [
        {"tool": "find_free_slot", "args": {"date": "<date>", "minutes": "<minutes>"}},
        {"tool": "create_event", "args": {"title": "<title>", "date": "<date>", "start": "$1.start"}},
        {
            "tool": "convert_units",
            "args": {"value": "<value>", "from_unit": "<from_unit>", "to_unit": "<to_unit>"},
        },
    ]
    assert found["instruction"] == (
        "Find me <minutes> minutes <date> and book it for <title> then. "
        "Also convert <value> <from_unit> to <to_unit>."
    )
    rest = {key: value for key, value in found.items() if key not in ("calls", "instruction")}
    assert rest.items() <= spec.model_dump(mode="json").items()


@pytest.mark.parametrize(
    ("spec", "sentence"),
    [
        (
            spec_of("Book <title> at <start>.", ("create_event", {**LUNCH, "title": "<title>"})),
            "title of create",
        ),
        (
            spec_of("Book <title> in <city>.", ("create_event", LUNCH)),
            "no call has a value for the blank <city>",
        ),
        (
            spec_of("Book it at <2.start>.", ("create_event", LUNCH)),
            "no call has a value for the blank <2.start>",
        ),
        (
            spec_of("Book it at <start>.", ("create_event", {**LUNCH, "start": "$1.start"})),
            "the blank <start>",
        ),
    ],
)
def test_a_blank_without_a_value_is_refused_in_one_sentence(spec: ToolSpec, sentence: str) -> None:
    with pytest.raises(Refused, match=re.escape(sentence)) as caught:
        fill(spec)
    assert caught.value.rejection.reason is RejectReason.INCONSISTENT
    assert isinstance(build(spec, "seed-000"), Rejection)


@pytest.mark.parametrize(("text", "instruction"), [("x" * 60, "Text Ann <text> " * 20), ("no", "Say <text>")])
def test_an_instruction_that_its_values_make_too_long_or_too_short_is_refused(
    text: str, instruction: str
) -> None:
    spec = spec_of(instruction, ("send_message", {"to": "Ann", "text": text}))
    outcome = build(spec, "seed-000")
    assert isinstance(outcome, Rejection)
    assert outcome.reason is RejectReason.SCHEMA
    assert re.search(r"its \d+ characters, blanks filled in: String should have at", outcome.explanation)


def test_no_example_says_a_name_or_a_number_of_its_seed() -> None:
    for seed_id, spec in SEEDS[::7]:
        words = str(as_example(spec, today_of(seed_id))["instruction"])
        if spec.phrasing != "indirect":
            assert not re.search(r"\d", re.sub(r"<[\w.]+>", "", words)), words
        assert "><" not in words


@pytest.mark.long
@given(st.integers(0, len(SEEDS) - 1), st.integers(0, 1000))
@example(431, 440)  # the first call moves the only file out of the folder that the second one lists
@example(20, 140)  # "ten days after next Tuesday" for a call that adds the ten days itself
@example(380, 441)  # a bill that checking could pay if the first call did not move money out of it
@example(20, 16)  # "ten days after ..., for 10 nights": one of two equal values stands in words
@example(74, 73)  # "Take ... off my calendar" says nothing of the light that should go on
@example(334, 1)  # "Stop ... from contacting me, and then add ..." does not say not to add
@example(359, 13)  # each word that asks for the first call is also used for one of the other two
@example(402, 37)  # the only thing said of one call alone is which account
@example(446, 22)  # "the music should not play on" for one call, "play ..." for another
def test_a_variation_with_blanks_is_the_same_task_as_without(index: int, number: int) -> None:
    holds(index, number)


@pytest.mark.slow  # two minutes
def test_thirty_variations_of_every_seed_are_the_same_tasks_with_blanks_as_without() -> None:
    for index in range(len(SEEDS)):
        for number in range(30):
            holds(index, number)


def holds(index: int, number: int) -> None:
    seed_id, seed = SEEDS[index]
    spec = variation(seed, random.Random(number), today=today_of(seed_id))
    blanks = with_blanks(spec, today_of(seed_id))
    plain, other = build(spec, seed_id), build(blanks, seed_id)
    assert isinstance(plain, Task)
    assert isinstance(other, Task)
    assert (other.payload, other.oracle) == (plain.payload, plain.oracle)
    assert ToolCalling().audit(plain, random.Random(1)) is None
    assert ToolCalling().audit(other, random.Random(1)) is None
    assert "<" not in other.messages[-1].content
