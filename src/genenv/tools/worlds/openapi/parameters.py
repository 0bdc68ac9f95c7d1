"""The arguments of a tool made from an operation, and the field of a record that each one sets or filters."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, cast

from genenv.tools.discover.state_values import singular, words_of
from genenv.tools.worlds.base import Tool
from genenv.tools.worlds.openapi.document import Parameter, argument_name
from genenv.tools.worlds.openapi.resources import Action, Does, Table
from genenv.tools.worlds.openapi.rows import varied
from genenv.tools.worlds.openapi.shapes import is_fixed, plain, properties_of
from genenv.types import Json, JsonObject

_MOST_OPTIONAL = 8
"""Maximum number of optional fields of a request body that become arguments."""
_LONGEST = 8000
"""Maximum length in characters of an argument's schema; of a longer one parts are left out."""
NEWEST = 2
"""Version of the rules by which new bundles read documents."""
_PAGING = frozenset(
    {"limit", "offset", "page", "perpage", "pagesize", "size", "cursor", "sort", "sortby", "order", "orderby"}
)
"""Parameters for paging and sorting, which tasks omit."""
_SEARCH = frozenset({"q", "query", "search", "keyword", "term", "text"})


class Parameters:
    """The arguments of a tool made from an operation.

    Args:
        action: what the operation does.
        table: the table that it reads or changes.
        version: see `OpenApiSource`.
    """

    def __init__(self, action: Action, table: Table, version: int = NEWEST) -> None:
        self._action, self._table, self._version = action, table, version
        self.names: dict[str, str] = {}
        """Name of each argument in the document: of a parameter, or of a record's field."""
        self.unused: list[str] = []
        """Fields of the request body without an argument."""
        self.idle: list[str] = []
        """Required arguments without an effect on the tables."""
        self.in_path: set[str] = set()
        """Arguments that are part of the path."""
        properties: dict[str, Any] = {}
        required: list[str] = []
        for one, is_idle in self._listed():
            argument = argument_name(one.name, properties, one.place, python=version < 2)
            properties[argument] = varied(self._typed(one))
            self.names[argument] = one.name
            if one.required:
                required.append(argument)
            if one.place == "path":
                self.in_path.add(argument)
            if is_idle:
                self.idle.append(argument)
        body = self._body()
        needed = self._needed(body)
        for name, schema in body.items():
            argument = argument_name(name, properties, singular(table.word), python=version < 2)
            properties[argument] = schema
            self.names[argument] = name
            if name in needed:
                required.append(argument)
        self.problem = self._problem(body)
        """Why the operation cannot be a tool; None if it can."""
        schema: JsonObject = {"type": "object", "properties": cast(Json, properties)}
        self._schema = {**schema, "required": cast(Json, required)} if required else schema

    @cached_property
    def tool(self) -> Tool:
        """The tool as the agent sees it."""
        operation = self._action.operation
        told = operation.told or " ".join(words_of(operation.name))
        return Tool(name=operation.name, description=told, parameters=self._schema)

    def read(self, args: Mapping[str, Json]) -> tuple[dict[str, Json], dict[str, Json]]:
        """Return the values of a call: path parameters by name, and other values by record field."""
        path = {self.names[one]: value for one, value in args.items() if one in self.in_path}
        others = {
            self.names[one]: value
            for one, value in args.items()
            if one not in self.in_path and one not in self.idle
        }
        return path, others

    def _listed(self) -> Iterator[tuple[Parameter, bool]]:
        """Yield parameters of the path and the query, and whether they have no effect on the tables."""
        for one in self._action.operation.parameters:
            of_use = one.place == "path" or self._is_of_use(one)
            if of_use or one.required:
                yield one, not of_use

    def _typed(self, parameter: Parameter) -> Mapping[str, Any]:
        """Return a parameter's schema; an untyped id in the path gets the type of the key field."""
        name = self._action.parents.get(parameter.name) or self._table.key
        kind = self._table.fields.get(name, {}).get("type")
        is_any = not {*parameter.schema} - {"type", "description", "examples"}
        if (
            parameter.place == "path"
            and is_any
            and parameter.schema.get("type") == "string"
            and kind == "integer"
        ):
            return {
                "type": kind,
                **{key: one for key, one in parameter.schema.items() if key == "description"},
            }
        return parameter.schema

    def _is_of_use(self, parameter: Parameter) -> bool:
        """Whether a query parameter selects records."""
        name, schema = parameter.name, parameter.schema
        if plain(name) in _PAGING or self._action.does is not Does.LIST:
            return False
        if schema.get("type") == "object" and self._version > 1:
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
        asked = {name: one for name, one in action.sent.items() if name not in hidden}
        optional = [
            name
            for name, one in asked.items()
            if not (one.required or name == action.key or is_fixed(one.schema) or _is_free(one.schema))
        ]
        optional.sort(key=lambda name: _is_nested(asked[name].schema))
        kept = {name for name, one in asked.items() if one.required or name == action.key}
        most = 0 if action.does is Does.DELETE and self._version > 1 else _MOST_OPTIONAL
        kept = {name for name in kept if not is_fixed(asked[name].schema)} | {*optional[:most]}
        self.unused = [name for name, one in asked.items() if name not in kept and not is_fixed(one.schema)]
        return {name: _telling(_brief(varied(one.schema))) for name, one in asked.items() if name in kept}

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

    def _problem(self, body: Mapping[str, Any]) -> str | None:
        sends, does = self._action.operation.body is not None, self._action.does
        if not sends or body or does not in (Does.CREATE, Does.UPDATE, Does.SET_PART):
            return None
        if not self._action.sent and does is Does.SET_PART:
            return None  # its path says what it does
        return "the document names no field of what it sends that could be given"


