"""Numbers that are drawn for an argument are ones that its schema allows, whatever bounds it has."""

from __future__ import annotations

import random
import re
from datetime import UTC, date, datetime
from typing import Any

import pytest

from genenv.tools.discover.descriptions import text_format
from genenv.tools.discover.recipes import FRESH, Held, Recipe, draw_arguments
from genenv.tools.discover.state_values import Records, held_in
from genenv.tools.generate.fresh_values import consistent, fresh
from genenv.tools.generate.named_texts import TITLES, alike, dates_from
from genenv.tools.language.words import FIRST_NAMES
from genenv.tools.worlds.base import Tool
from genenv.types import Json

BOUNDS: list[dict[str, Any]] = [
    {"type": "integer", "multipleOf": 10},
    {"type": "integer", "minimum": 1, "multipleOf": 5},
    {"type": "number", "minimum": 0, "exclusiveMinimum": 5, "maximum": 9},
    {"type": "number", "exclusiveMinimum": 0, "exclusiveMaximum": 1},
    {"type": "number", "minimum": 0.1, "maximum": 0.3},
    {"type": "integer", "exclusiveMinimum": 2, "exclusiveMaximum": 5},
    {"type": "number", "minimum": 0, "multipleOf": 0.25, "maximum": 2},
    {"type": "integer", "maximum": -3},
]


@pytest.mark.parametrize("schema", BOUNDS, ids=str)
def test_a_number_is_within_its_bounds_and_varies(schema: dict[str, Any]) -> None:
    tool = Tool(name="set", parameters={"type": "object", "properties": {"n": schema}, "required": ["n"]})
    rng = random.Random(0)
    drawn = [fresh(tool, "n", rng) for _ in range(40)]
    assert [tool.problem({"n": value}) for value in drawn] == [None] * len(drawn)
    assert len(set(map(str, drawn))) > 1


@pytest.mark.parametrize(
    ("name", "told", "allowed"),
    [
        ("isbn", "The ISBN of the book (10 or 13 digits)", r"\d{10}|\d{13}"),
        ("isbn", "", r"\d{13}"),
        ("text_code", "A 4-digit code.", r"\d{4}"),
        ("plate", "Letters and 4 digits", r".*[a-z].*"),
        ("vintage", "A date with a 4-digit year", r".*[a-z].*"),
    ],
)
def test_a_text_of_digits_has_as_many_as_its_description_says(name: str, told: str, allowed: str) -> None:
    schema: dict[str, Any] = {"type": "string", "description": told}
    tool = Tool(name="find", parameters={"type": "object", "properties": {name: schema}})
    drawn = [str(fresh(tool, name, random.Random(seed))) for seed in range(20)]
    assert all(re.fullmatch(allowed, one) for one in drawn)
    weights = (1, 3) * 6 + (1,)
    books = [one for one in drawn if len(one) == 13 and one.isdigit()]
    assert all(sum(w * int(d) for w, d in zip(weights, one, strict=True)) % 10 == 0 for one in books)


def test_a_quantity_without_a_type_is_a_number() -> None:
    properties: dict[str, Any] = {"new_quantity": {}, "phone_number": {}, "price": {"type": "string"}}
    tool = Tool(name="update", parameters={"type": "object", "properties": properties})
    rng = random.Random(0)
    assert isinstance(fresh(tool, "new_quantity", rng), int)
    assert isinstance(fresh(tool, "phone_number", rng), str)
    assert isinstance(fresh(tool, "price", rng), str)


