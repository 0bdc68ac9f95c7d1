"""Questions about the rows of a list: how many there are, and which has the highest number."""

from __future__ import annotations

from pathlib import Path

import pytest

from bundles import made
from genenv.gate.gate import base_tasks
from genenv.tools.check import calls_of
from genenv.tools.discover.answers import shown_by
from genenv.tools.discover.rows import (
    chosen_paths,
    field_of,
    found_at,
    is_of_rows,
    row_answers,
    shows_all,
)
from genenv.tools.environment import Tools
from genenv.tools.language.wording import found_text
from genenv.tools.spec import Program
from genenv.tools.worlds.base import Call, Outcome
from genenv.tools.worlds.in_process import InProcessWorld

ORDERS = [
    {"id": "O-1", "total": 20, "day": "2025-03-01", "priority": 2, "paid": True},
    {"id": "O-2", "total": 35.5, "day": "2025-02-11", "priority": 1, "paid": False},
    {"id": "O-3", "total": 20, "day": "2025-04-30", "priority": 3, "paid": True},
]


def test_rows_are_counted_and_compared_by_numbers_and_days():
    found = {kind: value for kind, (_, value) in row_answers(ORDERS).items()}
    assert found == {
        "how many": 3,
        "highest total.id": "O-2",  # two have the lowest
        "latest day.id": "O-3",
        "earliest day.id": "O-2",
    }
    inside = row_answers({"customer": {"orders": ORDERS}, "page": 1})
    assert inside["customer.orders.how many"] == (("customer", "orders", "how many"), 3)


@pytest.mark.parametrize(
    ("beside", "is_part"),
    [
        ({"total": 57}, True),
        ({"total": 3}, False),
        ({"total": 75.5}, False),  # of money
        ({"next_page": 2}, True),
        ({"next_page": None}, False),
        ({"nextPageToken": "p4"}, True),
        ({"total_orders": 9}, True),
        ({"totalResults": 9}, True),
        ({"total_minutes": 9}, False),
        ({"next_visit": "2025-01-01"}, False),
        ({"truncated": True}, True),
        ({"limit": 50, "offset": 0}, False),
        ({"limit": 3}, True),
        ({"total_pages": 1}, False),
        ({"meta": {"total": 9}}, True),
        ({"pageInfo": {"hasNextPage": True}}, True),
        ({"_links": {"self": "/a", "next": None}}, False),
        ({"_links": {"self": "/a", "next": "/b"}}, True),
    ],
)
def test_a_part_of_a_longer_list_is_not_asked_about(beside, is_part):
    result = {"orders": ORDERS, **beside}
    assert bool(row_answers(result)) is not is_part
    assert bool(chosen_paths(result, "orders.*.id")) is not is_part


def test_lists_of_one_name_are_not_asked_about():
    result = {"sent": {"messages": ORDERS}, "received": {"messages": ORDERS[:1]}, "drafts": ORDERS}
    assert {kind.partition(".")[0] for kind in row_answers(result)} == {"drafts"}
    assert chosen_paths(result, "sent.messages.*.id") == []
    assert row_answers({"items": ORDERS, "boxes": [{"items": []}]}) == {}


class Pages:
    """Orders in pages of two, and the first few of them."""

    def __init__(self) -> None:
        self.orders = [{"id": f"O-{n}", "total": n} for n in range(3)]

    def in_pages(self, page: int = 1) -> list[dict[str, object]]:
        return self.orders[2 * page - 2 : 2 * page]

    def after(self, offset: int = 0, skip: int | None = None) -> list[dict[str, object]]:
        return self.orders[offset + (skip or 0) :]

    def first(self, limit: int = 2) -> list[dict[str, object]]:
        return self.orders[:limit]


