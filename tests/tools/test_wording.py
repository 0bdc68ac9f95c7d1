"""How a new bundle asks for its tools: by what they do, not by what they are called."""

from __future__ import annotations

import random

import pytest

from genenv.tools.language.wording import Said, beginnings, clause, first_wordings, is_documented, names_tool
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
