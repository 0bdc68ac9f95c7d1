"""Made-up ids that succeed give way to ids of records, and values that leave no trace count."""

from __future__ import annotations

import random
from collections.abc import Sequence
from pathlib import Path

import pytest

from bundles import made
from genenv.gate.gate import base_tasks
from genenv.tools.calls import format_calls
from genenv.tools.check import calls_of
from genenv.tools.discover.exploring import Explorer
from genenv.tools.discover.recipes import FRESH
from genenv.tools.environment import Tools
from genenv.tools.spec import Program, Step
from genenv.tools.worlds.base import Call
from genenv.tools.worlds.in_process import InProcessWorld
from genenv.types import Lineage, Origin, Task

STOCK = '''
class Stock:
    def __init__(self):
        self.stock: dict[str, int] = {}
        self.reserved: dict[str, int] = {}

    def set_stock(self, product_id: str, quantity: int) -> None:
        """Set the stock of a product."""
        self.stock[product_id] = quantity

    def reserve(self, product_id: str, quantity: int) -> bool:
        """Reserve some of a product."""
        if self.stock.get(product_id, 0) - self.reserved.get(product_id, 0) < quantity:
            return False
        self.reserved[product_id] = self.reserved.get(product_id, 0) + quantity
        return True

    def release(self, product_id: str, quantity: int) -> None:
        """Release some of a product."""
        self.reserved[product_id] = max(0, self.reserved.get(product_id, 0) - quantity)
'''


def _step(tool: str, quantity: int) -> Step:
    return Step(tool=tool, args={"product_id": "P-100", "quantity": quantity})


def replies_of(task: Task, calls: Sequence[Call]) -> tuple[str, ...]:
    """Replies that make calls, and end as the task's solution does."""
    if task.payload["mode"] == "single":
        return (format_calls(calls, "python"),)
    return (*(format_calls([one], "python") for one in calls), task.oracle[-1])


@pytest.mark.long
def test_what_acts_on_earlier_records_gets_these_and_its_numbers_matter(tmp_path: Path) -> None:
    (tmp_path / "stock.py").write_text(STOCK)
    found = made(tmp_path / "stock", tmp_path / "stock.py", base=32, held_out=8)
    ways = {name: dict(one.ways) for name, one in found.graph.recipes.items()}
    assert ways["set_stock"] == {"product_id": FRESH, "quantity": FRESH}, "something has to make the first"
    assert ways["reserve"]["product_id"] != FRESH
    assert ways["reserve"]["quantity"] in (FRESH, "stock.*"), "so many as there are is a number, too"
    assert ways["release"]["product_id"] != FRESH
    assert not any(one.unseen for one in found.graph.recipes.values())
    env = Tools(None, tmp_path / "stock")
    try:
        tasks = [*base_tasks(env, env.seeds(), seed=0).values(), *env.held_out()]
        for released, refused in ((4, "Without 2 of its calls the end is the same."), (3, None)):
            undone = Program(
                n_calls=2,
                chained=False,
                answer=False,
                n_tools=3,
                before=(_step("set_stock", 40), _step("reserve", 9)),
                calls=(_step("reserve", 4), _step("release", released)),
            )
            lineage = Lineage(origin=Origin.HELD_OUT if env.is_for_measuring(undone) else Origin.SEED)
            task = env.build(undone, task_id="undone", lineage=lineage, rng=random.Random(0))
            assert isinstance(task, Task)
            rejection = env.audit(task, random.Random(0))
            assert (rejection and rejection.explanation) == refused
        assert any(call.tool == "release" for task in tasks for call in calls_of(task.payload, "calls"))
        for task in tasks:
            calls = calls_of(task.payload, "calls")
            for place, call in enumerate(calls):
                wrong = Call(
                    tool=call.tool, args={**call.args, "quantity": int(str(call.args["quantity"])) + 1}
                )
                spoiled = [*calls[:place], wrong, *calls[place + 1 :]]
                assert not env.check(task, replies_of(task, spoiled)).success
    finally:
        env.world.close()


TICKETS = '''
import time

SUBJECTS = ("Printer", "Login", "Mail", "VPN")
TICKETS = {f"T-{number}": {"subject": one, "open": True} for number, one in enumerate(SUBJECTS)}


def close_ticket(ticket_id: str, reason: str) -> bool:
    """Close a ticket.

    Args:
        ticket_id: The ticket.
        reason: Why it is closed.
    """
    TICKETS[ticket_id] |= {"open": False, "closed_at": time.time()}
    return True
'''


@pytest.mark.long
def test_an_argument_that_leaves_no_trace_must_be_the_one_that_was_asked_for(tmp_path: Path) -> None:
    (tmp_path / "tickets.py").write_text(TICKETS)
    found = made(tmp_path / "tickets", tmp_path / "tickets.py", base=2, held_out=16)
    assert found.graph.recipes["close_ticket"].unseen == ("reason",)
    env = Tools(None, tmp_path / "tickets")
    try:
        swaps = 0
        for task in env.held_out():
            calls = calls_of(task.payload, "calls")
            other = [Call(tool=one.tool, args={**one.args, "reason": "no reason at all"}) for one in calls]
            assert env.check(task, task.oracle).success
            verdict = env.check(task, replies_of(task, other))
            assert not verdict.success
            assert "has the reason that was asked for" in verdict.explanation
            if len(calls) == 2 and calls[0].args["ticket_id"] != calls[1].args["ticket_id"]:
                pairs = zip(calls, reversed(calls), strict=True)
                swapped = [
                    Call(tool=one.tool, args={**one.args, "reason": two.args["reason"]}) for one, two in pairs
                ]
                assert env.check(task, replies_of(task, calls)).success
                assert not env.check(task, replies_of(task, swapped)).success
                swaps += 1
        assert swaps
    finally:
        env.world.close()