@pytest.mark.parametrize(
    ("tool", "args", "is_all"),
    [
        ("in_pages", {}, False),
        ("in_pages", {"page": 2}, False),
        ("after", {}, True),
        ("after", {"offset": 1}, False),
        ("after", {"skip": 0}, True),
        ("first", {}, False),
        ("first", {"limit": 3}, False),
        ("first", {"limit": 4}, True),
    ],
)
def test_whether_a_call_shows_all_there_is(tool, args, is_all):
    world = InProcessWorld(f"{__name__}:Pages")
    assert shows_all(world, [Call(tool=tool, args=args)]) is is_all


@pytest.mark.parametrize(
    "rows",
    [
        [],
        ORDERS[:1],
        {"a": 1},
        "text",
        None,
        {"orders": [ORDERS]},  # one row, which is a list
        [{"id": n} for n in range(201)],  # too many to read
    ],
)
def test_fewer_than_two_rows_are_not_asked_about(rows):
    assert row_answers(rows) == {}


@pytest.mark.parametrize(
    ("rows", "kinds"),
    [
        ([{"id": 1, "n": 1}, {"id": 1, "n": 2}], ["how many"]),  # nothing names a row
        ([{"id": 1, "n": None}, {"id": 2, "n": 2}], ["how many"]),
        ([{"id": 1, "n": 1}, {"id": 2}], ["how many"]),
        ([{"id": 1, "on": "2025-01-01"}, {"id": 2, "on": "2025-01-02T10:00"}], ["how many"]),
        ([1, 5, 3], ["how many"]),
        ([{"id": 1, "n": float("nan")}, {"id": 2, "n": 2}], ["how many"]),
        ([{"": 1, "id": 1}, {"": 2, "id": 2}], ["how many"]),
        ([{"id": 1, "at": "2025-01-01T08:00"}, {"id": 2, "at": "2025-01-01 10:00"}], ["how many"]),
        (
            [{"name": "a", "year": 1999}, {"name": "b", "year": 2004}],
            ["how many", "latest year.name", "earliest year.name"],
        ),
        (
            [{"name": "a", "nights": 3}, {"name": "b", "nights": 4}],
            ["how many", "highest nights.name", "lowest nights.name"],
        ),
    ],
)
def test_what_cannot_be_compared_is_only_counted(rows, kinds):
    assert list(row_answers(rows)) == kinds


@pytest.mark.parametrize(
    "path",
    [
        ["highest total", "name"],
        ["lowest total", "id"],
        ["highest priority", "id"],
        ["highest day", "id"],
        ["largest total", "id"],
        ["total"],
    ],
)
def test_a_path_of_no_single_row_is_refused(path):
    with pytest.raises(LookupError):
        found_at(ORDERS, path)


def test_a_field_may_have_the_name_of_a_question():
    assert found_at({"highest total": {"id": 4}, "how many": 2}, ["highest total", "id"]) == 4
    assert found_at({"how many": 2}, ["how many"]) == 2


def test_a_later_call_may_take_a_value_of_the_chosen_row():
    assert (("highest total", "id"), "O-2") in chosen_paths(ORDERS, "*.id")
    assert chosen_paths({"orders": ORDERS}, "orders.*.id")[0] == (("orders", "highest total", "id"), "O-2")
    for kind in ("id", "*", "orders.*.id", "*.lines.*.id", "*.paid"):
        assert chosen_paths(ORDERS, kind) == []


@pytest.mark.parametrize(
    ("path", "tool", "text"),
    [
        (("how many",), "list_orders", "the number of orders that this gives"),
        (("how many",), "search", "the number of entries that this gives"),
        (("how many",), "find_rooms_between_dates", "the number of rooms that this gives"),
        (("line_items", "how many"), "get_order", "the number of line items that this gives"),
        (("history", "how many"), "get_order", "the number of history entries that this gives"),
        (
            ("highest total", "id"),
            "list_orders",
            "the id of the order with the highest total that this gives",
        ),
        (
            ("data", "latest day", "name"),
            "x",
            "the name of the data entry with the latest day that this gives",
        ),
        (
            ("lowest length_m", "name"),
            "find",
            "the name of the entry with the lowest length in m that this gives",
        ),
    ],
)
def test_they_are_asked_for_in_plain_words(path, tool, text):
    assert found_text(path, "result", tool) == text


