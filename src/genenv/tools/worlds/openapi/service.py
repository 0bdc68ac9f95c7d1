"""Tools of a real HTTP service: called and recorded while a bundle is made, replayed in training."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, cast
from urllib.parse import quote, urlencode, urlsplit

from genenv.errors import UsageError
from genenv.texts import masked
from genenv.tools.discover.state_values import words_of
from genenv.tools.worlds.base import TOO_LONG, Call, Outcome, Tool
from genenv.tools.worlds.limits import USUAL, Budget
from genenv.tools.worlds.openapi.document import (
    FORM,
    Document,
    Operation,
    Parameter,
    argument_name,
    deprecated,
    is_blank,
    media_type,
    operations,
)
from genenv.tools.worlds.openapi.http_client import (
    HEADER_VALUE,
    TOO_LARGE,
    Headers,
    HttpClient,
    Request,
    UnusableAnswer,
    Wait,
    outcome_of,
)
from genenv.tools.worlds.openapi.loading import is_address, load_text
from genenv.tools.worlds.openapi.mock_world import MOST_TOOLS, TOO_MANY
from genenv.tools.worlds.openapi.shapes import plain
from genenv.tools.worlds.recorded import MOST_SENT, MOST_WRITTEN, Ended, NoAnswer, record
from genenv.tools.worlds.sources import RecordedSource, Source, ToolOrigin
from genenv.types import Json

_MOST_OPTIONAL = 8
"""Maximum number of optional arguments."""
_SIZES = frozenset(
    ("limit", "perpage", "pagesize", "pagelimit", "size", "maxresults", "count", "first", "top", "take")
)
"""Parameters for the number of records in a list."""
_FEW = 10
_CHANGES = re.compile(
    "activate|add|approve|ban|cancel|clear|close|create|deactivate|delete|deploy|"
    "destroy|disable|drop|edit|enable|erase|execute|flush|insert|install|invoke|kick|"
    "kill|login|logoff|logout|modify|pause|pay|publish|purge|reboot|refund|register|"
    "reject|remove|rename|replace|reset|restart|resume|retry|revert|revoke|rollback|"
    "rotate|run|send|shutdown|signin|signout|start|stop|submit|subscribe|suspend|"
    "terminate|transfer|trigger|unlock|unpublish|unsubscribe|update|upload|wipe|withdraw|"
    "write"
)
"""Words for changes, in the names and paths of operations, whatever their method."""
_READING = re.compile(
    "check|count|describe|download|export|fetch|find|get|list|lookup|query|read|search|show|view"
)
"""First words of names of operations that only read."""
_WORD = re.compile(r"[A-Z]?[a-z]+|[A-Z]+(?![a-z])")
_BETWEEN: Mapping[str, str] = {"form": ",", "simple": ",", "spaceDelimited": " ", "pipeDelimited": "|"}
_Place = tuple[str, str]
"""A place and a name: `("header", "x-api-key")`."""


class Requests:
    """Converts tool calls of one operation to HTTP requests, which have the `given` parameters anyway."""

    def __init__(self, operation: Operation, given: Collection[_Place] = ()) -> None:
        self._operation, self._given = operation, given
        self.problem = _problem(operation, given)
        """Why the operation cannot be called; None if it can."""
        self._slots = {} if self.problem else _slots(operation, given)

    @property
    def tool(self) -> Tool:
        """The tool as the agent sees it."""
        return self._operation.tool(self._slots, writes=not reads(self._operation))

    @property
    def shorter(self) -> Requests | None:
        """A variant that requests few records at a time; None if no parameter allows that."""
        for number, one in enumerate(listed := list(self._operation.parameters)):
            bare = plain(one.name) in _SIZES and one.schema.get("type") == "integer"
            if bare and "enum" not in one.schema and one.place == "query" and not one.required:
                kept = {name: told for name, told in one.schema.items() if name in ("type", "description")}
                most = one.schema.get("maximum")
                few = min(_FEW, most) if isinstance(most, int) and most > 0 else _FEW
                listed[number] = replace(one, required=True, schema={**kept, "minimum": 1, "maximum": few})
                return Requests(replace(self._operation, parameters=tuple(listed)), self._given)
        return None

    def of(self, args: Mapping[str, Json]) -> Request:
        """Return the request for a call.

        Raises:
            UnusableAnswer: a value cannot be put in its place, such as an empty part of a path.
        """
        given = [
            (one, args[name])
            for name, one in self._slots.items()
            if name in args and (args[name] is not None or one.place == "body")
        ]
        blanks = {
            one.name: quote(_joined(one, value), safe="") for one, value in given if one.place == "path"
        }
        query = [pair for one, value in given if one.place == "query" for pair in _in_query(one, value)]
        headers = {one.name: _joined(one, value).strip() for one, value in given if one.place == "header"}
        if kind := self._operation.sends:
            headers["content-type"] = "application/json" if kind == "*/*" else kind
        for name in [name for name, text in blanks.items() if not text]:
            raise UnusableAnswer(f"{name} must not be empty.")
        for name in [name for name, text in headers.items() if not HEADER_VALUE.fullmatch(text)]:
            raise UnusableAnswer(f"{name} has to be plain characters.")
        fields = {one.name: value for one, value in given if one.place == "body"}
        target = _filled(self._operation.path, blanks)
        target += f"?{urlencode(query, quote_via=quote)}" if query else ""
        body = json.dumps(fields, ensure_ascii=False) if kind else ""
        if media_type(kind) == FORM:
            said = {name: one for name, one in fields.items() if one is not None}
            pairs = {k: [*map(_text, v)] if isinstance(v, list) else _text(v) for k, v in said.items()}
            body = urlencode(pairs, doseq=True)
        method = self._operation.method.upper()
        return Request(method=method, target=target, headers=headers, body=body.encode() or None)


def reads(operation: Operation) -> bool:
    """Whether an operation only reads: a GET whose name and path do not suggest a change.

    A name may have a word for a change after one for reading (`getRunStatus`); parts of a path begin with it.
    """
    named = _lower_words(operation.name)
    from_each = (named[n:] for n in range(len(named)) if not _READING.fullmatch(named[0]))
    parts = (_lower_words(one) for one in operation.segments if not is_blank(one))
    return operation.method == "get" and not any(map(_begins_a_change, (*from_each, *parts)))


def _lower_words(text: str) -> list[str]:
    return [word.lower() for word in _WORD.findall(text)]


def _begins_a_change(words: Sequence[str]) -> bool:
    """Whether the first word is one for a change, by itself or with the next: `sign out`."""
    return any(_CHANGES.fullmatch("".join(words[:count])) for count in (1, 2))


def _problem(operation: Operation, given: Collection[_Place]) -> str | None:
    if operation.problem:
        return operation.problem
    if not operation.path.startswith("/"):
        return "its path does not begin with /"
    if operation.answers:
        return f"it answers {operation.answers}, and no JSON"
    for one in operation.parameters:
        if one.required and one.place == "cookie":
            return f"it needs the cookie {one.name}, and none is sent"
        if one.required and (one.place, one.name.lower()) not in given and _is_key(one):
            return f"it needs the key {one.name}; give it with --header '{one.name}: $VARIABLE'"
    return None


def _is_key(parameter: Parameter) -> bool:
    """Whether a parameter in a header or the query holds a secret, by its name."""
    if parameter.place == "query":
        return plain(parameter.name) in ("apikey", "accesstoken", "authtoken")
    words = {"key", "apikey", "token", "secret", "auth"} & set(words_of(parameter.name))
    return parameter.place == "header" and bool(words)


def _slots(operation: Operation, given: Collection[_Place]) -> dict[str, Parameter]:
    """Return the arguments with the parameters that they set, and only some of the optional ones.

    Fields of the request body are parameters, too; the first is required if none is declared so.
    """
    sent = operation.body or {}
    fields = cast("Mapping[str, dict[str, Any]]", sent.get("properties", {}))
    single = [name for name, schema in fields.items() if schema.get("type") not in ("array", "object")]
    needed = set(cast("Sequence[str]", sent.get("required", ()))) or set(single[:1])
    body = (Parameter(name=n, place="body", required=n in needed, schema=one) for n, one in fields.items())
    slots: dict[str, Parameter] = {}
    optional = 0
    for one in (*operation.parameters, *body):
        if one.place == "cookie" or (one.place, one.name.lower()) in given:
            continue
        if not one.required:
            unsaid = one.place == "header" and not {"enum", "examples"} & set(one.schema)
            optional += not unsaid
            if unsaid or one.schema.get("type") == "object" or optional > _MOST_OPTIONAL:
                continue
        slots[argument_name(one.name, slots, one.place)] = one
    return slots


# serialization of values


def _filled(path: str, blanks: Mapping[str, str]) -> str:
    """Return the path with its values filled in; it cannot leave the service's address."""
    literal = "/:@!$&'()*+,;=~%"
    parts = re.split(r"\{([^}]+)\}", path)  # texts, and every other one the name of a placeholder
    filled = [blanks.get(one, "") if n % 2 else quote(one, safe=literal) for n, one in enumerate(parts)]
    target = "/" + "".join(filled).lstrip("/")
    if any(part in (".", "..") for part in target.split("/")):
        raise UnusableAnswer("A part of a path must not be . or ..")
    return target


