"""Kinds of values, and which of them a parameter could want by its name."""

from __future__ import annotations

import itertools

import pytest

from genenv.tools.discover.slots import meant
from genenv.tools.discover.state_values import (
    about,
    held_in,
    is_inside_record,
    leaves,
    records,
    refers,
    single_paths,
    wanted,
    words_of,
)
from genenv.types import Json, JsonObject

STATE = {
    "customers": {"C-1": {"name": "Ada", "email": "a@x"}, "C-2": {"name": "Ben", "email": "b@x"}},
    "orders": [
        {"id": 7, "customer_id": "C-1", "status": "paid"},
        {"id": 8, "customer_id": "C-2", "status": "paid"},
    ],
    "notes": {"Packing list": "Socks.", "To do": "Taxes."},
    "ledger": {"accounts": [{"name": "rent", "amount": 2.0}]},
    "_next": 3,
}  # fmt: skip


def test_values_are_gathered_by_kind_each_once() -> None:
    assert leaves(STATE) == {
        "customers.#": ["C-1", "C-2"],
        "customers.*.name": ["Ada", "Ben"],
        "customers.*.email": ["a@x", "b@x"],
        "orders.*.id": [7, 8],
        "orders.*.customer_id": ["C-1", "C-2"],
        "orders.*.status": ["paid"],
        "notes.#": ["Packing list", "To do"],
        "notes.*": ["Socks.", "Taxes."],
        "ledger.accounts.*.name": ["rent"],
        "ledger.accounts.*.amount": [2.0],
        "_next": [3],
    }


def in_files(**content: Json) -> Json:
    held = {name.replace("__", "/"): one for name, one in content.items()}
    return {"files": {f"{name}.json": None for name in held}, **held}


def test_files_of_a_folder_that_hold_one_record_each_are_a_table_by_their_names() -> None:
    ada, ben = {"id": 1, "name": "Ada", "notes": []}, {"id": 2, "name": "Ben", "notes": ["x"]}
    odd: Json = {"version": 3, "last": 2}
    state = in_files(data__people__ada=ada, data__people__index=odd, data__people__ben=ben, data__shop=ada)
    found = leaves(state)
    assert found["data/people.#"] == ["ada", "ben"]
    assert found["data/people.*.name"] == ["Ada", "Ben"]
    assert found["data/people/index.last"] == [2]
    assert found["data/shop.name"] == ["Ada"], "it is the only one"
    assert not any(kind.startswith("data/people/ada") for kind in found)
    assert [one["data/people.#"] for one in records(state)["data/people.*"]] == [["ada"], ["ben"]]
    assert wanted("person_id", "greet", [*found])[0] == "data/people.#"
    assert held_in(state, [{"name": "data/people.*.name"}]) == found
    before = held_in(state, [{"name": "data/people/ben.name"}])
    assert before["data/people/ben.name"] == ["Ben"], "as bundles name it that were made before"


def test_which_files_are_a_table_does_not_depend_on_their_order() -> None:
    few, all_of, others = {"a": 1, "b": "x"}, {"a": 1, "b": "x", "c": 3}, {"b": "x", "c": 3, "d": 4}
    forms: list[JsonObject] = [few, all_of, others, {"x": 5, "y": "z"}]
    held = {f"data__{n}": one for n, one in enumerate(forms)}
    for order in itertools.permutations(held):
        assert leaves(in_files(**{name: held[name] for name in order}))["data.#"] == ["0", "1"]


def test_files_that_are_tables_themselves_are_none_of_one_table() -> None:
    ada, paid = {"1": {"name": "Ada"}, "2": {"name": "Ben"}}, {"1": {"total": 3}, "2": {"total": 4}}
    assert leaves(in_files(data__people=ada, data__orders=paid))["data/orders.*.total"] == [3, 4]
    lists = ({"version": 1, "items": [{"name": one, "id": 1}]} for one in "ab")
    assert leaves(in_files(**dict(zip(("d__people", "d__pets"), lists, strict=True))))["d/pets.items.*.name"]
    assert leaves({"a/x": {"id": 1, "n": 2}, "a/y": {"id": 2, "n": 3}})["a/y.id"] == [2], "of no folder"


