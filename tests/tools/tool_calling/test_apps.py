"""What each app does, with numbers worked out by hand."""

from __future__ import annotations

from typing import Any

import pytest

from genenv.tools.check import execute
from genenv.tools.tool_calling.apps.whole import Apps
from genenv.tools.tool_calling.environment import ToolCalling
from genenv.tools.worlds.base import Call, World

BEGIN = Call(tool="begin", args={"state": 0})


@pytest.fixture
def phone() -> Apps:
    made = Apps()
    made.begin(0)
    made.calendar["events"] = []
    return made


@pytest.fixture(scope="module")
def world() -> World:
    return ToolCalling().world


def call(phone: Apps, name: str, /, **args: Any) -> dict[str, Any]:
    return getattr(phone, name)(**args)


def told(world: World, name: str, args: dict[str, Any]) -> str:
    """What an agent is told that calls a tool."""
    (outcome,) = execute(world, [name], [BEGIN], [Call(tool=name, args=args)]).outcomes
    return outcome.error or ""


# --- calls that must be refused ---


@pytest.mark.parametrize(
    ("name", "args", "sentence"),
    [
        ("transfer", {"source": "savings", "target": "savings", "amount": 5}, "the same account"),
        ("transfer", {"source": "savings", "target": "checking", "amount": -5}, "more than 0"),
        ("transfer", {"source": "savings", "target": "checking", "amount": 0.001}, "at most two decimals"),
        ("set_spending_limit", {"category": "fun", "amount": 0}, "more than 0"),
        ("list_transactions", {"account": "checking", "limit": 0}, "limit: 0 is less than the minimum of 1"),
        (
            "create_event",
            {"title": "x", "date": "2025-05-01", "start": "10:00", "minutes": 0},
            "is less than",
        ),
        ("find_free_slot", {"date": "2025-05-01", "minutes": 721}, "721 is greater than the maximum of 720"),
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
        ("delete_file", {"path": "docs/"}, "is not the path of a file"),
        ("set_temperature", {"room": "office", "celsius": 40}, "greater than the maximum of 35"),
        ("set_volume", {"level": 101}, "level: 101 is greater"),
        ("sleep_timer", {"minutes": 0}, "minutes: 0 is less"),
        ("place_order", {"product": "desk lamp", "quantity": 0, "address": "1 Elm Road"}, "0 is less"),
        ("search_flights", {"origin": "Lyon", "destination": "lyon", "date": "2025-05-01"}, "the same city"),
        ("search_flights", {"origin": "Lyon", "destination": "Graz", "date": "2031-05-01"}, "on sale"),
        ("book_flight", {"flight_id": "LH204", "passengers": 10}, "greater than the maximum of 9"),
        ("book_hotel", {"city": "Rome", "checkin": "2025-05-01", "nights": 0}, "nights: 0 is less"),
        ("create_event", {"title": " ", "date": "2025-05-01", "start": "10:00"}, "at least 1 character"),
        ("list_events", {"date": "2025-02-30"}, "day is out of range"),
        ("list_events", {"date": "1st of May"}, "must be a real date"),
        ("set_alarm", {"time": "24:00", "label": "x"}, "does not match"),
        ("convert_currency", {"amount": 1, "source": "USD", "target": "USD"}, "same currency"),
    ],
)
def test_a_call_out_of_range_is_refused(world: World, name: str, args: dict[str, Any], sentence: str) -> None:
    assert sentence in told(world, name, args)


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
def test_what_does_not_exist_is_missing(world: World, name: str, args: dict[str, Any], sentence: str) -> None:
    assert sentence in told(world, name, args)


# --- app by app ---


def test_money_moves_between_accounts_to_the_cent(phone: Apps) -> None:
    phone.bank["balances"] = {"checking": 1000, "savings": 30}
    assert call(phone, "transfer", source="checking", target="savings", amount=0.1) == {"balance": 9.9}
    assert call(phone, "transfer", source="checking", target="savings", amount=0.2) == {"balance": 9.7}
    assert call(phone, "get_balance", account="savings") == {"balance": 0.6}
    with pytest.raises(ValueError, match="not enough money in savings"):
        call(phone, "transfer", source="savings", target="checking", amount=0.61)
    latest = call(phone, "list_transactions", account="checking", limit=2)
    assert (latest["party"], latest["amount"]) == ("savings", -0.2)
    assert [item["amount"] for item in latest["transactions"]] == [-0.2, -0.1]


def test_a_bill_can_be_paid_only_when_checking_holds_enough(phone: Apps) -> None:
    phone.bank["balances"]["checking"] = 100
    with pytest.raises(ValueError, match="not enough money in checking"):
        call(phone, "pay_bill", payee="City Power", amount=90)
    phone.bank["balances"]["checking"] = 10_000
    assert call(phone, "pay_bill", payee="City Power", amount=90) == {"balance": 10.0}


