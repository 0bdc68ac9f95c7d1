"""HTTP to and from an OpenAPI service: requests, secret headers, and responses as tool outcomes.

The client sends one request at a time, up to a maximum, and honors `Retry-After`. The service is not trusted:
redirects to other hosts are refused, and responses are limited in size and time.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import copy
import json
import random
import re
import time
import urllib.parse
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http import HTTPStatus
from typing import TYPE_CHECKING, Any, cast

from genenv.errors import UsageError, first_line
from genenv.texts import SHORTEST_SECRET, clean, masked, without
from genenv.tools.discover.state_values import words_of
from genenv.tools.worlds.base import Outcome
from genenv.tools.worlds.jsonable import NotJson, result_of
from genenv.tools.worlds.openapi.rows import Record, valued
from genenv.tools.worlds.openapi.shapes import Answer, Field, plain, properties_of, reference_path
from genenv.tools.worlds.processes import Thread
from genenv.tools.worlds.python_child import MOST_CHARS
from genenv.tools.worlds.recorded import Ended, NoAnswer
from genenv.types import Json

if TYPE_CHECKING:
    from httpx2 import URL, AsyncClient, Response


_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
_VALUE = re.compile(r"[\x20-\x7e]+")
_OWN = frozenset(
    {"host", "connection", "content-length", "content-type", "transfer-encoding", "accept-encoding", "te"}
)
"""Headers that every request has anyway."""
_SECRET = frozenset(
    {"authorization", "auth", "cookie", "key", "apikey", "token", "secret", "password", "credential", "jwt"}
)
"""Words in the names of headers that hold a secret."""


class Headers:
    """Request headers, and the secrets in them that must be removed from responses.

    Args:
        typed: headers as `NAME: VALUE`; `$VARIABLE` is replaced by the value of an environment variable.
        environment: the environment variables.

    Raises:
        UsageError: a header cannot be read, contains a secret literally, or names a variable that is not set.
    """

    def __init__(self, typed: Sequence[str], environment: Mapping[str, str]) -> None:
        self._values: dict[str, str] = {}
        self._secrets: set[str] = set()
        for one in typed:
            name, value = _parts(one)
            self._values[name] = _VARIABLE.sub(
                lambda found, name=name: self._held(name, found[1] or found[2], environment), value
            )
            if _VARIABLE.search(value):
                self._secrets |= {form for form in _forms(self._values[name]) if len(form) >= SHORTEST_SECRET}

    def _held(self, header: str, variable: str, environment: Mapping[str, str]) -> str:
        value = environment.get(variable, "").strip()
        if not value:
            raise UsageError(f"--header {header} names the environment variable {variable}, which is not set")
        if not _VALUE.fullmatch(value):
            raise UsageError(f"what {variable} holds cannot be in a header: it is more than plain characters")
        if len(value) < SHORTEST_SECRET:
            raise UsageError(
                f"what {variable} holds is too short to be kept out of what is recorded; if it is no secret, "
                f"write it into --header {header}"
            )
        self._secrets |= {value, urllib.parse.quote(value, safe=""), urllib.parse.quote_plus(value)}
        return value

    @property
    def names(self) -> frozenset[str]:
        """Names of the headers in lower case."""
        return frozenset(name.lower() for name in self._values)

    @property
    def sent(self) -> Mapping[str, str]:
        """Headers with their values."""
        return dict(self._values)

    def safe(self, text: str) -> str:
        """Return a text of the service without secrets."""
        return without(text, self._secrets)

    def without(self, value: Json) -> Json:
        """Return an answer without secrets."""
        if isinstance(value, str):
            return self.safe(clean(value))
        if isinstance(value, Mapping):
            return {str(self.without(name)): self.without(one) for name, one in value.items()}
        return [self.without(one) for one in value] if isinstance(value, list) else value


def _parts(typed: str) -> tuple[str, str]:
    """Split a header into name and value.

    Raises:
        UsageError: the text is not a header, or a header that users cannot set.
    """
    name, colon, value = (part.strip() for part in typed.partition(":"))
    if not colon or not _NAME.fullmatch(name) or not _VALUE.fullmatch(value):
        raise UsageError(
            f"--header {masked(name)[:40]!r} is not NAME: VALUE, such as 'Authorization: Bearer $TOKEN'"
        )
    if name.lower() in _OWN:
        raise UsageError(f"--header {name} cannot be given: genenv sets it itself")
    if set(words_of(name)) & _SECRET and not _VARIABLE.search(value):
        raise UsageError(
            f"--header {name} holds a secret in writing, which the bundle would keep; name an environment "
            f"variable instead, in single quotes: '{name}: $VARIABLE'"
        )
    return name, value


def _forms(value: str) -> Iterator[str]:
    """Yield the forms of a secret header that a service may repeat: its value and `Basic` parts."""
    yield value
    kind, _, packed = value.partition(" ")
    if kind.lower() != "basic":
        return
    try:
        plain = base64.b64decode(packed, validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        return
    yield plain
    yield plain.partition(":")[2]


CALL_S = 30.0
"""Seconds that a call may take, including redirects."""
MOST_BYTES = 1 << 20
"""Maximum size of a response in bytes."""
TOO_LARGE = f"The service answers more than {MOST_BYTES >> 20} MiB."
_TRIES = 4
_MOST_WAIT_S, _MOST_WAITED_S = 120.0, 900.0
"""Maximum seconds that a service may ask to wait, at once and in total."""
_MOST_HOPS = 5
_MOVED = frozenset({301, 302, 303, 307, 308})
_BUSY = frozenset({HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE})

Wait = Callable[[float], Awaitable[None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """An HTTP request to a service."""

    method: str
    target: str
    """Path and query, relative to the service's address."""
    headers: Mapping[str, str]
    body: bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reply:
    """An HTTP response."""

    status: int
    kind: str
    """Media type of the body."""
    body: bytes