def field_of(table: Table, name: str) -> str | None:
    """Return the field of a record that a query parameter filters, or None."""
    bare = plain(name)
    ways = (bare, bare.rstrip("s"), bare.removeprefix("filter"))
    return next((one for one in table.fields if plain(one) in ways), None)


def _is_nested(schema: Mapping[str, Any]) -> bool:
    """Whether a value is an object, or a list of objects."""
    items = cast("Mapping[str, Any]", schema.get("items") or {})
    return bool({schema.get("type"), items.get("type", "string")} & {"object", None}) and "enum" not in schema


def _is_free(schema: Mapping[str, Any]) -> bool:
    """Whether the schema of an object, or of a list of objects, names no fields."""
    items = cast("Mapping[str, Any]", schema.get("items") or {})
    return _is_nested(schema) and not properties_of(schema) and not properties_of(items)


def _brief(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema that is not too long for a prompt: of inner objects it keeps what they require."""
    if len(json.dumps(schema)) <= _LONGEST:
        return schema
    told = _telling(schema)
    return told | {"properties": {name: _core(one) for name, one in properties_of(told).items()}}


def _core(schema: dict[str, Any]) -> dict[str, Any]:
    """Return a schema whose objects have only the fields that they require."""
    if properties := properties_of(schema):
        required = cast("Sequence[str]", schema.get("required", ()))
        return schema | {"properties": {name: _core(properties[name]) for name in required}}
    return schema | {"items": _core(schema["items"])} if "items" in schema else schema


def _telling(schema: Mapping[str, Any]) -> dict[str, Any]:
    """Return a schema in which each object requires a field: its first one if it requires none."""
    told = dict(schema)
    if properties := properties_of(schema):
        inner = {name: _telling(one) for name, one in properties.items()}
        required = list(cast("Sequence[str]", schema.get("required", ())))
        single = [name for name, one in properties.items() if not _is_nested(one) and not is_fixed(one)]
        told |= {"properties": inner, "required": required or single[:1]}
    elif "items" in schema:
        told["items"] = _telling(cast("Mapping[str, Any]", schema["items"]))
    return told


MOST_TOOLS = 48
"""Maximum number of operations that become tools; more would be too many for one prompt."""
_USUAL = (Does.LIST, Does.READ, Does.CREATE, Does.UPDATE, Does.DELETE)
"""The usual actions on a resource."""
_MOST_LINKS = 4
DEPRECATED = "it is deprecated; --only with its whole path takes it all the same"


def chosen(
    actions: Sequence[Action], tables: Mapping[str, Table], only: Sequence[str] = ()
) -> tuple[list[Action], dict[str, str]]:
    """Return the actions that become tools, in document order, and the reasons for leaving out the others.

    Deprecated operations are left out unless `only` names them or all are. If there are too many, the usual
    actions (list, read, create, update, delete) of the most connected tables come first, each by its shortest
    path, then the other actions in the same order.

    Args:
        actions: all actions that were inferred.
        tables: the tables by name.
        only: paths that the user asked for.
    """
    left_out = {
        one.operation.name: DEPRECATED
        for one in actions
        if one.operation.deprecated and one.operation.path not in only
    }
    if len(left_out) == len(actions):
        left_out = {}
    current = [one for one in actions if one.operation.name not in left_out]
    if len(current) <= MOST_TOOLS:
        return current, left_out
    own: dict[str, list[Action]] = {}
    for one in current:
        own.setdefault(one.table, []).append(one)
    links = Counter(to for name in own for to in {*tables[name].links.values()} - {name})
    ordered = sorted(own, key=lambda name: -_weight(own[name], min(links[name], _MOST_LINKS)))
    first = [_usual(own[name]) for name in ordered]
    rest = [
        [one for one in own[name] if one not in usual] for name, usual in zip(ordered, first, strict=True)
    ]
    kept: set[str] = set()
    for group in (*first, *rest):
        if len(kept) + len(group) <= MOST_TOOLS:
            kept |= {one.operation.name for one in group}
    for one in (one for group in (*first, *rest) for one in group):
        if len(kept) < MOST_TOOLS:
            kept.add(one.operation.name)
    left_out |= {
        one.operation.name: f"{MOST_TOOLS} operations are enough; choose others with --only /PATH"
        for one in current
        if one.operation.name not in kept
    }
    return [one for one in current if one.operation.name in kept], left_out


def _usual(actions: Sequence[Action]) -> list[Action]:
    """Return the action with the shortest path for each usual kind of action."""
    listed = [[one for one in actions if one.does is does] for does in _USUAL]
    return [min(some, key=lambda one: len(one.operation.segments)) for some in listed if some]


def _weight(actions: Sequence[Action], links: int) -> int:
    """Return how important a table is: its usual actions, the tables that refer to it, and its path depth."""
    usual = {one.does for one in actions} & {*_USUAL}
    depth = min(len(one.operation.segments) for one in actions)
    alone = Does.LIST not in usual and Does.READ not in usual
    return len(usual) + links - depth - 2 * alone
