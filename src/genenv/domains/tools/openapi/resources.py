"""The tables behind a document: which resources there are, and what each operation does to them.

The paths say it, as REST has it: `/orders` is a table, `/orders/{orderId}` one record of it,
`/orders/{orderId}/items` a table whose records belong to an order, and `/orders/{orderId}/cancel` something
that is done to one. What does not read so is no tool, and it is said why.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, cast

from genenv.domains.tools.leaves import singular, words_of
from genenv.domains.tools.openapi.operations import Operation, is_blank
from genenv.domains.tools.words import VERBS

_KEYS = ("id", "uuid", "key", "slug", "code", "username", "name", "number")
"""Names of fields that name a record, the likeliest first."""
_OF_THE_PROTOCOL = frozenset({"links", "_links", "self", "href", "_embedded"})
"""Fields that say where a record is on the web, and nothing of it."""
_ALIKE = 0.6
"""Share of fields by which a list is one of a table's records."""


class Does(StrEnum):
    """What an operation does."""

    LIST = "list"
    CREATE = "create"
    READ = "read"
    UPDATE = "update"
    DELETE = "delete"
    READ_PART = "read part"
    SET_PART = "set part"


@dataclass(slots=True, kw_only=True)
class Table:
    """The records of a resource."""

    name: str
    key: str
    """The field by which a record is known."""
    fields: dict[str, dict[str, Any]]
    """Schema of each field."""
    given: bool = False
    """Whether who makes a record says its key."""
    parents: dict[str, str] = field(default_factory=dict[str, str])
    """Tables that a record belongs to: the field that holds the key, and the table."""
    refers: dict[str, str] = field(default_factory=dict[str, str])
    """Other fields that hold keys of a table."""

    @property
    def links(self) -> Mapping[str, str]:
        """Fields that hold keys of tables."""
        return {**self.refers, **self.parents}


@dataclass(frozen=True, slots=True, kw_only=True)
class Action:
    """An operation as something that is done to a table."""

    operation: Operation
    does: Does
    table: str
    key: str | None = None
    """The parameter that names the record."""
    parents: Mapping[str, str] = field(default_factory=dict[str, str])
    """Parameters of the path that name what a record belongs to: the field of the record, by parameter."""
    part: str = ""
    """Of `READ_PART` and `SET_PART`: which field."""
    wrapped: str = ""
    """The field of the answer that holds the list."""


def plain(name: str) -> str:
    """A name without case and separators."""
    return re.sub(r"[^a-z0-9]", "", name.lower())


