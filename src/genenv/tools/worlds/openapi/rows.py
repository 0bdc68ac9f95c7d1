"""Initial rows of the mock tables, drawn from the JSON schemas of their fields; changes and responses."""

from __future__ import annotations

import itertools
import random
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

from genenv.errors import DataError
from genenv.tools.discover.state_values import words_of
from genenv.tools.generate.fresh_values import FORMATS, fresh
from genenv.tools.generate.named_texts import alike
from genenv.tools.worlds.base import Tool
from genenv.tools.worlds.openapi.resources import Action, Table
from genenv.tools.worlds.openapi.shapes import (
    Answer,
    Field,
    items_of,
    plain,
    properties_of,
    reference_path,
    required_of,
)
from genenv.types import Json
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
State = Mapping[str, dict[str, Record]]
"""The rows of each table by their keys."""


def first_state(tables: Mapping[str, Table], seed: str, known: State) -> State:
    """Return the initial rows of all tables; records that they refer to exist.

    Args:
        tables: the tables.
        seed: of what is drawn.
        known: the rows of some tables.

    Raises:
        DataError: a known row is not stored under its key.
    """
    state = {name: rows for name, rows in known.items() if name in tables}
    for name, rows in state.items():
        field = tables[name].key
        for key, record in rows.items():
            if str(record.get(field)) != key:
                raise DataError(f"rows of {name}: the row {key!r} must have {field} = {key!r}")
    waiting = {name: one for name, one in tables.items() if name not in state}
    while waiting:
        ready = [name for name, one in waiting.items() if not set(one.links.values()) & ({*waiting} - {name})]
        for name in ready or list(waiting)[:1]:  # in a cycle of references, start with any table
            table = waiting.pop(name)
            state[name] = _rows(table, tables, state, random.Random(f"{seed} {name}"))
    return {name: state[name] for name in tables}


def _rows(
    table: Table,
    tables: Mapping[str, Table],
    state: Mapping[str, Mapping[str, Record]],
    rng: random.Random,
) -> dict[str, Record]:
    """Return the initial rows of a table, given the rows of the tables that it can refer to."""
    rows: dict[str, Record] = {}
    others = [name for name in table.owners.values() if name not in (*table.parents, table.key)]
    owners = {name: [valued(name, table.fields[name], rng) for _ in range(2)] for name in others}
    for number in range(1, ROWS + 1):
        record = _drawn(table, rng, examples=number == 1)
        record |= {name: rng.choice(values) for name, values in owners.items()}
        for name, other in table.links.items():
            there = list(state.get(other, {}).values())
            if there := there or (_foretold(tables[other]) if other in tables else []):
                owner = rng.choice(there)
                record[name] = owner[tables[other].key]
                if name in table.parents:  # the owners of the owner are owners of this record
                    shared = [(own, tables[other].owners.get(one)) for one, own in table.owners.items()]
                    record |= {own: owner[one] for own, one in shared if one in owner}
        key = record.get(table.key) if table.given else None
        if key is None or str(key) in rows:
            key = new_key(table, number, rows)
        if key is None:
            break
        rows[str(key)] = {table.key: key, **{name: one for name, one in record.items() if name != table.key}}
    return rows


def _foretold(table: Table) -> list[Record]:
    """Return the keys of rows that are not drawn yet, as tables may refer to each other in a circle."""
    keys = [] if table.given else [new_key(table, number) for number in range(1, ROWS + 1)]
    return [{table.key: key} for key in keys if key is not None]


def _drawn(table: Table, rng: random.Random, *, examples: bool) -> Record:
    """Return a record with random values, without a key unless users choose it.

    Only with `examples`, a field may take the document's only example: not all rows should have it.
    """
    names = [name for name in table.fields if name != table.key or table.given]
    known = [name for name in names if {"type", "enum", "const", "properties"} & set(table.fields[name])]
    record: Record = {}
    for name in names:
        if name in known[:_MOST_FIELDS] or name in table.required:
            schema = table.fields[name]
            schema = schema if examples else varied(schema, name)
            value = valued(name, schema, rng, record=table.word)
            if name in table.required or value not in ({}, [], None):
                record[name] = value
    return record


_CLASSES = frozenset({"class", "kind", "object", "type"})
"""Last words of fields whose value says what a record is, so that all records of a table share it."""
_MOST_EXAMPLES = 6