@pytest.mark.parametrize(
    ("tool", "parameter", "schema", "form"),
    [
        ("add_product", "product_id", {"description": "int"}, r"\d+"),
        ("add_product", "product_id", {}, r"P-\d{3}"),
        ("add_product", "id", {"type": "string"}, r"P-\d{3}"),
        ("add_product", "name", {"type": "string"}, r"[a-z]+ [a-z]+"),
        ("add_member", "name", {"type": "string"}, r"[A-Z][a-z]+ [A-Z][a-z]+"),
        ("book", "passenger_name", {"type": "string"}, r"[A-Z][a-z]+ [A-Z][a-z]+"),
        ("find", "order_number", {"type": "string"}, r"O-\d{3}"),
        ("book", "new_seat", {"type": "string"}, r"\d+[A-F]"),
        ("set", "status", {"type": "string"}, r"pending|active|paused|completed|archived"),
        ("set", "new_status", {"type": "string"}, r"pending|active|paused|completed|archived"),
        ("add_task", "title", {"type": "string"}, "|".join(TITLES["task"])),
        ("book_table", "name", {"type": "string"}, r"[A-Za-z]+ [A-Za-z]+"),
        ("add_meeting_attendee", "name", {"type": "string"}, r"[A-Z][a-z]+ [A-Z][a-z]+"),
        ("get_store", "id", {"type": "string"}, r"S-\d{3}"),
        ("send", "postal_address", {"type": "string"}, r"\d+ [A-Z][a-z]+ Street"),
        ("run", "code", {"type": "string"}, r"[a-z]+ [a-z]+"),
        ("compile", "programming_language", {"type": "string"}, r"[a-z]+ [a-z]+"),
        ("plan", "time_zone", {"type": "string"}, r"UTC|\w+/\w+"),
        ("pay", "currency_type", {"type": "string"}, r"[A-Z]{3}"),
        ("save", "years", {"type": "integer"}, r"\d{1,2}|100"),
        ("save", "year", {"type": "integer"}, r"\d{4}"),
        ("add", "virtual_balance", {"type": "string", "format": "amount"}, r"\d+\.\d\d"),
        ("add", "currency_code", {"type": "string", "format": "string"}, r"[A-Z]{3}"),
        ("add", "iban", {"type": "string"}, r"DE\d{20}"),
        ("add", "category", {"type": "string", "maxLength": 5}, r"books|music|tools|toys|pets|gifts|.{4,5}"),
        ("add", "password", {"type": "string", "pattern": "^[a-f]{9}$"}, r"[a-f]{9}"),
        ("place", "latitude", {"type": "number"}, r"-?\d\d?(?:\.5)?"),
        ("rate", "rating", {"type": "integer"}, r"[1-5]"),
        ("rate", "rating", {"type": "integer", "minimum": 7, "maximum": 9}, r"[7-9]"),
        ("list", "page_count", {"type": "number", "minimum": 0, "maximum": 40}, r"\d+"),
        ("set", "gift", {"description": "bool, whether it is one"}, "True|False"),
        ("set", "items", {"description": "number of items, as text"}, r"[a-z]+ [a-z]+"),
    ],
)
def test_ids_names_and_documented_types_are_such_as_people_use(
    tool: str, parameter: str, schema: dict[str, Any], form: str
) -> None:
    made = Tool(name=tool, parameters={"type": "object", "properties": {parameter: schema}})
    rng = random.Random(0)
    assert all(re.fullmatch(form, str(fresh(made, parameter, rng))) for _ in range(20))


def test_what_begins_a_range_is_not_above_what_ends_it() -> None:
    drawn = {
        "start_date": "2026-10-31",
        "end_date": "2026-04-14",
        "priceMin": 9,
        "priceMax": 4,
        "to": "b",
        "from": "z",
    }
    ordered = {**drawn, "start_date": "2026-04-14", "end_date": "2026-10-31", "priceMin": 4, "priceMax": 9}
    assert consistent(drawn) == ordered
    assert consistent(ordered) == ordered
    stay = {"pickup": "2026-10-31", "note": "b", "return_by": "2026-04-14"}
    assert consistent(stay) == {**stay, "pickup": "2026-04-14", "return_by": "2026-10-31"}
    ended = {"end": "2026-10-31", "start": "2026-04-14"}
    assert consistent(ended) == ended


@pytest.mark.parametrize(
    ("told", "form"),
    [
        ("first day, ISO format", "date"),
        ("ISO date", "date"),
        ("ISO 8601 date", "date-time"),
        ("day and time, ISO format", ""),
    ],
)
def test_a_description_says_that_a_text_is_a_day(told: str, form: str) -> None:
    assert text_format(told) == form


def test_a_made_up_address_is_that_of_the_only_person_who_is_named() -> None:
    one: dict[str, Any] = {"name": "Petra Abbott", "email": "kira.nash@example.com", "n": 3}
    assert consistent(one) == {**one, "email": "petra.abbott@example.com"}
    two = {**one, "friend": "Omar Falk"}
    assert consistent(two) == two
    assert consistent({"name": "Blue Lamp", "email": "kira.nash@example.com"})["email"][0] == "k"


GUEST: dict[str, Any] = {
    "type": "object",
    "properties": {name: {"type": "string"} for name in ("name", "email", "phone")},
    "required": ["name"],
}