class UnusableAnswer(Exception):
    """A response that cannot be given to an agent. The message is a sentence."""


class HttpClient:
    """An HTTP client for one service, with a maximum number of requests.

    Args:
        address: the address of the service, without a slash at its end.
        headers: headers of every request.
        most: maximum number of requests that are sent.
        wait: waits for a number of seconds.
        most_bytes: maximum size of a response.
        query_keys: headers that are sent in the query instead: names there, by names in lower case.
    """

    def __init__(
        self,
        address: str,
        headers: Headers,
        most: int,
        wait: Wait = asyncio.sleep,
        *,
        most_bytes: int = MOST_BYTES,
        query_keys: Mapping[str, str] | None = None,
    ) -> None:
        self._address, self._headers, self._most, self._wait = address, headers, most, wait
        self._most_bytes = most_bytes
        keys = query_keys or {}
        self._query = {keys[name.lower()]: one for name, one in headers.sent.items() if name.lower() in keys}
        self._sent = {name: one for name, one in headers.sent.items() if name.lower() not in keys}
        self._thread = Thread()
        self._client: AsyncClient | None = None
        self.sent = 0
        """Number of requests sent."""
        self.received = 0
        """Bytes of all responses."""
        self._waited_s = 0.0

    def ask(self, request: Request) -> Reply:
        """Send a request and return the response.

        Raises:
            UnusableAnswer: the response is too long, compressed, or from another host.
            NoAnswer: there is no response.
            Ended: there will be no further response.
        """
        return self._thread.start(self._asked(request)).result()

    def close(self) -> None:
        """End the connection."""
        if self._client is not None:
            self._thread.start(self._client.aclose()).result(10)
        self._thread.close()

    async def _asked(self, request: Request) -> Reply:
        from httpx2 import ConnectError, ConnectTimeout, HTTPError, InvalidURL, TimeoutException

        busy = ""
        for number in range(_TRIES):
            is_last, wait_s = number == _TRIES - 1, 2.0**number
            try:
                async with asyncio.timeout(CALL_S):
                    reply, told_s = await self._once(request)
                if reply.status not in _BUSY:
                    return reply
                busy, wait_s = status_text(reply.status), wait_s if told_s is None else told_s
            except (ConnectError, ConnectTimeout) as error:
                if is_last:
                    raise Ended(f"it cannot be reached ({self._said(error)})") from error
            except (TimeoutError, TimeoutException) as error:
                raise NoAnswer(f"it takes longer than {CALL_S:g} s") from error
            except InvalidURL as error:
                raise UnusableAnswer("The service is asked for something that has no address.") from error
            except HTTPError as error:
                if number or request.method != "GET":
                    raise NoAnswer(f"the connection breaks ({self._said(error)})") from error
            if not is_last:
                await self._pause(wait_s)
        raise NoAnswer(f"it is too busy ({busy})")

    async def _pause(self, seconds: float) -> None:
        """Wait for a number of seconds that the service asks for.

        Raises:
            Ended: the wait is too long.
        """
        if seconds > _MOST_WAIT_S or self._waited_s + seconds > _MOST_WAITED_S:
            raise Ended(f"it wants to be left alone for {max(1.0, seconds):.0f} s")
        self._waited_s += seconds
        await self._wait(seconds)

    async def _once(self, request: Request) -> tuple[Reply, float | None]:
        """Return the response after all redirects, and the seconds that it asks to wait.

        Raises:
            UnusableAnswer: see `ask`.
            Ended: the maximum number of requests was sent.
        """
        from httpx2 import URL

        client = self._opened()
        url = first = URL(self._address + request.target)
        for _ in range(_MOST_HOPS + 1):
            if self.sent >= self._most:
                raise Ended(f"{self._most} requests were sent, as many as are allowed")
            self.sent += 1
            client.cookies.clear()
            headers = {**request.headers, **self._sent}
            target = url.copy_merge_params(self._query) if self._query else url
            async with client.stream(
                request.method, target, headers=headers, content=request.body
            ) as response:
                location = response.headers.get("location", "")
                if response.status_code not in _MOVED or not location:
                    return await self._read(response), _retry_after_s(response)
            if request.method != "GET":
                raise UnusableAnswer(
                    "The service sends this call elsewhere, and what may write is not sent twice."
                )
            url = url.join(location)
            if not _same_host(first, url):
                raise UnusableAnswer(
                    f"The service sends this call to {self._headers.safe(_host(url))}, and only "
                    f"{_host(first)} is asked."
                )
        raise UnusableAnswer("The service sends this call in circles.")

    async def _read(self, response: Response) -> Reply:
        packed = response.headers.get("content-encoding", "identity").lower()
        if packed != "identity":
            raise UnusableAnswer("The service packed its answer, which it was asked not to.")
        parts: list[bytes] = []
        size = 0
        async for part in response.aiter_raw():
            self.received += len(part)
            size += len(part)
            if size > self._most_bytes:
                raise UnusableAnswer(TOO_LARGE)
            parts.append(part)
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        return Reply(status=response.status_code, kind=kind, body=b"".join(parts))

    def _opened(self) -> AsyncClient:
        from httpx2 import AsyncClient, Timeout

        if self._client is None:
            self._client = AsyncClient(
                timeout=Timeout(CALL_S),
                follow_redirects=False,
                headers={
                    "accept": "application/json, */*;q=0.1",
                    "accept-encoding": "identity",
                    "user-agent": "genenv",
                },
            )
        return self._client

    def _said(self, error: Exception) -> str:
        return self._headers.safe(first_line(error)).rstrip(".")


