"""Read an OpenAPI document, of version 3 or Swagger 2, and resolve its references.

Published documents often break the standard in small ways, and a strict parser would refuse them for a field
that is not needed. This parser checks only what it uses, and leaves out unreadable operations with a reason.
"""

from __future__ import annotations

import json
import keyword
import re
import unicodedata
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, cast

from genenv.errors import UsageError
from genenv.tools.discover.state_values import parts_of
from genenv.untrusted.documents import as_list, as_object, read_document
from genenv.untrusted.schemas import fits_keyword, part_at

_DEEPEST = 16
"""Maximum nesting depth of schemas."""
_MOST_NODES = 2000
"""Maximum number of nodes in a schema."""
_KEPT = (
    *("type", "enum", "const", "format", "minimum", "maximum", "multipleOf", "default"),
    *("exclusiveMinimum", "exclusiveMaximum", "minLength", "maxLength", "minItems", "maxItems"),
)
"""Keywords of a schema that the agent sees and that arguments must satisfy."""
_HOLDING = ("properties", "items")
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
        name: the document's name in messages.

    Raises:
        UsageError: the text is not an OpenAPI document.
    """

    def __init__(self, text: str, name: str) -> None:
        root = read_document(text, name)
        if not isinstance(root, Mapping):
            raise UsageError(f"{name} is no OpenAPI document, but {type(root).__name__}")
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
    def query_keys(self) -> Mapping[str, str]:
        """Names of the API keys that the service takes in the query, by their names in lower case."""
        schemes = as_object(as_object(self.root.get("components")).get("securitySchemes"))
        listed = (*schemes.values(), *as_object(self.root.get("securityDefinitions")).values())
        keys = [one for one in map(as_object, map(self.resolved, listed)) if one.get("in") == "query"]
        return {str(one.get("name")).lower(): str(one.get("name")) for one in keys}

    def resolved(self, node: object) -> Any:  # noqa: ANN401 - JSON
        """Return a node or the target of its reference; an empty node if there is none (see `missing`)."""
        for _ in range(_DEEPEST):
            reference = cast(Node, node).get("$ref") if isinstance(node, Mapping) else None
            if not isinstance(reference, str):
                return cast(Any, node)
            node = self._at(reference)
        return {}

    def _at(self, reference: str) -> object:
        if reference.startswith("#/") and (found := part_at(self.root, reference[2:])) is not None:
            return found[0]
        self.missing.add(reference)
        return {}

    def schema(self, node: object, *, writing: bool) -> dict[str, Any]:
        """Return a schema without references or alternatives; recursion in it is cut.

        The first alternative is used, and the parts of `allOf` are merged.

        Args:
            node: a node of the document.
            writing: whether the schema is for requests, which lack read-only fields, or for responses.
        """
        self._left = _MOST_NODES
        return self._schema(node, writing, ())

    def _schema(self, node: object, writing: bool, inside: tuple[str, ...]) -> dict[str, Any]:
        self._left -= 1
        if self._left < 0 or len(inside) > _DEEPEST:
            return {}
        reference = cast(Node, node).get("$ref") if isinstance(node, Mapping) else None
        if isinstance(reference, str):
            if reference in inside:
                return {}
            inside = (*inside, reference)
        else:
            inside = (*inside, "")
        found = self.resolved(cast(object, node))
        if not isinstance(found, Mapping):
            return {}
        schema = self._merged(cast(Node, found), inside)
        kept: dict[str, Any] = {key: schema[key] for key in _KEPT if key in schema}
        _modern(kept, schema)
        properties = schema.get("properties")
        if isinstance(properties, Mapping):
            shown = self._shown(cast(Node, properties), writing=writing)
            inner = {str(name): self._schema(one, writing, inside) for name, one in shown.items()}
            kept |= {"type": "object", "properties": inner}
            required = [
                one for one in as_list(schema.get("required")) if isinstance(one, str) and one in inner
            ]
            if required:
                kept["required"] = required
        elif "items" in schema or kept.get("type") == "array":
            kept |= {"type": "array", "items": self._schema(schema.get("items", {}), writing, inside)}
        return {key: one for key, one in kept.items() if key in _HOLDING or fits_keyword(key, one)}

    def _shown(self, properties: Node, *, writing: bool) -> dict[str, object]:
        """Return the fields that are in a request or in a response.

        A read-only id is included in a request that would otherwise have no field: it then says which record
        is meant.
        """
        schemas = {name: self.resolved(one) for name, one in properties.items()}
        nodes = {name: cast(Node, one) for name, one in schemas.items() if isinstance(one, Mapping)}
        hidden = "readOnly" if writing else "writeOnly"
        shown = [name for name in properties if name not in nodes or nodes[name].get(hidden) is not True]
        if writing and all(name in nodes and _only(nodes[name]) for name in shown):
            shown += [name for name in properties if name == "id" and name not in shown]
        return {name: cast(object, properties[name]) for name in shown}

    def _merged(self, schema: Node, inside: tuple[str, ...]) -> Node:
        """Merge `allOf` and the first alternative into a schema; single values become an enum."""
        parts = [*as_list(schema.get("allOf"))]
        for key in ("oneOf", "anyOf"):
            ways = as_list(schema.get(key))
            real = [way for way in ways if as_object(self.resolved(way)).get("type") != "null"]
            listed = [value for way in real for value in _only(as_object(self.resolved(way)))]
            parts += [{"enum": listed}] if real and len(listed) == len(real) else real[:1]
        if not parts:
            return schema
        whole: dict[str, Any] = {}
        for part in parts:
            _join(whole, self._part(part, inside))
        _join(whole, {key: one for key, one in schema.items() if key not in ("allOf", "oneOf", "anyOf")})
        return whole

    def _part(self, node: object, inside: tuple[str, ...]) -> Node:
        """Return a part of a schema with its references resolved."""
        self._left -= 1
        reference = cast(Node, node).get("$ref") if isinstance(node, Mapping) else None
        if self._left < 0 or len(inside) > _DEEPEST or (reference is not None and reference in inside):
            return {}
        found = self.resolved(cast(object, node))
        return (
            self._merged(cast(Node, found), (*inside, str(reference or "")))
            if isinstance(found, Mapping)
            else {}
        )


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
    if isinstance(kind, list):
        kept["type"] = next((one for one in cast("list[str]", kind) if one != "null"), "string")
    if isinstance(listed := kept.get("enum"), list):
        kept["enum"] = [one for one in cast("list[object]", listed) if one is not None]
    for bound, limit in (("exclusiveMinimum", "minimum"), ("exclusiveMaximum", "maximum")):
        if isinstance(kept.get(bound), bool) and kept.pop(bound) and limit in kept:
            kept[bound] = kept.pop(limit)
    examples = schema.get("examples")
    if not isinstance(examples, list):
        examples = [schema["example"]] if "example" in schema else []
    fitting = _PYTHON.get(str(kept.get("type")), ())
    examples = [one for one in cast("list[object]", examples) if isinstance(one, fitting)][:4]
    if examples:
        kept["examples"] = examples
    pattern = schema.get("pattern")
    if pattern is not None:
        kept["pattern"] = pattern
    if told := _told(schema.get("description")):
        kept["description"] = told
    if kept.get("default", 0) is None:
        del kept["default"]


def _told(text: object, most: int = _MOST_TOLD) -> str:
    """Return a description on one line, cut after a word."""
    told = " ".join(str(text or "").split())
    return told if len(told) <= most else told[: most - 1].rsplit(" ", 1)[0] + "…"


METHODS = ("get", "post", "put", "patch", "delete")
FORM = "application/x-www-form-urlencoded"
_JSON = re.compile(rf"application/(?:[\w.+-]+\+)?json|\*/\*|{FORM}")
_OF_THE_PROTOCOL = frozenset({"accept", "content-type", "authorization"})
"""Names of headers that OpenAPI does not treat as parameters."""

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
    """Parameters in the path and the query."""
    aside: tuple[Parameter, ...] = ()
    """Parameters in headers and cookies."""
    body: dict[str, Any] | None
    """Schema of the request body."""
    sends: str = ""
    """Media type of the request body."""
    result: dict[str, Any] | None
    """Schema of the response body."""
    answers: tuple[str, ...] = ()
    """Media types of the response, if the document names them."""
    problem: str | None = None
    """Why the operation cannot be a tool; None if it can."""
    deprecated: bool = False
    """Whether the document marks the operation as deprecated."""

    @property
    def segments(self) -> tuple[str, ...]:
        """Parts of the path, without an ending such as `.json`; the verb of `/orders/{id}:cancel` is one."""
        path = re.sub(r"(?<=.)\.(?:json|\{format\})$", "", self.path)
        return tuple(part for part in path.replace("}:", "}/").split("/") if part)


def argument_name(
    name: str, taken: Collection[str] = (), place: str = "body", *, python: bool = False
) -> str:
    """Return the name of an argument: `filter[status]` is `filter_status`, `x-class` and `from` stay.

    Args:
        name: any text.
        taken: names of other arguments.
        place: where the argument is sent; it distinguishes arguments with one name: `id` and `body_id`.
        python: whether it has to be a name that Python can write: `x_class` and `from_`.
    """
    name = unicodedata.normalize("NFKC", name)
    name = re.sub(r"\W+" if python else r"[^\w.-]+", "_", name).strip("_") or "value"
    if python:
        name = name if name.isidentifier() else f"_{name}"
        name = f"{name}_" if keyword.iskeyword(name) else name
    if name in taken:
        name = f"{place}_{name}"
    while name in taken:
        name += "_"
    return name


def is_blank(segment: str) -> bool:
    """Whether a part of a path is a placeholder, such as `{id}`."""
    return segment.startswith("{") and segment.endswith("}")


def operations(document: Document) -> Iterator[Operation]:
    """Yield all operations, in the order of the document."""
    taken: set[str] = set()
    for path, node in document.paths.items():
        document.missing.clear()
        item = as_object(document.resolved(node))
        lost = document.missing.copy()
        for method in ("get",) if lost else METHODS:
            document.missing = lost.copy()
            one = document.resolved(item.get(method, {} if lost else None))
            if isinstance(one, Mapping):
                name = _named(cast(Node, one), method, path, taken)
                taken.add(name)
                yield _operation(document, name, method, path, (item, cast(Node, one)))


def _named(node: Node, method: str, path: str, taken: set[str]) -> str:
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
    parameters: dict[tuple[str, str], Parameter] = {}
    aside: dict[tuple[str, str], Parameter] = {}
    problem: str | None = None
    for one in (*as_list(item.get("parameters")), *as_list(node.get("parameters"))):
        told = document.resolved(one)
        if not isinstance(told, Mapping):
            continue
        found = _parameter(document, cast(Node, told))
        if found.place in ("path", "query"):
            parameters[found.place, found.name] = found
        elif found.place == "cookie" or found.name.lower() not in _OF_THE_PROTOCOL:
            aside[found.place, found.name.lower()] = found
    for blank in re.findall(r"\{([^}]+)\}", path):
        unsaid = Parameter(name=blank, place="path", required=True, schema={"type": "string"})
        parameters.setdefault(("path", blank), unsaid)
    body, sends = None, ""
    if method != "get" and isinstance(sent := document.resolved(node.get("requestBody")), Mapping):
        sends, body = _content(document, cast(Node, sent), writing=True)
        if body is None and cast(Node, sent).get("content"):
            problem = "it takes no JSON"
        elif body is not None and body.get("type") == "array":
            problem = "it takes a list of records at once"
    result = _result(document, node)
    if document.missing and problem is None:
        problem = _MISSING.format(sorted(document.missing)[0])
    told = _MARKUP.sub("", _told(node.get("summary") or node.get("description"), 1000))
    return Operation(
        name=name,
        method=method,
        path=path,
        told=_told(re.split(r"(?<=[a-z)])\.\s", told, maxsplit=1)[0].rstrip("."), 120),
        parameters=tuple(parameters.values()),
        aside=tuple(aside.values()),
        body=body,
        sends=sends,
        result=result,
        answers=_answers(document, node),
        problem=problem,
        deprecated=node.get("deprecated") is True,
    )


def _newer(document: Document, item: Node, node: Node) -> Node:
    """Return an operation of Swagger 2 in the form of OpenAPI 3."""
    parameters: list[Node] = []
    form: dict[str, Node] = {}
    newer: dict[str, object] = {**node, "parameters": parameters}
    for one in (*as_list(item.get("parameters")), *as_list(node.get("parameters"))):
        told = as_object(document.resolved(one))
        if told.get("in") == "body":
            newer["requestBody"] = _carried(document, node, "consumes", told.get("schema", {}))
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
    answers = as_object(node.get("responses"))
    given = {code: as_object(document.resolved(one)) for code, one in answers.items()}
    newer["responses"] = {
        code: _carried(document, node, "produces", one["schema"]) if "schema" in one else {}
        for code, one in given.items()
    }
    return newer


def _carried(document: Document, node: Node, which: str, schema: object) -> Node:
    """Return a body of Swagger 2, whose media types the operation or the document names."""
    kinds = as_list(node.get(which)) or as_list(document.root.get(which)) or ["application/json"]
    return {"content": {str(kind): {"schema": schema} for kind in kinds}}


def _parameter(document: Document, told: Node) -> Parameter:
    node = told.get("schema")
    as_json = node is None and isinstance(told.get("content"), Mapping)
    if node is None:  # a parameter may have a `content` instead
        content: object = told.get("content")
        node = as_object(next(iter(as_object(content).values()), None)).get("schema", {})
    schema = document.schema(node, writing=True)
    schema.setdefault("type", "string")
    if told.get("description") and "description" not in schema:
        schema["description"] = " ".join(str(told["description"]).split())[:_MOST_TOLD]
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
    content = node.get("content")
    if not isinstance(content, Mapping):
        return "", None
    for kind, one in cast("Mapping[str, object]", content).items():
        if _JSON.match(str(kind)) and isinstance(one, Mapping) and "schema" in one:
            schema = document.schema(cast(Node, one)["schema"], writing=writing)
            return str(kind), schema if schema.get("type") in ("object", "array", None) else None
    return "", None


def _result(document: Document, node: Node) -> dict[str, Any] | None:
    """Return the schema of the first successful response that has a body."""
    for answer in _successes(document, node):
        _, schema = _content(document, answer, writing=False)
        if schema:
            return schema
    return None


def _answers(document: Document, node: Node) -> tuple[str, ...]:
    """Return the media types of the first successful response that has a body."""
    for answer in _successes(document, node):
        content = answer.get("content")
        if isinstance(content, Mapping) and content:
            return tuple(map(str, cast(Node, content)))
    return ()


def _successes(document: Document, node: Node) -> Iterator[Node]:
    """Yield the declared responses that mean success; the default response comes last."""
    responses = node.get("responses")
    if not isinstance(responses, Mapping):
        return
    told = cast("Mapping[object, object]", responses)
    good = sorted((str(code), one) for code, one in told.items() if str(code).startswith("2"))
    for _, one in [*good, ("default", told.get("default"))]:
        answer = document.resolved(one)
        if isinstance(answer, Mapping):
            yield cast(Node, answer)


def is_json(kind: str) -> bool:
    """Whether a media type is JSON or a wildcard."""
    return kind != FORM and _JSON.match(kind) is not None