def _in_query(one: Parameter, value: Json) -> list[tuple[str, str]]:
    style = one.style or "form"
    explode = one.explode if one.explode is not None else style == "form"
    if isinstance(value, Mapping) and (style == "deepObject" or explode) and not one.as_json:
        named = "{}[{}]" if style == "deepObject" else "{1}"
        return [(named.format(one.name, name), _text(inner)) for name, inner in value.items()]
    if isinstance(value, list) and explode and not one.as_json:
        return [(one.name, _text(inner)) for inner in value]
    return [(one.name, _joined(one, value))]


def _joined(one: Parameter, value: Json) -> str:
    """Return a value as one text."""
    if one.as_json:
        return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
    between = _BETWEEN.get(one.style, ",")
    if isinstance(value, Mapping):
        return between.join(part for name, inner in value.items() for part in (name, _text(inner)))
    return between.join(map(_text, value)) if isinstance(value, list) else _text(value)


def _text(value: Json) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Service:
    """The address and headers of a real HTTP service."""

    address: str
    """The base address of the document's paths."""
    headers: tuple[str, ...] = ()
    """Headers of every request, as the user typed them."""


class ServiceOrigin(ToolOrigin):
    """An OpenAPI document and its real service, whose answers are recorded.

    Args:
        document: its path or address.
        service: the address and headers of the service.
        only: prefixes of the paths whose operations are tools; empty: all.
        writes: whether to call operations that may write.
        most: maximum number of requests that are sent.
        wait: waits for a number of seconds.

    Raises:
        UsageError: the service's address or a header is not valid.
    """

    def __init__(
        self,
        document: str,
        service: Service,
        only: Sequence[str] = (),
        *,
        writes: bool = False,
        most: int = MOST_SENT,
        wait: Wait = asyncio.sleep,
    ) -> None:
        self._document, self._only, self._writes, self._wait = document, tuple(only), writes, wait
        self._service, self._address, self._most = service, _address(service.address), most
        self._headers, self.label = Headers(service.headers, os.environ), self._address
        told = f"what writes is called for real, each different call once, {MOST_WRITTEN} at most"
        told = told if writes else "only GET is sent, what may write is left out"
        asked = f"{self._address} is asked now, {most} requests at most"
        self.warning = f"{asked}, and its answers are kept; {told}"

    def bring(self, files: Path, budget: Budget | None = None) -> Source:
        """See `ToolOrigin`. Records the service's answers."""
        name = self._document.rstrip("/").rsplit("/", 1)[-1]
        document = Document(self._headers.safe(load_text(self._document)), name)
        listed = operations(document, self._only)
        asked = [one for listing in listed for one in listing.parameters if one.place == "query"]
        keys = {one.lower(): one for one in (*(p.name for p in asked if _is_key(p)), *document.query_keys)}
        given = {("query" if one in keys else "header", one) for one in map(str.lower, self._headers.sent)}
        requests, left_out = self._chosen(listed, given)
        if not requests:
            reasons = "; ".join(f"{tool}: {why}" for tool, why in list(left_out.items())[:3])
            raise UsageError(f"no operation of {name} can be asked ({reasons[:400]})")
        asker = HttpClient(self._address, self._headers, self._most, self._wait, query_keys=keys)
        line = _RecordingConnection(requests, asker, budget or Budget(USUAL))
        try:
            line.shorten()
            tools = {one: made.tool for one, made in requests.items()}
            made = record(tools, line.send, left_out, random.Random("recording"), self._most)
        finally:
            asker.close()
        if not made.answers:
            reasons = made.ended or "; ".join(f"{one}: {why}" for one, why in made.left_out.items())
            raise UsageError(f"{self._address} answers nothing: {reasons[:400] or 'no call could be made'}")
        made.save(files)
        return RecordedSource(address=self._address, headers=self._service.headers)

    def _chosen(
        self, listed: Sequence[Operation], given: Collection[_Place]
    ) -> tuple[dict[str, Requests], dict[str, str]]:
        """Return the operations that are called, and the reasons for leaving out the others."""
        chosen: dict[str, Requests] = {}
        left_out = deprecated(listed, self._only)
        for one in [one for one in listed if one.name not in left_out]:
            made = Requests(one, given)
            if not (self._writes or reads(one)):
                why = "goes by a name of what changes something" if one.method == "get" else "may write"
                why = f"{one.method.upper()} {one.path} {why}, and --allow-writes was not given"
                left_out[one.name] = why
            elif made.problem or len(chosen) >= MOST_TOOLS:
                left_out[one.name] = made.problem or TOO_MANY
            else:
                chosen[one.name] = made
        return chosen, left_out