def status_text(status: int) -> str:
    """Return a status code with its name, if it has one."""
    try:
        return f"{status} {HTTPStatus(status).phrase}"
    except ValueError:
        return str(status)


def _host(url: URL) -> str:
    return f"{url.scheme}://{url.netloc.decode('ascii', 'replace')}"


def _same_host(first: URL, url: URL) -> bool:
    """Whether an address has the same host and port, or the same host over TLS."""
    if url.host != first.host or url.username or url.password:
        return False
    if (url.scheme, url.port) == (first.scheme, first.port):
        return True
    return (first.scheme, first.port, url.scheme, url.port) == ("http", None, "https", None)


def _retry_after_s(response: Response) -> float | None:
    """Return the value of `Retry-After` in seconds; None if it is missing or not readable."""
    told = response.headers.get("retry-after", "").strip()
    if re.fullmatch(r"[0-9]{1,9}", told):
        return float(told)
    try:
        moment = parsedate_to_datetime(told)
    except (ValueError, TypeError):
        return None
    now = datetime.fromtimestamp(time.time(), UTC)
    return max(0.0, (moment.replace(tzinfo=moment.tzinfo or UTC) - now).total_seconds())


_COUNTS = frozenset({"total", "count", "size", "totalcount", "totalresults", "totalitems", "totalsize"})
"""Names of fields that hold the number of records."""
_DONE = frozenset({"deleted", "success", "successful", "ok", "done", "removed"})
"""Names of fields that confirm a change."""
_PYTHON: Mapping[str, type | tuple[type, ...]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "array": list,
    "object": dict,
}