def test_a_free_slot_is_the_first_gap_of_the_day(phone: Apps) -> None:
    day = {"date": "2025-05-02"}
    assert call(phone, "find_free_slot", **day, minutes=60) == {"start": "08:00", "end": "09:00"}
    call(phone, "create_event", title="Late", date="2025-05-01", start="23:00", minutes=600)  # until 09:00
    call(phone, "create_event", title="Call", **day, start="09:30", minutes=30)
    call(phone, "create_event", title="Inside", **day, start="09:40", minutes=5)
    assert call(phone, "find_free_slot", **day, minutes=30) == {"start": "09:00", "end": "09:30"}
    assert call(phone, "find_free_slot", **day, minutes=31) == {"start": "10:00", "end": "10:31"}
    with pytest.raises(ValueError, match="There is no free slot of 601 minutes"):
        call(phone, "find_free_slot", **day, minutes=601)


def test_a_title_stands_for_its_earliest_event(phone: Apps) -> None:
    call(phone, "create_event", title="Lunch", date="2025-05-02", start="12:00")
    call(phone, "create_event", title="Lunch", date="2025-05-01", start="12:00")
    assert call(phone, "move_event", title="lunch", date="2025-05-03", start="13:00")["title"] == "Lunch"
    assert call(phone, "cancel_event", title="Lunch")["date"] == "2025-05-02"
    assert call(phone, "list_events", date="2025-05-03") == {
        "title": "Lunch",
        "start": "13:00",
        "events": [{"title": "Lunch", "start": "13:00", "minutes": 60}],
    }
    with pytest.raises(ValueError, match="There are no events on 2025-05-02"):
        call(phone, "list_events", date="2025-05-02")


def test_a_message_goes_to_the_same_person_by_name_or_by_phone(phone: Apps) -> None:
    call(phone, "add_contact", name="Ann Lee", phone="+1 555-0199")
    assert call(phone, "send_message", to="ann lee", text="hi")["to"] == "Ann Lee"
    assert call(phone, "send_message", to="1 (555) 0199", text="hi")["to"] == "Ann Lee"
    assert call(phone, "send_message", to="555 7777", text="hi")["to"] == "555 7777"
    call(phone, "block_contact", name="Ann Lee")
    with pytest.raises(ValueError, match="Ann Lee is blocked"):
        call(phone, "send_message", to="Ann Lee", text="hi")


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
def test_units_are_converted(phone: Apps, value: float, source: str, target: str, expected: float) -> None:
    result = call(phone, "convert_units", value=value, from_unit=source, to_unit=target)
    assert result == {"value": pytest.approx(expected, abs=1e-4)}


def test_sums_dates_and_currencies_are_computed(phone: Apps) -> None:
    assert call(phone, "convert_currency", amount=46, source="EUR", target="GBP") == {"amount": 39.5}
    assert call(phone, "days_between", start="2024-02-28", end="2024-03-01") == {"days": 2}
    assert call(phone, "days_between", start="2025-01-02", end="2025-01-01") == {"days": -1}
    assert call(phone, "add_days", date="2025-12-31", days=1) == {"date": "2026-01-01"}
    assert call(phone, "split_bill", total=100, people=3) == {"share": 33.33}
    assert call(phone, "percent_of", percent=15, value=80) == {"result": 12.0}


def test_a_found_email_can_be_flagged_and_an_archived_one_is_not_found(phone: Apps) -> None:
    mail = {"sender": "Ann", "subject": "Boat rental", "body": "x", "archived": False, "flag": ""}
    phone.email["inbox"]["17"] = mail
    found = call(phone, "search_email", query="Boat rental")
    assert found["subject"] == "Boat rental"
    call(phone, "flag_email", email_id=found["email_id"], color="green")
    call(phone, "archive_email", email_id=found["email_id"])
    with pytest.raises(ValueError, match="No email matches"):
        call(phone, "search_email", query="boat RENTAL")


