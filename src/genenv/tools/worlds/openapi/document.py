"""Read an OpenAPI document, of version 3 or Swagger 2, and resolve its references.

Published documents often break the standard in small ways, and a strict parser would refuse them for a field
that is not needed. This parser checks only what it uses, and leaves out unreadable operations with a reason.
"""

from __future__ import annotations

import json
import re
import unicodedata
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from genenv.errors import UsageError
from genenv.tools.discover.descriptions import restrictions
from genenv.tools.discover.state_values import parts_of, words_of
from genenv.tools.worlds.base import Tool
from genenv.types import Json, JsonObject
from genenv.untrusted.documents import as_list, as_object, read_document
from genenv.untrusted.schemas import fits_keyword, part_at

_DEEPEST = 16
"""Maximum nesting depth of schemas."""
_MOST_NODES = 2000
"""Maximum number of nodes in a schema."""
_KEPT = (
    *("type", "enum", "const", "format", "minimum", "maximum", "multipleOf", "default"),
    *("exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "minItems", "maxItems", "pattern"),
)
"""Keywords of a schema that the agent sees and that arguments must satisfy."""
_HOLDING = ("properties", "items", "nullable")
"""Further keywords that are kept; `nullable` says that a value may be null, in newer documents, too."""
_BESIDE = ("description", "default", "nullable", "example", "examples")
"""Keywords that count beside a reference."""
_PYTHON: Mapping[str, tuple[type, ...]] = {"string": (str,), "integer": (int,), "number": (int, float)}
_MOST_TOLD = 160
"""Maximum length of a description in characters."""
_MARKUP = re.compile(r"</?[A-Za-z][^<>]{0,300}>|(?<=\])\([^()\s]{1,300}\)|[\[\]`]|\*\*")
"""HTML tags, and the signs of Markdown for links, code and bold text."""

Node = Mapping[str, Any]


class Document:
    """An OpenAPI document.

    Args:
        text: JSON or YAML.
        name: what messages call it.

    Raises:
        UsageError: the text is not an OpenAPI document.
    """

    def __init__(self, text: str, name: str) -> None:
        root = read_document(text, name)
        if not isinstance(root, Mapping):
            raise UsageError(f"{name} is no OpenAPI document, but {type(root).__name__}")
        self.name = name
        self.root: Node = root
        """The whole document."""
        self.is_older = str(root.get("swagger", "")).startswith("2")
        """Whether the document is of Swagger 2."""
        if not self.is_older and not str(root.get("openapi", "")).startswith("3."):
            raise UsageError(f"{name} is no OpenAPI document: it has no `openapi: 3.…` or `swagger: 2.0`")
        self._left = 0
        self.missing: set[str] = set()
        """Unresolved references since the last clearing."""
        self.paths: Node = as_object(root.get("paths"))
        """The operations of each path by method."""
        if not self.paths:
            raise UsageError(f"{name} describes no paths")

    @property
    def query_keys(self) -> Sequence[str]:
        """Names of the API keys that the service takes in the query."""
        newer = as_object(self.root.get("components")).get("securitySchemes")
        listed = (*as_object(newer).values(), *as_object(self.root.get("securityDefinitions")).values())
        schemes = [self.resolved(one) for one in listed]
        return [str(one.get("name")) for one in schemes if one.get("in") == "query"]

    def resolved(self, node: object) -> Node:
        """Return an object or the target of its reference; an empty one if there is none (see `missing`)."""
        for _ in range(_DEEPEST):
            node = as_object(node)
            reference = node.get("$ref")
            if not isinstance(reference, str):
                return node
            found = part_at(self.root, reference[2:]) if reference.startswith("#/") else None
            self.missing |= {reference} if found is None else set()
            (node,) = found or (None,)
        return {}

    def schema(self, node: object, *, writing: bool) -> dict[str, Any]:
        """Return a schema without references or alternatives; recursion in it is cut.

        The first alternative is used, and the parts of `allOf` are merged. A request (`writing`) has no
        read-only fields, a response no write-only ones.
        """
        self._left = _MOST_NODES
        return self._schema(node, writing, ())

    def _schema(self, node: object, writing: bool, inside: tuple[str, ...]) -> dict[str, Any]:
        schema, inside = self._followed(node, inside)
        kept: dict[str, Any] = {key: schema[key] for key in _KEPT if key in schema}
        _modern(kept, schema)
        properties = schema.get("properties")
        if isinstance(properties, Mapping):
            shown = self._shown(cast(Node, properties), writing=writing)
            inner = {name: self._schema(one, writing, inside) for name, one in shown.items()}
            required = [one for one in as_list(schema.get("required")) if one in [*inner]]
            kept |= {"type": "object", "properties": inner, **({"required": required} if required else {})}
        elif "items" in schema or kept.get("type") == "array":
            items = self._schema(schema.get("items", {}), writing, inside)
            listed = as_list(schema.get("example"))
            if len(listed) > 1 and not items.keys() & {"enum", "examples"}:
                _modern(items, {"examples": listed})
            kept |= {"type": "array", "items": items}
        return {key: one for key, one in kept.items() if key in _HOLDING or fits_keyword(key, one)}

    def _followed(self, node: object, inside: tuple[str, ...]) -> tuple[Node, tuple[str, ...]]:
        """Return a schema with its parts merged; empty if the references `inside` which it is lead to it."""
        self._left -= 1
        node = as_object(node)
        reference = node.get("$ref", "")
        if self._left < 0 or len(inside) > _DEEPEST or (reference and reference in inside):
            return {}, inside
        inside = (*inside, str(reference))
        whole = self._merged(self.resolved(node), inside)
        beside = {key: node[key] for key in _BESIDE if key in node} if reference else {}
        return {**whole, **beside} if beside else whole, inside

    def _shown(self, properties: Node, *, writing: bool) -> Node:
        """Return the fields of a request or a response.

        A request without other fields has a read-only id: it says which record is meant.
        """
        nodes = {name: self.resolved(one) for name, one in properties.items()}
        hidden = "readOnly" if writing else "writeOnly"
        shown = [name for name in properties if nodes[name].get(hidden) is not True]
        if writing and "id" in properties and "id" not in shown and all(_only(nodes[one]) for one in shown):
            shown.append("id")
        return {name: properties[name] for name in shown}

    def _merged(self, schema: Node, inside: tuple[str, ...]) -> Node:
        """Merge `allOf` and the first alternative into a schema; single values become an enum."""
        parts = [*as_list(schema.get("allOf"))]
        for key in ("oneOf", "anyOf"):
            real = [way for way in as_list(schema.get(key)) if self.resolved(way).get("type") != "null"]
            listed = [value for way in real for value in _only(self.resolved(way))]
            parts += [{"enum": listed}] if real and len(listed) == len(real) else real[:1]
            parts += [{"nullable": True}] if len(real) < len(as_list(schema.get(key))) else []
        if not parts:
            return schema
        whole: dict[str, Any] = {}
        for part in parts:
            _join(whole, self._followed(part, inside)[0])
        _join(whole, {key: one for key, one in schema.items() if key not in ("allOf", "oneOf", "anyOf")})
        self._decide(whole, schema)
        return whole

    def _decide(self, whole: dict[str, Any], schema: Node) -> None:
        """Complete the choice of the first alternative of an object.

        Fields that only other alternatives require are left out, and the field that a discriminator names has
        the value of the first one.
        """
        ways = [one for one in as_list(schema.get("oneOf")) if self.resolved(one).get("type") != "null"]
        required = as_list(whole.get("required"))
        others = {name for way in ways[1:] for name in as_list(self.resolved(way).get("required"))}
        fields = {
            name: one
            for name, one in as_object(whole.get("properties")).items()
            if name in required or name not in others
        }
        told = as_object(schema.get("discriminator"))
        name, first = told.get("propertyName"), (ways or [*as_list(schema.get("anyOf")), {}])[0]
        target = str(as_object(first).get("$ref", ""))
        if isinstance(name, str) and target:
            _, _, short = target.rpartition("/")
            mapping = as_object(told.get("mapping")).items()
            tag = next((tag for tag, to in mapping if to in (target, short)), short)
            if not _only(self.resolved(fields.get(name))):
                fields[name] = {**self.resolved(fields.get(name)), "type": "string", "enum": [tag]}
            whole["required"] = [*dict.fromkeys((*required, name))]
        if fields or "properties" in whole:
            whole["properties"] = fields


def _join(whole: dict[str, Any], part: Node) -> None:
    """Merge a part of a schema into a whole; fields of both are kept."""
    fields: dict[str, Any] = {**as_object(whole.get("properties")), **as_object(part.get("properties"))}
    required = [*as_list(whole.get("required")), *as_list(part.get("required"))]
    other = {json.dumps(one, sort_keys=True) for one in as_list(part.get("enum"))}
    allowed = [one for one in as_list(whole.get("enum")) if json.dumps(one, sort_keys=True) in other]
    whole |= part
    whole |= {"properties": fields} if fields else {}
    whole |= {"required": required} if required else {}
    whole |= {"enum": allowed} if allowed else {}


def _only(schema: Node) -> Sequence[object]:
    """Return the single value that a schema allows, or nothing."""
    if "const" in schema:
        return (schema["const"],)
    listed = as_list(schema.get("enum"))
    return listed if len(listed) == 1 else ()


def _modern(kept: dict[str, Any], schema: Node) -> None:
    """Convert keywords of OpenAPI 3.0 to current JSON schema."""
    kind = kept.get("type")
    if schema.get("nullable") is True or (isinstance(kind, list) and "null" in kind):
        kept["nullable"] = True
    if isinstance(kind, list):
        kept["type"] = next((one for one in cast("list[str]", kind) if one != "null"), "string")
    if isinstance(listed := kept.get("enum"), list):
        kept["enum"] = [one for one in cast("list[object]", listed) if one is not None]
    for bound, limit in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(kept.get(bound), bool) and kept.pop(bound) and limit in kept:
            kept[bound] = kept.pop(limit)
    listed = as_list(
        schema["examples"] if isinstance(schema.get("examples"), list) else [schema.get("example")]
    )
    if examples := [one for one in listed if isinstance(one, _PYTHON.get(str(kept.get("type")), ()))]:
        kept["examples"] = examples[:4]
    if told := _told(schema.get("description")):
        full = " ".join(str(schema["description"]).split())
        more = [one for one in restrictions(full) if one not in told]
        kept["description"] = " ".join((told, *(_told(f"{one}.") for one in more[:1])))
    if kept.get("default", 0) is None and "nullable" not in kept:
        del kept["default"]


def _told(text: object, most: int = _MOST_TOLD) -> str:
    """Return a description on one line, cut after a word."""
    told = " ".join(str(text or "").split())
    return told if len(told) <= most else told[: most - 1].rsplit(" ", 1)[0] + "…"


_PARAGRAPH = re.compile(r"\n\s*\n")
_LABEL = re.compile(r"^\[(?:api\s*)?v?\d[\w.]*\]\s*", re.IGNORECASE)
"""The version of an interface before a summary, such as `[api v2]`."""
_METHODS = ("get", "post", "put", "patch", "delete")
FORM = "application/x-www-form-urlencoded"
_JSON = re.compile(rf"application/(?:[\w.+-]+\+)?json|\*/\*|{FORM}")
"""Media types of JSON and forms, without parameters such as `charset`."""
_PLACES = ("path", "query", "header", "cookie")
_NO_PARAMETERS = [("header", name) for name in ("accept", "content-type", "authorization")]
"""Headers that OpenAPI does not treat as parameters."""

_MISSING = "it needs {}, which is neither in the document nor in a file of its folder"
_STYLES = {"multi": ("form", True), "ssv": ("spaceDelimited", False), "pipes": ("pipeDelimited", False)}
"""How Swagger 2 serializes lists, as style and `explode` of OpenAPI 3; else `form` without `explode`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter in the path, the query, a header or a cookie."""

    name: str
    place: str
    """path, query, header or cookie."""
    required: bool
    schema: dict[str, Any]
    style: str = ""
    """How lists and objects are serialized; empty: the default of its place."""
    explode: bool | None = None
    """Whether each item is serialized separately; None: the default of its style."""
    as_json: bool = False
    """Whether the value is serialized as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An operation of a document: method, path, parameters and schemas."""

    name: str
    """An identifier, unique in the document."""
    method: str
    path: str
    told: str
    """Description in one sentence."""
    parameters: tuple[Parameter, ...]
    """Parameters in the path and the query first, then those in headers and cookies."""
    body: dict[str, Any] | None
    """Schema of the request body."""
    sends: str = ""
    """Media type of the request body."""
    result: dict[str, Any] | None
    """Schema of the response body."""
    answers: str = ""
    """Media type of the response if the document names some, and none is JSON."""
    problem: str | None = None
    """Why the operation cannot be a tool; None if it can."""
    deprecated: bool = False
    """Whether the document marks the operation as deprecated."""

    @property
    def segments(self) -> tuple[str, ...]:
        """Parts of the path, without an ending such as `.json`; the verb of `/orders/{id}:cancel` is one."""
        path = re.sub(r"(?<=.)\.(?:json|\{format\})$", "", self.path)
        return tuple(part for part in path.replace("}:", "}/").split("/") if part)

    def tool(self, arguments: Mapping[str, Parameter], *, writes: bool | None = None) -> Tool:
        """Return the operation as the agent sees it, with these arguments."""
        required: list[Json] = [name for name, one in arguments.items() if one.required]
        properties: JsonObject = {name: one.schema for name, one in arguments.items()}
        schema: JsonObject = {"type": "object", "properties": properties}
        schema |= {"required": required} if required else {}
        told = self.told or " ".join(words_of(self.name))
        return Tool(name=self.name, description=told, parameters=schema, writes=writes)


def media_type(kind: str) -> str:
    """Return a media type without parameters, in lower case."""
    return kind.partition(";")[0].strip().lower()


def argument_name(name: str, taken: Collection[str] = (), place: str = "body") -> str:
    """Return the name of an argument: `filter[status]` is `filter_status`, `x-class` and `from` stay.

    A name that is taken gets the place where the argument is sent: `body_id`.
    """
    name = unicodedata.normalize("NFKC", name)
    name = re.sub(r"[^\w.-]+", "_", name).strip("_") or "value"
    if name in taken:
        name = argument_name(f"{place}_{name}")
    while name in taken:
        name += "_"
    return name


def is_blank(segment: str) -> bool:
    """Whether a part of a path is a placeholder, such as `{id}`."""
    return segment.startswith("{") and segment.endswith("}")


def operations(document: Document, only: Sequence[str] = ()) -> list[Operation]:
    """Return the operations whose paths have one of some prefixes (none: all), in document order."""
    found: dict[str, Operation] = {}
    for path, node in document.paths.items():
        document.missing.clear()
        item = document.resolved(node)
        lost = document.missing.copy()
        for method in ("get",) if lost else _METHODS:
            document.missing = lost.copy()
            one = document.resolved(item.get(method))
            if isinstance(item.get(method), Mapping) or lost:
                named = _named(one, method, path, found)
                found[named] = _operation(document, named, method, path, (item, one))
    chosen = [one for one in found.values() if not only or one.path.startswith(tuple(only))]
    if only and not chosen:
        raise UsageError(f"{document.name} has no path that begins with {' or '.join(only)}")
    return chosen


def deprecated(listed: Sequence[Operation], only: Sequence[str]) -> dict[str, str]:
    """Return the deprecated operations that are left out: none if all are, or if `only` has their paths."""
    names = [one.name for one in listed if one.deprecated and one.path not in only]
    told = "it is deprecated; --only with its whole path takes it all the same"
    return dict.fromkeys(names if len(names) < len(listed) else (), told)


def _named(node: Node, method: str, path: str, taken: Collection[str]) -> str:
    """Return the `operationId` as a unique identifier, or a name made of method and path."""
    words = parts_of(str(node.get("operationId") or ""))
    if not any(word.isalpha() for word in words):
        words = [method, *parts_of(path)]
    name = unicodedata.normalize("NFKC", "_".join(words).lower())[:60]
    name = name if name.isidentifier() else f"{method}_{name}"
    number = 2
    while name in taken:
        name = f"{name.rstrip('0123456789_')}_{number}"
        number += 1
    return name


def _operation(document: Document, name: str, method: str, path: str, nodes: tuple[Node, Node]) -> Operation:
    item, node = (as_object(None), _newer(document, *nodes)) if document.is_older else nodes
    found = dict[tuple[str, str], Parameter]()
    for listed in (*as_list(item.get("parameters")), *as_list(node.get("parameters"))):
        one = _parameter(document, document.resolved(listed))
        found[one.place, one.name if one.place in ("path", "query") else one.name.lower()] = one
    for blank in re.findall(r"\{([^}]+)\}", path):
        unsaid = Parameter(name=blank, place="path", required=True, schema={"type": "string"})
        found.setdefault(("path", blank), unsaid)
    known = [one for key, one in found.items() if key[0] in _PLACES and key not in _NO_PARAMETERS]
    takes = document.resolved(node.get("requestBody") if method != "get" else None)
    sends, body = _content(document, takes, writing=True)
    result, answers = _answer(document, node)
    problem: str | None = None
    if body is None and takes.get("content"):
        problem = "it takes no JSON"
    elif body is not None and body.get("type") == "array":
        problem = "it takes a list of records at once"
    elif document.missing:
        problem = _MISSING.format(min(document.missing))
    summary = _LABEL.sub("", _PARAGRAPH.split(str(node.get("summary") or "").strip(), maxsplit=1)[0])
    told = _MARKUP.sub("", _told(summary or node.get("description"), 1000))
    return Operation(
        name=name,
        method=method,
        path=path,
        told=_told(re.split(r"(?<=[a-z)])\.\s", told, maxsplit=1)[0].rstrip("."), 120),
        parameters=tuple(sorted(known, key=lambda one: one.place not in ("path", "query"))),
        body=body,
        sends=sends,
        result=result,
        answers=answers,
        problem=problem,
        deprecated=node.get("deprecated") is True,
    )


def _newer(document: Document, item: Node, node: Node) -> Node:
    """Return an operation of Swagger 2 in the form of OpenAPI 3."""

    def carried(which: str, schema: object) -> Node:
        kinds = as_list(node.get(which)) or as_list(document.root.get(which)) or ["application/json"]
        return {"content": {str(kind): {"schema": schema} for kind in kinds}}

    parameters: list[Node] = []
    form: dict[str, Node] = {}
    newer: dict[str, object] = {**node, "parameters": parameters}
    for one in (*as_list(item.get("parameters")), *as_list(node.get("parameters"))):
        told = document.resolved(one)
        if told.get("in") == "body":
            newer["requestBody"] = carried("consumes", told.get("schema", {}))
        elif told.get("in") == "formData":
            form[str(told.get("name"))] = told
        else:
            style, explode = _STYLES.get(str(told.get("collectionFormat")), ("", False))
            explode = explode if told.get("type") == "array" else None
            parameters.append({**told, "schema": told, "style": style, "explode": explode})
    if form:
        is_file = any(one.get("type") == "file" for one in form.values())
        required = [name for name, one in form.items() if one.get("required") is True]
        schema = {"type": "object", "properties": form, "required": required}
        newer["requestBody"] = {"content": {"multipart/form-data" if is_file else FORM: {"schema": schema}}}
    told = as_object(node.get("responses"))
    given = {code: document.resolved(one) for code, one in told.items()}
    typed = {code: carried("produces", one["schema"]) for code, one in given.items() if "schema" in one}
    return {**newer, "responses": {**given, **typed}}


def _parameter(document: Document, told: Node) -> Parameter:
    node = told.get("schema")
    as_json = node is None and isinstance(told.get("content"), Mapping)
    if node is None:  # a parameter may have a `content` instead
        node = as_object(next(iter(as_object(told.get("content")).values()), None)).get("schema", {})
    described = {"description": told["description"]} if told.get("description") else {}
    schema = document.schema({**as_object(node), **described}, writing=True)
    schema.setdefault("type", "string")
    if schema.pop("nullable", False) and schema.get("default", 0) is None:  # only a body can hold null
        del schema["default"]
    example = told.get("example")
    if example is not None and not isinstance(example, Mapping | list):
        schema.setdefault("examples", [example])
    return Parameter(
        name=str(told.get("name") or ""),
        place=str(told.get("in") or ""),
        required=bool(told.get("required")) or told.get("in") == "path",
        schema=schema,
        style=str(told.get("style") or ""),
        explode=told["explode"] if isinstance(told.get("explode"), bool) else None,
        as_json=as_json,
    )


def _content(document: Document, node: Node, *, writing: bool) -> tuple[str, dict[str, Any] | None]:
    """Return the media type and the schema of a JSON request or response body."""
    for kind, one in as_object(node.get("content")).items():
        if _JSON.fullmatch(media_type(kind)) and "schema" in as_object(one):
            schema = document.schema(one["schema"], writing=writing)
            return kind, schema if schema.get("type") in ("object", "array", None) else None
    return "", None


def _answer(document: Document, node: Node) -> tuple[dict[str, Any] | None, str]:
    """Return the schema of the first response that means success and has one, and `Operation.answers`."""
    told = as_object(node.get("responses"))
    good = [told[code] for code in sorted(told) if code.startswith("2")]
    otherwise = [] if good else [told.get("default")]
    answers = [document.resolved(one) for one in (*good, *otherwise)]
    kinds = next((list(found) for one in answers if (found := as_object(one.get("content")))), list[str]())
    other = [one for one in kinds if media_type(one) == FORM or not _JSON.fullmatch(media_type(one))]
    schemas = (_content(document, one, writing=False)[1] for one in answers)
    return next(filter(None, schemas), None), other[0] if other == kinds != [] else ""