@pytest.mark.parametrize(
    ("parameter", "tool", "first"),
    [
        ("customer_id", "open_ticket", "customers.#"),
        ("customerId", "openTicket", "customers.#"),
        ("customer", "greet", "customers.#"),
        ("name", "find_customer", "customers.*.name"),
        ("customer_name", "find", "customers.*.name"),
        ("email", "find", "customers.*.email"),
        ("order_id", "get", "orders.*.id"),
        ("status", "set_status", "orders.*.status"),
        ("title", "delete_note", "notes.#"),
        ("account", "balance", "ledger.accounts.*.name"),
        ("source_account", "transfer", "ledger.accounts.*.name"),
        ("amount", "transfer", "ledger.accounts.*.amount"),
        ("weather", "tell", None),
    ],
)
def test_a_parameter_wants_kinds_by_its_name(parameter: str, tool: str, first: str | None) -> None:
    found = wanted(parameter, tool, list(leaves(STATE)))
    assert (found[0] if found else None) == first


def test_a_bound_of_dates_is_no_field_of_another_table() -> None:
    assert wanted("since", "list_orders", ["customers.*.since", "orders.*.day"]) == []
    assert wanted("since", "list_customers", ["customers.*.since"]) == ["customers.*.since"]


def test_a_field_of_an_item_is_of_what_the_list_holds_and_an_email_is_no_key() -> None:
    kinds = ["contacts.*.id", "topics.*.id", "emails.#", "contacts.*.email"]
    assert wanted(meant("topics.id"), "contacts_create", kinds)[0] == "topics.*.id"
    assert wanted(meant("topics.name"), "contacts_create", ["topics.*.id"]) == []
    assert wanted("email", "contacts_update", kinds) == ["contacts.*.email"]
    assert wanted("email_id", "emails_get", kinds)[0] == "emails.#"


def test_the_ids_of_a_table_come_before_foreign_keys_to_it_and_those_of_what_its_records_hold() -> None:
    foreign = [f"{table}.*.car_id" for table in ("hires", "repairs", "washes")]
    found = wanted("car_id", "set_rate", [*foreign, "cars.*.id", "cars.*.seats.*.id"])
    assert found == ["cars.*.id", *foreign[:2]]


def test_single_values_are_those_that_a_result_holds_in_one_place_only() -> None:
    assert single_paths({"id": 3, "lines": [{"n": 1}, {"n": 2}], "one": [{"sku": "x"}]}) == {
        "id": (("id",), 3),
        "one.*.sku": (("one", 0, "sku"), "x"),
    }


def test_a_field_of_a_record_inside_of_another_record_is_not_named_by_its_name_alone() -> None:
    comment = {"id": 3, "text": "fine", "created_by": {"name": "Ada"}}
    assert is_inside_record(comment, ("created_by", "name"))
    assert is_inside_record({"entries": [comment]}, ("entries", 0, "created_by", "name"))
    assert not is_inside_record(comment, ("text",))
    assert not is_inside_record({"status": "ok", "comment": comment}, ("comment", "text"))


def test_ids_and_codes_refer_to_records_and_names_do_not() -> None:
    assert all(map(refers, ("task_id", "orders.#", "country_code", "orders.*.number", "branch_name")))
    assert not any(map(refers, ("name", "title", "avatar", "flags", "tasks.*.description")))


def test_a_tool_is_about_what_a_parameter_stands_for_by_its_name() -> None:
    assert about("task_id", "complete_task", "add_task")
    assert about("id", "delete_task", "add_task")
    assert not about("retention_policy_id", "get_retention_policy", "list_legal_hold_policies")
    assert not about("id", "delete_task", "get_order")


def test_words_of_names() -> None:
    assert words_of("orderIds") == ("order", "id")
    assert words_of("list_categories") == ("list", "category")
    assert words_of("HTTPStatus") == ("http", "status")


def test_a_plural_has_the_words_of_its_singular() -> None:
    nouns = "movie cookie cache axe status alias person child box house case bus lens series category shelf"
    plurals = "movies cookies caches axes statuses aliases people children boxes houses cases buses lenses"
    plurals += " series categories shelves"
    for one, several in zip(nouns.split(), plurals.split(), strict=True):
        assert words_of(several) == words_of(one) == (one,)
