"""The operations of a document, and what each does to the tables of its resources."""

from __future__ import annotations

import keyword
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast

from genenv.tools.worlds.openapi.reading import Document, Node
from genenv.untrusted.documents import as_list, as_object

METHODS = ("get", "post", "put", "patch", "delete")
FORM = "application/x-www-form-urlencoded"
_JSON = re.compile(rf"application/(?:[\w.+-]+\+)?json|\*/\*|{FORM}")
_OF_THE_PROTOCOL = frozenset({"accept", "content-type", "authorization"})
"""Names of headers that are no parameters, as the standard has it."""

_MISSING = "it needs {}, which is not in the document; put all into one file (such as with `redocly bundle`)"


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A parameter in the path, the query, a header or a cookie."""

    name: str
    place: str
    """path, query, header or cookie."""
    required: bool
    schema: dict[str, Any]
    style: str = ""
    """How lists and objects are written; empty: as is usual in its place."""
    explode: bool | None = None
    """Whether each item is written by itself; None: as is usual for its style."""
    as_json: bool = False
    """Whether it is written as JSON."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An operation as the document describes it."""

    name: str
    """An identifier, unique in the document."""
    method: str
    path: str
    told: str
    """What it does, in a sentence."""
    parameters: tuple[Parameter, ...]
    """In the path and the query."""
    aside: tuple[Parameter, ...] = ()
    """In headers and cookies."""
    body: dict[str, Any] | None
    """Schema of the JSON that is sent."""
    sends: str = ""
    """The media type of what is sent."""
    result: dict[str, Any] | None
    """Schema of the JSON that comes back."""
    answers: tuple[str, ...] = ()
    """Media types of what comes back, where the document names them."""
    problem: str | None = None
    """Why it cannot be a tool."""
    deprecated: bool = False
    """Whether the document says that it should not be used any more."""

    @property
    def segments(self) -> tuple[str, ...]:
        """Parts of the path."""
        return tuple(part for part in self.path.split("/") if part)


def argument_name(name: str) -> str:
    """A name that Python takes for an argument: `filter[status]` is `filter_status`, `from` is `from_`."""
    name = re.sub(r"\W+", "_", name, flags=re.ASCII).strip("_") or "value"
    name = f"_{name}" if name[0].isdigit() else name
    return f"{name}_" if keyword.iskeyword(name) else name


def is_blank(segment: str) -> bool:
    """Whether a part of a path stands for a value."""
    return segment.startswith("{") and segment.endswith("}")


def operations(document: Document) -> Iterator[Operation]:
    """All operations, in the order of the document."""
    taken: set[str] = set()
    for path, node in document.paths.items():
        document.missing.clear()
        item = cast(Node, document.resolved(node))
        if document.missing:
            yield _elsewhere(path, document.missing.pop(), taken)
        for method in METHODS:
            one = document.resolved(item.get(method))
            if isinstance(one, Mapping):
                name = _named(cast(Node, one), method, path, taken)
                taken.add(name)
                yield _operation(document, name, method, path, (item, cast(Node, one)))


def _elsewhere(path: str, reference: str, taken: set[str]) -> Operation:
    """A path whose operations are in another file."""
    name = _named({}, "get", path, taken)
    taken.add(name)
    problem = _MISSING.format(reference)
    return Operation(
        name=name, method="get", path=path, told="", parameters=(), body=None, result=None, problem=problem
    )


def _named(node: Node, method: str, path: str, taken: set[str]) -> str:
    """Its `operationId` as an identifier, or one made of method and path."""
    told = str(node.get("operationId") or "")
    if not re.search(r"[A-Za-z]", told):
        parts = [re.sub(r"\W+", "_", part.strip("{}")) for part in path.split("/") if part]
        told = "_".join([method, *parts])
    words = re.findall(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+|[0-9]+", told)
    name = "_".join(words).lower()[:60] or method
    number = 2
    while name in taken:
        name = f"{name.rstrip('0123456789_')}_{number}"
        number += 1
    return name


def _operation(document: Document, name: str, method: str, path: str, nodes: tuple[Node, Node]) -> Operation:
    item, node = nodes
    parameters: dict[str, Parameter] = {}
    aside: dict[tuple[str, str], Parameter] = {}
    problem: str | None = None
    document.missing.clear()
    for one in (*as_list(item.get("parameters")), *as_list(node.get("parameters"))):
        told = document.resolved(one)
        if not isinstance(told, Mapping):
            continue
        found = _parameter(document, cast(Node, told))
        if found.place in ("path", "query"):
            parameters[found.name] = found
        elif found.place == "cookie" or found.name.lower() not in _OF_THE_PROTOCOL:
            aside[found.place, found.name.lower()] = found
    for blank in re.findall(r"\{([^}]+)\}", path):
        parameters.setdefault(
            blank, Parameter(name=blank, place="path", required=True, schema={"type": "string"})
        )
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
    summary = " ".join(str(node.get("summary") or node.get("description") or "").split())
    return Operation(
        name=name,
        method=method,
        path=path,
        told=re.split(r"(?<=[a-z)])\.\s", summary, maxsplit=1)[0].rstrip(".")[:120],
        parameters=tuple(parameters.values()),
        aside=tuple(aside.values()),
        body=body,
        sends=sends,
        result=result,
        answers=_answers(document, node),
        problem=problem,
        deprecated=node.get("deprecated") is True,
    )


def _parameter(document: Document, told: Node) -> Parameter:
    node = told.get("schema")
    as_json = node is None and isinstance(told.get("content"), Mapping)
    if node is None:  # a parameter may have a content instead
        content: object = told.get("content")
        node = as_object(next(iter(as_object(content).values()), None)).get("schema", {})
    schema = document.schema(node, writing=True)
    schema.setdefault("type", "string")
    if told.get("description") and "description" not in schema:
        schema["description"] = " ".join(str(told["description"]).split())[:160]
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
    """The media type and the schema of what is sent or comes back as JSON."""
    content = node.get("content")
    if not isinstance(content, Mapping):
        return "", None
    for kind, one in cast("Mapping[str, object]", content).items():
        if _JSON.match(str(kind)) and isinstance(one, Mapping) and "schema" in one:
            schema = document.schema(cast(Node, one)["schema"], writing=writing)
            return str(kind), schema if schema.get("type") in ("object", "array", None) else None
    return "", None


def _result(document: Document, node: Node) -> dict[str, Any] | None:
    """Of the first success that has a content."""
    for answer in _successes(document, node):
        _, schema = _content(document, answer, writing=False)
        if schema:
            return schema
    return None


def _answers(document: Document, node: Node) -> tuple[str, ...]:
    """Of the first success that has a content."""
    for answer in _successes(document, node):
        content = answer.get("content")
        if isinstance(content, Mapping) and content:
            return tuple(map(str, cast(Node, content)))
    return ()


def _successes(document: Document, node: Node) -> Iterator[Node]:
    """What the document says of answers, successes first."""
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
    """Whether a media type is one of JSON, or any."""
    return kind != FORM and _JSON.match(kind) is not None
