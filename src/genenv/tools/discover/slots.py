"""What takes a value in a call of a tool: its parameters, and the fields of records that they are given."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import cast

from genenv.tools.discover.state_values import refers, words_of
from genenv.tools.generate.fresh_values import names_day, record_noun
from genenv.tools.worlds.base import Tool
from genenv.types import Json, JsonObject

_MOST_SLOTS = 16
"""Number of slots of a tool from which on optional fields of records are left out."""


def slots(tool: Tool) -> dict[str, bool]:
    """Return what takes a value, and whether it must: parameters, and fields of records, as `name.field`.

    Of fields that a record must have, texts, integers and lists are listed; others are drawn with the record.
    """
    found: dict[str, bool] = {}
    for outer in tool.properties:
        found[outer] = outer in tool.required
        if "." in outer:  # its fields would look like those of another one
            continue
        record = _record(tool, outer)
        needed = _required(record)
        for name, schema in cast("Mapping[str, JsonObject]", record.get("properties", {})).items():
            is_plain = tool.resolved(schema).get("type") in ("string", "integer", "array")
            if (is_plain and "enum" not in schema) if name in needed else len(found) < _MOST_SLOTS:
                found.setdefault(f"{outer}.{name}", outer in tool.required and name in needed)
    return found


def required_fields(tool: Tool, outer: str) -> Sequence[str]:
    """Return the fields that a record in an argument must have."""
    return _required(_record(tool, outer))


def _required(record: JsonObject) -> Sequence[str]:
    return cast("Sequence[str]", record.get("required", ()))


def _record(tool: Tool, outer: str) -> JsonObject:
    """Return the schema of a parameter, or of its items if it is a list."""
    schema = tool.resolved(tool.properties[outer])
    return (
        tool.resolved(cast(JsonObject, schema.get("items", {}))) if schema.get("type") == "array" else schema
    )


def is_free(tool: Tool, slot: str) -> bool:
    """Whether a required parameter is a list of records of which the schema names no field."""
    if slot not in tool.required:
        return False
    schema = tool.resolved(tool.properties[slot])
    items = tool.resolved(cast(JsonObject, schema.get("items", {})))
    named = items.keys() & {"properties", "enum", "const", "anyOf", "oneOf", "allOf", "examples"}
    return items.get("type") == "object" and not named and not schema.get("examples")


def alone(tool: Tool, slot: str) -> tuple[Tool, str]:
    """Return a tool that has a slot as a parameter, and the name of that parameter."""
    if slot in tool.properties:
        return tool, slot
    outer, _, field = slot.partition(".")
    record = _record(tool, outer)
    schema = cast("Mapping[str, Json]", record["properties"])[field]
    parameters: JsonObject = {**tool.parameters, "properties": {field: schema}}
    return Tool(name=record_noun(tool, record, outer), parameters=parameters), field


def meant(slot: str) -> str:
    """Return the name by which the source of a slot is looked for: the `id` of `topics` is a topic's."""
    outer, _, field = slot.partition(".")
    return f"{outer}_{field}" if field and refers(field) else field or outer


def taken(tool: Tool, slot: str, values: Sequence[Json]) -> Sequence[Json]:
    """Return values in the type that a slot has: keys in JSON are texts, times have a day."""
    of, name = alone(tool, slot)
    schema = _record(of, name)
    if schema.get("format") == "date":
        return [one[:10] if isinstance(one, str) and _TIME.match(one) else one for one in values]
    told = schema.get("type")
    types = set(cast("list[str]", told if isinstance(told, list) else [told]))
    if types & {"integer", "number"} and "string" not in types:
        return [int(one) if isinstance(one, str) and _WHOLE.fullmatch(one) else one for one in values]
    if "string" in types and not types & {"integer", "number"}:
        return [str(one) if type(one) is int else one for one in values]
    return values


def takes_list(tool: Tool, parameter: str) -> bool:
    """Whether a parameter takes a list."""
    return tool.resolved(tool.properties[parameter]).get("type") == "array"


def arguments(tool: Tool, parameter: str, values: Sequence[Json]) -> list[Json]:
    """Return values of the state or of users as a parameter takes them: in its type, and lists of them.

    Those that its schema refuses are left out.
    """
    given = [*taken(tool, parameter, values)]
    if not takes_list(tool, parameter):
        return [one for one in given if tool.fits(parameter, one)]
    least = max(1, cast(int, tool.resolved(tool.properties[parameter]).get("minItems", 1)))
    rows = [given[place : place + least] for place in range(len(given) - least + 1)]
    return [row for row in rows if tool.fits(parameter, row)]


