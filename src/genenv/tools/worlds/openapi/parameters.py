"""The arguments of a tool made from an operation, and the field of a record that each one sets or filters."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any

from genenv.tools.discover.state_values import singular
from genenv.tools.worlds.base import Tool
from genenv.tools.worlds.openapi.document import NEWEST, Parameter, argument_name, deprecated
from genenv.tools.worlds.openapi.resources import Action, Does, Table
from genenv.tools.worlds.openapi.rows import varied
from genenv.tools.worlds.openapi.shapes import is_fixed, items_of, plain, properties_of, required_of
from genenv.types import Json

_MOST_OPTIONAL = 8
"""Maximum number of optional fields of a request body that become arguments."""
_LONGEST = 8000
"""Maximum length in characters of an argument's schema; of a longer one parts are left out."""
_PAGING = frozenset(
    {"limit", "offset", "page", "perpage", "pagesize", "size", "cursor", "sort", "sortby", "order", "orderby"}
)
"""Parameters for paging and sorting, which tasks omit."""
_SEARCH = frozenset({"q", "query", "search", "keyword", "term", "text"})
_DEPRECATED = re.compile(r"\W*deprecated\b", re.IGNORECASE)
"""The beginning of a description of what should no longer be given."""


class Parameters:
    """The arguments of a tool made from an operation on a table; for the version see `OpenApiSource`."""

    def __init__(self, action: Action, table: Table, version: int = NEWEST) -> None:
        self._action, self._table, self._version = action, table, version
        self.unused: list[str] = []
        """Fields of the request body without an argument."""
        body = self._body()
        needed = self._needed(body)
        fields = [Parameter(name=n, place="", required=n in needed, schema=one) for n, one in body.items()]
        self.arguments: dict[str, Parameter] = {}
        """What each argument sets: a parameter, or a field of a record."""
        for one in (*self._listed(), *fields):
            place = one.place or singular(table.word)
            self.arguments[argument_name(one.name, self.arguments, place, python=version < 2)] = one
        queried = [name for name, one in self.arguments.items() if one.place == "query"]
        self.idle = [name for name in queried if not self._is_of_use(self.arguments[name])]
        """Required arguments without an effect on the tables."""
        says = action.does in (Does.CREATE, Does.UPDATE) or (action.does is Does.SET_PART and action.sent)
        is_lost = action.operation.body is not None and says and not body
        told = "the document names no field of what it sends that could be given"
        self.problem = told if is_lost else None
        """Why the operation cannot be a tool; None if it can."""

    @cached_property
    def tool(self) -> Tool:
        """The tool as the agent sees it."""
        return self._action.operation.tool(self.arguments)

    def read(self, args: Mapping[str, Json]) -> tuple[dict[str, Json], dict[str, Json]]:
        """Return the values of a call: path parameters by name, and other values by record field."""
        path, others = dict[str, Json](), dict[str, Json]()
        for name in [name for name in args if name not in self.idle]:
            one = self.arguments[name]
            (path if one.place == "path" else others)[one.name] = args[name]
        return path, others

    def _listed(self) -> Iterator[Parameter]:
        """Yield parameters of the path and the query. An untyped id gets the type of the key field."""
        for one in self._action.operation.parameters:
            name = self._action.parents.get(one.name) or self._table.key
            kind = self._table.fields.get(name, {}).get("type")
            told = {key: told for key, told in one.schema.items() if key != "examples"}
            is_any = {**told, "description": ""} == {"type": "string", "description": ""}
            if one.place == "path" and is_any and kind == "integer":
                yield replace(one, schema={**told, "type": kind})
            elif one.place == "path" or (one.place == "query" and (one.required or self._is_of_use(one))):
                yield replace(one, schema=self._varied(one.name, one.schema, one.place))

    def _is_of_use(self, parameter: Parameter) -> bool:
        """Whether a query parameter selects records."""
        name, schema = parameter.name, parameter.schema
        is_object = schema.get("type") == "object" and self._version > 1
        if is_object or plain(name) in _PAGING or self._action.does is not Does.LIST:
            return False
        field = field_of(self._table, name)
        if field is None:
            return plain(name) in _SEARCH and "enum" not in schema
        kept = self._table.fields[field]  # an id cannot filter a field of names
        forms = kept.get("format"), schema.get("format")
        return "uuid" not in forms or forms[0] == forms[1]

    def _body(self) -> dict[str, Any]:
        """Return the schemas of the body's fields that become arguments, without server-set keys."""
        action, table = self._action, self._table
        in_path = {one.name for one in action.operation.parameters if one.place == "path"}
        hidden = {*action.parents.values(), *action.parents}
        in_body = action.key is not None and action.key not in in_path
        if not in_body and not (table.given and action.does is Does.CREATE):
            hidden |= {table.key, action.key or table.key}
        asked = {n: one for n, one in action.sent.items() if n not in hidden and not is_fixed(one.schema)}
        kept = [name for name, one in asked.items() if one.required or name == action.key]
        optional = [name for name, one in asked.items() if name not in kept and not _is_free(one.schema)]
        optional.sort(key=lambda name: self._rank(name, asked[name].schema))
        kept += optional[: 0 if action.does is Does.DELETE and self._version > 1 else _MOST_OPTIONAL]
        self.unused = [name for name in asked if name not in kept]
        varied = {name: self._varied(name, one.schema) for name, one in asked.items() if name in kept}
        return {name: _telling(_brief(schema)) for name, schema in varied.items()}

    def _varied(self, name: str, schema: Mapping[str, Any], place: str = "") -> dict[str, Any]:
        """Return the schema of an argument; keys of records here do not look like the document's example."""
        is_key = place == "path" or name in {**self._table.links, **self._action.refers}
        return varied(schema, "" if is_key or self._version <= 3 else name)

    def _rank(self, name: str, schema: Mapping[str, Any]) -> tuple[bool, ...]:
        """Return what optional fields are ordered by: single ones first, of these what refers to records."""
        if self._version <= 3:
            return (_is_nested(schema),)
        old = _DEPRECATED.match(str(schema.get("description", ""))) is not None
        return _is_nested(schema), old, name not in {**self._table.links, **self._action.refers}

    def _needed(self, body: Mapping[str, Any]) -> set[str]:
        """Return the fields of a body that must be given for a call to make sense.

        Documents often require nothing. In that case, creating a record requires its references, and creating
        a record or setting a part requires at least one field. A key that users choose is always required.
        """
        action, table = self._action, self._table
        required = {name for name, one in action.sent.items() if one.required}
        wanted = {*required, action.key or ""}
        if action.does is Does.CREATE:
            wanted |= {*(() if required else table.refers), *((table.key,) if table.given else ())}
        found = {name for name in body if name in wanted}
        single = [name for name, schema in body.items() if not _is_nested(schema)]
        says = action.does in (Does.CREATE, Does.SET_PART)
        return found or ({*(single or [*body])[:1]} if says else set())


