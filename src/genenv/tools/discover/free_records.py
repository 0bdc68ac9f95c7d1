"""Fill arguments that are records of which no schema names the fields, such as `data` of `create_record`.

Their fields are those of the records in the state: of the table that another argument names, if one does.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from genenv.tools.discover.state_values import ANY, Records, refers, singular, words_of
from genenv.tools.generate.fresh_values import fresh
from genenv.tools.language.words import ORDERS
from genenv.tools.worlds.base import Tool
from genenv.types import Json, JsonObject

_SELECTING = frozenset(
    {"condition", "criteria", "criterion", "filter", "match", "query", "selector", "where"}
)
"""Words of arguments that select records by values that they have."""
_MAKING = frozenset({"add", "create", "insert", "new", "put", "register"})
"""Words of tools whose argument is a whole record."""
_CHANGED = 2
"""Maximum number of fields that are given to a tool that changes a record."""
_OF_FEW = 2
"""A field is one of a few values if it has at most one value for so many records."""

Fields = dict[str, Json]


def free_records(
    tool: Tool,
    args: Mapping[str, Json],
    names: Sequence[str],
    given: Mapping[str, Json],
    records: Records,
    rng: random.Random,
) -> dict[str, Json]:
    """Return the arguments that are objects of which the schema names no field, filled with fields.

    An argument that selects (`conditions`) gets a value of an existing record; a tool that makes a record
    gets new values for all of its fields but the id; another tool gets new values for one or two.

    Args:
        tool: the tool.
        args: the arguments.
        names: the arguments that may be filled.
        given: values that other arguments will have.
        records: the records of the state; if there are none, nothing is filled.
        rng: random numbers.
    """
    free = [name for name in names if _is_free(tool, name)]
    if not free:
        return {}
    texts = {str(one).lower() for one in {**args, **given}.values() if isinstance(one, str)}
    made = {name: _filled(tool, name, texts, records, rng) for name in free}
    return {name: fields for name, fields in made.items() if fields}


def _is_free(tool: Tool, name: str) -> bool:
    schema = tool.resolved(tool.properties[name])
    return schema.get("type") == "object" and not schema.keys() & {"properties", "enum", "const", "examples"}


def _filled(tool: Tool, name: str, texts: set[str], records: Records, rng: random.Random) -> Fields:
    """Return fields for one argument, of a table that one of some texts names, or that the tool is about."""
    tables = {kind: rows for kind, found in records.by_kind.items() if (rows := _rows(kind, found))}
    named = [kind for kind in tables if _noun(kind).lower() in texts]
    about = {*words_of(tool.name)} - ORDERS
    suited = named or [kind for kind in tables if singular(_noun(kind).lower()) in about] or [*tables]
    if not suited:
        return {}
    kind = rng.choice(suited)
    row, own = rng.choice(tables[kind]), _ids(kind)
    if _SELECTING & {*words_of(name)}:
        ids = [field for field in row if field in own]
        field = rng.choice(ids if ids and rng.random() < 0.5 else [*row])
        return {field: row[field]}
    fields = [field for field in row if field not in own]
    if not _MAKING & {*words_of(tool.name)}:
        fields = rng.sample(fields, min(len(fields), rng.randint(1, _CHANGED)))
    return {field: _new(field, tables[kind], singular(_noun(kind)), rng) for field in fields}


def _rows(kind: str, found: Sequence[Mapping[str, Sequence[Json]]]) -> list[Fields]:
    """Return records as their single fields; empty if they have none, as numbers in a list."""
    rows: list[Fields] = []
    for one in found:
        inner = {
            name.removeprefix(f"{kind}."): values
            for name, values in one.items()
            if name.startswith(f"{kind}.")
        }
        rows.append(
            {name: values[0] for name, values in inner.items() if len(values) == 1 and "." not in name}
        )
    return [row for row in rows if row]


def _noun(kind: str) -> str:
    """Return the name of a table: `customers` of `shop.customers.*`."""
    return next((part for part in reversed(kind.split(".")) if part != ANY), "")


def _ids(kind: str) -> set[str]:
    """Return the names that the id of a table's records may have."""
    noun = singular(_noun(kind).lower())
    return {"id", "_id", "uuid", "rowid", f"{noun}_id", f"{noun}Id"}


def _new(field: str, rows: Sequence[Fields], record: str, rng: random.Random) -> Json:
    """Return a new value of a field: an existing one of references and categories, else a made-up one."""
    values = [row[field] for row in rows if field in row]
    distinct = list({repr(one): one for one in values}.values())
    if refers(field) or len(distinct) * _OF_FEW <= len(values):
        return rng.choice(distinct)
    schema: JsonObject = {"type": _type_of(distinct[0])}
    alone = Tool(name=record or field, parameters={"type": "object", "properties": {field: schema}})
    return fresh(alone, field, rng)


def _type_of(value: Json) -> str:
    match value:
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case _:
            return "string"
