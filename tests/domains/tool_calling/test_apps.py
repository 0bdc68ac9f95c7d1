"""What each app does, with numbers worked out by hand."""

from __future__ import annotations

import copy
import random
from typing import Any

import pytest

from genenv.domains.tool_calling.toolbox import ToolError, World, arrange, execute, initial_world, same_state


@pytest.fixture
def world() -> World:
    return initial_world(7)


def ready(world: World, name: str, /, **args: Any) -> dict[str, Any]:
    """Arrange the world for a call, then make it."""
    arrange(world, name, args, random.Random(0))
    return execute(world, name, args)


def call(world: World, name: str, /, **args: Any) -> dict[str, Any]:
    return execute(world, name, args)


# --- calls that must be refused ---


@pytest.mark.parametrize(
    ("name", "args", "sentence"),
    [
        ("transfer", {"source": "savings", "target": "savings", "amount": 5}, "the same account"),
        ("transfer", {"source": "savings", "target": "checking", "amount": -5}, "more than 0"),
        ("transfer", {"source": "savings", "target": "checking", "amount": 0.001}, "at most two decimals"),
        ("set_spending_limit", {"category": "fun", "amount": 0}, "more than 0"),
        ("list_transactions", {"account": "checking", "limit": 0}, "between 1 and 50"),
        ("create_event", {"title": "x", "date": "2025-05-01", "start": "10:00", "minutes": 0}, "1 and 1440"),
        ("find_free_slot", {"date": "2025-05-01", "minutes": 721}, "1 and 720"),
        ("add_contact", {"name": "Ann", "phone": "call me"}, "not a phone number"),
        (
            "convert_units",
            {"value": 1, "from_unit": "kg", "to_unit": "km"},
            "kg measures mass but km measures",
        ),
        ("convert_units", {"value": -300, "from_unit": "celsius", "to_unit": "fahrenheit"}, "no temperature"),
        ("add_days", {"date": "2100-12-31", "days": 1}, "between the years"),
        ("split_bill", {"total": 10, "people": 0}, "At least one"),
        ("create_file", {"path": "../secrets", "content": "x"}, "must not contain"),
        ("move_file", {"source": "docs/a.txt", "destination": "docs/a.txt"}, "are the same"),
        ("set_temperature", {"room": "office", "celsius": 40}, "between 5 and 35"),
        ("set_volume", {"level": 101}, "between 0 and 100"),
        ("sleep_timer", {"minutes": 0}, "between 1 and 720"),
        ("place_order", {"product": "desk lamp", "quantity": 0, "address": "1 Elm Road"}, "quantity"),
        ("search_flights", {"origin": "Oslo", "destination": "oslo", "date": "2025-05-01"}, "the same city"),
        ("search_flights", {"origin": "Oslo", "destination": "Rome", "date": "2031-05-01"}, "on sale"),
        ("book_flight", {"flight_id": "LH204", "passengers": 10}, "1 to 9"),
        ("book_hotel", {"city": "Rome", "checkin": "2025-05-01", "nights": 0}, "1 to 60"),
    ],
)
def test_a_call_out_of_range_is_refused_even_in_an_arranged_world(
    world: World, name: str, args: dict[str, Any], sentence: str
) -> None:
    arrange(world, name, args, random.Random(0))
    with pytest.raises(ToolError, match=sentence):
        execute(world, name, args)


@pytest.mark.parametrize(
    ("name", "args", "sentence"),
    [
        ("cancel_event", {"title": "Nothing"}, "There is no event called 'Nothing'."),
        ("find_contact", {"name": "Nobody"}, "There is no contact called 'Nobody'."),
        (
            "send_message",
            {"to": "Nobody", "text": "hi"},
            "There is no contact called 'Nobody', and it is not a",
        ),
        ("read_messages", {"sender": "Nobody"}, "There are no messages from 'Nobody'."),
        ("search_email", {"query": "unicorn"}, "No email matches 'unicorn'."),
        ("archive_email", {"email_id": 1}, "There is no email with the id 1."),
        ("read_file", {"path": "no/such.txt"}, "There is no file 'no/such.txt'."),
        ("list_files", {"folder": "nowhere"}, "There is no folder 'nowhere'."),
        ("add_to_playlist", {"playlist": "None", "song": "x"}, "There is no playlist called 'None'."),
        ("append_note", {"title": "None", "text": "x"}, "There is no note called 'None'."),
        ("search_notes", {"query": "unicorn"}, "No note matches 'unicorn'."),
        ("complete_todo", {"item": "nothing"}, "There is no open to-do 'nothing'."),
        (
            "search_products",
            {"query": "unicorn", "max_price": 5},
            "No product matches 'unicorn' for at most 5",
        ),
        ("add_to_cart", {"product": "unicorn", "quantity": 1}, "There is no product called 'unicorn'."),
        ("track_order", {"order_id": 1}, "There is no order with the id 1."),
        ("book_flight", {"flight_id": "LH204", "passengers": 1}, "There is no flight 'LH204'."),
        ("cancel_booking", {"booking_id": "Q1"}, "There is no booking 'Q1'."),
        ("get_weather", {"city": "Atlantis", "date": "2025-05-01"}, "There is no city called 'Atlantis'."),
    ],
)
def test_what_does_not_exist_is_missing_until_it_is_arranged(
    world: World, name: str, args: dict[str, Any], sentence: str
) -> None:
    with pytest.raises(ToolError, match=sentence):
        execute(world, name, args)
    assert ready(world, name, **args)


