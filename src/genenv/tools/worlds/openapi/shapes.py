"""Locate the fields of a record in request and response bodies.

Services wrap records: `{"service": {...}}`, `{"data": {"type": ..., "attributes": {...}}}`, `{"items":
[{"track": {...}}]}`. Fields are found inside such envelopes, so that tools take them by name. Responses are
wrapped as the document declares.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast

from genenv.tools.discover.state_values import singular

Schema = Mapping[str, Any]

KEYS = ("id", "uuid", "gid", "sid", "key", "slug", "code", "username", "name", "number")
"""Names of fields that identify a record, likeliest first."""
IDS = ("id", "uuid", "gid", "sid", "key")
"""Names of fields by which other records refer to a record."""
_ENVELOPES = frozenset(
    ("data", "resource", "record", "item", "payload", "result", "response", "object", "entity", "d")
)
"""Names of objects that wrap a record."""
_INNER = frozenset({"attributes", "relationships", "fields"})
"""Names of objects within a record that hold its fields."""
_LISTS = frozenset(
    ("data", "items", "results", "values", "value", "records", "entries", "entry", "resources", "content")
)
"""Names of fields that hold the records of a list."""
_LIST_ENVELOPES = frozenset({*_ENVELOPES, "embedded", "page", "list", "results"})
OF_THE_PROTOCOL = frozenset({"links", "_links", "self", "href", "_embedded", "meta", "jsonapi", "included"})
"""Fields with links and metadata, not data of a record."""
OF_A_REFERENCE = frozenset({"type", "object", "kind", "summary", "self", "href", "html_url", "url", "name"})
"""Fields that an object that refers to a record may have besides an id."""
_DEEPEST = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A field of a record, with its path in a request or response body."""

    path: tuple[str, ...]
    """Names of the enclosing objects, then the name of the field."""
    schema: dict[str, Any]
    required: bool


Fields = Mapping[str, Field]
"""Fields by the name that the table and the tool use."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The declared response of an operation."""

    schema: Schema
    """Schema of the whole response."""
    path: tuple[str, ...] = ()
    """For a list, the path of the objects that contain it."""
    many: bool = False
    """Whether the response is a list of records."""
    fields: Fields = field(default_factory=dict[str, Field])
    """Fields of a record."""


@lru_cache(1 << 16)
def plain(name: str) -> str:
    """Return a name in lower case without separators."""
    return "".join(one for one in name.lower() if one.isalnum())


@lru_cache(1 << 16)
def one_of(name: str) -> str:
    """Return a name in the singular, in lower case without separators."""
    *before, last = name.lower().replace("-", "_").split("_")
    return plain("".join((*before, singular(last))))


def fields_of(schema: Schema | None, word: str, references: Collection[str] = ()) -> dict[str, Field]:
    """Return the fields of a record, found inside its envelopes, such as one named by a `word` of the path.

    Of objects that stand for another record, whose normalized names are `references`, only the id is a field:
    `project_id` of `{"project": {"id": ...}}`.
    """
    found: dict[str, Field] = {}
    names = {plain(word), one_of(word)}

    def collect(schema: Schema, path: tuple[str, ...], *, needed: bool) -> None:
        properties, required = properties_of(schema), required_of(schema)
        inside = _envelopes(properties, names, outermost=not path) if len(path) < _DEEPEST else []
        own = [name for name in properties if name not in inside]
        if inside and not path and OF_THE_PROTOCOL.issuperset(own):
            own = []
        for name in own:
            reference = reference_path(properties[name]) if one_of(name) in references else ()
            key = "_".join((name, reference[-1])) if reference else name
            if key in found and path:
                key = f"{path[-1]}_{key}"
            inner = _at(properties[name], reference)
            is_needed = needed and name in required
            found.setdefault(key, Field(path=(*path, name, *reference), schema=inner, required=is_needed))
        for name in inside:
            sole = not own and len(inside) == 1
            collect(properties[name], (*path, name), needed=needed and (sole or name in required))

    collect(schema or {}, (), needed=True)
    return found


def _envelopes(
    properties: Mapping[str, dict[str, Any]], names: Collection[str], *, outermost: bool
) -> list[str]:
    """Return the names of objects that wrap fields of the record and are not fields themselves."""
    objects = [name for name, one in properties.items() if properties_of(one)]
    rest = [name for name in properties if name not in objects and name not in OF_THE_PROTOCOL]
    if len(objects) == 1 and not rest and (outermost or not is_reference(properties[objects[0]])):
        return objects
    inner = [name for name in objects if plain(name) in _INNER]
    if inner or any(plain(name) in IDS for name in properties):
        return inner
    around = [name for name in objects if plain(name) in _ENVELOPES or one_of(name) in names]
    return [name for name in around if not is_reference(properties[name])]