def test_the_field_of_an_answer():
    assert field_of(("orders", "how many")) == "orders"
    assert field_of(("orders", "highest total", "id")) == "id"
    assert field_of(("how many",)) == field_of((0,)) == ""
    assert all(map(is_of_rows, [("how many",), (0, "id"), ("highest total", "id")]))
    assert not is_of_rows(("orders", "total"))


def test_only_answers_that_differ_are_worth_asking_for():
    calls = [({"customer": n}, Outcome(result=ORDERS[n:] + ORDERS[:n])) for n in range(3)]
    assert not [kind for kind in shown_by(calls)[1] if is_of_rows(tuple(kind.split(".")))]
    calls.append(
        ({"customer": 4}, Outcome(result=[*ORDERS, {"id": "O-9", "total": 90, "day": "2025-03-02"}]))
    )
    assert {"how many", "highest total.id"} <= {*shown_by(calls)[1]}


CLINIC = '''
class Clinic:
    """Appointments of a small clinic."""

    def __init__(self) -> None:
        days, minutes, fees = (3, 3, 7, 10, 12, 14), (30, 45, 60, 30, 90, 45), (45, 60, 80, 45, 110, 62)
        self.appointments = {
            f"A{n + 1}": {
                "patient": ("Ida Holm", "Per Lund", "Siv Dahl")[n % 3],
                "therapist": ("Bo", "Mia")[n % 2],
                "date": f"2025-03-{days[n]:02}",
                "minutes": minutes[n],
                "fee": fees[n],
            }
            for n in range(6)
        }

    def list_appointments(self, therapist: str | None = None) -> list[dict]:
        """List appointments, optionally of one therapist."""
        rows = [{"appointment_id": key, **one} for key, one in self.appointments.items()]
        return [one for one in rows if therapist in (None, one["therapist"])]

    def cancel_appointment(self, appointment_id: str) -> dict:
        """Cancel an appointment."""
        if appointment_id not in self.appointments:
            return {"error": "no such appointment"}
        return {"cancelled": appointment_id, **self.appointments.pop(appointment_id)}
'''


@pytest.mark.long
def test_tasks_ask_for_rows_and_later_calls_take_them(tmp_path: Path) -> None:
    (tmp_path / "clinic.py").write_text(CLINIC)
    made(tmp_path / "clinic", tmp_path / "clinic.py", base=60, held_out=20)
    env = Tools(folder=tmp_path / "clinic")
    tasks = [*base_tasks(env, env.seeds(), seed=0).values(), *env.held_out()]
    programs = {task.id: Program.model_validate(task.spec) for task in tasks}
    asked = [task for task in tasks if any(is_of_rows(one.path) for one in programs[task.id].questions)]
    taken = [
        task
        for task in tasks
        if any(is_of_rows(one.path) for step in programs[task.id].calls for one in step.uses)
    ]
    assert len(asked) > 8
    assert len(taken) > 8
    assert all(env.check(task, task.oracle).success for task in tasks)
    for task in asked:
        (answer,) = task.payload["answers"]
        other = answer + 1 if isinstance(answer, int) else "A1" if answer != "A1" else "A2"
        assert not env.check(task, (*task.oracle[:-1], f"Answer: {other}")).success
        *before, listing, last = task.oracle
        if listing.startswith("list_appointments"):  # all of them: the answer is among more
            assert env.check(task, (*before, "list_appointments()", last)).success
    for task in taken:
        chosen = next(step.uses[0].path for step in programs[task.id].calls if step.uses)
        if chosen[-1] == "appointment_id":
            name = calls_of(task.payload, "calls")[1].args["appointment_id"]
            wrong = [one.replace(str(name), "A1" if name != "A1" else "A2") for one in task.oracle]
            assert not env.check(task, wrong).success