def items(value: Json) -> list[Json]:
    """Return the items of a list, or a value as the only item: arguments hold state values in lists."""
    return value if isinstance(value, list) else [value]


def filled(tool: Tool, named: Iterable[str], args: Mapping[str, Json]) -> list[str]:
    """Return the slots that arguments fill: parameters, and those of some named fields that a record has."""
    found, there = [*args], slots(tool)
    for slot in named:
        outer, _, field = slot.partition(".")
        records = items(args.get(outer)) if slot in there and slot not in tool.properties else ()
        if any(isinstance(one, Mapping) and field in one for one in records):
            found.append(slot)
    return found


def replaced(args: Mapping[str, Json], slot: str, value: Json) -> dict[str, Json]:
    """Return arguments with another value in a slot: a parameter, or a field of all records that have it."""
    if slot in args:
        return {**args, slot: value}
    outer, _, field = slot.partition(".")
    held = args[outer]
    records = [
        {**one, field: value} if isinstance(one, Mapping) and field in one else one for one in items(held)
    ]
    return {**args, outer: records if isinstance(held, list) else records[0]}


def other_than(tool: Tool, slot: str, args: Mapping[str, Json], again: Mapping[str, Json]) -> dict[str, Json]:
    """Return arguments with the value that a slot has in others; an optional one is left out."""
    outer, _, field = slot.partition(".")
    if slot in tool.properties:
        kept = {name: one for name, one in args.items() if name != slot}
        return {**kept, slot: again[slot]} if slot in tool.required and slot in again else kept
    if slots(tool)[slot] or outer not in args:
        return dict(args)
    less = [
        {name: inner for name, inner in one.items() if name != field} if isinstance(one, Mapping) else one
        for one in items(args[outer])
    ]
    return {**args, outer: less if isinstance(args[outer], list) else less[0]}


def are_days(values: Iterable[Json]) -> bool:
    """Whether values look like days, or moments of a day."""
    return any(_DAY.match(one) for one in values if isinstance(one, str))


_FEW = 6
"""Maximum number of distinct values of a category."""
_CATEGORY = re.compile(r"[A-Za-z]+(?:[_-][a-z]+)*")


def are_categories(values: Sequence[Json]) -> bool:
    """Whether values are few words, such as states that several records have."""
    return len(values) <= _FEW and all(_CATEGORY.fullmatch(str(one)) for one in values)


def takes_day(tool: Tool, slot: str) -> bool:
    """Whether a slot takes a day, by its name or its schema."""
    of, name = alone(tool, slot)
    return names_day(name) or of.resolved(of.properties[name]).get("format") in ("date", "date-time")


def is_day(value: Json) -> bool:
    """Whether a value is a day, and no moment of one."""
    return isinstance(value, str) and len(value) == len("2026-11-30") and are_days([value])


def is_number(tool: Tool, slot: str) -> bool:
    """Whether a slot takes a number."""
    of, name = alone(tool, slot)
    return of.resolved(of.properties[name]).get("type") in ("integer", "number")


PLACES = frozenset({"cursor", "offset", "page", "skip"})
"""Words of arguments that say where a list goes on: no value of a record does."""
_MOST_FILTERS = 8
"""Maximum number of sources of an optional argument that its name does not suggest."""


def filters(tool: Tool, slot: str, firsts: Mapping[str, Json]) -> list[str]:
    """Return the sources whose values may suit an optional argument of a tool that reads.

    Args:
        tool: the tool.
        slot: the argument.
        firsts: the first value of each source.
    """
    if PLACES & {*words_of(slot)}:
        return []
    if takes_day(tool, slot):
        return [kind for kind, one in firsts.items() if is_day(one)][:_MOST_FILTERS]
    kinds = [kind for kind, one in firsts.items() if type(one) in (int, float) and not refers(kind)]
    texts = [kind for kind, one in firsts.items() if isinstance(one, str)]
    return (kinds if is_number(tool, slot) else texts)[:_MOST_FILTERS]


_DAY = re.compile(r"\d{4}-\d\d|\d{1,2}[./]\d{1,2}[./]\d{2}")
_TIME = re.compile(r"\d{4}-\d\d-\d\d[T ]\d\d:")
_WHOLE = re.compile(r"-?(?:0|[1-9]\d{0,14})")


def allowed_values(tool: Tool, slot: str) -> Sequence[Json]:
    """Return the values that the schema of an argument lists; empty if it lists none."""
    alone_in, name = alone(tool, slot)
    return cast("Sequence[Json]", alone_in.resolved(alone_in.properties[name]).get("enum", ()))
