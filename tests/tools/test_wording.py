"""How a new bundle asks for its tools: by what they do, not by what they are called."""

from __future__ import annotations

import random

import pytest

from genenv.tools.language.wording import (
    Said,
    beginnings,
    clause,
    first_wordings,
    found_text,
    is_documented,
    names_tool,
)
from genenv.tools.worlds.base import Tool


@pytest.mark.parametrize(
    ("name", "documentation", "writes", "order"),
    [
        ("park", "Parks a vehicle in a spot.", True, "park a vehicle in a spot"),
        ("leave", "Empties a spot.", True, "empty a spot"),
        ("pass_on", "Passes the parcel to a neighbor.", True, "pass the parcel to a neighbor"),
        ("faq", "Lookup answers to questions.", False, "look up answers to questions"),
        ("notes", "Demonstrates how notes are used, e.g. here.", False, "demonstrate how notes are used"),
        ("bounces", "Handles retrieval of bounces.", False, "handle retrieval of bounces"),
        ("next_task", "Given an 'id', return the next task.", False, "return the next task"),
        ("done", "Mark a task as done after you've completed it.", True, "mark a task as done"),
        ("orders", "List orders, optionally filtered by status.", False, "list orders"),
        ("hives", "Look up all hives, or the ones of one apiary.", False, "look up all hives"),
        ("rooms", "List all rooms, or only those with a view.", False, "list all rooms"),
        ("book", "Book a room (optionally with breakfast) for a guest.", True, "book a room for a guest"),
        ("tag", "Add a note with optional tags.", True, "add a note"),
        ("label", "Set an optional label of a box.", True, "set an optional label of a box"),
        ("totals", "Get totals incl. taxes of a year.", False, "get totals incl. taxes of a year"),
        ("greet", "Greets somebody.", False, "greet somebody"),
        ("date", "Date calculations: weekday.", False, "look up date calculations: weekday"),
        ("regex", "Test, match, or replace.", False, "test, match, or replace"),
        ("borrower", "Who has a book.", False, "find out who has a book"),
        ("amount", "How much there is of an item.", False, "find out how much there is of an item"),
        ("number", "ISBN of a title", False, "look up ISBN of a title"),
        ("order_total", "Work out the total of an order.", False, "work out the total of an order"),
        ("deploy", "Roll out the app to a region.", True, "roll out the app to a region"),
        ("mails", "Opts a user out of mails.", True, "opt a user out of mails"),
        ("low_stock", "Items with few pieces.", False, "look up items with few pieces"),
        ("talk", "Talks to a neighbor.", True, "talk to a neighbor"),
        ("slots", "Start times of a day.", False, "look up start times of a day"),
        ("plan", "Show the plan of the week, or of one day.", False, "show the plan of the week"),
        ("stops", "Stops of a line.", False, "look up stops of a line"),
        ("moves", "Transfers from an account.", False, "look up transfers from an account"),
        ("opened", "Opens files.", False, "open files"),
        ("asked", "Requests data from the service.", False, "request data from the service"),
        ("vat", "Rates of the countries.", False, "look up rates of the countries"),
        ("get_order", "Order details.", False, "look up order details"),
        ("new_order", "A new order for a customer.", True, "do the following: a new order for a customer"),
    ],
)
def test_documentation_says_what_is_wanted_whatever_its_first_word(
    name: str, documentation: str, writes: bool, order: str
) -> None:
    tool = Tool(name=name, description=documentation)
    assert first_wordings(tool, writes=writes) == (f"{order}: {{arguments}}",)
    assert is_documented(tool)