# --- doing it twice ---


@pytest.mark.parametrize(
    ("name", "args"),
    [
        ("transfer", {"source": "savings", "target": "checking", "amount": 5}),
        ("pay_bill", {"payee": "City Power", "amount": 5}),
        ("create_event", {"title": "Lunch", "date": "2025-05-01", "start": "12:00"}),
        ("send_message", {"to": "555-0199", "text": "hi"}),
        ("send_email", {"to": "Ann", "subject": "hi", "body": "hello"}),
        ("set_alarm", {"time": "07:00", "label": "tea"}),
        ("start_vacuum", {"room": "office"}),
        ("play_song", {"title": "Slow River", "artist": "The Oars"}),
        ("append_note", {"title": "Wifi", "text": "Restart it."}),
        ("add_todo", {"item": "buy stamps", "due": "2025-05-01"}),
        ("add_to_cart", {"product": "desk lamp", "quantity": 1}),
        ("place_order", {"product": "desk lamp", "quantity": 1, "address": "1 Elm Road"}),
        ("book_flight", {"flight_id": "BELI2F1", "passengers": 1}),
        ("book_hotel", {"city": "Rome", "checkin": "2025-05-01", "nights": 2}),
    ],
)
def test_doing_it_twice_is_not_doing_it_once(world: World, name: str, args: dict[str, Any]) -> None:
    ready(world, name, **args)
    once = copy.deepcopy(world)
    call(world, name, **args)
    assert not same_state(once, world)


@pytest.mark.parametrize(
    ("name", "args", "sentence"),
    [
        ("add_contact", {"name": "Ann", "phone": "555-0199"}, "already a contact"),
        ("create_file", {"path": "docs/a.txt", "content": "x"}, "already a file"),
        ("create_playlist", {"name": "Rain"}, "already a playlist"),
        ("add_note", {"title": "Bike", "text": "x"}, "already a note"),
        ("block_contact", {"name": "Maya Lopez"}, "already blocked"),
        ("archive_email", {"email_id": 5000}, "already archived"),
        ("cancel_order", {"order_id": 5000}, "already cancelled"),
        ("cancel_booking", {"booking_id": "H5000"}, "already cancelled"),
        ("delete_file", {"path": "docs/a.txt"}, "There is no file"),
    ],
)
def test_what_can_be_done_only_once_is_refused_the_second_time(
    world: World, name: str, args: dict[str, Any], sentence: str
) -> None:
    ready(world, name, **args)
    with pytest.raises(ToolError, match=sentence):
        execute(world, name, args)


# --- app by app ---


def test_money_moves_between_accounts_to_the_cent(world: World) -> None:
    world["bank"]["balances"] = {"checking": 1000, "savings": 30}
    assert call(world, "transfer", source="checking", target="savings", amount=0.1) == {"balance": 9.9}
    assert call(world, "transfer", source="checking", target="savings", amount=0.2) == {"balance": 9.7}
    assert call(world, "get_balance", account="savings") == {"balance": 0.6}
    with pytest.raises(ToolError, match="not enough money in savings"):
        call(world, "transfer", source="savings", target="checking", amount=0.61)
    latest = call(world, "list_transactions", account="checking", limit=2)
    assert (latest["party"], latest["amount"]) == ("savings", -0.2)
    assert [item["amount"] for item in latest["transactions"]] == [-0.2, -0.1]


def test_a_bill_can_be_paid_only_when_checking_holds_enough(world: World) -> None:
    world["bank"]["balances"]["checking"] = 100
    with pytest.raises(ToolError, match="not enough money in checking"):
        call(world, "pay_bill", payee="City Power", amount=90)
    assert ready(world, "pay_bill", payee="City Power", amount=90)["balance"] >= 0