def field_of(table: Table, name: str) -> str | None:
    """Return the field of a record that a query parameter filters, or None."""
    bare = plain(name)
    ways = (bare, bare.rstrip("s"), bare.removeprefix("filter"))
    return next((one for one in table.fields if plain(one) in ways), None)


def _is_nested(schema: Mapping[str, Any]) -> bool:
    """Whether a value is an object, or a list of objects."""
    kinds = {schema.get("type"), items_of(schema).get("type", "string")}
    return bool(kinds & {"object", None}) and "enum" not in schema


def _is_free(schema: Mapping[str, Any]) -> bool:
    """Whether the schema of an object, or of a list of objects, names no fields."""
    return _is_nested(schema) and not properties_of(schema) and not properties_of(items_of(schema))


def _brief(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that is not too long for a prompt: of inner objects it keeps what they require."""
    if len(json.dumps(schema)) <= _LONGEST:
        return schema
    told = _telling(schema)
    return told | {"properties": {name: _core(one) for name, one in properties_of(told).items()}}


def _core(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema whose objects have only the fields that they require."""
    if properties := properties_of(schema):
        required = required_of(schema)
        return schema | {"properties": {name: _core(properties[name]) for name in required}}
    return schema | {"items": _core(schema["items"])} if "items" in schema else schema


def _telling(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema in which each object requires a field: its first one if it requires none."""
    told = dict(schema)
    if properties := properties_of(schema):
        inner = {name: _telling(one) for name, one in properties.items()}
        required = list(required_of(schema))
        single = [name for name, one in properties.items() if not _is_nested(one) and not is_fixed(one)]
        told |= {"properties": inner, "required": required or single[:1]}
    elif "items" in schema:
        told["items"] = _telling(items_of(schema))
    return told


MOST_TOOLS = 48
"""Maximum number of operations that become tools; more would be too many for one prompt."""
TOO_MANY = f"{MOST_TOOLS} operations are enough; choose others with --only /PATH"
_USUAL = (Does.LIST, Does.READ, Does.CREATE, Does.UPDATE, Does.DELETE)
"""The usual actions on a resource."""
_MOST_LINKS = 4


def chosen(
    actions: Sequence[Action], tables: Mapping[str, Table], only: Sequence[str] = ()
) -> tuple[list[Action], dict[str, str]]:
    """Return the actions that become tools, in document order, and the reasons for leaving out the others.

    If there are too many, the usual actions (list, read, create, update, delete) of the most connected tables
    come first, each by its shortest path, then the other actions in the same order.
    """
    left_out = deprecated([one.operation for one in actions], only)
    current = [one for one in actions if one.operation.name not in left_out]
    if len(current) <= MOST_TOOLS:
        return current, left_out
    own: dict[str, list[Action]] = {}
    for one in current:
        own.setdefault(one.table, []).append(one)
    links = Counter(to for name in own for to in {*tables[name].links.values()} - {name})
    ordered = sorted(own, key=lambda name: -_weight(own[name], min(links[name], _MOST_LINKS)))
    usual = [[[one for one in own[name] if one.does is does] for does in _USUAL] for name in ordered]
    first = [[min(some, key=lambda a: len(a.operation.segments)) for some in one if some] for one in usual]
    rest = [[one for one in own[name] if one not in some] for name, some in zip(ordered, first, strict=True)]
    kept: set[str] = set()
    for group in (*first, *rest, *([one] for some in (*first, *rest) for one in some)):
        names = {one.operation.name for one in group}
        kept |= names if len(kept | names) <= MOST_TOOLS else set()
    left_out |= {one.operation.name: TOO_MANY for one in current if one.operation.name not in kept}
    return [one for one in current if one.operation.name in kept], left_out


def _weight(actions: Sequence[Action], links: int) -> int:
    """Return how important a table is: its usual actions, the tables that refer to it, and its path depth."""
    usual = {one.does for one in actions} & {*_USUAL}
    depth = min(len(one.operation.segments) for one in actions)
    alone = Does.LIST not in usual and Does.READ not in usual
    return len(usual) + links - depth - 2 * alone