@pytest.mark.parametrize(
    ("name", "schema"),
    [
        ("guest", {**GUEST, "required": ["name", "email"]}),
        ("passengers", {"type": "array", "items": {**GUEST, "required": ["name", "email"]}}),
        ("lead", {**GUEST, "title": "Contact", "required": ["name", "email"]}),
    ],
)
def test_a_made_up_record_of_a_person_has_a_name_and_its_address(name: str, schema: dict[str, Any]) -> None:
    tool = Tool(name="add_booking", parameters={"type": "object", "properties": {name: schema}})
    for seed in range(20):
        drawn: Any = fresh(tool, name, random.Random(seed))
        for one in drawn if isinstance(drawn, list) else [drawn]:
            assert one["email"] == f"{one['name'].replace(' ', '.').lower()}@example.com"


def test_a_field_that_a_record_may_have_agrees_with_those_that_it_must_have() -> None:
    tool = Tool(
        name="add_booking",
        parameters={"type": "object", "properties": {"guest": GUEST}, "required": ["guest"]},
    )
    ways = {"guest": "new", "guest.name": "new", "guest.email": "new"}
    one = Recipe(tool="add_booking", writes=True, ways=ways, success=1.0)
    drawn: list[Any] = [draw_arguments(tool, one, Held({}), random.Random(seed)) for seed in range(20)]
    both = [args["guest"] for args in drawn if "email" in args["guest"]]
    assert both
    assert all(one["email"].startswith(one["name"].split()[0].lower()) for one in both)


def test_made_up_moments_begin_with_the_first_day_of_the_context() -> None:
    number: dict[str, Any] = {"timestamp": {"type": "integer"}, "day": {"type": "string", "format": "date"}}
    tool = Tool(name="log", parameters={"type": "object", "properties": number})

    def drawn() -> tuple[Any, Any]:
        return fresh(tool, "timestamp", random.Random(1)), fresh(tool, "day", random.Random(2))

    usual = drawn()
    assert datetime.fromtimestamp(usual[0], UTC).year == date.fromisoformat(usual[1]).year == 2026
    with dates_from(date(2031, 1, 5)):
        assert drawn()[0] - usual[0] == (date(2031, 1, 5) - date(2026, 1, 5)).days * 86_400
        assert date.fromisoformat(drawn()[1]).year == 2031
    with dates_from(None):
        assert drawn() == usual


def test_made_up_name_sign_and_code_are_those_of_one_currency() -> None:
    mixed: dict[str, Any] = {"code": "ZAR", "name": "yen", "symbol": "£", "decimal_places": 2}
    assert consistent(mixed) == {**mixed, "code": "JPY", "symbol": "¥"}
    assert consistent({"symbol": "£", "code": "USD"}) == {"symbol": "£", "code": "GBP"}
    for others in ({"code": "ZAR", "n": 2}, {"from": "ZAR", "to": "USD"}, {"name": "yen"}):
        assert consistent(others) == others


def test_a_name_beside_an_age_is_a_persons_and_a_stay_begins_before_it_ends() -> None:
    texts = {key: {"type": "string"} for key in ("name", "check_in", "check_out")}
    properties: dict[str, Any] = {**texts, "age": {"type": "integer"}}
    tool = Tool(name="book_room", parameters={"type": "object", "properties": properties, "required": []})
    for seed in range(40):
        drawn = consistent({name: fresh(tool, name, random.Random(seed)) for name in properties})
        assert str(drawn["name"]).split()[0] in FIRST_NAMES
        assert 18 <= int(str(drawn["age"])) <= 80
        days = [date.fromisoformat(str(drawn[name])) for name in ("check_in", "check_out")]
        assert days == sorted(days)


def _drawn(name: str, schema: dict[str, Any], state: Json, tool: str = "change") -> list[float]:
    """Made-up numbers for a parameter of a tool that has some state."""
    parameters: dict[str, Any] = {"type": "object", "properties": {name: schema}, "required": [name]}
    recipe = Recipe(tool=tool, writes=True, ways={name: FRESH}, success=1.0)
    held = Held(held_in(state, [recipe.ways]), Records(state))
    made = Tool(name=tool, parameters=parameters)
    drawn: list[Any] = [draw_arguments(made, recipe, held, random.Random(seed)) for seed in range(60)]
    return [args[name] for args in drawn]


NUMBER: dict[str, Any] = {"type": "number"}
WHOLE: dict[str, Any] = {"type": "integer"}
PRICES = [400, 12000, 7800.5, 3100, 950]