def test_files_move_to_a_path_or_into_a_folder(phone: Apps) -> None:
    phone.files["files"] = {"docs/a.txt": "A", "work/b.txt": "B"}
    assert call(phone, "move_file", source="/docs/a.txt", destination="work")["path"] == "work/a.txt"
    assert call(phone, "move_file", source="work/a.txt", destination="new/")["path"] == "new/a.txt"
    assert call(phone, "move_file", source="new/a.txt", destination="c.txt")["path"] == "c.txt"
    assert call(phone, "list_files", folder="/") == {"path": "c.txt", "files": ["c.txt", "work/b.txt"]}
    assert call(phone, "read_file", path="c.txt") == {"content": "A"}
    with pytest.raises(ValueError, match=r"'c\.txt' is a file, not a folder"):
        call(phone, "create_file", path="c.txt/d", content="x")
    with pytest.raises(ValueError, match="'work' is a folder"):
        call(phone, "create_file", path="work", content="x")
    with pytest.raises(ValueError, match=r"There is already a file 'work/b\.txt'"):
        call(phone, "move_file", source="c.txt", destination="work/b.txt")
    assert "c.txt" in phone.files["files"], "a failed move leaves the source in place"


def test_playlists_and_notes_can_be_made_and_then_filled(phone: Apps) -> None:
    call(phone, "create_playlist", name="Rain")
    assert call(phone, "add_to_playlist", playlist="rain", song="City Rain") == {
        "playlist": "Rain",
        "songs": 1,
    }
    call(phone, "add_note", title="Bike", text="Blue.")
    assert call(phone, "append_note", title="bike", text="New tires.")["text"] == "Blue.\nNew tires."
    assert call(phone, "search_notes", query="TIRES blue") == {
        "title": "Bike",
        "text": "Blue.\nNew tires.",
        "others": [],
    }


def test_the_most_urgent_of_equal_todos_is_ticked_off(phone: Apps) -> None:
    phone.notes["todos"] = []
    for due in ("2025-06-02", "2025-06-01"):
        call(phone, "add_todo", item="Call Sam", due=due)
    call(phone, "complete_todo", item="call sam")
    assert {todo["due"]: todo["done"] for todo in phone.notes["todos"]} == {
        "2025-06-01": True,
        "2025-06-02": False,
    }


def test_a_search_in_the_shop_names_the_cheapest_product_first(phone: Apps) -> None:
    phone.shop["catalog"] = {"red mug": 900, "blue mug": 700, "gold mug": 5000, "plate": 100}
    found = call(phone, "search_products", query="Mug", max_price=9)
    assert found == {"product": "blue mug", "price": 7.0, "others": [{"product": "red mug", "price": 9.0}]}
    order = call(phone, "place_order", product=found["product"], quantity=3, address="1 Elm Road")
    assert order["total"] == 21.0
    assert call(phone, "track_order", order_id=order["order_id"])["status"] == "processing"
    call(phone, "cancel_order", order_id=order["order_id"])
    assert call(phone, "track_order", order_id=order["order_id"])["status"] == "cancelled"


@pytest.mark.parametrize("date", ["2025-01-01", "2026-07-15", "2027-12-31"])
def test_a_flight_that_was_found_can_be_booked_at_its_price(phone: Apps, date: str) -> None:
    phone.trips["cities"] = {"Tokyo": "TO", "Oslo": "OS"}
    route = {"origin": "Tokyo", "destination": "Oslo", "date": date}
    found = call(phone, "search_flights", **route)
    assert found == call(phone, "search_flights", **route)
    assert len(found["others"]) == 2
    assert all(found["price"] <= other["price"] for other in found["others"])
    booking = call(phone, "book_flight", flight_id=found["flight_id"].lower(), passengers=2)
    assert booking["total"] == pytest.approx(2 * found["price"])
    call(phone, "cancel_booking", booking_id=booking["booking_id"])


@pytest.mark.parametrize(
    "flight_id", ["TOOS1000", "TOOS1004", "TOTO1001", "TOOS19991", "QQOS1001", "TOOS1", "TOOS-001"]
)
def test_an_id_that_spells_no_flight_cannot_be_booked(phone: Apps, flight_id: str) -> None:
    phone.trips["cities"] = {"Tokyo": "TO", "Oslo": "OS"}
    assert call(phone, "book_flight", flight_id="TOOS1001", passengers=1)
    with pytest.raises(ValueError, match="There is no flight"):
        call(phone, "book_flight", flight_id=flight_id, passengers=1)


def test_the_weather_depends_on_the_city_the_day_and_the_state(phone: Apps) -> None:
    def forecast(salt: int, city: str, date: str) -> tuple[Any, ...]:
        phone.trips |= {"salt": salt, "cities": {"Oslo": "OS"}}
        return tuple(call(phone, "get_weather", city=city, date=date).values())

    assert forecast(1, "Oslo", "2025-05-01") == forecast(1, "oslo", "2025-05-01")
    days = [f"2025-05-{day:02d}" for day in range(1, 11)]
    assert len({forecast(1, "Oslo", day) for day in days}) > 5
    assert len({forecast(salt, "Oslo", "2025-05-01") for salt in range(10)}) > 5