def test_a_free_slot_is_the_first_gap_of_the_day(world: World) -> None:
    day = {"date": "2025-05-02"}
    assert call(world, "find_free_slot", **day, minutes=60) == {"start": "08:00", "end": "09:00"}
    call(world, "create_event", title="Late", date="2025-05-01", start="23:00", minutes=600)  # until 09:00
    call(world, "create_event", title="Call", **day, start="09:30", minutes=30)
    call(world, "create_event", title="Inside", **day, start="09:40", minutes=5)
    assert call(world, "find_free_slot", **day, minutes=30) == {"start": "09:00", "end": "09:30"}
    assert call(world, "find_free_slot", **day, minutes=31) == {"start": "10:00", "end": "10:31"}
    with pytest.raises(ToolError, match="There is no free slot of 601 minutes"):
        call(world, "find_free_slot", **day, minutes=601)
    assert ready(world, "find_free_slot", **day, minutes=720)["start"] == "08:00"


def test_a_title_stands_for_its_earliest_event(world: World) -> None:
    call(world, "create_event", title="Lunch", date="2025-05-02", start="12:00")
    call(world, "create_event", title="Lunch", date="2025-05-01", start="12:00")
    assert call(world, "move_event", title="lunch", date="2025-05-03", start="13:00")["title"] == "Lunch"
    assert call(world, "cancel_event", title="Lunch")["date"] == "2025-05-02"
    assert call(world, "list_events", date="2025-05-03") == {
        "title": "Lunch",
        "start": "13:00",
        "events": [{"title": "Lunch", "start": "13:00", "minutes": 60}],
    }
    with pytest.raises(ToolError, match="There are no events on 2025-05-02"):
        call(world, "list_events", date="2025-05-02")


def test_a_message_goes_to_the_same_person_by_name_or_by_phone(world: World) -> None:
    call(world, "add_contact", name="Ann Lee", phone="+1 555-0199")
    assert call(world, "send_message", to="ann lee", text="hi")["to"] == "Ann Lee"
    assert call(world, "send_message", to="1 (555) 0199", text="hi")["to"] == "Ann Lee"
    assert call(world, "send_message", to="555 7777", text="hi")["to"] == "555 7777"
    call(world, "block_contact", name="Ann Lee")
    with pytest.raises(ToolError, match="Ann Lee is blocked"):
        call(world, "send_message", to="Ann Lee", text="hi")


@pytest.mark.parametrize(
    ("value", "source", "target", "expected"),
    [
        (1, "mi", "km", 1.6093),
        (100, "celsius", "fahrenheit", 212.0),
        (-40, "fahrenheit", "celsius", -40.0),
        (2, "kg", "lb", 4.4092),
        (1, "gal", "cup", 16.0),
        (12, "in", "ft", 1.0),
    ],
)
def test_units_are_converted(world: World, value: float, source: str, target: str, expected: float) -> None:
    result = call(world, "convert_units", value=value, from_unit=source, to_unit=target)
    assert result == {"value": pytest.approx(expected, abs=1e-4)}


def test_sums_dates_and_currencies_are_computed(world: World) -> None:
    assert call(world, "convert_currency", amount=46, source="EUR", target="GBP") == {"amount": 39.5}
    assert call(world, "days_between", start="2024-02-28", end="2024-03-01") == {"days": 2}
    assert call(world, "days_between", start="2025-01-02", end="2025-01-01") == {"days": -1}
    assert call(world, "add_days", date="2025-12-31", days=1) == {"date": "2026-01-01"}
    assert call(world, "split_bill", total=100, people=3) == {"share": 33.33}
    assert call(world, "percent_of", percent=15, value=80) == {"result": 12.0}


def test_a_found_email_can_be_flagged_and_an_archived_one_is_not_found(world: World) -> None:
    found = ready(world, "search_email", query="Boat rental")
    assert found["subject"] == "Boat rental"
    call(world, "flag_email", email_id=found["email_id"], color="green")
    call(world, "archive_email", email_id=found["email_id"])
    with pytest.raises(ToolError, match="No email matches"):
        call(world, "search_email", query="boat RENTAL")


def test_files_move_to_a_path_or_into_a_folder(world: World) -> None:
    world["files"]["files"] = {"docs/a.txt": "A", "work/b.txt": "B"}
    assert call(world, "move_file", source="/docs/a.txt", destination="work")["path"] == "work/a.txt"
    assert call(world, "move_file", source="work/a.txt", destination="new/")["path"] == "new/a.txt"
    assert call(world, "move_file", source="new/a.txt", destination="c.txt")["path"] == "c.txt"
    assert call(world, "list_files", folder="/") == {"path": "c.txt", "files": ["c.txt", "work/b.txt"]}
    assert call(world, "read_file", path="c.txt") == {"content": "A"}
    with pytest.raises(ToolError, match=r"'c\.txt' is a file, not a folder"):
        call(world, "create_file", path="c.txt/d", content="x")
    with pytest.raises(ToolError, match="'work' is a folder"):
        call(world, "create_file", path="work", content="x")
    with pytest.raises(ToolError, match=r"There is already a file 'work/b\.txt'"):
        call(world, "move_file", source="c.txt", destination="work/b.txt")
    assert "c.txt" in world["files"]["files"], "a failed move leaves the source in place"


