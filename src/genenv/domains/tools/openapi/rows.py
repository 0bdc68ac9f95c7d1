"""The rows that a mock world begins with, drawn by the schemas of their fields."""

from __future__ import annotations

import random
import uuid
from collections.abc import Mapping, Sequence
from typing import Any, cast

from genenv.domains.tools.fresh import fresh
from genenv.domains.tools.leaves import words_of
from genenv.domains.tools.openapi.resources import Table
from genenv.domains.tools.world import Tool
from genenv.types import Json
from genenv.untrusted.patterns import is_simple

ROWS = 6
"""Of each table."""
MOMENT = "2026-01-05T09:00:00Z"
"""When everything happens."""
_MOST_FIELDS = 12
_FIRST = 100
"""Numbers of records are larger than this, where they may be."""

Record = dict[str, Json]
State = dict[str, dict[str, Record]]


def first_state(tables: Mapping[str, Table], seed: str) -> State:
    """Some rows of each table; what they belong to is there.

    Args:
        tables: by name.
        seed: of what is drawn.
    """
    state: State = {}
    waiting = dict(tables)
    while waiting:
        ready = [name for name, one in waiting.items() if not set(one.links.values()) & ({*waiting} - {name})]
        for name in ready or list(waiting)[:1]:  # tables that refer to each other: one of them has to begin
            table = waiting.pop(name)
            keys = {
                field: [one[tables[other].key] for one in state.get(other, {}).values()]
                for field, other in table.links.items()
                if other in tables
            }
            state[name] = _rows(table, keys, random.Random(f"{seed} {name}"))
    return {name: state[name] for name in tables}


def _rows(table: Table, keys: Mapping[str, Sequence[Json]], rng: random.Random) -> dict[str, Record]:
    """Rows of a table.

    Args:
        table: it.
        keys: those that a field can refer to.
        rng: draws.
    """
    rows: dict[str, Record] = {}
    for number in range(1, ROWS + 1):
        record = drawn(table, rng, examples=number == 1)
        record |= {field: rng.choice(there) for field, there in keys.items() if there}
        key = record.get(table.key) if table.given else None
        if key is None or str(key) in rows:
            key = new_key(table, number)
        rows[str(key)] = {table.key: key, **{name: one for name, one in record.items() if name != table.key}}
    return rows


def drawn(table: Table, rng: random.Random, *, examples: bool) -> Record:
    """A record with a value for each field that has one, without its key unless that is said by people.

    Args:
        table: whose record it is.
        rng: draws.
        examples: whether a field may have the only example that the document gives: not in every row.
    """
    names = [name for name in table.fields if name != table.key or table.given][:_MOST_FIELDS]
    fields = {name: one if examples else varied(one) for name, one in table.fields.items()}
    tool = Tool(name=table.name, parameters={"type": "object", "properties": cast(Json, fields)})
    record: Record = {}
    for name in names:
        value = value_of(tool, name, rng)
        if value not in ({}, [], None):
            record[name] = value
    return record


def varied(schema: Mapping[str, Any]) -> dict[str, Any]:
    """A schema without its example, where there is only one: all values would be the same.

    It stays where texts have a pattern that cannot be drawn from with certainty.
    """
    stays = not is_simple(schema.get("pattern", ""))
    return {name: one for name, one in schema.items() if name != "examples" or len(one) > 1 or stays}


def value_of(tool: Tool, name: str, rng: random.Random) -> Json:
    """A value for a field; a moment is always the same one, within an object all fields have a value."""
    schema = tool.properties[name]
    if schema.get("format") == "date-time":
        return MOMENT
    if schema.get("type") == "object" and "properties" in schema:
        return _object(name, schema, rng)
    items = cast("Mapping[str, Any]", schema.get("items") or {})
    if schema.get("type") == "array" and "properties" in items:
        return [_object(name, items, rng)]
    return fresh(tool, name, rng)


def _object(name: str, schema: Mapping[str, Any], rng: random.Random) -> Json:
    nested = Tool(name=name, parameters={"type": "object", "properties": schema["properties"]})
    return {
        key: fresh(nested, key, rng)
        for key, one in nested.properties.items()
        if one.get("type") in ("string", "integer", "number", "boolean")
    }


def new_key(table: Table, number: int) -> Json:
    """The key of the record that is made as the so-many-th of its table: always the same one."""
    schema = table.fields[table.key]
    if schema.get("type") == "integer":
        most, least = schema.get("maximum", _FIRST + ROWS), schema.get("minimum", 1)
        return number + (_FIRST if most >= _FIRST + ROWS else int(least) - 1)
    if schema.get("format") == "uuid":
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{table.name}/{number}"))
    return f"{words_of(table.name)[-1][:3].upper()}-{_FIRST + number}"
