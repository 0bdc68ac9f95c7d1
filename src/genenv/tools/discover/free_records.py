"""Fill arguments that are objects without a schema of their fields, such as `data` of `create_record`.

Their fields are those of the records in the state: of the table that another argument names, or the tool.
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence

from genenv.tools.discover.state_values import ANY, Records, singular, words_of
from genenv.tools.generate.fresh_values import consistent, fresh
from genenv.tools.generate.named_texts import alike
from genenv.tools.worlds.base import Tool
from genenv.types import Json, JsonObject

_SELECTING = frozenset(
    {"condition", "criteria", "criterion", "filter", "match", "query", "selector", "where"}
)
"""Words of arguments that select records by values that they have."""
_HOLDING = frozenset({"change", "data", "entry", "field", "item", "record", "row", "update", "value"})
"""Words of arguments that hold fields of a record."""
_MAKING = frozenset({"add", "create", "insert", "new", "put", "register"})
"""First words of tools whose argument is a whole record."""
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
    gets new values for all of its fields but the id; another tool gets new values for one or two. What the
    schema does not allow is left out.

    Args:
        tool: the tool.
        args: the arguments.
        names: the arguments that may be filled.
        given: values that other arguments will have.
        records: the records of the state; if there are none, nothing is filled.
        rng: random numbers.
    """
    free = [name for name in names if _names_no_field(tool, name)]
    if not free:
        return {}
    texts = {singular(one.lower()) for one in {**args, **given}.values() if isinstance(one, str)}
    made = {name: _filled(tool, name, texts, records, rng) for name in free}
    return {name: fields for name, fields in made.items() if fields and tool.fits(name, fields)}


def _names_no_field(tool: Tool, name: str) -> bool:
    schema = tool.resolved(tool.properties[name])
    told = {"properties", "enum", "const", "examples", "default"}
    return schema.get("type") == "object" and not schema.keys() & told


def _filled(tool: Tool, name: str, texts: set[str], records: Records, rng: random.Random) -> Fields:
    """Return fields for an argument, of a table that one of some texts names, or that the tool is about."""
    kind = _table(tool, name, texts, [*records.fields], rng)
    if kind is None:
        return {}
    rows, own = records.fields[kind], _ids(kind)
    row = rng.choice(rows)
    if _SELECTING & {*words_of(name)}:
        ids = [field for field in row if field in own]
        field = rng.choice(ids if ids and rng.random() < 0.5 else [*row])
        return {field: row[field]}
    fields = [field for field in row if field not in own]
    if not _MAKING & {*words_of(tool.name)[:1]}:
        fields = rng.sample(fields, min(len(fields), rng.randint(1, _CHANGED)))
    return consistent({field: _new(field, rows, singular(_noun(kind)), rng) for field in fields})


def _table(tool: Tool, name: str, texts: set[str], kinds: Sequence[str], rng: random.Random) -> str | None:
    """Return the table whose fields an argument can have, or None if nothing says so.

    A text of another argument names it, or the words of the tool (of several the longest name), or it is the
    only one, where the argument is called after what it holds.
    """
    if named := [kind for kind in kinds if singular(_noun(kind).lower()) in texts]:
        return rng.choice(named)
    said = " ".join(("", *words_of(tool.name)[1:], ""))
    about = {kind: " ".join(words_of(_noun(kind))) for kind in kinds}
    if suited := [kind for kind, noun in about.items() if noun and f" {noun} " in said]:
        return max(suited, key=lambda kind: len(about[kind]))
    is_told = bool((_SELECTING | _HOLDING) & {*words_of(name)})
    return kinds[0] if len(kinds) == 1 and is_told else None


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
    if words_of(field)[-1:] == ("id",) or len(distinct) * _OF_FEW <= len(values):
        return rng.choice(distinct)
    one = rng.choice(distinct)
    if isinstance(one, str) and (other := alike(one, rng)) is not None:
        return other
    schema: JsonObject = {"type": _type_of(one)}
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