class Studios:
    """One tool refuses what is no studio, the other takes anything."""

    def __init__(self) -> None:
        self.studios = {"A": {"rate": 1500}, "B": {"rate": 2500}}
        self.slots: dict[str, int] = {}
        self.bookings: list[dict[str, str]] = []

    def ensure_slots(self, studio: str, day: str) -> None:
        """Make the slots of a studio."""
        self.slots.setdefault(f"{studio} {day}", 9)

    def book(self, studio: str, client_name: str) -> int:
        """Book a studio."""
        if studio not in self.studios:
            raise ValueError("there is no such studio")
        self.bookings.append({"studio": studio, "client_name": client_name})
        return len(self.bookings)


def test_what_one_tool_needs_to_be_a_record_is_one_for_the_other() -> None:
    graph = Explorer(InProcessWorld(f"{__name__}:Studios"), random.Random(0)).explore()
    assert {name: one.ways["studio"] for name, one in graph.recipes.items()} == {
        "ensure_slots": "studios.#",
        "book": "studios.#",
    }


class Shop:
    """One tool makes the records that the other needs, and would overwrite one as well."""

    def __init__(self) -> None:
        self.products = {"Milk": {"price": 2}, "Bread": {"price": 3}}
        self.sold: dict[str, int] = {}

    def add_product(self, product: str, price: int) -> None:
        """Add a product."""
        self.products[product] = {"price": price}

    def buy(self, product: str, quantity: int) -> int:
        """Buy a product."""
        price = self.products[product]["price"]
        self.sold[product] = self.sold.get(product, 0) + quantity
        return price * quantity


def test_a_tool_that_makes_records_goes_on_making_them() -> None:
    recipes = Explorer(InProcessWorld(f"{__name__}:Shop"), random.Random(0)).explore().recipes
    assert (recipes["add_product"].ways["product"], recipes["buy"].ways["product"]) == (FRESH, "products.#")


class Words:
    """A tool that reads answers kindly to what there is not."""

    def __init__(self) -> None:
        self.entries = {
            "zorb": {"body": "A ball that one sits in."},
            "flib": {"body": "Said of a coat."},
            "quox": {"body": "A small hill."},
        }

    def explain(self, what: str) -> dict[str, object]:
        """Explain it."""
        return self.entries.get(what) or {"found": False, "hint": "see the index"}


def test_what_a_tool_that_reads_finds_is_not_given_up_for_a_kind_refusal() -> None:
    recipe = Explorer(InProcessWorld(f"{__name__}:Words"), random.Random(0)).explore().recipes["explain"]
    assert recipe.ways == {"what": "entries.#"}


class Rooms:
    """A booking succeeds seldom with made-up numbers, whatever else it is given."""

    def __init__(self) -> None:
        self.rooms = {str(100 + n): {"beds": 1 + n % 2, "floor": n} for n in range(6)}
        self.bookings: list[dict[str, object]] = []

    def book_room(self, room_number: str, guest: str, code_word: str, persons: int) -> int:
        """Book a room."""
        if self.rooms[room_number]["beds"] < persons:
            raise ValueError("there are too few beds")
        self.bookings.append({"room": room_number, "guest": guest, "code": code_word, "persons": persons})
        return len(self.bookings)


@pytest.mark.parametrize("seed", range(4))
def test_values_that_succeeded_by_chance_give_way_to_made_up_ones(seed: int) -> None:
    graph = Explorer(InProcessWorld(f"{__name__}:Rooms"), random.Random(seed)).explore()
    ways = graph.recipes["book_room"].ways
    assert (ways["guest"], ways["code_word"]) == (FRESH, FRESH)


NOTES = '''
NOTES = {
    number: {"title": title, "body": body, "pinned": False}
    for number, (title, body) in enumerate((("Milk", "two litres"), ("Rent", "due"), ("Call", "plumber")), 1)
}


def get_note(note_id: int) -> dict:
    """Show a note."""
    return NOTES[note_id]


def update_note(
    note_id: int, title: str | None = None, body: str | None = None, pinned: bool | None = None
) -> dict:
    """Update a note."""
    new = {"title": title, "body": body, "pinned": pinned}
    NOTES[note_id] |= {name: value for name, value in new.items() if value is not None}
    return {"message": f"Note {note_id} updated."}
'''


@pytest.mark.long
def test_an_update_is_given_what_is_to_change_though_none_of_it_is_required(tmp_path: Path) -> None:
    (tmp_path / "notes.py").write_text(NOTES)
    found = made(tmp_path / "notes", tmp_path / "notes.py", base=16, held_out=4)
    recipe = found.graph.recipes["update_note"]
    assert recipe.writes, "its answer is the same, whatever changes"
    assert {"title", "body", "pinned"} <= set(recipe.ways)
    env = Tools(None, tmp_path / "notes")
    try:
        tasks = [*base_tasks(env, env.seeds(), seed=0).values(), *env.held_out()]
        updates = [
            call for task in tasks for call in calls_of(task.payload, "calls") if call.tool == "update_note"
        ]
        assert updates
        assert all(len(call.args) > 1 for call in updates)
    finally:
        env.world.close()