def varied(schema: Mapping[str, Any], name: str = "") -> dict[str, Any]:
    """Return a schema without its example if there is only one, as all values would be equal.

    The example is kept if the schema has a pattern from which texts cannot be drawn reliably.

    Args:
        schema: of a field.
        name: the name of the field, if an example that says what a record is (`"type": "task"`) is to be
            kept, too, and one with a form (`12345`, `cus_4fx`, `EUR`) to be joined by others like it.
    """
    examples = cast("Sequence[Json]", schema.get("examples", ()))
    (one,) = examples if len(examples) == 1 else (None,)
    if len(examples) != 1 or not is_simple(schema.get("pattern", "")):
        return dict(schema)
    has_form = {"enum", "pattern"} & set(schema) or schema.get("format") in FORMATS
    if name and isinstance(one, str) and not has_form:
        if _CLASSES & {*words_of(name)[-1:]}:
            return dict(schema)
        rng = random.Random(one)
        others = [other for _ in range(_MOST_EXAMPLES - 1) if (other := alike(one, rng)) is not None]
        if others and all(fits(schema, other) for other in others):
            return {**schema, "examples": list(dict.fromkeys((one, *others)))}
    return {name: one for name, one in schema.items() if name != "examples"}


def valued(
    name: str, schema: Mapping[str, Any], rng: random.Random, depth: int = 0, *, record: str = ""
) -> Json:
    """Return a random value that a field's schema allows.

    Dates with time are always `MOMENT`. Outer objects have all single fields, inner ones required ones.

    Args:
        name: the name of the field.
        schema: its schema.
        rng: draws the value.
        depth: the number of objects and lists that the field is in.
        record: the name of the record that has the field, for names and titles.
    """
    if schema.get("format") == "date-time" and schema.get("type", "string") == "string":
        return MOMENT
    properties = properties_of(schema)
    if properties and depth < _DEEPEST:
        required = required_of(schema)
        single = ("string", "integer", "number", "boolean")
        return {
            key: valued(key, one, rng, depth + 1, record=name)
            for key, one in properties.items()
            if key in required or (depth < 2 and one.get("type") in single)
        }
    items = items_of(schema)
    if schema.get("type") == "array" and properties_of(items):
        least = int(schema.get("minItems", 1)) if depth < _DEEPEST else 0
        return [valued(name, items, rng, depth + 1) for _ in range(max(1, min(least, 4)))]
    return next((one for one in _draws(name, schema, rng, record) if fits(schema, one)), None)


def _draws(name: str, schema: Mapping[str, Any], rng: random.Random, record: str = "") -> Iterator[Json]:
    """Yield natural values, then others that the schema may allow."""
    if schema.get("type", "string") == "string" and "pattern" in schema and "enum" not in schema:
        yield str(rng.randrange(_FIRST, 10 * _FIRST))
        schema = {key: one for key, one in schema.items() if key != "format"}
    tool = replace(alone(name, schema), name=record or name)
    for _ in range(_TRIES):
        yield fresh(tool, name, rng)


def fits(schema: Mapping[str, Any], value: Json) -> bool:
    """Whether a schema allows a value."""
    return alone("it", schema).problem({"it": value}) is None


def completed(schema: Mapping[str, Any], value: Json) -> Json:
    """Return a value with the defaults of inner fields that it leaves out."""
    if isinstance(value, list):
        return [completed(items_of(schema), one) for one in value]
    if not isinstance(value, dict):
        return value
    inner = properties_of(schema)
    whole: dict[str, Json] = {name: completed(inner.get(name, {}), one) for name, one in value.items()}
    return {**defaults_of(inner), **whole}


def defaults_of(fields: Mapping[str, Mapping[str, Any]]) -> dict[str, Json]:
    """Return the defaults of fields, where their schemas allow them."""
    stated = {name: (one, cast(Json, one["default"])) for name, one in fields.items() if "default" in one}
    return {name: completed(one, value) for name, (one, value) in stated.items() if fits(one, value)}


def alone(name: str, schema: Mapping[str, Any]) -> Tool:
    """Return a tool with one argument of that schema, to check and draw values."""
    return Tool(name=name, parameters={"type": "object", "properties": {name: cast(Json, dict(schema))}})