@pytest.mark.parametrize(
    ("name", "documentation", "order"),
    [
        (
            "berths",
            "Berths that are free between two days and long enough.",
            "look up berths that are free between two days and long enough",
        ),
        ("find", "Books that match a title.", "look up books that match a title"),
        ("find", "Books that a member has borrowed.", "look up books that a member has borrowed"),
        ("find", "Books a member has borrowed.", "look up books a member has borrowed"),
        ("orders", "Orders placed by a customer.", "look up orders placed by a customer"),
        ("due_until", "Orders due up to a day.", "look up orders due up to a day"),
        ("weight_loss", "Weight lost in the roast.", "look up weight lost in the roast"),
        ("find", "Orders sent to a customer.", "look up orders sent to a customer"),
        ("find", "Orders a customer placed.", "look up orders a customer placed"),
        ("find", "Orders this week.", "look up orders this week"),
        ("find", "Orders, refunds and returns of a day.", "look up orders, refunds and returns of a day"),
        ("orders", "Orders.", "look up orders"),
        ("trains", "Trains from one station to another.", "look up trains from one station to another"),
        ("trains", "Trains between two stations.", "look up trains between two stations"),
        ("prices", "Prices for a product.", "look up prices for a product"),
        ("seats", "Seats still free in a row.", "look up seats still free in a row"),
        ("find", "Seats free in a row.", "look up seats free in a row"),
        ("find", "Ships which are in a port.", "look up ships which are in a port"),
        ("find", "Ships which carry oil.", "look up ships which carry oil"),
        ("find", "Ships waiting for a berth.", "look up ships waiting for a berth"),
        ("find", "Berth that fits a ship.", "look up berth that fits a ship"),
        ("notes", "Notes of a card.", "look up notes of a card"),
        ("find", "Notes that contain a word.", "look up notes that contain a word"),
        ("stays", "Stays in a month.", "look up stays in a month"),
        ("files", "Files in a folder.", "look up files in a folder"),
        ("find", "Guests who have not paid.", "look up guests who have not paid"),
        ("find", "Returns only the first order.", "return only the first order"),
        ("find", "Searches for a book.", "search for a book"),
        ("find", "Searches and filters books.", "search and filter books"),
        ("find", "Checks that a file exists.", "check that a file exists"),
        ("find", "Checks that x is smaller than y.", "check that x is smaller than y"),
        ("find", "Tests to see if a road is free.", "test to see if a road is free"),
        ("find", "Determines which seats are free.", "determine which seats are free"),
        ("find", "Estimates your bill.", "estimate your bill"),
        ("find", "Has a seat.", "look up has a seat"),
    ],
)
def test_what_follows_a_plural_tells_whether_it_is_a_noun(name: str, documentation: str, order: str) -> None:
    tool = Tool(name=name, description=documentation)
    assert first_wordings(tool, writes=False) == (f"{order}: {{arguments}}",)


@pytest.mark.parametrize("name", ["do", "books", "order", "notes", "prices_cart", "seats", "train"])
@pytest.mark.parametrize(
    ("documentation", "order"),
    [
        ("Books a seat.", "book a seat"),
        ("Orders a part.", "order a part"),
        ("Ships an order.", "ship an order"),
        ("Ships orders to customers.", "ship orders to customers"),
        ("Notes that a payment arrived.", "note that a payment arrived"),
        ("Prices a cart.", "price a cart"),
        ("Seats a party at a table.", "seat a party at a table"),
        ("Trains the model for two hours.", "train the model for two hours"),
    ],
)
@pytest.mark.parametrize("writes", [True, False])
def test_a_verb_with_an_object_is_no_noun(name: str, documentation: str, order: str, writes: bool) -> None:
    tool = Tool(name=name, description=documentation)
    assert first_wordings(tool, writes=writes) == (f"{order}: {{arguments}}",)


@pytest.mark.parametrize(
    ("documentation", "writes", "order"),
    [
        (
            "Refunds a paid order, minus a handling fee, and frees its seats.",
            True,
            "refund a paid order, minus a handling fee, and free its seats",
        ),
        ("Finds hotels and restaurants that are open.", False, "find hotels and restaurants that are open"),
        ("Lists users and groups that match a text.", False, "list users and groups that match a text"),
        (
            "Cancels an order and returns its items to stock.",
            True,
            "cancel an order and return its items to stock",
        ),
        (
            "Cancels an order, returns items to stock and emails customers.",
            True,
            "cancel an order, return items to stock and email customers",
        ),
        ("Adds, or updates, a note.", True, "add, or update, a note"),
        ("Adds (or updates) a note.", True, "add (or update) a note"),
        ("Creates, signs and sends a letter.", True, "create, sign and send a letter"),
        ("Closes or re-opens a case.", True, "close or re-open a case"),
        (
            "Creates a card and assigns it to a person, then notifies the team.",
            True,
            "create a card and assign it to a person, then notify the team",
        ),
        ("Sends a note and always logs it.", True, "send a note and always log it"),
        ("Assigns a room and checks in a guest.", True, "assign a room and check in a guest"),
        ("Locks a door and keeps it locked.", True, "lock a door and keep it locked"),
        (
            "Cancels orders that are late and refunds them.",
            True,
            "cancel orders that are late and refund them",
        ),
        (
            "Finds a shop which sells bread and accepts a card.",
            False,
            "find a shop which sells bread and accepts a card",
        ),
        ("Lists orders and refunds of a customer.", False, "list orders and refunds of a customer"),
        ("Lists orders and prices sorted by day.", False, "list orders and prices sorted by day"),
        ("Shows times and prices.", False, "show times and prices"),
        ("Returns the minutes and hours a user worked.", False, "return the minutes and hours a user worked"),
        ("Books a table and chairs.", True, "book a table and chairs"),
        ("Sets notes, tags, and a date of a card.", True, "set notes, tags, and a date of a card"),
        (
            "Adds data to boxes or cards, and stores a copy.",
            True,
            "add data to boxes or cards, and store a copy",
        ),
        ("Books orders and returns the parts.", True, "book orders and return the parts"),
    ],
)
def test_all_verbs_of_a_sentence_are_orders(documentation: str, writes: bool, order: str) -> None:
    tool = Tool(name="do", description=documentation)
    assert first_wordings(tool, writes=writes) == (f"{order}: {{arguments}}",)