class AnswerBuilder:
    """Builds the response of a mock operation in the form that the document declares.

    Args:
        answer: the declared response; None: records are returned as they are.
        seed: seed of required values that no record has.
    """

    def __init__(self, answer: Answer | None, seed: str) -> None:
        self._answer, self._seed = answer, seed
        self._made: dict[tuple[str, ...], Json] = {}

    def told(self, records: Sequence[Record], *, several: bool) -> Json:
        """Return the response for some records.

        Args:
            records: the records of the table.
            several: whether the response is a list; else there is one record.
        """
        answer = self._answer
        if answer is None:
            plainly = [cast(Json, copy.deepcopy(one)) for one in records]
            return plainly if several else plainly[0]
        if not answer.many and not answer.fields:
            return self._new((), answer.schema)
        items = [_as_declared(answer.fields, one) for one in records]
        value: Json = items if answer.many else items[0]
        for name in reversed(answer.path):
            value = {name: value}
        return self._completed(value, answer.schema, (), len(records))

    def _completed(self, value: Json, schema: Mapping[str, Any], path: tuple[str, ...], count: int) -> Json:
        """Return a response with the further fields that its schema requires."""
        if isinstance(value, list):
            items = cast("Mapping[str, Any]", schema.get("items") or {})
            return [self._completed(one, items, (*path, "*"), count) for one in value]
        if not isinstance(value, dict):
            return value
        properties = properties_of(schema)
        whole: dict[str, Json] = {
            name: self._completed(one, properties.get(name, {}), (*path, name), count)
            for name, one in value.items()
        }
        required = set(cast("Sequence[str]", schema.get("required", ())))
        wanted = [name for name in properties if name in required and name not in whole]
        if not whole and not path:  # an acknowledgment without a record
            wanted = [name for name, one in properties.items() if name in required or _is_single(one)]
        for name in wanted:
            kind = properties[name].get("type")
            if plain(name) in _COUNTS and kind in ("integer", "number"):
                whole[name] = count
            elif kind == "boolean":
                whole[name] = plain(name) in _DONE
            elif kind == "array" and not properties[name].get("minItems"):
                whole[name] = []
            else:
                whole[name] = self._new((*path, name), properties[name])
        return whole

    def _new(self, path: tuple[str, ...], schema: Mapping[str, Any]) -> Json:
        """Return a value that no record has, the same one on each call."""
        if path not in self._made:
            rng = random.Random(f"{self._seed} {path}")
            self._made[path] = valued(path[-1] if path else self._seed, schema, rng)
        return copy.deepcopy(self._made[path])