def new_key(table: Table, number: int, taken: Collection[str] = ()) -> Json:
    """Return the key of a table's record with a number (from 1 on), the same one on each call.

    It is None if the document allows no key besides those that are taken.
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


def part_set(action: Action, table: Table, args: Record) -> Record:
    """Return what a change of a part sets: a status named like the action, its fields, or the part itself."""
    status = _status(action.part, table)
    changes: Record = dict([status]) if status is not None else {}
    if args and all(name in table.fields for name in args):
        return {**changes, **args}
    if args or status is None:
        changes[action.part] = args or True
    return changes


_STATES = frozenset({"status", "state", "phase", "stage"})
"""Last words of fields that actions set."""
_PAST: Mapping[str, str] = {
    **{"buy": "bought", "hold": "held", "pay": "paid", "sell": "sold", "send": "sent", "take": "taken"},
    **{"undo": "undone", "withdraw": "withdrawn", "write": "written"},
}
"""Participles of irregular verbs."""


def _status(action: str, table: Table) -> tuple[str, str] | None:
    """Return the field and the value that an action sets, such as status `cancelled` for `cancel`."""
    verb = plain(action)
    past = _PAST.get(verb, f"{verb}ed"), f"{verb}d", f"{verb}{verb[-1:]}ed", f"{verb[:-1]}ied"
    for name, schema in table.fields.items():
        values = {plain(str(one)): str(one) for one in schema.get("enum", ())}
        for form in (*past, verb, f"{verb}ing") if _STATES & {*words_of(name)[-1:]} else ():
            if form in values:
                return name, values[form]
    return None


_COUNTS = frozenset({"total", "count", "size", "totalcount", "totalresults", "totalitems", "totalsize"})
"""Names of fields that hold the number of records."""
_DONE = frozenset({"deleted", "success", "successful", "ok", "done", "removed"})
"""Names of fields that confirm a change."""
_PYTHON: Mapping[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
}


class AnswerBuilder:
    """Builds the response of a mock operation as the document declares it; else it is the records."""

    def __init__(self, answer: Answer | None, seed: str) -> None:
        self._answer, self._seed = answer, seed
        self._made: dict[tuple[str, ...], Json] = {}

    def told(self, value: Json) -> Json:
        """Return the response for a record, for a list of records, or for another part of a record."""
        answer, listed = self._answer, value if isinstance(value, list) else [value]
        records = [one for one in listed if isinstance(one, dict)]
        if answer is None or len(records) < len(listed) or not (records or answer.many):
            return value
        if not answer.many and not answer.fields:
            return self._new((), answer.schema)
        items = [_as_declared(answer.fields, one) for one in records]
        value = items if answer.many else items[0]
        for name in reversed(answer.path):
            value = {name: value}
        return self._completed(value, answer.schema, (), len(records))

    def _completed(self, value: Json, schema: Mapping[str, Any], path: tuple[str, ...], count: int) -> Json:
        """Return a response with the further fields that its schema requires."""
        if isinstance(value, list):
            items = items_of(schema)
            return [self._completed(one, items, (*path, "*"), count) for one in value]
        if not isinstance(value, dict):
            return value
        properties = properties_of(schema)
        whole: dict[str, Json] = {
            name: self._completed(one, properties.get(name, {}), (*path, name), count)
            for name, one in value.items()
        }
        is_bare = not whole and not path  # an acknowledgment without a record
        for name in properties:
            is_single = properties[name].get("type") in ("string", "integer", "number", "boolean")
            if name in whole or not (name in required_of(schema) or (is_bare and is_single)):
                continue
            kind = properties[name].get("type")
            if "nullable" in properties[name]:
                whole[name] = None
            elif plain(name) in _COUNTS and kind in ("integer", "number"):
                whole[name] = count
            elif kind == "boolean":
                whole[name] = plain(name) in _DONE
            elif kind == "array" and not properties[name].get("minItems"):
                whole[name] = []
            else:
                whole[name] = self._new((*path, name), properties[name])
        return whole

    def _new(self, path: tuple[str, ...], schema: Mapping[str, Any]) -> Json:
        """Return a value that no record has, the same one on each call."""
        if path not in self._made:
            rng = random.Random(f"{self._seed} {path}")
            self._made[path] = valued(path[-1] if path else self._seed, schema, rng)
        return self._made[path]


def _as_declared(fields: Mapping[str, Field], record: Record) -> Json:
    """Return the fields of a record that a response declares, at their declared paths."""
    made: dict[str, Json] = {}
    for name, one in fields.items():
        if (value := _fitting(record.get(name), one.schema) if name in record else None) is not None:
            inside = made
            for part in one.path[:-1]:
                inside = cast("dict[str, Json]", inside.setdefault(part, {}))
            inside[one.path[-1]] = value
    return made


def _fitting(value: Json, schema: Mapping[str, Any]) -> Json:
    """Convert a value to its declared type; None if that is not possible.

    Request and response may differ in a field: `"owner": "U-1"` is returned as `{"id": "U-1"}`.
    """
    kind = str(schema.get("type", ""))
    if "const" in schema or "enum" in schema:
        listed = cast("Sequence[Json]", schema.get("enum", [schema.get("const")]))
        return value if value in listed else listed[0] if len(listed) == 1 else None
    if isinstance(value, list) and kind == "array":
        items = items_of(schema)
        return [one for one in (_fitting(one, items) for one in value) if one is not None]
    is_bool = isinstance(value, bool) and kind in ("integer", "number")
    if kind not in _PYTHON or (isinstance(value, _PYTHON[kind]) and not is_bool):
        return value
    if kind == "array" and not isinstance(value, dict):
        return None if value is None else _fitting([value], schema)
    if kind == "object" and isinstance(value, str | int):
        path = reference_path(schema)
        for name in reversed(path):
            value = {name: value}
        return value if path else None
    if kind == "string" and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, dict) and (path := reference_path({"properties": {one: {} for one in value}})):
        return _fitting(value[path[0]], schema)
    return None