@pytest.mark.parametrize(
    ("field", "said"),
    [
        ("length_m", "length in m"),
        ("team_s", "team s"),
        ("lengthKm", "length in km"),
        ("duration_minutes", "duration in minutes"),
        ("duration_min", "duration in minutes"),
        ("walk_mins", "walk in minutes"),
        ("wait_s", "wait in s"),
        ("total_paid_eur", "total paid in EUR"),
        ("discount_pct", "discount in percent"),
        ("price_min", "price min"),
        ("price_per_kg", "price per kg"),
        ("size_in_m", "size in m"),
        ("landed_kg", "landed kg"),
        ("opening_hours", "opening hours"),
        ("m", "m"),
        ("order_id", "order id"),
    ],
)
def test_a_field_with_a_unit_is_said_to_be_in_it(field: str, said: str) -> None:
    text = f"the {said} that this gives"
    assert found_text(["rows", 0, field], "result", "list_rows") == text
    tool = Tool(name="set", parameters={"type": "object", "properties": {field: {}}})
    assert clause(Said(tool=tool, args={}, found={field: text}), (), random.Random(0)).text.endswith(
        f": {text}"
    )


def test_a_condition_is_no_order() -> None:
    tool = Tool(name="get_trip", description="If the user mentions a city, load it.")
    assert first_wordings(tool, writes=False) == ("get trip: {arguments}",)
    assert not is_documented(tool)


@pytest.mark.parametrize(
    ("name", "documentation", "writes", "order"),
    [
        ("set_price", "", True, "set price"),
        ("balance", "", False, "look up the balance"),
        ("getOrder", "getOrder looks an order up.", False, "get order"),
        ("park", "Like 'park' of the old system.", True, "park"),
        ("slugify", "", False, "slugify"),
        ("size", "", False, "look up the size"),
        ("pay", "Deprecated. Use `refund` instead.", True, "pay"),
        ("get_order", "Args:\n    order_id: the order", False, "get order"),
        ("get_order", "Async version of fetch_order.", False, "get order"),
    ],
)
def test_where_documentation_says_nothing_of_use_the_words_of_the_name_do(
    name: str, documentation: str, writes: bool, order: str
) -> None:
    tool = Tool(name=name, description=documentation)
    assert first_wordings(tool, writes=writes) == (f"{order}: {{arguments}}",)
    assert not is_documented(tool)
    assert not names_tool(clause(Said(tool=tool, args={}), (), random.Random(0)).text, name)


def test_tools_with_the_same_documentation_are_asked_for_by_their_names_too() -> None:
    tools = {
        name: Tool(name=name, description=said)
        for name, said in {
            "close_gate": "Change a gate.",
            "open_gate": "Change a gate.",
            "lock": "Lock a gate after close_gate.",
            "count": "Count the gates.",
            "api_1_index": "Returns all gates.",
            "api_2_index": "Return all gates.",
        }.items()
    }
    assert beginnings(tools, dict.fromkeys(tools, True)) == {
        "api_1_index": ("return all gates (api 1 index): {arguments}",),
        "api_2_index": ("return all gates (api 2 index): {arguments}",),
        "close_gate": ("close gate: {arguments}",),
        "open_gate": ("open gate: {arguments}",),
        "lock": ("lock: {arguments}",),
        "count": ("count the gates: {arguments}",),
    }


def test_a_text_names_a_tool_by_its_identifier_or_in_quotation_marks() -> None:
    assert names_tool("use set_price for A1", "set_price")
    assert names_tool("call getOrder now", "getOrder")
    assert names_tool("use 'park': spot A1", "park")
    assert not names_tool("park the car in A1", "park")
    assert not names_tool("set the price of A1", "set_price")
    assert not names_tool("it is in my_set_price_list", "set_price")


@pytest.mark.parametrize(
    ("name", "order"), [("track_order", "track order"), ("share_price", "look up the share price")]
)
def test_a_name_that_begins_with_a_verb_is_an_order(name: str, order: str) -> None:
    assert first_wordings(Tool(name=name, parameters={"type": "object", "properties": {}}), writes=False)[
        0
    ].startswith(f"{order}: ")