def reference_path(schema: Schema) -> tuple[str, ...]:
    """Return the path of the id in an object that may refer to a record; empty if there is none."""
    properties = properties_of(schema)
    if [*properties] == ["data"]:
        below = reference_path(properties["data"])
        return ("data", *below) if below else ()
    return next(((name,) for wanted in IDS for name in properties if plain(name) == wanted), ())


def is_reference(schema: Schema) -> bool:
    """Whether an object only identifies a record."""
    path = reference_path(schema)
    if not path:
        return False
    properties = properties_of(_at(schema, path[:-1]))
    return all(name in (path[-1], *OF_A_REFERENCE) or is_fixed(one) for name, one in properties.items())


def is_fixed(schema: Schema) -> bool:
    """Whether a schema allows only one value, so that no argument is needed."""
    return "const" in schema or len(cast("Sequence[Any]", schema.get("enum", ()))) == 1


def answer_of(
    schema: Schema | None, word: str, references: Collection[str] = (), *, listing: bool
) -> Answer | None:
    """Return the declared response of an operation; None if the document declares none.

    Only with `listing`, it may be a list in an object: a single record may contain lists, too.
    """
    if not schema or (schema.get("type") == "object" and not properties_of(schema)):
        return None
    for path, items in _lists(schema, word, ()) if listing or schema.get("type") == "array" else ():
        return Answer(schema=schema, path=path, many=True, fields=fields_of(items, word, references))
    if properties_of(schema):
        return Answer(schema=schema, fields=fields_of(schema, word, references))
    return Answer(schema=schema) if schema.get("type") else None


def _lists(schema: Schema, word: str, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Schema]]:
    """Yield the paths of lists of records with their item schemas, likeliest first."""
    if schema.get("type") == "array":
        if properties_of(items_of(schema)):
            yield path, items_of(schema)
        return
    properties = properties_of(schema)
    if len(path) > 2:
        return
    names = {plain(word), one_of(word)}
    arrays = [name for name, one in properties.items() if one.get("type") == "array"]
    lists = [name for name in arrays if properties_of(items_of(properties[name]))]
    named = [name for name in lists if plain(name) in names or plain(name) in _LISTS]
    if not named and any(plain(name) in IDS for name in properties):
        return  # the lists are fields of a record
    for name in named or (lists if len(lists) == 1 else ()):
        yield from _lists(properties[name], word, (*path, name))
    for name, one in properties.items():
        around = plain(name) in _LIST_ENVELOPES or plain(name) in names or len(properties) == 1
        if properties_of(one) and around:
            yield from _lists(one, word, (*path, name))


_ID = re.compile(r"(?=\D*\d)[A-Za-z]{0,8}(?:[_-]?[A-Za-z0-9])+")
_DAY = re.compile(r"\d{4}-\d\d(?:-\d\d.*)?")


def looks_like_an_id(example: str) -> bool:
    """Whether an example is an id (`12345`, `cus_4fx`), and no word, number with a point, or date."""
    return _ID.fullmatch(example) is not None and _DAY.fullmatch(example) is None


def properties_of(schema: Schema) -> dict[str, dict[str, Any]]:
    """Return the schema of each field of an object."""
    return cast("dict[str, dict[str, Any]]", schema.get("properties") or {})


def without_defaults(schema: Schema) -> dict[str, Any]:
    """Return a schema without the defaults of a value and of all fields in it."""
    kept = {name: one for name, one in schema.items() if name != "default"}
    if "properties" in kept:
        kept["properties"] = {name: without_defaults(one) for name, one in properties_of(schema).items()}
    if "items" in kept:
        kept["items"] = without_defaults(items_of(schema))
    return kept


def items_of(schema: Schema) -> dict[str, Any]:
    """Return the schema of the items of a list."""
    return cast("dict[str, Any]", schema.get("items") or {})


def required_of(schema: Schema) -> Sequence[str]:
    """Return the fields that an object must have."""
    return cast("Sequence[str]", schema.get("required", ()))


def _at(schema: Schema, path: Sequence[str]) -> dict[str, Any]:
    for name in path:
        schema = properties_of(schema)[name]
    return dict(schema)