class Resources:
    """What is read out of a document's operations.

    Args:
        operations: all of them.
    """

    def __init__(self, operations: Sequence[Operation]) -> None:
        self.tables: dict[str, Table] = {}
        self.actions: list[Action] = []
        self.left_out: dict[str, str] = {one.name: one.problem for one in operations if one.problem}
        usable = [one for one in operations if one.problem is None]
        self._stems = {one.segments[:-1] for one in usable if one.segments and is_blank(one.segments[-1])}
        for named in (True, False):  # records that can be named first: a search may list them too
            for one in usable:
                name = self._table_of(one)
                if name is not None and name not in self.tables and self._is_named(one) is named:
                    self.tables[name] = self._table(name, usable)
        for table in self.tables.values():
            table.refers = {
                name: other
                for name, schema in table.fields.items()
                if name not in table.parents
                and name != table.key
                and schema.get("type") in ("string", "integer")
                and (other := self._referred(name)) is not None
            }
        for one in usable:
            try:
                self.actions.append(self._action(one))
            except _NoAction as error:
                self.left_out[one.name] = str(error)

    # tables

    def _table_of(self, operation: Operation) -> str | None:
        """The table whose records, or whose record, a path stands for."""
        segments = operation.segments
        if not segments:
            return None
        if is_blank(segments[-1]):
            return segments[-2] if len(segments) > 1 and not is_blank(segments[-2]) else None
        return segments[-1] if self._is_table(operation) else None

    def _is_named(self, operation: Operation) -> bool:
        """Whether a path, or one that goes on from it, names a record."""
        return is_blank(operation.segments[-1]) or operation.segments in self._stems

    def _is_table(self, operation: Operation) -> bool:
        """Whether a path that ends in a word is one of records: they can be named, are listed or made."""
        if self._is_named(operation):
            return True
        *before, last = operation.segments
        several = singular(last.lower()) != last.lower()
        acts = _verb(last) is not None and (len(words_of(last)) > 1 or not several)  # `orders` are no order
        if acts or not (several or not before):
            return False
        if operation.method == "post":
            return bool(operation.body and _record(operation.result)) and several
        listed, _ = _records(operation.result)
        known = [table for name, table in self.tables.items() if name in before]
        return (
            operation.method == "get" and listed is not None and not any(_alike(listed, one) for one in known)
        )

    def _table(self, name: str, operations: Sequence[Operation]) -> Table:
        own = [one for one in operations if self._table_of(one) == name]
        fields: dict[str, dict[str, Any]] = {}
        for one in sorted(own, key=_tells_most):
            schema = _records(one.result)[0] or _record(one.result)
            for field_name, inner in cast("dict[str, Any]", (schema or {}).get("properties", {})).items():
                fields.setdefault(field_name, inner)
        bodies = [one.body for one in own if one.body and one.method in ("post", "put", "patch")]
        for body in bodies:
            for field_name, inner in cast("dict[str, Any]", body.get("properties", {})).items():
                fields.setdefault(field_name, inner)
        blank = next((one.segments[-1][1:-1] for one in own if is_blank(one.segments[-1])), "")
        fields = {one: inner for one, inner in fields.items() if one not in _OF_THE_PROTOCOL}
        key = _key(name, blank, fields)
        asked = next((p.schema for one in own for p in one.parameters if p.name == blank), {"type": "string"})
        bounds = {one: asked[one] for one in ("minimum", "maximum") if one in asked}
        kind = {one: asked[one] for one in ("type", "format") if one in asked}
        fields[key] = {**fields.get(key, kind), **bounds}
        posted = [one.body for one in own if one.body and one.method == "post"]
        required = [key in cast("Sequence[str]", body.get("required", ())) for body in posted]
        spoken = words_of(key)[-1] in ("username", "name", "slug", "code")
        given = any(required) or (spoken and any(key in body.get("properties", {}) for body in posted))
        table = Table(name=name, key=key, fields=fields, given=given)
        for one in own:
            for parameter, parent in _parents(one.segments, name).items():
                linked = self._link(table, parameter, parent)
                fields.setdefault(linked, {"type": "string"})
                table.parents[linked] = parent
        return table

    def _link(self, table: Table, parameter: str, parent: str) -> str:
        """The field that holds the key of what a record belongs to."""
        named = {plain(parameter), plain(f"{singular(parent)}id"), plain(f"{singular(parent)}_id")}
        return next((name for name in table.fields if plain(name) in named and name != table.key), parameter)

    def _referred(self, name: str) -> str | None:
        for other, table in self.tables.items():
            one = plain(singular(other.lower()))
            if plain(name) in (f"{one}id", f"{one}{plain(table.key)}", f"{one}uuid"):
                return other
        return None

    # actions

    def _action(self, operation: Operation) -> Action:
        segments, method = operation.segments, operation.method
        name = self._table_of(operation)
        if name is not None and is_blank(segments[-1]):
            return self._on_record(operation, name)
        if name is not None:
            return self._on_table(operation, name)
        if len(segments) > 2 and is_blank(segments[-2]) and segments[-3] in self.tables:
            return self._on_part(operation, segments[-3])
        listed, wrapped = _records(operation.result)
        if method == "get" and listed is not None:
            for table in self.tables.values():
                if table.name in segments and _alike(listed, table):
                    return Action(operation=operation, does=Does.LIST, table=table.name, wrapped=wrapped)
        raise _NoAction(
            f"{method.upper()} {operation.path} is about no records that this document lists or names"
        )

    def _on_record(self, operation: Operation, name: str) -> Action:
        does = {"get": Does.READ, "delete": Does.DELETE}.get(operation.method, Does.UPDATE)
        return Action(
            operation=operation,
            does=does,
            table=name,
            key=operation.segments[-1][1:-1],
            parents=self._links_of(operation, name),
        )

    def _on_table(self, operation: Operation, name: str) -> Action:
        method, body = operation.method, operation.body or {}
        if method == "delete":
            raise _NoAction("it deletes all records at once")
        wrapped = ""
        key = None
        does = Does.CREATE
        if method == "get":
            listed, wrapped = _records(operation.result)
            if listed is None:
                raise _NoAction(f"GET {operation.path} lists no records")
            does = Does.LIST
        elif method in ("put", "patch"):
            key, does = self.tables[name].key, Does.UPDATE
            if key not in body.get("properties", {}):
                raise _NoAction("it changes a record that it does not name")
        parents = self._links_of(operation, name)
        return Action(operation=operation, does=does, table=name, key=key, parents=parents, wrapped=wrapped)

    def _on_part(self, operation: Operation, name: str) -> Action:
        segments = operation.segments
        does = Does.READ_PART if operation.method == "get" else Does.SET_PART
        if operation.method == "delete":
            raise _NoAction("it deletes a part of a record")
        if operation.method != "get" and not operation.body and _verb(segments[-1]) is None:
            raise _NoAction("what it does to a record is not said")
        return Action(
            operation=operation,
            does=does,
            table=name,
            key=segments[-2][1:-1],
            parents=self._links_of(operation, name),
            part="_".join(words_of(segments[-1])) or segments[-1],
        )

    def _links_of(self, operation: Operation, name: str) -> dict[str, str]:
        table = self.tables[name]
        return {
            parameter: self._link(table, parameter, parent)
            for parameter, parent in _parents(operation.segments, name).items()
            if parent in self.tables
        }