def _is_single(schema: Mapping[str, Any]) -> bool:
    return schema.get("type") in ("string", "integer", "number", "boolean")


def _as_declared(fields: Mapping[str, Field], record: Record) -> Json:
    """Return the fields of a record that a response declares, at their declared paths."""
    made: dict[str, Json] = {}
    for name, one in fields.items():
        if name not in record:
            continue
        value = _fitting(copy.deepcopy(record[name]), one.schema)
        if value is None:
            continue
        inside = made
        for part in one.path[:-1]:
            inside = cast("dict[str, Json]", inside.setdefault(part, {}))
        inside[one.path[-1]] = value
    return made


def _fitting(value: Json, schema: Mapping[str, Any]) -> Json:
    """Convert a value to its declared type; None if that is not possible.

    Request and response may differ in a field: `"owner": "U-1"` is returned as `{"id": "U-1"}`.
    """
    kind = str(schema.get("type", ""))
    if "const" in schema or "enum" in schema:
        listed = cast("Sequence[Json]", schema.get("enum", [schema.get("const")]))
        return value if value in listed else listed[0] if len(listed) == 1 else None
    if isinstance(value, list) and kind == "array":
        items = cast("Mapping[str, Any]", schema.get("items") or {})
        return [one for one in (_fitting(one, items) for one in value) if one is not None]
    if kind not in _PYTHON or (isinstance(value, _PYTHON[kind]) and not _is_no_number(value, kind)):
        return value
    if kind == "array" and not isinstance(value, dict):
        return [value] if value is not None else None
    if kind == "object" and isinstance(value, str | int):
        path = reference_path(schema)
        for name in reversed(path):
            value = {name: value}
        return value if path else None
    if kind == "string" and isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    if isinstance(value, dict) and (path := reference_path({"properties": {one: {} for one in value}})):
        return _fitting(value[path[0]], schema)
    return None


def _is_no_number(value: Json, kind: str) -> bool:
    return isinstance(value, bool) and kind in ("integer", "number")


TOO_LONG = f"The result is longer than {MOST_CHARS} characters."
_MOST_TOLD = 300
"""Maximum length in characters of a service's error text."""
_TELLING = ("detail", "message", "error_description", "error", "errors", "title", "reason", "msg")
"""Fields of an error that explain it, likeliest first."""


def outcome_of(reply: Reply, headers: Headers) -> Outcome:
    """Convert an HTTP response to a tool outcome.

    Args:
        reply: the response.
        headers: the headers whose secrets are removed.
    """
    answer: Json = None
    try:
        answer = headers.without(result_of(json.loads(reply.body or b"null")))
        problem = ""
    except NotJson as error:
        problem = f"The service answers {error}."
    except (ValueError, RecursionError):
        problem = f"The service answers {headers.safe(reply.kind)[:80] or 'something'} that is no JSON."
    if not 200 <= reply.status < 300:
        told = _told(answer)
        return Outcome(error=f"The service answers {status_text(reply.status)}{f': {told}' if told else '.'}")
    if problem:
        return Outcome(error=problem)
    if len(json.dumps(answer, ensure_ascii=False)) > MOST_CHARS:
        return Outcome(error=TOO_LONG)
    return Outcome(result=answer)


def _told(answer: Json, depth: int = 0) -> str:
    """Return the text of a service's error."""
    if isinstance(answer, str):
        return " ".join(answer.split())[:_MOST_TOLD]
    if depth > 4:
        return ""
    if isinstance(answer, list):
        return next((told for one in answer[:4] if (told := _told(one, depth + 1))), "")
    if isinstance(answer, Mapping):
        held = (answer[name] for name in _TELLING if name in answer)
        return next((told for one in held if (told := _told(one, depth + 1))), "")
    return ""