@pytest.mark.parametrize(
    ("name", "schema", "field", "known", "allowed"),
    [
        ("value_eur", NUMBER, "value_eur", PRICES, range(400, 12001, 50)),
        ("max_value", NUMBER, "value_eur", PRICES, range(400, 12001, 50)),
        ("year", WHOLE, "queen_year", [2022, 2023, 2024, 2024], range(2020, 2027)),
        ("new_price", WHOLE, "unit_price", [20, 30, 90], range(20, 91, 10)),
        ("amount", WHOLE, "credit_limit", [0, 500, 2000, 8000], range(500, 8001, 500)),
        ("size", {**WHOLE, "minimum": 1, "maximum": 50}, "size", [2, 5, 16, 5], range(2, 17)),
        ("size", WHOLE, "size", [1, 1], range(1, 5)),
        ("size", {**WHOLE, "maximum": 450}, "size", [400, 900, 1200], range(451)),
        ("size", {**WHOLE, "minimum": 40}, "size", [2, 5, 16, 5], range(40, 141)),
        ("share", {**WHOLE, "minimum": 0, "maximum": 30}, "share", [5, 10, 10], range(31)),
        ("depth", {**WHOLE, "default": 1}, "", [], range(1, 6)),
        ("weeks", {**WHOLE, "default": 12}, "", [], range(6, 25)),
        ("weeks", {**WHOLE, "default": 12, "description": "1 to 52"}, "", [], range(1, 53)),
        ("count", WHOLE, "", [], range(1, 6)),
        ("limit", {**WHOLE, "default": 20}, "", [], range(1, 6)),
        ("max_results", {**WHOLE, "minimum": 1, "maximum": 100}, "", [], range(1, 6)),
        ("days", WHOLE, "", [], range(1, 101)),
        ("percent", WHOLE, "percent", [80, 90, 100], range(60, 101, 10)),
        ("stars", WHOLE, "stars", [4, 5], range(1, 6)),
        ("key", WHOLE, "key", [3**701, 3**700], range(1, 101)),
    ],
)
def test_a_made_up_number_is_of_the_scale_of_those_that_there_are(
    name: str, schema: dict[str, Any], field: str, known: list[float], allowed: range
) -> None:
    state: Json = {"objects": [{"id": number, field or "title": one} for number, one in enumerate(known)]}
    drawn = _drawn(name, schema, state, "set_credit_limit")
    assert set(drawn) <= set(allowed)
    assert max(drawn) - min(drawn) >= (allowed[-1] - allowed[0]) / 2


def test_a_share_is_at_most_one() -> None:
    state: Json = {"objects": [{"id": 0, "score": 0.9}, {"id": 1, "score": 1.0}]}
    drawn = _drawn("score", NUMBER, state)
    assert 0.5 < min(drawn) < max(drawn) <= 1


def test_numbers_that_count_the_records_are_ids_and_no_scale() -> None:
    state: Json = {"cars": [{"place": 500 + number, "rate": 40.0 + number % 3} for number in range(9)]}
    assert not {*_drawn("place", WHOLE, state)} & {*range(500, 509)}
    assert {*_drawn("rate", WHOLE, state)} <= {*range(38, 45)}


@pytest.mark.parametrize(
    ("example", "form"),
    [
        ("EUR", r"[A-Z]{3}"),
        ("€", "[€$£¥]"),
        ("123.45", r"\d{3}\.\d\d"),
        ("cus_4fx", r"cus_\dfx"),
        ("#1e88e5", r"#\de\d\de\d"),
        ("2024-05", r"20\d\d-(0\d|1[012])"),
        ("20240115", r"20\d\d(0\d|1[012])[0-3]\d"),
        ("15.01.2024", r"[0-3]\d\.[01]\d\.20\d\d"),
        ("2018-09-17T12:46:47+01:00", r"2026-\d\d-\d\dT12:46:47\+01:00"),
        ("10:30", r"[01]\d:(00|15|30|45)"),
        ("192.168.0.1", r"10(\.\d{1,3}){3}"),
        ("🎉", r"[^a-z]{1,2}"),
    ],
)
def test_a_text_of_the_form_of_an_example(example: str, form: str) -> None:
    drawn = {alike(example, random.Random(seed)) for seed in range(30)}
    assert all(re.fullmatch(form, one or "") for one in drawn)
    assert len(drawn) > 2


@pytest.mark.parametrize("example", ["hello", "My account", "UTF-8", "us-east-1", "Q3", "東京", ""])
def test_words_are_no_form(example: str) -> None:
    assert alike(example, random.Random(0)) is None