class _NoAction(Exception):
    """An operation does nothing that is understood. The message says what is missing."""


def _parents(segments: Sequence[str], name: str) -> dict[str, str]:
    """What records of a table belong to: parameter and table, as the path has them before it."""
    place = max((i for i, part in enumerate(segments) if part == name), default=0)
    return {
        segments[i][1:-1]: segments[i - 1]
        for i in range(1, place)
        if is_blank(segments[i]) and not is_blank(segments[i - 1])
    }


def _tells_most(operation: Operation) -> int:
    """The answer about one record first, then lists, then what comes back from changes."""
    if operation.method == "get":
        return 0 if is_blank(operation.segments[-1]) else 1
    return 2


def _record(schema: Mapping[str, Any] | None) -> dict[str, Any] | None:
    """The record that an answer is, or that stands in the only object of its envelope."""
    if schema is None or schema.get("type") != "object":
        return None
    properties = cast("dict[str, Any]", schema.get("properties", {}))
    inner = [one for one in properties.values() if one.get("type") == "object" and one.get("properties")]
    if len(properties) <= 2 and len(inner) == 1:
        return cast("dict[str, Any]", inner[0])
    return dict(schema)


def _records(schema: Mapping[str, Any] | None) -> tuple[dict[str, Any] | None, str]:
    """What a list holds, and the field of the answer that it stands in."""
    for wrapped, one in _lists(schema):
        items = cast("dict[str, Any]", one.get("items", {}))
        if items.get("properties"):
            return items, wrapped
    return None, ""


def _lists(schema: Mapping[str, Any] | None) -> Iterator[tuple[str, Mapping[str, Any]]]:
    if schema is None:
        return
    if schema.get("type") == "array":
        yield "", schema
        return
    lists = [
        (name, one)
        for name, one in cast("dict[str, Any]", schema.get("properties", {})).items()
        if one.get("type") == "array"
    ]
    if len(lists) == 1:
        yield lists[0]


def _key(name: str, blank: str, fields: Mapping[str, object]) -> str:
    """The field by which a record of a table is known."""
    one = plain(singular(name.lower()))
    for wanted in (plain(blank), "id", f"{one}id", f"{one}uuid", plain(blank).removeprefix(one), *_KEYS):
        for field_name in fields:
            if wanted and plain(field_name) == wanted:
                return field_name
    return "id"


def _alike(listed: Mapping[str, Any], table: Table) -> bool:
    names = {plain(name) for name in listed.get("properties", {})}
    own = {plain(name) for name in table.fields}
    return len(names & own) >= _ALIKE * len(names)


def _verb(segment: str) -> str | None:
    words = words_of(segment)
    return words[0] if words and words[0] in VERBS else None
