"""HTTP to and from an OpenAPI service: requests, secret headers, and responses as tool outcomes.

The client sends one request at a time, up to a maximum, and honors `Retry-After`. The service is not trusted:
redirects to other hosts are refused, and responses are limited in size and time.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import contextlib
import json
import re
import time
import urllib.parse
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from http.client import responses
from typing import TYPE_CHECKING

from genenv.errors import UsageError, first_line
from genenv.http.guard import client_options
from genenv.texts import SHORTEST_SECRET, clean, masked, without
from genenv.tools.discover.state_values import words_of
from genenv.tools.worlds.base import MOST_CHARS, TOO_LONG, Outcome
from genenv.tools.worlds.jsonable import NotJson, result_of, with_texts
from genenv.tools.worlds.processes import Thread
from genenv.tools.worlds.recorded import Ended, NoAnswer
from genenv.types import Json

if TYPE_CHECKING:
    from httpx2 import URL, AsyncClient, Response


_NAME = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]+")
_VARIABLE = re.compile(r"\$(?:\{([A-Za-z_][A-Za-z0-9_]*)\}|([A-Za-z_][A-Za-z0-9_]*))")
HEADER_VALUE = re.compile(r"[\x20-\x7e]+")
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
        self.sent: dict[str, str] = {}
        """Headers with their values."""
        self._secrets: set[str] = set()
        for one in typed:
            name, value = _parts(one)
            self.sent[name] = _VARIABLE.sub(
                lambda found, name=name: self._held(name, found[1] or found[2], environment), value
            )
            if _VARIABLE.search(value):
                self._secrets |= {form for form in _forms(self.sent[name]) if len(form) >= SHORTEST_SECRET}

    def _held(self, header: str, variable: str, environment: Mapping[str, str]) -> str:
        value = environment.get(variable, "").strip()
        if not value:
            raise UsageError(f"--header {header} names the environment variable {variable}, which is not set")
        if not HEADER_VALUE.fullmatch(value):
            raise UsageError(f"what {variable} holds cannot be in a header: it is more than plain characters")
        if len(value) < SHORTEST_SECRET:
            told = f"if it is no secret, write it into --header {header}"
            raise UsageError(f"what {variable} holds is too short to be kept out of what is recorded; {told}")
        self._secrets |= {value, urllib.parse.quote(value, safe=""), urllib.parse.quote_plus(value)}
        return value

    def safe(self, text: str) -> str:
        """Return a text of the service without secrets."""
        return without(text, self._secrets)

    def without(self, value: Json) -> Json:
        """Return an answer without secrets."""
        return with_texts(value, lambda text: self.safe(clean(text)), keys=True)


def _parts(typed: str) -> tuple[str, str]:
    """Split a header that users may set into name and value."""
    name, colon, value = (part.strip() for part in typed.partition(":"))
    if not colon or not _NAME.fullmatch(name) or not HEADER_VALUE.fullmatch(value):
        told = "is not NAME: VALUE, such as 'Authorization: Bearer $TOKEN'"
        raise UsageError(f"--header {masked(name)[:40]!r} {told}")
    if name.lower() in _OWN:
        raise UsageError(f"--header {name} cannot be given: genenv sets it itself")
    if set(words_of(name)) & _SECRET and not _VARIABLE.search(value):
        told = f"name an environment variable instead, in single quotes: '{name}: $VARIABLE'"
        raise UsageError(f"--header {name} holds a secret in writing, which the bundle would keep; {told}")
    return name, value


def _forms(value: str) -> Iterator[str]:
    """Yield the forms of a secret header that a service may repeat: its value and `Basic` parts."""
    yield value
    kind, _, packed = value.partition(" ")
    with contextlib.suppress(binascii.Error, UnicodeDecodeError):
        plain = base64.b64decode(packed if kind.lower() == "basic" else "", validate=True).decode()
        yield from (plain, plain.partition(":")[2])


CALL_S = 30.0
"""Seconds that a call may take, including redirects."""
MOST_BYTES = 1 << 20
"""Maximum size of a response in bytes."""
TOO_LARGE = f"The service answers more than {MOST_BYTES >> 20} MiB."
_JSON = "application/json, */*;q=0.1"
_ALWAYS = {"accept": _JSON, "accept-encoding": "identity", "user-agent": "genenv"}
_TRIES = 4
_MOST_WAIT_S, _MOST_WAITED_S = 120.0, 900.0
"""Maximum seconds that a service may ask to wait, at once and in total."""
_MOST_HOPS = 5
_TOO_MANY = 429
_BUSY = frozenset({_TOO_MANY, 503})

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
        self._address, self.headers, self._most, self._wait = address, headers, most, wait
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
                may_repeat = request.method == "GET" or reply.status == _TOO_MANY
                if not may_repeat:  # a write may have been done all the same
                    raise NoAnswer(f"it is too busy ({status_text(reply.status)})")
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
        """Wait as long as the service asks for, or raise `Ended` if that is too long."""
        if seconds > _MOST_WAIT_S or self._waited_s + seconds > _MOST_WAITED_S:
            raise Ended(f"it wants to be left alone for {max(1.0, seconds):.0f} s")
        self._waited_s += seconds
        await self._wait(seconds)

    async def _once(self, request: Request) -> tuple[Reply, float | None]:
        """Return the response after all redirects, and the seconds that it asks to wait. Raises as `ask`."""
        from httpx2 import URL, AsyncClient, Timeout

        url = first = URL(self._address + request.target)
        if self._client is None:  # which asks this host alone
            options = client_options(str(url))
            self._client = AsyncClient(timeout=Timeout(CALL_S), headers=_ALWAYS, **options)
        client = self._client
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
                if not response.has_redirect_location:
                    return await self._read(response), _retry_after_s(response)
            if request.method != "GET":
                told = "elsewhere, and what may write is not sent twice"
                raise UnusableAnswer(f"The service sends this call {told}.")
            url = url.join(response.headers["location"])
            if not _same_host(first, url):
                told = f"{self.headers.safe(_host(url))}, and only {_host(first)} is asked"
                raise UnusableAnswer(f"The service sends this call to {told}.")
        raise UnusableAnswer("The service sends this call in circles.")

    async def _read(self, response: Response) -> Reply:
        if response.headers.get("content-encoding", "identity").lower() != "identity":
            raise UnusableAnswer("The service packed its answer, which it was asked not to.")
        body = bytearray()
        async for part in response.aiter_raw():
            self.received += len(part)
            body += part
            if len(body) > self._most_bytes:
                raise UnusableAnswer(f"The service answers more than {self._most_bytes >> 20} MiB.")
        kind = response.headers.get("content-type", "").partition(";")[0].strip().lower()
        return Reply(status=response.status_code, kind=kind, body=bytes(body))

    def _said(self, error: Exception) -> str:
        return self.headers.safe(first_line(error)).rstrip(".")


def status_text(status: int) -> str:
    """Return a status code with its name, if it has one."""
    return f"{status} {responses.get(status, '')}".rstrip()


def _host(url: URL) -> str:
    return f"{url.scheme}://{url.netloc.decode('ascii', 'replace')}"


def _same_host(first: URL, url: URL) -> bool:
    """Whether an address has the same host and port, or the same host over TLS."""
    same = (
        (first.scheme, first.port),
        *([("https", None)] if (first.scheme, first.port) == ("http", None) else []),
    )
    return url.host == first.host and not (url.username or url.password) and (url.scheme, url.port) in same


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


_MOST_TOLD = 300
"""Maximum length in characters of a service's error text."""
_TELLING = ("detail", "message", "error_description", "error", "errors", "title", "reason", "msg")
"""Fields of an error that explain it, likeliest first."""


def outcome_of(reply: Reply, headers: Headers) -> Outcome:
    """Convert an HTTP response to a tool outcome without the secrets of the headers."""
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
    inner = answer[:4] if isinstance(answer, list) else ()
    if isinstance(answer, Mapping):
        inner = [answer[name] for name in _TELLING if name in answer]
    return next((told for one in inner if depth < 5 and (told := _told(one, depth + 1))), "")