class _RecordingConnection:
    """Sends tool calls to the service while a bundle is made."""

    def __init__(self, requests: dict[str, Requests], asker: HttpClient, budget: Budget) -> None:
        self._requests, self._asker, self._budget = requests, asker, budget
        self._known: dict[str, Outcome] = {}
        """Outcomes of calls without arguments that `shorten` made before recording began."""

    def send(self, call: Call) -> Outcome:
        """Send a call and return its outcome; raise `NoAnswer`, or `UsageError` if the budget is used up."""
        if not call.args and call.tool in self._known:
            return self._known[call.tool]
        try:
            with self._budget.spending(lambda: self._asker.received):
                reply = self._asker.ask(self._requests[call.tool].of(call.args))
            return outcome_of(reply, self._asker.headers)
        except UnusableAnswer as error:
            return Outcome(error=str(error))

    def shorten(self) -> None:
        """Limit the number of records in requests whose answers are too long for an agent."""
        for name, one in list(self._requests.items()):
            shorter = one.shorter
            if shorter is None or one.tool.required or one.tool.writes:
                continue
            try:
                outcome = self.send(Call(tool=name, args={}))
            except Ended:
                return
            except NoAnswer:
                continue
            if outcome.error in (TOO_LONG, TOO_LARGE):
                self._requests[name] = shorter
            else:
                self._known[name] = outcome


def _address(text: str) -> str:
    """Return the address of a service without its trailing slash."""
    try:
        parts = urlsplit(text)
        sound = bool(is_address(text) and parts.hostname and (parts.port or 1) > 0)
    except ValueError:
        sound, parts = False, urlsplit("")
    if not sound or re.search(r"[\s\\\x00-\x1f\x7f]", text):
        raise UsageError(f"--server {masked(text)[:200]!r} is no address such as https://example.com/v1")
    if parts.username is not None or parts.password is not None:
        raise UsageError("--server must hold no user and no password; give them with --header")
    if parts.query or parts.fragment:
        raise UsageError("--server ends with its path: what goes after ? or # is no part of it")
    return text.rstrip("/")
