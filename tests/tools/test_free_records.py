"""Arguments that are records without a schema get the fields of the records that the tools keep."""

from __future__ import annotations

import random
from typing import Any, cast

import pytest

from genenv.tools.discover.exploring import Explorer
from genenv.tools.discover.free_records import free_records
from genenv.tools.discover.state_values import Records
from genenv.tools.worlds.base import Tool
from genenv.tools.worlds.in_process import InProcessWorld, described
from genenv.types import Json

ROWS: Any = {
    "shop": {
        "customers": [{"id": n, "name": f"N{n}", "city": f"C{n}", "tags": ["a", "b"]} for n in range(4)],
        "orders": [{"id": n, "customer_id": n % 2, "status": ("new", "paid")[n % 2]} for n in range(6)],
    }
}


def drawn(tool: str, parameter: str, seed: int, **args: Json) -> dict[str, Json]:
    free: Any = {"type": "object"}
    one = Tool(
        name=tool, parameters={"type": "object", "properties": {"table": {"type": "string"}, parameter: free}}
    )
    found = free_records(one, {**args, parameter: {}}, [parameter], {}, Records(ROWS), random.Random(seed))
    return cast("dict[str, Json]", found[parameter])


def test_a_new_record_has_all_fields_of_its_table_but_the_id() -> None:
    made = [drawn("create_record", "data", seed, table="orders") for seed in range(20)]
    assert all(set(one) == {"customer_id", "status"} for one in made)
    assert {one["customer_id"] for one in made} == {0, 1}, "references exist"
    assert {one["status"] for one in made} == {"new", "paid"}, "categories exist"
    assert {*drawn("add_customer", "fields", 0)} == {"name", "city"}, "the tool's name says of what"


def test_a_changed_record_gets_some_fields_and_a_condition_holds_for_a_record() -> None:
    for seed in range(20):
        changed = drawn("update_records", "data", seed, table="customers")
        assert {*changed} <= {"name", "city"}
        assert 1 <= len(changed) <= 2
        ((field, value),) = drawn("delete_records", "conditions", seed, table="customers").items()
        assert any(row[field] == value for row in ROWS["shop"]["customers"])


@pytest.mark.parametrize(
    ("tool", "parameter", "told"),
    [
        ("fetch_page", "headers", {}),
        ("log_message", "data", {}),
        ("add_customer", "fields", {"additionalProperties": False}),
        ("add_customer", "fields", {"additionalProperties": {"type": "integer"}}),
    ],
)
def test_what_is_no_record_of_a_table_is_left_alone(tool: str, parameter: str, told: dict[str, Any]) -> None:
    one = Tool(name=tool, parameters={"properties": {parameter: {"type": "object", **told}}})
    for seed in range(10):
        drawn = free_records(one, {parameter: {}}, [parameter], {}, Records(ROWS), random.Random(seed))
        assert drawn == {}


def test_the_table_is_that_of_the_longest_name_in_the_tools_name() -> None:
    rows: Any = {
        "orders": [{"id": n, "day": n} for n in range(2)],
        "order_items": [{"id": n, "sku": n} for n in range(2)],
    }
    for tool, field in (("create_order_item", "sku"), ("create_order", "day"), ("put_thing", "")):
        one = Tool(name=tool, parameters={"properties": {"data": {"type": "object"}}})
        found = free_records(one, {"data": {}}, ["data"], {}, Records(rows), random.Random(0))
        assert {*cast("dict[str, Json]", found.get("data", {}))} == {field} - {""}


def test_what_has_a_schema_or_no_records_is_left_alone() -> None:
    told: Any = {"type": "object", "properties": {"a": {"type": "string"}}}
    one = Tool(name="put", parameters={"type": "object", "properties": {"data": told, "note": {}}})
    assert (
        free_records(one, {"data": {}, "note": {}}, ["data", "note"], {}, Records(ROWS), random.Random(0))
        == {}
    )
    free = Tool(name="put", parameters={"type": "object", "properties": {"data": {"type": "object"}}})
    assert free_records(free, {"data": {}}, ["data"], {}, Records({"n": 1}), random.Random(0)) == {}


class Tables:
    """Tools of any table, as servers of databases have them."""

    def __init__(self) -> None:
        self.tables = cast("dict[str, list[dict[str, Json]]]", {k: [*v] for k, v in ROWS["shop"].items()})

    def create(self, table: str, data: dict[str, Any]) -> dict[str, Any]:
        """Insert a record into a table."""
        rows = self.tables[table]
        if not data or not {*data} < {*rows[0]}:
            raise ValueError("no such fields")
        rows.append({"id": len(rows), **data})
        return rows[-1]

    def delete(self, table: str, conditions: dict[str, Any]) -> dict[str, int]:
        """Delete the records that meet conditions."""
        rows = self.tables[table]
        kept = [row for row in rows if not all(row.get(name) == one for name, one in conditions.items())]
        if not conditions or len(kept) == len(rows):
            raise ValueError("none")
        self.tables[table] = kept
        return {"deleted": len(rows) - len(kept)}


def test_tools_of_any_table_are_called_with_success() -> None:
    graph = Explorer(InProcessWorld(f"{__name__}:Tables"), random.Random(0)).explore()
    assert {name: one.writes for name, one in graph.recipes.items()} == {"create": True, "delete": True}
    assert all(one.success > 0.5 for one in graph.recipes.values())


@pytest.mark.parametrize(
    ("note", "fields"),
    [
        ('Lines, each {"frame_id": int, "quantity": 2}.', {"frame_id": "integer", "quantity": "integer"}),
        ("{'name': str, 'paid': true, 'at': 'noon'}", {"name": "string", "paid": "boolean", "at": "string"}),
        ('Each has {"item": an item}.', {"item": None}),
        ("Lines with their frames.", None),
    ],
)
def test_fields_of_records_are_those_that_the_documentation_names(
    note: str, fields: dict[str, str | None] | None
) -> None:
    def order(lines: list[dict[str, Any]]) -> None: ...

    order.__doc__ = f"Order.\n\nArgs:\n    lines: {note}\n"
    schema = cast(Any, described(order, "order").schema)["properties"]["lines"]["items"]
    assert schema.get("required") == (None if fields is None else [*fields])
    told = {name: one.get("type") for name, one in schema.get("properties", {}).items()}
    assert told == (fields or {})
