"""Initial rows of the mock tables, drawn from the JSON schemas of their fields."""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any, cast

from genenv.tools.discover.state_values import words_of
from genenv.tools.generate.fresh_values import fresh
from genenv.tools.worlds.base import Tool
from genenv.tools.worlds.openapi.resources import Table
from genenv.tools.worlds.openapi.shapes import properties_of
from genenv.types import Json, JsonObject
from genenv.untrusted.patterns import is_simple

ROWS = 6
"""Number of initial rows of each table."""
MOMENT = "2026-01-05T09:00:00Z"
"""The value of all dates with time."""
_MOST_FIELDS = 12
_FIRST = 100
"""Lower bound of drawn numbers in keys and patterns."""
_TRIES = 12
_DEEPEST = 8

Record = dict[str, Json]
State = dict[str, dict[str, Record]]


def first_state(tables: Mapping[str, Table], seed: str) -> State:
    """Return the initial rows of all tables; records that they refer to exist.

    Args:
        tables: the tables by name.
        seed: seed of all random values.
    """
    state: State = {}
    waiting = dict(tables)
    while waiting:
        ready = [name for name, one in waiting.items() if not set(one.links.values()) & ({*waiting} - {name})]
        for name in ready or list(waiting)[:1]:  # in a cycle of references, start with any table
            table = waiting.pop(name)
            state[name] = _rows(table, tables, state, random.Random(f"{seed} {name}"))
    return {name: state[name] for name in tables}


def _rows(
    table: Table, tables: Mapping[str, Table], state: Mapping[str, Mapping[str, Record]], rng: random.Random
) -> dict[str, Record]:
    """Return the initial rows of a table.

    Args:
        table: the table.
        tables: the tables that it can refer to.
        state: the rows of these tables that exist so far.
        rng: random numbers.
    """
    rows: dict[str, Record] = {}
    scopes = {name: [valued(name, table.fields[name], rng) for _ in range(2)] for name in _scopes(table)}
    for number in range(1, ROWS + 1):
        record = drawn(table, rng, examples=number == 1)
        record |= {name: rng.choice(values) for name, values in scopes.items()}
        for name, other in table.links.items():
            if there := list(state.get(other, {}).values()):
                owner = rng.choice(there)
                record[name] = owner[tables[other].key]
                if name in table.parents:  # the owners of the owner are owners of this record
                    shared = tables[other].owners
                    record |= {
                        own: owner[shared[one]]
                        for one, own in table.owners.items()
                        if shared.get(one) in owner
                    }
        key = record.get(table.key) if table.given else None
        if key is None or str(key) in rows:
            key = new_key(table, number, rows)
        if key is None:
            break
        rows[str(key)] = {table.key: key, **{name: one for name, one in record.items() if name != table.key}}
    return rows


def _scopes(table: Table) -> list[str]:
    """Return the owner fields whose owners are in no table."""
    return [name for name in table.owners.values() if name not in table.parents and name != table.key]


def drawn(table: Table, rng: random.Random, *, examples: bool) -> Record:
    """Return a record with random values, without a key unless users choose it.

    Args:
        table: the table of the record.
        rng: random numbers.
        examples: whether a field may take the document's only example, which not all rows should.
    """
    names = [name for name in table.fields if name != table.key or table.given]
    some = [name for name in names if _is_known(table.fields[name])][:_MOST_FIELDS]
    record: Record = {}
    for name in names:
        if name in some or name in table.required:
            schema = table.fields[name] if examples else varied(table.fields[name])
            value = valued(name, schema, rng)
            if name in table.required or value not in ({}, [], None):
                record[name] = value
    return record


def _is_known(schema: Mapping[str, Any]) -> bool:
    """Whether a schema restricts a value."""
    return bool({"type", "enum", "const", "properties"} & set(schema))


def varied(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema without its example if there is only one, as all values would be equal.

    The example is kept if the schema has a pattern from which texts cannot be drawn reliably.
    """
    stays = not is_simple(schema.get("pattern", ""))
    return {name: one for name, one in schema.items() if name != "examples" or len(one) > 1 or stays}


def valued(name: str, schema: Mapping[str, Any], rng: random.Random, depth: int = 0) -> Json:
    """Return a random value that a field's schema allows.

    Dates with time are always `MOMENT`. Outer objects have all single fields, inner ones required ones.
    """
    if schema.get("format") == "date-time" and schema.get("type", "string") == "string":
        return MOMENT
    properties = properties_of(schema)
    if properties and depth < _DEEPEST:
        required = set(cast("Sequence[str]", schema.get("required", ())))
        single = ("string", "integer", "number", "boolean")
        return {
            key: valued(key, one, rng, depth + 1)
            for key, one in properties.items()
            if key in required or (depth < 2 and one.get("type") in single)
        }
    items = cast("Mapping[str, Any]", schema.get("items") or {})
    if schema.get("type") == "array" and properties_of(items):
        least = int(schema.get("minItems", 1)) if depth < _DEEPEST else 0
        return [valued(name, items, rng, depth + 1) for _ in range(max(1, min(least, 4)))]
    return next((one for one in _draws(name, schema, rng) if fits(schema, one)), None)


def _draws(name: str, schema: Mapping[str, Any], rng: random.Random) -> Iterator[Json]:
    """Yield natural values, then others that the schema may allow."""
    if schema.get("type", "string") == "string" and "pattern" in schema and "enum" not in schema:
        yield str(rng.randrange(_FIRST, 10 * _FIRST))
        schema = {key: one for key, one in schema.items() if key != "format"}
    tool = Tool(name=name, parameters=_alone(name, schema))
    for _ in range(_TRIES):
        yield fresh(tool, name, rng)


def fits(schema: Mapping[str, Any], value: Json) -> bool:
    """Whether a schema allows a value."""
    return Tool(name="it", parameters=_alone("it", schema)).problem({"it": value}) is None


def _alone(name: str, schema: Mapping[str, Any]) -> JsonObject:
    return {"type": "object", "properties": {name: cast(Json, dict(schema))}}


def new_key(table: Table, number: int, taken: Collection[str] = ()) -> Json:
    """Return the key of the record with a given number in its table, the same one on each call.

    Args:
        table: the table of the record.
        number: number of the record, from 1 on.
        taken: existing keys, as texts.

    Returns:
        A key that the document allows; None if no other one is allowed.
    """
    schema = table.fields[table.key]
    listed = cast("Sequence[Json]", schema.get("enum", ()))
    if listed:
        return next((one for one in listed if str(one) not in taken), None)
    if schema.get("type") == "integer":
        most, least = schema.get("maximum", table.first + ROWS), schema.get("minimum", 1)
        return number + (table.first if most >= table.first + ROWS else int(least) - 1)
    if schema.get("format") == "uuid":
        return str(uuid.uuid5(uuid.NAMESPACE_URL, f"{table.name}/{number}"))
    words = words_of(table.word) or ("row",)
    rng = random.Random(f"{table.name} {number}")
    bare = str(table.first + number)
    usual = (f"{words[-1][:3].upper()}-{_FIRST + number}", bare, bare.zfill(int(schema.get("minLength", 0))))
    others = {name: one for name, one in schema.items() if name != "examples"}
    ways = itertools.chain(usual, _draws(table.key, others, rng))
    return next((one for one in ways if str(one) not in taken and fits(schema, one)), None)