def test_a_setting_that_is_already_made_is_arranged_away(world: World) -> None:
    for on in (True, False):
        arrange(world, "switch_light", {"room": "office", "on": on}, random.Random(0))
        assert world["home"]["lights"]["office"] is not on
    world["music"]["volume"] = 40
    arrange(world, "set_volume", {"level": 40}, random.Random(0))
    assert world["music"]["volume"] != 40


def test_playlists_and_notes_can_be_made_and_then_filled(world: World) -> None:
    call(world, "create_playlist", name="Rain")
    assert call(world, "add_to_playlist", playlist="rain", song="City Rain") == {
        "playlist": "Rain",
        "songs": 1,
    }
    call(world, "add_note", title="Bike", text="Blue.")
    assert call(world, "append_note", title="bike", text="New tires.")["text"] == "Blue.\nNew tires."
    assert call(world, "search_notes", query="TIRES blue") == {
        "title": "Bike",
        "text": "Blue.\nNew tires.",
        "others": [],
    }


def test_the_most_urgent_of_equal_todos_is_ticked_off(world: World) -> None:
    world["notes"]["todos"] = []
    for due in ("2025-06-02", "2025-06-01"):
        call(world, "add_todo", item="Call Sam", due=due)
    call(world, "complete_todo", item="call sam")
    assert {todo["due"]: todo["done"] for todo in world["notes"]["todos"]} == {
        "2025-06-01": True,
        "2025-06-02": False,
    }


def test_a_search_in_the_shop_names_the_cheapest_product_first(world: World) -> None:
    world["shop"]["catalog"] = {"red mug": 900, "blue mug": 700, "gold mug": 5000, "plate": 100}
    found = call(world, "search_products", query="Mug", max_price=9)
    assert found == {"product": "blue mug", "price": 7.0, "others": [{"product": "red mug", "price": 9.0}]}
    order = call(world, "place_order", product=found["product"], quantity=3, address="1 Elm Road")
    assert order["total"] == 21.0
    assert call(world, "track_order", order_id=order["order_id"])["status"] == "processing"
    call(world, "cancel_order", order_id=order["order_id"])
    assert call(world, "track_order", order_id=order["order_id"])["status"] == "cancelled"


@pytest.mark.parametrize("date", ["2025-01-01", "2026-07-15", "2027-12-31"])
def test_a_flight_that_was_found_can_be_booked_at_its_price(world: World, date: str) -> None:
    route = {"origin": "Tokyo", "destination": "Zürich", "date": date}
    found = ready(world, "search_flights", **route)
    assert found == call(world, "search_flights", **route)
    assert len(found["others"]) == 2
    assert all(found["price"] <= other["price"] for other in found["others"])
    booking = call(world, "book_flight", flight_id=found["flight_id"].lower(), passengers=2)
    assert booking["total"] == pytest.approx(2 * found["price"])
    call(world, "cancel_booking", booking_id=booking["booking_id"])


@pytest.mark.parametrize(
    "flight_id", ["BELI2F0", "BELI2F4", "BEBE2F1", "BELIZZ1", "QQLI2F1", "BELI2F", "BELI2-1"]
)
def test_an_id_that_spells_no_flight_cannot_be_booked(world: World, flight_id: str) -> None:
    with pytest.raises(ToolError, match="There is no flight"):
        call(world, "book_flight", flight_id=flight_id, passengers=1)


def test_every_city_gets_a_code_of_its_own(world: World) -> None:
    names = [f"{letter}bc{number}" for letter in "ab東" for number in range(60)]
    for name in names:
        arrange(world, "get_weather", {"city": name, "date": "2025-05-01"}, random.Random(0))
    cities = world["trips"]["cities"]
    assert set(names) <= set(cities.values())
    assert {len(code) for code in cities} == {2}


def test_the_weather_depends_on_the_city_the_day_and_the_world() -> None:
    def forecast(seed: int, city: str, date: str) -> tuple[Any, ...]:
        return tuple(call(initial_world(seed), "get_weather", city=city, date=date).values())

    base = forecast(1, "Oslo", "2025-05-01")
    assert base == forecast(1, "oslo", "2025-05-01")
    days = [f"2025-05-{day:02d}" for day in range(1, 11)]
    assert len({forecast(1, "Oslo", day) for day in days}) > 5
    assert len({forecast(seed, "Oslo", "2025-05-01") for seed in range(10)}) > 5
